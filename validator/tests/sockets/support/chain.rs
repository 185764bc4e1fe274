//! A chain that a test seals block by block, with the rules for weights that the real one has.

use std::sync::{Mutex, MutexGuard};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use muster_chain::{BlockNumber, ChainError, Hyperparameters, Metagraph, Netuid, Neuron, Refusal, Uid};
use muster_identity::Keypair;
use muster_protocol::Hotkey;
use muster_validator::chain::{Blocks, Chain};
use tokio::sync::watch;

use super::miner::Miner;

/// Blocks of an epoch, less one: cycles of eleven blocks, windows from the sixth to the tenth of each.
pub(crate) const TEMPO: u16 = 10;

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
    /// What was set, and at which block.
    set: Vec<(u64, Vec<(u16, u16)>)>,
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
            last_update: BlockNumber(0),
            incentive: 0,
        };
        let mut neurons = vec![neuron(0, validator.hotkey(), None)];
        for (at, miner) in miners.iter().enumerate() {
            neurons.push(neuron(at + 1, miner.keypair.hotkey(), Some(miner.door.address)));
        }
        let metagraph = Metagraph {
            block: BlockNumber(1),
            netuid: Netuid(1),
            tempo: TEMPO,
            last_epoch: BlockNumber(0),
            neurons,
        };
        Self {
            me: validator.hotkey(),
            rules: Mutex::new(Rules {
                metagraph,
                refusals: 0,
                silent: false,
                set: Vec::new(),
            }),
            head: watch::Sender::new(1),
        }
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap()
    }

    /// Seals blocks up to this one.
    pub(crate) fn seal_to(&self, block: u64) {
        self.rules().metagraph.block = BlockNumber(block);
        self.head.send_replace(block);
    }

    /// Refuses the next `times` weights.
    pub(crate) fn refuse(&self, times: u32) {
        self.rules().refusals = times;
    }

    /// Answers nothing, or answers again.
    pub(crate) fn silent(&self, silent: bool) {
        self.rules().silent = silent;
    }

    /// Takes every announced address away.
    pub(crate) fn without_axons(&self) {
        for neuron in &mut self.rules().metagraph.neurons {
            neuron.axon = None;
        }
    }

    /// A miner announces its address.
    pub(crate) fn announce(&self, miner: &Miner) {
        for neuron in &mut self.rules().metagraph.neurons {
            if neuron.hotkey == miner.keypair.hotkey() {
                neuron.axon = Some(miner.door.address);
            }
        }
    }

    /// What was set so far.
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

impl Chain for TestChain {
    fn genesis(&self) -> BoxFuture<'_, Result<String, ChainError>> {
        async {
            self.check("ask for the genesis")
                .map(|()| "a test's own".to_owned())
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

    fn hyperparameters(&self) -> BoxFuture<'_, Result<Hyperparameters, ChainError>> {
        let rules = Hyperparameters {
            tempo: TEMPO,
            commit_reveal: false,
            weights_rate_limit: 3,
            weights_version_key: 0,
            min_allowed_weights: 1,
        };
        async move { self.check("read the hyperparameters").map(|()| rules) }.boxed()
    }

    fn set_weights<'a>(
        &'a self,
        weights: &'a [(Uid, u16)],
        _version_key: u64,
    ) -> BoxFuture<'a, Result<(), ChainError>> {
        async move {
            self.check("set weights")?;
            let mut rules = self.rules();
            let refused = |refusal| {
                Err(ChainError::Refused {
                    call: "set_mechanism_weights",
                    refusal,
                })
            };
            if rules.refusals > 0 {
                rules.refusals -= 1;
                return refused(Refusal::NoValidatorPermit);
            }
            let block = rules.metagraph.block;
            let me = self.me;
            let Some(neuron) = rules
                .metagraph
                .neurons
                .iter_mut()
                .find(|neuron| neuron.hotkey == me)
            else {
                return refused(Refusal::NotRegistered);
            };
            if neuron.last_update.0 > 0 && block.0 - neuron.last_update.0 < 3 {
                return refused(Refusal::WeightsTooFast);
            }
            neuron.last_update = block;
            rules.set.push((
                block.0,
                weights.iter().map(|(uid, weight)| (uid.0, *weight)).collect(),
            ));
            Ok(())
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
