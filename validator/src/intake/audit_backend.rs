//! Spot checks as part of the validator: they are opened here beside the gateway whose answers they check, and their
//! references run as jobs of the validator's own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_audit_runner::{AuditBackend, AuditCalls, AuditDeps, AuditRunner, RunnerExchange};
use muster_chain::{BlockNumber, Metagraph};
use muster_gateway::Gateway;
use muster_gateway::logged_session::{OnAnswer, OwnQuestion};
use muster_gateway::miner_sessions::MinerSessions;
use muster_process::error::Causes;
use muster_protocol::{Digest, MinerKey};
use muster_session_pool::Service;
use muster_store::StoreError;
use muster_verdict_exchange::{AdoptionRule, ExchangeDeps, VerdictExchange};

use crate::peers::PeerValidators;
use crate::state::ValidatorState;
use crate::status::StatusSources;

/// The validator as spot checks use it.
struct ValidatorAudits {
    state: Arc<ValidatorState>,
    gateway: Option<Gateway>,
}

/// Begins to log and to audit the answers of a gateway; `None` without one.
pub(crate) async fn open_audits(
    state: &Arc<ValidatorState>,
    gateway: Option<&Gateway>,
    trusted: Option<MinerSessions>,
) -> Result<Option<AuditRunner>, StoreError> {
    let Some(gateway) = gateway else {
        return Ok(None);
    };
    let failing = Arc::clone(state);
    let deps = AuditDeps {
        gateway: gateway.clone(),
        backend: backend(state, Some(gateway)),
        trusted,
        store: Arc::clone(&state.store),
        keypair: state.keypair.clone(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        on_store_failure: Box::new(move |error| failing.fail(error)),
    };
    AuditRunner::open(state.config.audit.clone(), deps)
        .await
        .map(Some)
}

/// The calls of the status page about audits.
pub(crate) fn audit_calls(sources: &StatusSources) -> AuditCalls {
    let state = &sources.state;
    AuditCalls {
        validator: state.key(),
        backend: backend(state, sources.gateway.as_ref()),
        store: Arc::clone(&state.store),
        runner: sources.audits.clone(),
        operator: sources.operator.clone(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
    }
}

pub(super) fn backend(state: &Arc<ValidatorState>, gateway: Option<&Gateway>) -> Arc<dyn AuditBackend> {
    Arc::new(ValidatorAudits {
        state: Arc::clone(state),
        gateway: gateway.cloned(),
    })
}

/// The exchange of verdicts with these validators; `None` if it cannot ask them.
pub(crate) fn verdict_exchange(
    state: &Arc<ValidatorState>,
    audits: Option<AuditRunner>,
    peers: Arc<PeerValidators>,
) -> Option<VerdictExchange> {
    VerdictExchange::new(ExchangeDeps {
        backend: Arc::new(RunnerExchange {
            backend: backend(state, None),
            runner: audits,
            peers: Box::new(move || peers.addresses()),
        }),
        store: Arc::clone(&state.store),
        keypair: state.keypair.clone(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        rule: AdoptionRule {
            requires_self_test: state.config.audit.require_self_test,
        },
    })
}

impl AuditBackend for ValidatorAudits {
    fn metagraph(&self) -> Option<Arc<Metagraph>> {
        self.state.subnet.last_metagraph()
    }

    fn next_block(&self, block: u64) -> BoxFuture<'_, u64> {
        let next = self.state.subnet.wait_for_block_after(block);
        Box::pin(async move { next.await.0 })
    }

    fn block_hash(&self, block: u64) -> BoxFuture<'_, Option<Digest>> {
        Box::pin(async move {
            match self.state.subnet.chain().block_hash(BlockNumber(block)).await {
                Ok(hash) => hash.map(Digest::from_bytes),
                Err(error) => {
                    tracing::warn!(block, error = %Causes(&error), "the log of answers waits for the hash of a block");
                    None
                }
            }
        })
    }

    fn services(&self) -> Vec<Service> {
        self.state.config.gateway.services.clone()
    }

    fn served_models(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async move {
            let Some(gateway) = &self.gateway else {
                return Vec::new();
            };
            let sessions = gateway.list_live_sessions().await;
            let mut models: Vec<String> = sessions
                .iter()
                .map(|session| session.service().model.clone())
                .collect();
            models.sort_unstable();
            models.dedup();
            models
        })
    }

    fn bar_sessions(&self, barred: BTreeMap<String, BTreeSet<MinerKey>>) {
        *self.state.barred.lock() = barred;
    }

    fn ask_miner<'a>(
        &'a self,
        miner: MinerKey,
        model: &'a str,
        questions: Vec<OwnQuestion>,
        answered: OnAnswer<'a>,
    ) -> BoxFuture<'a, Result<usize, String>> {
        Box::pin(async move {
            let gateway = self.gateway.as_ref().ok_or("the validator has no gateway")?;
            gateway.ask_miner(miner, model, questions, answered).await
        })
    }

    fn ask(&self, question: OwnQuestion) -> BoxFuture<'_, Result<String, String>> {
        Box::pin(async move {
            let gateway = self.gateway.as_ref().ok_or("the validator has no gateway")?;
            let asked = gateway.ask(question).await;
            asked.map_err(|error| error.to_string())
        })
    }
}
