//! What a validator needs of the chain, and the last good look at the subnet.
//!
//! The trait is the seam for tests of failures that no honest chain shows on demand; the real chain has one
//! implementation, [`Subnet`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use muster_chain::changes::{Snapshot, diff};
use muster_chain::commit::{Committed, OnChain};
use muster_chain::{
    BlockNumber, ChainClient, ChainError, Metagraph, MetagraphEvent, Netuid, Patience, Rao, WeightRules,
    WeightsCall,
};
use muster_identity::Keypair;
use muster_process::SharedClock;
use muster_process::clock::SystemClock;
use muster_process::error::Causes;
use muster_protocol::{ErrorCode, Timestamp};
use tokio::sync::{Mutex, MutexGuard, OnceCell, watch};

use crate::shared::LinkState;

/// Finalised blocks as they come; after an error it is to be dropped and made anew.
pub type Blocks = BoxStream<'static, Result<BlockNumber, ChainError>>;

/// A block's number and its hash.
pub type Hashed = (BlockNumber, [u8; 32]);

/// One subnet, seen and written with one validator's key.
pub trait Chain: fmt::Debug + Send + Sync + 'static {
    /// The chain's genesis hash: what tells its blocks from another chain's.
    fn genesis(&self) -> BoxFuture<'_, Result<String, ChainError>>;

    /// The subnet at the last finalised block.
    fn metagraph(&self) -> BoxFuture<'_, Result<Metagraph, ChainError>>;

    /// The last finalised block and its hash; `None` where a chain tells none, and then nothing is drawn from them.
    fn head_hash(&self) -> BoxFuture<'_, Result<Option<Hashed>, ChainError>> {
        async { Ok(None) }.boxed()
    }

    /// Its rules for weights.
    fn weight_rules(&self) -> BoxFuture<'_, Result<WeightRules, ChainError>>;

    /// Hands in a call about this validator's weights; returns once it is final.
    fn submit<'a>(&'a self, call: &'a WeightsCall) -> BoxFuture<'a, Result<Committed, ChainError>>;

    /// What the chain shows of this validator's weights and commits.
    fn shown(&self) -> BoxFuture<'_, Result<OnChain, ChainError>>;

    /// Finalised blocks from now on.
    fn blocks(&self) -> BoxFuture<'_, Result<Blocks, ChainError>>;
}

/// The real thing.
#[derive(Debug)]
pub struct Subnet {
    urls: Vec<String>,
    /// Connected at the first question that the endpoint answers; from then on it reconnects by itself.
    client: OnceCell<Arc<ChainClient>>,
    netuid: Netuid,
    keypair: Keypair,
}

impl Subnet {
    /// The subnet `netuid` of the chain at `urls`, the preferred one first, written with `keypair`. Nothing is dialled yet.
    pub fn new(urls: Vec<String>, netuid: Netuid, keypair: Keypair) -> Self {
        Self {
            urls,
            client: OnceCell::new(),
            netuid,
            keypair,
        }
    }

    async fn client(&self) -> Result<&Arc<ChainClient>, ChainError> {
        self.client
            .get_or_try_init(|| {
                ChainClient::connect_any(&self.urls, Patience::default(), Arc::new(SystemClock::new()))
            })
            .await
    }
}

impl Chain for Subnet {
    fn genesis(&self) -> BoxFuture<'_, Result<String, ChainError>> {
        async { Ok(self.client().await?.genesis()) }.boxed()
    }

    fn metagraph(&self) -> BoxFuture<'_, Result<Metagraph, ChainError>> {
        async { self.client().await?.metagraph(self.netuid).await }.boxed()
    }

    fn head_hash(&self) -> BoxFuture<'_, Result<Option<Hashed>, ChainError>> {
        async { Ok(Some(self.client().await?.head_hash().await?)) }.boxed()
    }

    fn weight_rules(&self) -> BoxFuture<'_, Result<WeightRules, ChainError>> {
        async { self.client().await?.weight_rules(self.netuid).await }.boxed()
    }

    fn submit<'a>(&'a self, call: &'a WeightsCall) -> BoxFuture<'a, Result<Committed, ChainError>> {
        async move {
            let client = self.client().await?;
            client.submit_weights(&self.keypair, self.netuid, call).await
        }
        .boxed()
    }

    fn shown(&self) -> BoxFuture<'_, Result<OnChain, ChainError>> {
        async {
            let client = self.client().await?;
            client.weights_shown(self.netuid, &self.keypair.hotkey()).await
        }
        .boxed()
    }

    fn blocks(&self) -> BoxFuture<'_, Result<Blocks, ChainError>> {
        async move {
            let blocks = self.client().await?.blocks().await?;
            let follow = stream::unfold(
                blocks,
                |mut blocks| async move { Some((blocks.next().await, blocks)) },
            );
            Ok(follow.boxed())
        }
        .boxed()
    }
}

/// Writes into the log what jobs and weights may trip over: who came, went, or took another's place.
fn tell(before: &Arc<Metagraph>, after: &Arc<Metagraph>) {
    let look = |graph: &Arc<Metagraph>| Snapshot {
        graph: Arc::clone(graph),
        rules: None,
    };
    for event in diff(&look(before), &look(after), Rao(u64::MAX)) {
        match event {
            MetagraphEvent::UidReused { uid, from, to, at } => {
                tracing::warn!(%uid, %from, %to, %at, "a uid passed to another neuron");
            }
            MetagraphEvent::HotkeySwapped { uid, from, to } => {
                tracing::warn!(%uid, %from, %to, "a neuron goes on under another hotkey");
            }
            MetagraphEvent::Deregistered { uid, hotkey } => tracing::info!(%uid, %hotkey, "deregistered"),
            MetagraphEvent::Registered { uid, hotkey, at } => {
                tracing::info!(%uid, %hotkey, %at, "registered")
            }
            MetagraphEvent::AxonChanged { uid, from, to } => {
                tracing::debug!(%uid, ?from, ?to, "listens elsewhere")
            }
            MetagraphEvent::PermitGained(uid) => tracing::debug!(%uid, "may set weights"),
            MetagraphEvent::PermitLost(uid) => tracing::debug!(%uid, "may no longer set weights"),
            MetagraphEvent::StakeChanged { .. } | MetagraphEvent::RulesChanged { .. } => {}
        }
    }
}

/// The subnet, and when it was read.
type Picture = (Timestamp, Arc<Metagraph>);

/// The last good look at the subnet, taken anew when it is old and kept when the chain is silent.
#[derive(Debug)]
pub(crate) struct Outlook {
    chain: Arc<dyn Chain>,
    clock: SharedClock,
    max_age: Duration,
    /// None before the chain has been met. Whoever finds it old holds the lock while reading, so that a hundred jobs cause
    /// one reading.
    latest: Mutex<Option<Picture>>,
    /// The same subnet, for whoever cannot wait for a reading.
    seen: watch::Sender<Option<Arc<Metagraph>>>,
    /// The newest finalised block seen; none before the chain has been met.
    head: watch::Sender<Option<BlockNumber>>,
    state: watch::Sender<LinkState>,
}

impl Outlook {
    pub(crate) fn new(chain: Arc<dyn Chain>, clock: SharedClock, max_age: Duration) -> Self {
        Self {
            chain,
            clock,
            max_age,
            latest: Mutex::new(None),
            seen: watch::Sender::default(),
            head: watch::Sender::default(),
            state: watch::Sender::default(),
        }
    }

    /// The chain itself.
    pub(crate) fn chain(&self) -> &dyn Chain {
        &*self.chain
    }

    /// The chain has answered for the first time, and the store knows which one it is: from here on jobs are routed.
    pub(crate) async fn met(&self, metagraph: Metagraph) {
        let head = metagraph.block;
        let metagraph = Arc::new(metagraph);
        self.seen.send_replace(Some(Arc::clone(&metagraph)));
        *self.latest.lock().await = Some((self.clock.now(), metagraph));
        self.saw(head);
    }

    /// A metagraph to route by. Before the chain has been met it is waited for.
    pub(crate) async fn metagraph(&self) -> Arc<Metagraph> {
        let mut met = self.head.subscribe();
        loop {
            if let Some(metagraph) = self.last_good().await {
                return metagraph;
            }
            // The sender is this outlook's own, so there is always something to wait for.
            let _ = met.wait_for(Option::is_some).await;
        }
    }

    /// The metagraph to route by, if there is one that is not too old and nobody is reading it anew: no waiting.
    pub(crate) fn fresh(&self) -> Option<Arc<Metagraph>> {
        let latest = self.latest.try_lock().ok()?;
        let (at, known) = latest.as_ref()?;
        (self.clock.now().since(*at) < self.max_age).then(|| Arc::clone(known))
    }

    /// The subnet as it is now, if blocks have come since `known` was read and the chain answers.
    pub(crate) async fn newer_than(&self, known: &Metagraph) -> Option<Arc<Metagraph>> {
        let head = *self.head.borrow();
        if head.is_none_or(|head| head <= known.block) {
            return None;
        }
        let read = self.read(self.latest.lock().await).await;
        read.filter(|metagraph| metagraph.block > known.block)
    }

    async fn last_good(&self) -> Option<Arc<Metagraph>> {
        let latest = self.latest.lock().await;
        let (at, known) = latest.clone()?;
        if self.clock.now().since(at) < self.max_age {
            return Some(known);
        }
        self.read(latest).await
    }

    /// Reads the subnet anew; the last good picture where the chain does not answer.
    async fn read(&self, mut latest: MutexGuard<'_, Option<Picture>>) -> Option<Arc<Metagraph>> {
        let known = latest.as_ref().map(|(_, known)| Arc::clone(known));
        match self.chain.metagraph().await {
            Ok(metagraph) => {
                self.saw(metagraph.block);
                let metagraph = Arc::new(metagraph);
                if let Some((_, before)) = &*latest {
                    tell(before, &metagraph);
                }
                self.seen.send_replace(Some(Arc::clone(&metagraph)));
                *latest = Some((self.clock.now(), Arc::clone(&metagraph)));
                Some(metagraph)
            }
            Err(error) => {
                self.lost(
                    &error,
                    "the chain does not answer; routing by the last good metagraph",
                );
                known
            }
        }
    }

    /// The subnet as it was last read, without waiting; `None` before the chain has been met.
    pub(crate) fn seen(&self) -> Option<Arc<Metagraph>> {
        self.seen.borrow().clone()
    }

    /// Notes a finalised block.
    pub(crate) fn saw(&self, block: BlockNumber) {
        self.head.send_if_modified(|head| {
            let newer = head.is_none_or(|head| block > head);
            if newer {
                *head = Some(block);
            }
            newer
        });
        self.state.send_replace(LinkState::Connected);
    }

    /// Notes that the chain does not answer.
    pub(crate) fn lost(&self, error: &ChainError, consequence: &str) {
        let code = ErrorCode::ChainUnreachable;
        let reason = Causes(error).to_string();
        tracing::warn!(%code, reason, "{consequence}");
        self.state.send_replace(LinkState::Lost { reason });
    }

    /// How the link stands.
    pub(crate) fn state(&self) -> LinkState {
        self.state.borrow().clone()
    }

    /// Waits until a block after this one is final, and gives the newest with its hash. A chain that does not answer, or tells no
    /// hashes, is asked again with the next block.
    pub(crate) async fn block_after(&self, block: u64) -> (u64, [u8; 32]) {
        let (mut head, mut last) = (self.head.subscribe(), block);
        loop {
            let newer = |head: &Option<BlockNumber>| head.is_some_and(|head| head.0 > last);
            // The sender is this outlook's own.
            let seen = head.wait_for(newer).await.map(|head| *head);
            if let Ok(Some((number, hash))) = self.chain.head_hash().await
                && number.0 > block
            {
                return (number.0, hash);
            }
            last = seen.ok().flatten().map_or(last, |head| head.0);
        }
    }

    /// The newest finalised block seen; none before the chain has been met.
    pub(crate) fn head(&self) -> Option<BlockNumber> {
        *self.head.borrow()
    }
}
