//! A chain whose blocks a test makes one by one, with the real chain's rules for weights.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use muster_chain::epoch_schedule::Schedule;
use muster_chain::timelock::Beacon;
use muster_chain::weights_commit::{
    CommitPosition, OnChainWeights, StoredCommit, TIMELOCKED_VERSION, commit_hash,
};
use muster_chain::{
    AccountTransfer, BlockNumber, BlockPace, CallRejection, ChainError, Hyperparameters, Metagraph, Netuid,
    Neuron, TimedSubnet, Uid, WeightRules, WeightsCall, WeightsMethod,
};
use muster_identity::Keypair;
use muster_protocol::Hotkey;
use muster_validator::chain::{BlockWithHash, Blocks, Chain};
use tokio::sync::watch;

use super::miner::Miner;

/// Blocks of an epoch, less one: cycles of eleven blocks, windows from the sixth to the tenth of each.
pub(crate) const TEMPO: u16 = 10;

/// The time of block 0, in milliseconds since 1970, and the duration of a block.
const BEGIN_MS: u64 = 1_770_000_000_000;
const BLOCK_MS: u64 = 12_000;

/// Blocks of a cycle.
const CYCLE: u64 = TEMPO as u64 + 1;

/// The epoch of a block.
fn epoch(block: u64) -> u64 {
    block / CYCLE
}

#[derive(Debug)]
pub(crate) struct TestChain {
    me: Hotkey,
    rules: Mutex<Rules>,
    head: watch::Sender<u64>,
}

#[derive(Debug)]
struct Rules {
    metagraph: Metagraph,
    refusals: u32,
    silent: bool,
    /// The weights that were set, each with its block.
    set: Vec<(u64, Vec<(u16, u16)>)>,
    /// The method by which weights are taken.
    method: WeightsMethod,
    /// Commits that wait for their reveal: block, epoch, and hash or ciphertext.
    commits: Vec<(u64, u64, Vec<u8>)>,
    /// The number of commits so far.
    committed: usize,
    /// Whether the next call is taken but answered with an error that leaves open whether it was.
    vague: bool,
    /// Whether the next call is neither taken nor answered.
    holds_next: bool,
    /// The plain weights of a call that was held.
    held: Option<Vec<(u16, u16)>>,
    /// Whether the subnet of earlier blocks is returned.
    remembers: bool,
    /// The hotkey of the subnet's owner.
    owner: Option<Hotkey>,
    /// Where validators serve their pages.
    pages: BTreeMap<Hotkey, SocketAddr>,
    /// The transfers of each block; `None` while the chain does not return them.
    transfers: Option<Vec<(BlockNumber, AccountTransfer)>>,
}

impl TestChain {
    /// The validator has uid 0, the miners follow.
    pub(crate) fn new(validator: &Keypair, miners: &[&Miner]) -> Self {
        let neuron = |uid: usize, hotkey: Hotkey, axon| Neuron {
            uid: Uid(u16::try_from(uid).unwrap()),
            hotkey,
            coldkey: hotkey,
            axon,
            stake: 0,
            permit: uid == 0,
            active: true,
            registered: BlockNumber(0),
            last_update: BlockNumber(0),
            incentive: 0,
        };
        let mut neurons = vec![neuron(0, validator.hotkey(), None)];
        for (at, miner) in miners.iter().enumerate() {
            neurons.push(neuron(at + 1, miner.keypair.hotkey(), Some(miner.server.address)));
        }
        let metagraph = Metagraph {
            block: BlockNumber(1),
            netuid: Netuid(1),
            tempo: TEMPO,
            last_epoch: BlockNumber(0),
            certificates: std::collections::BTreeMap::new(),
            neurons,
        };
        Self {
            me: validator.hotkey(),
            rules: Mutex::new(Rules {
                metagraph,
                refusals: 0,
                silent: false,
                set: Vec::new(),
                method: WeightsMethod::Plain,
                commits: Vec::new(),
                committed: 0,
                vague: false,
                holds_next: false,
                held: None,
                remembers: false,
                owner: None,
                pages: BTreeMap::new(),
                transfers: Some(Vec::new()),
            }),
            head: watch::Sender::new(1),
        }
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap()
    }

    /// Seals blocks up to this one. Epochs are the validator's cycles: eleven blocks.
    pub(crate) fn seal_to(&self, block: u64) {
        let mut rules = self.rules();
        rules.metagraph.block = BlockNumber(block);
        drop(rules);
        self.head.send_replace(block);
    }

    /// The newest block. The validator may not have seen it yet.
    pub(crate) fn height(&self) -> u64 {
        *self.head.borrow()
    }

    /// Takes weights by this method from now on.
    pub(crate) fn take(&self, method: WeightsMethod) {
        self.rules().method = method;
    }

    /// Holds the next call with plain weights: it is on its way for as long as the test wants.
    pub(crate) fn hold_next(&self) {
        self.rules().holds_next = true;
    }

    /// Holds the call, if the test wants it.
    fn hold(&self, call: &WeightsCall) -> bool {
        let mut rules = self.rules();
        let WeightsCall::Set { weights, .. } = call else {
            return false;
        };
        let holds = std::mem::take(&mut rules.holds_next);
        if holds {
            let held = weights.iter().map(|(uid, weight)| (uid.0, *weight));
            rules.held = Some(held.collect());
        }
        holds
    }

    /// Whether a call is held.
    pub(crate) fn holds(&self) -> bool {
        self.rules().held.is_some()
    }

    /// Takes the call that was held, in the present block.
    pub(crate) fn take_held(&self) {
        let mut rules = self.rules();
        let (block, me) = (rules.metagraph.block, self.me);
        let held = rules.held.take().expect("a call is held");
        rules.set.push((block.0, held));
        for neuron in &mut rules.metagraph.neurons {
            if neuron.hotkey == me {
                neuron.last_update = block;
            }
        }
    }

    /// The number of commits that wait for their reveal, and the number of commits so far.
    pub(crate) fn commits(&self) -> (usize, usize) {
        let rules = self.rules();
        (rules.commits.len(), rules.committed)
    }

    /// The beacon has published its round: the waiting timelocked commits come into force with the test's weights.
    pub(crate) fn open(&self, weights: Vec<(u16, u16)>) {
        let mut rules = self.rules();
        rules.commits.clear();
        let block = rules.metagraph.block.0;
        rules.set.push((block, weights));
    }

    /// Takes back the weights or the commit of the last block, as a reorganisation does.
    pub(crate) fn take_back(&self) {
        let mut rules = self.rules();
        rules.commits.clear();
        rules.set.clear();
        let me = self.me;
        for neuron in &mut rules.metagraph.neurons {
            if neuron.hotkey == me {
                neuron.last_update = BlockNumber(0);
            }
        }
    }

    /// The next call is taken, but its sender gets an error.
    pub(crate) fn be_vague(&self) {
        self.rules().vague = true;
    }

    /// Another neuron takes over a miner's uid.
    pub(crate) fn replace(&self, uid: u16, hotkey: Hotkey) {
        let mut rules = self.rules();
        let block = rules.metagraph.block;
        if let Some(neuron) = rules.metagraph.neurons.get_mut(usize::from(uid)) {
            (neuron.hotkey, neuron.registered) = (hotkey, block);
        }
    }

    /// Gives a neuron the permit to set weights, so that its receipts count.
    pub(crate) fn permit(&self, uid: u16) {
        if let Some(neuron) = self.rules().metagraph.neurons.get_mut(usize::from(uid)) {
            neuron.permit = true;
        }
    }

    /// Takes a neuron's permit to set weights away.
    pub(crate) fn revoke(&self, uid: u16) {
        if let Some(neuron) = self.rules().metagraph.neurons.get_mut(usize::from(uid)) {
            neuron.permit = false;
        }
    }

    /// Moves a neuron's axon.
    pub(crate) fn move_axon(&self, uid: u16, axon: Option<SocketAddr>) {
        if let Some(neuron) = self.rules().metagraph.neurons.get_mut(usize::from(uid)) {
            neuron.axon = axon;
        }
    }

    /// Serves the stakes of earlier blocks from now on: each neuron with a permit has as much.
    pub(crate) fn remember(&self) {
        let mut rules = self.rules();
        rules.remembers = true;
        for neuron in &mut rules.metagraph.neurons {
            neuron.stake = 1_000;
        }
    }

    /// Gives a neuron's coldkey, which is its hotkey otherwise.
    pub(crate) fn own(&self, uid: u16, coldkey: Hotkey) {
        if let Some(neuron) = self.rules().metagraph.neurons.get_mut(usize::from(uid)) {
            neuron.coldkey = coldkey;
        }
    }

    /// States the hotkey of the subnet's owner.
    pub(crate) fn belong_to(&self, owner: Hotkey) {
        self.rules().owner = Some(owner);
    }

    /// Serves these transfers from now on, or none with an error.
    pub(crate) fn report_transfers(&self, transfers: Option<Vec<(BlockNumber, AccountTransfer)>>) {
        self.rules().transfers = transfers;
    }

    /// A validator states where it serves its pages.
    pub(crate) fn state_pages(&self, validator: Hotkey, address: SocketAddr) {
        self.rules().pages.insert(validator, address);
    }

    /// Refuses the next `times` weights.
    pub(crate) fn refuse(&self, times: u32) {
        self.rules().refusals = times;
    }

    /// Stops answering, or answers again.
    pub(crate) fn silent(&self, silent: bool) {
        self.rules().silent = silent;
    }

    /// Removes every announced address.
    pub(crate) fn without_axons(&self) {
        for neuron in &mut self.rules().metagraph.neurons {
            neuron.axon = None;
        }
    }

    /// A miner announces its address.
    pub(crate) fn announce(&self, miner: &Miner) {
        for neuron in &mut self.rules().metagraph.neurons {
            if neuron.hotkey == miner.keypair.hotkey() {
                neuron.axon = Some(miner.server.address);
            }
        }
    }

    /// The weights that were set so far.
    pub(crate) fn weights(&self) -> Vec<(u64, Vec<(u16, u16)>)> {
        self.rules().set.clone()
    }

    fn check(&self, doing: &'static str) -> Result<(), ChainError> {
        if self.rules().silent {
            return Err(ChainError::Unreachable {
                doing,
                url: "test".to_owned(),
                cause: None,
            });
        }
        Ok(())
    }
}

/// The blocks of `tests/vectors/audit-bundle.json`, which no test waits for.
const DOCUMENTED_BLOCKS: std::ops::Range<u64> = 99_000..101_000;

fn hash_of(block: BlockNumber) -> [u8; 32] {
    *muster_protocol::Digest::of(&block.0.to_be_bytes()).as_bytes()
}

impl Chain for TestChain {
    fn genesis(&self) -> BoxFuture<'_, Result<String, ChainError>> {
        async {
            self.check("ask for the genesis")
                .map(|()| format!("0x{}", "ab".repeat(32)))
        }
        .boxed()
    }

    fn metagraph(&self) -> BoxFuture<'_, Result<Metagraph, ChainError>> {
        async {
            self.check("read the metagraph")
                .map(|()| self.rules().metagraph.clone())
        }
        .boxed()
    }

    fn head_hash(&self) -> BoxFuture<'_, Result<Option<BlockWithHash>, ChainError>> {
        async {
            let block = self.rules().metagraph.block;
            self.check("ask for the head")
                .map(|()| Some((block, hash_of(block))))
        }
        .boxed()
    }

    fn block_hash(&self, block: BlockNumber) -> BoxFuture<'_, Result<Option<[u8; 32]>, ChainError>> {
        async move {
            let exists = block <= self.rules().metagraph.block || DOCUMENTED_BLOCKS.contains(&block.0);
            self.check("ask for the hash of a block")
                .map(|()| exists.then(|| hash_of(block)))
        }
        .boxed()
    }

    fn subnet_at(&self, block: BlockNumber) -> BoxFuture<'_, Result<Option<TimedSubnet>, ChainError>> {
        let rules = self.rules();
        let subnet = TimedSubnet {
            metagraph: Metagraph {
                block,
                ..rules.metagraph.clone()
            },
            pace: BlockPace {
                time_ms: BEGIN_MS + block.0 * BLOCK_MS,
                block_ms: BLOCK_MS,
            },
        };
        let told = Some(subnet).filter(|_| rules.remembers && block.0 > 0);
        async move { Ok(told) }.boxed()
    }

    fn pages_of<'a>(
        &'a self,
        validator: &'a Hotkey,
    ) -> BoxFuture<'a, Result<Option<SocketAddr>, ChainError>> {
        let address = self.rules().pages.get(validator).copied();
        async move { Ok(address) }.boxed()
    }

    fn transfers_after<'a>(
        &'a self,
        after: BlockNumber,
        through: BlockNumber,
        account: &'a Hotkey,
    ) -> BoxFuture<'a, Result<Vec<(BlockNumber, AccountTransfer)>, ChainError>> {
        async move {
            let transfers = self.rules().transfers.clone();
            let mut transfers = transfers.ok_or(ChainError::Answer {
                doing: "read transfers",
                what: "the test's chain has forgotten them".to_owned(),
            })?;
            transfers.retain(|(block, transfer)| {
                *block > after && *block <= through && (transfer.from == *account || transfer.to == *account)
            });
            Ok(transfers)
        }
        .boxed()
    }

    fn weight_rules(&self) -> BoxFuture<'_, Result<WeightRules, ChainError>> {
        let rules = self.rules();
        let (method, block, owner) = (rules.method, rules.metagraph.block, rules.owner);
        drop(rules);
        let hyperparameters = Hyperparameters {
            tempo: TEMPO,
            commit_reveal: method != WeightsMethod::Plain,
            commit_reveal_version: (method == WeightsMethod::Timelocked).then_some(TIMELOCKED_VERSION),
            reveal_period: 1,
            weights_rate_limit: 3,
            weights_version_key: 0,
            min_allowed_weights: 1,
        };
        let schedule = Schedule {
            block,
            time_ms: BEGIN_MS + block.0 * BLOCK_MS,
            block_ms: BLOCK_MS,
            tempo: TEMPO + 1,
            last: BlockNumber(epoch(block.0) * CYCLE),
            pending: None,
            index: epoch(block.0),
            reveal_period: 1,
        };
        let rules = WeightRules {
            hyperparameters,
            schedule: Some(schedule),
            beacon: Some(Beacon::quicknet()),
            last_round: None,
            owner,
        };
        async move { self.check("read the rules").map(|()| rules) }.boxed()
    }

    fn submit<'a>(
        &'a self,
        call: &'a WeightsCall,
        last: BlockNumber,
    ) -> BoxFuture<'a, Result<CommitPosition, ChainError>> {
        async move {
            self.check("set weights")?;
            // A signature is valid for 32 blocks, as the real client signs.
            if self.rules().metagraph.block.0 + 32 > last.0 {
                return Err(ChainError::Refused {
                    call: "set_mechanism_weights",
                    refusal: CallRejection::TooLate,
                });
            }
            if self.hold(call) {
                return std::future::pending().await;
            }
            let mut rules = self.rules();
            let refused = |refusal| {
                Err(ChainError::Refused {
                    call: "set_mechanism_weights",
                    refusal,
                })
            };
            if rules.refusals > 0 {
                rules.refusals -= 1;
                return refused(CallRejection::NoValidatorPermit);
            }
            let block = rules.metagraph.block;
            let committed = CommitPosition {
                block: block.0,
                epoch: Some(epoch(block.0)),
            };
            let me = self.me;
            let Some(neuron) = rules.metagraph.find(&me) else {
                return refused(CallRejection::NotRegistered);
            };
            let too_fast = neuron.last_update.0 > 0 && block.0 - neuron.last_update.0 < 3;
            let plain = |weights: &[(Uid, u16)]| -> Vec<(u16, u16)> {
                weights.iter().map(|(uid, weight)| (uid.0, *weight)).collect()
            };
            let taken = match call {
                WeightsCall::Reveal {
                    weights,
                    salt,
                    version_key,
                } => {
                    let hash = commit_hash(&me, Netuid(1), &plain(weights), salt, *version_key);
                    let Some(at) = rules.commits.iter().position(|(_, _, known)| *known == hash) else {
                        return refused(CallRejection::NoCommit);
                    };
                    if rules.commits[at].1 + 1 != epoch(block.0) {
                        return refused(CallRejection::RevealTooEarly);
                    }
                    rules.commits.remove(at);
                    rules.set.push((block.0, plain(weights)));
                    return Ok(committed);
                }
                _ if too_fast => return refused(CallRejection::WeightsTooFast),
                WeightsCall::Set { weights, .. } => {
                    rules.set.push((block.0, plain(weights)));
                    None
                }
                WeightsCall::Commit { hash } => Some(hash.to_vec()),
                WeightsCall::CommitTimelocked { ciphertext, .. } => Some(ciphertext.clone()),
            };
            if let Some(commit) = taken {
                rules.commits.push((block.0, epoch(block.0), commit));
                rules.committed += 1;
            }
            for neuron in &mut rules.metagraph.neurons {
                if neuron.hotkey == me {
                    neuron.last_update = block;
                }
            }
            if std::mem::take(&mut rules.vague) {
                return Err(ChainError::Unconfirmed {
                    call: "set_mechanism_weights",
                    cause: None,
                });
            }
            Ok(committed)
        }
        .boxed()
    }

    fn read_weights(&self) -> BoxFuture<'_, Result<OnChainWeights, ChainError>> {
        async {
            self.check("read weights")?;
            let mut rules = self.rules();
            let block = rules.metagraph.block.0;
            // A commit that was not revealed in its epoch is dropped.
            rules.commits.retain(|(_, at, _)| at + 1 >= epoch(block));
            let commits = rules.commits.iter().filter_map(|(_, at, hash)| {
                Some(StoredCommit {
                    hash: hash.clone().try_into().ok()?,
                    window: (BlockNumber((at + 1) * CYCLE), BlockNumber((at + 2) * CYCLE - 1)),
                })
            });
            Ok(OnChainWeights {
                block,
                epoch: Some(epoch(block)),
                reveal_period: 1,
                commits: commits.collect(),
                weights: rules
                    .set
                    .last()
                    .map(|(_, weights)| weights.clone())
                    .unwrap_or_default(),
            })
        }
        .boxed()
    }

    fn blocks(&self) -> BoxFuture<'_, Result<Blocks, ChainError>> {
        async move {
            self.check("follow the chain")?;
            let head = self.head.subscribe();
            let next = *head.borrow();
            let follow = stream::unfold((head, next), |(mut head, next)| async move {
                head.wait_for(|head| *head >= next).await.ok()?;
                Some((Ok(BlockNumber(next)), (head, next + 1)))
            });
            Ok(follow.boxed())
        }
        .boxed()
    }
}
