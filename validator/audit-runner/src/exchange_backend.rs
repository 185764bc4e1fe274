//! The validator and its references, as the exchange of verdicts uses them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_audit::{Calibration, RescorablePair, TokenScore};
use muster_chain::Metagraph;
use muster_protocol::{Digest, ValidatorKey};
use muster_verdict_exchange::ExchangeBackend;

use crate::AuditRunner;
use crate::backend::AuditBackend;

/// The parts of a validator from which its exchange of verdicts is made.
pub struct RunnerExchange {
    /// The validator, as spot checks use it.
    pub backend: Arc<dyn AuditBackend>,
    /// The spot checks, whose references score others' answers again; `None` without a gateway.
    pub runner: Option<AuditRunner>,
    /// The addresses at which other validators with a permit serve their pages.
    pub peers: Box<dyn Fn() -> BTreeMap<ValidatorKey, SocketAddr> + Send + Sync>,
}

impl ExchangeBackend for RunnerExchange {
    fn metagraph(&self) -> Option<Arc<Metagraph>> {
        self.backend.metagraph()
    }

    fn next_block(&self, block: u64) -> BoxFuture<'_, u64> {
        self.backend.next_block(block)
    }

    fn block_hash(&self, block: u64) -> BoxFuture<'_, Option<Digest>> {
        self.backend.block_hash(block)
    }

    fn peers(&self) -> BTreeMap<ValidatorKey, SocketAddr> {
        (self.peers)()
    }

    fn calibration(&self, model: &str) -> Option<Calibration> {
        self.runner.as_ref()?.calibration(model)
    }

    fn rescore(
        &self,
        model: String,
        pairs: Vec<RescorablePair>,
    ) -> BoxFuture<'_, Result<Vec<Option<Vec<TokenScore>>>, String>> {
        Box::pin(async move {
            let runner = self.runner.as_ref().ok_or("this validator has no gateway")?;
            runner.rescore(&model, &pairs).await
        })
    }
}
