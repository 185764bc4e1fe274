//! What a validator needs of the chain, and the last good look at the subnet.
//!
//! The trait is the seam for tests of failures that no honest chain shows on demand; the real chain has one
//! implementation, [`Subnet`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use muster_chain::{BlockNumber, ChainClient, ChainError, Hyperparameters, Metagraph, Netuid, Uid};
use muster_identity::Keypair;
use muster_kit::SharedClock;
use muster_kit::error::Causes;
use muster_protocol::{ErrorCode, Timestamp};
use tokio::sync::Mutex;

/// Finalised blocks as they come; after an error it is to be dropped and made anew.
pub type Blocks = BoxStream<'static, Result<BlockNumber, ChainError>>;

/// One subnet, seen and written with one validator's key.
pub trait Chain: fmt::Debug + Send + Sync + 'static {
    /// The chain's genesis hash: what tells its blocks from another chain's.
    fn genesis(&self) -> String;

    /// The subnet at the last finalised block.
    fn metagraph(&self) -> BoxFuture<'_, Result<Metagraph, ChainError>>;

    /// Its rules.
    fn hyperparameters(&self) -> BoxFuture<'_, Result<Hyperparameters, ChainError>>;

    /// Sets this validator's weights; returns once they are final.
    fn set_weights<'a>(
        &'a self,
        weights: &'a [(Uid, u16)],
        version_key: u64,
    ) -> BoxFuture<'a, Result<(), ChainError>>;

    /// Finalised blocks from now on.
    fn blocks(&self) -> BoxFuture<'_, Result<Blocks, ChainError>>;
}

/// The real thing.
#[derive(Debug)]
pub struct Subnet {
    client: Arc<ChainClient>,
    netuid: Netuid,
    keypair: Keypair,
}

impl Subnet {
    /// The subnet `netuid` through `client`, written with `keypair`.
    pub fn new(client: Arc<ChainClient>, netuid: Netuid, keypair: Keypair) -> Self {
        Self {
            client,
            netuid,
            keypair,
        }
    }
}

impl Chain for Subnet {
    fn genesis(&self) -> String {
        self.client.genesis()
    }

    fn metagraph(&self) -> BoxFuture<'_, Result<Metagraph, ChainError>> {
        self.client.metagraph(self.netuid).boxed()
    }

    fn hyperparameters(&self) -> BoxFuture<'_, Result<Hyperparameters, ChainError>> {
        self.client.hyperparameters(self.netuid).boxed()
    }

    fn set_weights<'a>(
        &'a self,
        weights: &'a [(Uid, u16)],
        version_key: u64,
    ) -> BoxFuture<'a, Result<(), ChainError>> {
        async move {
            self.client
                .set_weights(&self.keypair, self.netuid, weights, version_key)
                .await?;
            Ok(())
        }
        .boxed()
    }

    fn blocks(&self) -> BoxFuture<'_, Result<Blocks, ChainError>> {
        async move {
            let blocks = self.client.blocks().await?;
            let follow = stream::unfold(
                blocks,
                |mut blocks| async move { Some((blocks.next().await, blocks)) },
            );
            Ok(follow.boxed())
        }
        .boxed()
    }
}

/// The last good look at the subnet, taken anew when it is old and kept when the chain is silent.
#[derive(Debug)]
pub(crate) struct Outlook {
    chain: Arc<dyn Chain>,
    clock: SharedClock,
    max_age: Duration,
    /// Whoever finds it old holds the lock while reading, so that a hundred jobs cause one reading.
    latest: Mutex<Option<(Timestamp, Arc<Metagraph>)>>,
    head: AtomicU64,
}

impl Outlook {
    pub(crate) fn new(chain: Arc<dyn Chain>, clock: SharedClock, max_age: Duration) -> Self {
        Self {
            chain,
            clock,
            max_age,
            latest: Mutex::new(None),
            head: AtomicU64::new(0),
        }
    }

    /// The chain itself.
    pub(crate) fn chain(&self) -> &dyn Chain {
        &*self.chain
    }

    /// A metagraph to route by; `None` if the chain has never answered.
    pub(crate) async fn metagraph(&self) -> Option<Arc<Metagraph>> {
        let mut latest = self.latest.lock().await;
        let now = self.clock.now();
        if let Some((at, metagraph)) = &*latest
            && now.since(*at) < self.max_age
        {
            return Some(Arc::clone(metagraph));
        }
        match self.chain.metagraph().await {
            Ok(metagraph) => {
                self.saw(metagraph.block);
                let metagraph = Arc::new(metagraph);
                *latest = Some((now, Arc::clone(&metagraph)));
                Some(metagraph)
            }
            Err(error) => {
                let code = ErrorCode::ChainUnreachable;
                tracing::warn!(%code, error = %Causes(&error), "the chain does not answer; routing by the last good metagraph");
                latest.as_ref().map(|(_, metagraph)| Arc::clone(metagraph))
            }
        }
    }

    /// Notes a finalised block.
    pub(crate) fn saw(&self, block: BlockNumber) {
        self.head.fetch_max(block.0, Ordering::Relaxed);
    }

    /// The newest finalised block seen.
    pub(crate) fn head(&self) -> BlockNumber {
        BlockNumber(self.head.load(Ordering::Relaxed))
    }
}
