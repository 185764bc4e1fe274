//! The validator's view of the subnet: the last good metagraph, the newest block, and whether the chain answers.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use muster_chain::subnet_changes::{SubnetSnapshot, diff};
use muster_chain::{BlockNumber, ChainError, Metagraph, MetagraphEvent, Rao};
use muster_http::addresses::AddressRules;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{Digest, ErrorCode, Hotkey, MinerKey, Timestamp};
use tokio::sync::{Mutex, MutexGuard, watch};

use crate::chain::Chain;
use crate::link_state::LinkState;

/// Logs the changes of the subnet that may explain trouble with jobs or weights: neurons that came, went, or took
/// another's uid.
fn log_changes(before: &Arc<Metagraph>, after: &Arc<Metagraph>) {
    let snapshot = |graph: &Arc<Metagraph>| SubnetSnapshot {
        graph: Arc::clone(graph),
        rules: None,
    };
    for event in diff(&snapshot(before), &snapshot(after), Rao(u64::MAX)) {
        match event {
            MetagraphEvent::UidReused { uid, from, to, at } => {
                tracing::warn!(%uid, %from, %to, %at, "a uid passed to another neuron");
            }
            MetagraphEvent::HotkeySwapped { uid, from, to } => {
                tracing::warn!(%uid, %from, %to, "a neuron swapped its hotkey");
            }
            MetagraphEvent::Deregistered { uid, hotkey } => {
                tracing::info!(%uid, %hotkey, "a neuron was deregistered")
            }
            MetagraphEvent::Registered { uid, hotkey, at } => {
                tracing::info!(%uid, %hotkey, %at, "a neuron was registered")
            }
            MetagraphEvent::AxonChanged { uid, from, to } => {
                tracing::debug!(%uid, ?from, ?to, "a neuron changed its address")
            }
            MetagraphEvent::PermitGained(uid) => {
                tracing::debug!(%uid, "a neuron gained its permit to set weights")
            }
            MetagraphEvent::PermitLost(uid) => {
                tracing::debug!(%uid, "a neuron lost its permit to set weights")
            }
            MetagraphEvent::StakeChanged { .. } | MetagraphEvent::RulesChanged { .. } => {}
        }
    }
}

/// Makes the axons undiallable that `rules` do not permit: a miner could otherwise make this validator connect to its
/// own network. Routing then names the axon as the reason.
fn close_forbidden_axons(metagraph: &mut Metagraph, rules: &AddressRules) {
    for neuron in &mut metagraph.neurons {
        let Some(axon) = &mut neuron.axon else { continue };
        if !rules.permit("", axon.ip(), axon.port()) {
            tracing::debug!(hotkey = %neuron.hotkey, %axon, "an axon is not public, and dial.allow does not list it");
            *axon = FORBIDDEN;
        }
    }
}

/// Stands for an axon that may not be dialled.
const FORBIDDEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// The miners of the subnet that announce an address that can be dialled, without this validator itself.
pub fn reachable_miners(metagraph: &Metagraph, own_key: Hotkey) -> Vec<(MinerKey, SocketAddr)> {
    let others = metagraph.neurons.iter().filter(|neuron| neuron.hotkey != own_key);
    others
        .filter_map(|neuron| Some((MinerKey(neuron.hotkey), neuron.axon?)))
        .filter(|(_, address)| address.port() != 0 && !address.ip().is_unspecified())
        .collect()
}

/// When the subnet was read, and what was read.
type TimedMetagraph = (Timestamp, Arc<Metagraph>);

/// The last good reading of the subnet. It is read again once it is older than `max_age`, and kept while the chain does
/// not answer.
#[derive(Debug)]
pub struct SubnetView {
    chain: Arc<dyn Chain>,
    clock: SharedClock,
    max_age: Duration,
    /// The addresses of miners that may be dialled.
    rules: Arc<AddressRules>,
    /// `None` before the chain has answered. The caller that finds it too old holds the lock while it reads the chain,
    /// so that a hundred waiting jobs cause one reading.
    latest: Mutex<Option<TimedMetagraph>>,
    /// The same metagraph, for callers that must not wait for a reading.
    last_metagraph: watch::Sender<Option<Arc<Metagraph>>>,
    /// The newest finalised block seen; `None` before the chain has answered.
    head: watch::Sender<Option<BlockNumber>>,
    link: watch::Sender<LinkState>,
}

impl SubnetView {
    /// A view that has read nothing yet. A reading counts for `max_age`; `rules` state which addresses of miners may be
    /// dialled.
    pub fn new(
        chain: Arc<dyn Chain>,
        clock: SharedClock,
        max_age: Duration,
        rules: Arc<AddressRules>,
    ) -> Self {
        Self {
            chain,
            clock,
            max_age,
            rules,
            latest: Mutex::new(None),
            last_metagraph: watch::Sender::default(),
            head: watch::Sender::default(),
            link: watch::Sender::default(),
        }
    }

    /// The chain that is read.
    pub fn chain(&self) -> &dyn Chain {
        &*self.chain
    }

    /// Notes the first metagraph after the start. The caller has informed the store which chain it is, so jobs may be
    /// routed from here on.
    pub async fn note_first_metagraph(&self, mut metagraph: Metagraph) {
        close_forbidden_axons(&mut metagraph, &self.rules);
        let head = metagraph.block;
        let metagraph = Arc::new(metagraph);
        self.last_metagraph.send_replace(Some(Arc::clone(&metagraph)));
        *self.latest.lock().await = Some((self.clock.now(), metagraph));
        self.note_block(head);
    }

    /// A metagraph to route by. Waits until the chain has answered once.
    pub async fn metagraph(&self) -> Arc<Metagraph> {
        let mut head = self.head.subscribe();
        loop {
            if let Some(metagraph) = self.last_good().await {
                return metagraph;
            }
            // The sender belongs to `self`, so the channel cannot close.
            let _ = head.wait_for(Option::is_some).await;
        }
    }

    /// A metagraph to route by, if a recent one is at hand. Does not wait: `None` if it is too old or is being read
    /// again.
    pub fn fresh_metagraph(&self) -> Option<Arc<Metagraph>> {
        let latest = self.latest.try_lock().ok()?;
        let (at, known) = latest.as_ref()?;
        (self.clock.now().since(*at) < self.max_age).then(|| Arc::clone(known))
    }

    /// Reads the subnet again, if blocks have come since `known` was read; `None` if there is nothing newer or the
    /// chain does not answer.
    pub async fn read_newer_than(&self, known: &Metagraph) -> Option<Arc<Metagraph>> {
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

    /// Reads the subnet from the chain; returns the last good reading if the chain does not answer.
    async fn read(&self, mut latest: MutexGuard<'_, Option<TimedMetagraph>>) -> Option<Arc<Metagraph>> {
        let known = latest.as_ref().map(|(_, known)| Arc::clone(known));
        match self.chain.metagraph().await {
            Ok(mut metagraph) => {
                close_forbidden_axons(&mut metagraph, &self.rules);
                self.note_block(metagraph.block);
                let metagraph = Arc::new(metagraph);
                if let Some((_, before)) = &*latest {
                    log_changes(before, &metagraph);
                }
                self.last_metagraph.send_replace(Some(Arc::clone(&metagraph)));
                *latest = Some((self.clock.now(), Arc::clone(&metagraph)));
                Some(metagraph)
            }
            Err(error) => {
                self.note_failure(
                    &error,
                    "the chain does not answer; routing by the last good metagraph",
                );
                known
            }
        }
    }

    /// The subnet as it was last read, however old; `None` before the chain has answered.
    pub fn last_metagraph(&self) -> Option<Arc<Metagraph>> {
        self.last_metagraph.borrow().clone()
    }

    /// Notes a finalised block.
    pub fn note_block(&self, block: BlockNumber) {
        self.head.send_if_modified(|head| {
            let newer = head.is_none_or(|head| block > head);
            if newer {
                *head = Some(block);
            }
            newer
        });
        self.link.send_replace(LinkState::Connected);
    }

    /// Notes and logs that the chain does not answer; `consequence` is the log line.
    pub fn note_failure(&self, error: &ChainError, consequence: &str) {
        let code = ErrorCode::ChainUnreachable;
        let reason = Causes(error).to_string();
        tracing::warn!(%code, reason, "{consequence}");
        self.link.send_replace(LinkState::Lost { reason });
    }

    /// The state of the connection to the chain.
    pub fn link_state(&self) -> LinkState {
        self.link.borrow().clone()
    }

    /// Waits until a block after `block` is final, and returns the newest with its hash. If the chain does not answer
    /// or gives no hash, it is asked again at the next block.
    pub async fn wait_for_block_after(&self, block: u64) -> (u64, [u8; 32]) {
        let (mut head, mut last) = (self.head.subscribe(), block);
        loop {
            let newer = |head: &Option<BlockNumber>| head.is_some_and(|head| head.0 > last);
            // The sender belongs to `self`, so the channel cannot close.
            let seen = head.wait_for(newer).await.map(|head| *head);
            if let Ok(Some((number, hash))) = self.chain.head_hash().await
                && number.0 > block
            {
                return (number.0, hash);
            }
            last = seen.ok().flatten().map_or(last, |head| head.0);
        }
    }

    /// The hash of a finalised block; `None` if it is not known, or not yet.
    pub async fn block_hash(&self, block: u64) -> Option<Digest> {
        match self.chain.block_hash(BlockNumber(block)).await {
            Ok(hash) => hash.map(Digest::from_bytes),
            Err(error) => {
                tracing::warn!(block, error = %Causes(&error), "the chain does not give the hash of a block");
                None
            }
        }
    }

    /// Changes with every finalised block. The sender lives as long as this view.
    pub fn head_changes(&self) -> watch::Receiver<Option<BlockNumber>> {
        self.head.subscribe()
    }

    /// The newest finalised block seen; `None` before the chain has answered.
    pub fn head(&self) -> Option<BlockNumber> {
        *self.head.borrow()
    }
}
