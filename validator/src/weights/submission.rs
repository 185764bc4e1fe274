//! Submits a cycle's weights to the chain, plainly or by a commit that is revealed later, and follows each commit to
//! its end.

use muster_chain::weights_commit::{
    CommitLoss, CommitPosition, CommitStatus, OnChainWeights, Revealer, Salt, assess_commit,
};
use muster_chain::{
    BlockNumber, CallRejection, ChainError, PendingReveal, Uid, WeightRules, WeightsCall, WeightsMethod,
    timelock,
};
use muster_process::error::Causes;
use muster_protocol::ErrorCode;
use muster_scoring::{
    BurnKeys, Renewal, follow_uids, renew_after_departures, weights_of, weights_of_onchain,
};
use muster_store::StoreError;

use super::chain_snapshot::ChainSnapshot;
use super::score_cycle::{scored_neurons, to_numbers, unburnable};
use super::{AdvanceError, WeightSetter};
use crate::store::{CycleState, StoredCycle};
use muster_subnet_view::cycle_duties::BlockSpan;

/// Blocks after the decision to submit weights within which the chain may take them: the 32 for which a signature is
/// valid, and as many between the decision and the signature. A later process waits for their end before it submits.
const MAX_ON_ITS_WAY: u64 = 64;

impl WeightSetter {
    /// Settles the pending cycles whose window has passed. If the chain shows that it took the newest one's weights,
    /// that is noted now; the others are marked as missed.
    pub(super) async fn settle_missed_windows(
        &self,
        chain: &ChainSnapshot,
        span: BlockSpan,
    ) -> Result<(), AdvanceError> {
        let old = self.state.store.cycles_in(CycleState::Pending).await?;
        let newest = old.into_iter().rev().find(|cycle| cycle.last_block < span.last.0);
        if let (Some(cycle), Some(set)) = (newest, chain.last_set)
            && set.0 >= cycle.at_block
            && set < BlockNumber(chain.window.cycle.0)
        {
            // Only this validator sets weights with this key, and a later cycle would have a row of its own.
            self.confirm(chain, cycle, set).await?;
        }
        let missed = self
            .state
            .store
            .miss_cycles_before(span.last, self.state.clock.now())
            .await?;
        if missed > 0 {
            let code = ErrorCode::WeightsNotSet;
            tracing::error!(%code, windows = missed, "a window passed before the chain took its weights; its work is scored again in this one");
        }
        Ok(())
    }

    /// Notes that the chain took a pending cycle's weights, or a commit to them, at block `set`. The note was lost when
    /// the process stopped between the two.
    pub(super) async fn confirm(
        &self,
        chain: &ChainSnapshot,
        mut cycle: StoredCycle,
        set: BlockNumber,
    ) -> Result<(), AdvanceError> {
        cycle.state = CycleState::Set;
        cycle.error = None;
        cycle.on_its_way = None;
        if let Some(mut reveal) = cycle.reveal.take() {
            let schedule = chain.rules.schedule.as_ref();
            reveal.committed = Some(CommitPosition {
                block: set.0,
                epoch: schedule.and_then(|schedule| schedule.epoch_of(set)),
            });
            cycle.reveal = Some(reveal);
            cycle.state = CycleState::Committed;
        }
        self.store_state(&cycle, CycleState::Pending, set).await
    }

    /// Makes a cycle pending again whose weights or commit the chain no longer shows: the block that held them was
    /// reorganised away.
    pub(super) async fn reopen(
        &self,
        chain: &ChainSnapshot,
        mut cycle: StoredCycle,
    ) -> Result<StoredCycle, AdvanceError> {
        let code = ErrorCode::WeightsNotSet;
        tracing::warn!(%code, cycle = cycle.number, "the chain took back the block that held the weights; sending them again");
        let from = cycle.state;
        cycle.state = CycleState::Pending;
        if let Some(reveal) = &mut cycle.reveal {
            reveal.committed = None;
        }
        self.store_state(&cycle, from, chain.block).await?;
        Ok(cycle)
    }

    /// Checks every commit that waits for its reveal; returns whether one still waits.
    pub(super) async fn check_reveals(&self, chain: &ChainSnapshot) -> Result<bool, AdvanceError> {
        let committed = self.state.store.cycles_in(CycleState::Committed).await?;
        if committed.is_empty() {
            return Ok(false);
        }
        let shown = self.state.subnet.chain().read_weights().await?;
        let mut waiting = false;
        for cycle in committed {
            waiting |= self.check_commit(chain, &shown, cycle).await?;
        }
        Ok(waiting)
    }

    /// Does what is due about one commit; returns whether it still waits.
    async fn check_commit(
        &self,
        chain: &ChainSnapshot,
        shown: &OnChainWeights,
        mut cycle: StoredCycle,
    ) -> Result<bool, AdvanceError> {
        let hash = cycle
            .reveal
            .as_ref()
            .and_then(|reveal| reveal.hash(&self.state.keypair.hotkey(), chain.metagraph.netuid));
        // Only a row that was edited by hand has no reveal.
        let standing_of_commit = cycle
            .reveal
            .as_ref()
            .map_or(CommitStatus::Lost(CommitLoss::Vanished), |reveal| {
                assess_commit(reveal, hash, shown)
            });
        match standing_of_commit {
            CommitStatus::Wait => return Ok(true),
            CommitStatus::Reveal => return self.reveal(chain, cycle).await,
            CommitStatus::Revealed => {
                tracing::info!(cycle = cycle.number, weights = ?cycle.weights, "weights revealed");
                cycle.state = CycleState::Set;
                cycle.error = None;
            }
            CommitStatus::Lost(CommitLoss::Vanished) if cycle.number == chain.window.cycle.0 => {
                // The window may still be open; the next block decides whether the weights are sent again.
                self.reopen(chain, cycle).await?;
                return Ok(false);
            }
            CommitStatus::Lost(loss) => {
                let code = ErrorCode::WeightsNotSet;
                tracing::error!(%code, cycle = cycle.number, %loss, "committed weights never came into force; their work is scored again");
                cycle.state = CycleState::Expired;
                cycle.error = Some(loss.to_string());
            }
        }
        self.store_state(&cycle, CycleState::Committed, chain.block)
            .await?;
        Ok(false)
    }

    /// Reveals a salted commit; returns whether it still waits.
    async fn reveal(&self, chain: &ChainSnapshot, mut cycle: StoredCycle) -> Result<bool, AdvanceError> {
        let Some(PendingReveal {
            by: Revealer::Us { salt },
            version_key,
            ..
        }) = cycle.reveal.clone()
        else {
            return Ok(true);
        };
        let call = WeightsCall::Reveal {
            weights: cycle
                .reveal
                .as_ref()
                .map(PendingReveal::weights)
                .unwrap_or_default(),
            salt,
            version_key,
        };
        let last = BlockNumber(chain.block.0.saturating_add(MAX_ON_ITS_WAY));
        match self.state.subnet.chain().submit(&call, last).await {
            Ok(at) => {
                tracing::info!(cycle = cycle.number, weights = ?cycle.weights, "weights revealed");
                cycle.state = CycleState::Set;
                cycle.error = None;
                self.store_state(&cycle, CycleState::Committed, BlockNumber(at.block))
                    .await?;
                Ok(false)
            }
            Err(ChainError::Refused {
                refusal: CallRejection::RevealTooEarly | CallRejection::NotRevealTime,
                ..
            }) => Ok(true),
            Err(error) => {
                let text = Causes(&error).to_string();
                let code = ErrorCode::WeightsNotSet;
                if cycle.error.as_ref() == Some(&text) {
                    tracing::debug!(%code, cycle = cycle.number, error = text, "weights not revealed; trying again");
                } else {
                    tracing::error!(%code, cycle = cycle.number, error = text, "weights not revealed; trying again while the epoch lasts");
                    cycle.error = Some(text);
                    let at = BlockNumber(cycle.at_block);
                    self.store_state(&cycle, CycleState::Committed, at).await?;
                }
                Ok(true)
            }
        }
    }

    /// Stores the new state of a cycle whose state was `from`.
    async fn store_state(
        &self,
        cycle: &StoredCycle,
        from: CycleState,
        at: BlockNumber,
    ) -> Result<(), AdvanceError> {
        let now = self.state.clock.now();
        Ok(self.state.store.move_cycle(cycle, from, at, now).await?)
    }

    /// The call that submits a cycle's weights, and the secret that reveals them if the call is a commit. A commit that
    /// may be on its way already keeps its secret, so that it stays the same commit.
    fn prepare_call(
        &self,
        cycle: &StoredCycle,
        weights: Vec<(Uid, u16)>,
        rules: &WeightRules,
    ) -> Result<(WeightsCall, Option<PendingReveal>), ChainError> {
        let version_key = rules.hyperparameters.weights_version_key;
        let pending = |by| PendingReveal {
            by,
            weights: to_numbers(&weights),
            version_key,
            committed: None,
        };
        match (rules.method(), rules.round(), &rules.beacon) {
            (WeightsMethod::Plain, _, _) => Ok((WeightsCall::Set { weights, version_key }, None)),
            (WeightsMethod::Timelocked, Some(round), Some(beacon)) => {
                let payload = timelock::WeightsPayload {
                    hotkey: self.state.keypair.hotkey(),
                    weights: weights.clone(),
                    version_key,
                };
                let ciphertext = timelock::seal(beacon, round, &payload.encode(), random()?)?;
                let reveal = pending(Revealer::Chain { round });
                Ok((WeightsCall::CommitTimelocked { ciphertext, round }, Some(reveal)))
            }
            (WeightsMethod::Salted | WeightsMethod::Timelocked, _, _) => {
                let reveal = match &cycle.reveal {
                    Some(known)
                        if matches!(known.by, Revealer::Us { .. })
                            && known.weights == to_numbers(&weights) =>
                    {
                        known.clone()
                    }
                    Some(_) | None => pending(Revealer::Us {
                        salt: salt(random()?),
                    }),
                };
                let hash = reveal.hash(&self.state.keypair.hotkey(), self.state.config.chain.netuid);
                let call = WeightsCall::Commit {
                    hash: hash.unwrap_or_default(),
                };
                Ok((call, Some(reveal)))
            }
        }
    }

    /// The weights of a cycle that sets again what stood, without the neurons that have left since it was scored; none,
    /// and an error in the cycle, if no neuron burns theirs.
    fn renewed_weights(&self, cycle: &mut StoredCycle, chain: &ChainSnapshot) -> Vec<(Uid, u16)> {
        let neurons = scored_neurons(&chain.metagraph);
        let burn = BurnKeys {
            burn_hotkey: self.state.config.scoring.burn_hotkey,
            owner: chain.rules.owner,
        };
        let min_entries = chain.rules.hyperparameters.min_allowed_weights;
        match renew_after_departures(&cycle.scores.standing, &neurons, burn) {
            Renewal::Unchanged => weights_of_onchain(&cycle.scores.standing, &neurons, min_entries),
            Renewal::Renewed(standing) => weights_of_onchain(&standing, &neurons, min_entries),
            Renewal::Unburnable(uids) => {
                cycle.error = unburnable(&uids);
                Vec::new()
            }
        }
    }

    /// Submits a call that is stored as being on its way, unless the chain took one of this validator's since
    /// `last_set` was read: another process may have led meanwhile.
    async fn submit_planned(
        &self,
        call: &WeightsCall,
        last: BlockNumber,
        last_set: Option<BlockNumber>,
    ) -> Result<CommitPosition, ChainError> {
        let subnet = self.state.subnet.chain();
        let metagraph = subnet.metagraph().await?;
        let own = metagraph.find(&self.state.keypair.hotkey());
        if own.map(|own| own.last_update) > last_set {
            return Err(ChainError::Refused {
                call: "weights",
                refusal: CallRejection::TooLate,
            });
        }
        subnet.submit(call, last).await
    }

    /// Submits a pending cycle's weights and stores the result. A failure keeps the cycle pending.
    pub(super) async fn submit_weights(
        &self,
        mut cycle: StoredCycle,
        chain: &ChainSnapshot,
    ) -> Result<(), StoreError> {
        let rules = &chain.rules;
        let weights = if cycle.scores.is_renewal() {
            self.renewed_weights(&mut cycle, chain)
        } else {
            earned_weights(&cycle, chain)
        };
        if weights.is_empty() {
            cycle.state = CycleState::Kept;
            let now = self.state.clock.now();
            return self
                .state
                .store
                .move_cycle(&cycle, CycleState::Pending, chain.block, now)
                .await;
        }
        let sent = match self.prepare_call(&cycle, weights.clone(), rules) {
            Ok((call, reveal)) => {
                let last = BlockNumber(chain.block.0.saturating_add(MAX_ON_ITS_WAY));
                cycle.weights = to_numbers(&weights);
                cycle.reveal = reveal;
                cycle.on_its_way = Some(last.0);
                self.state.store.plan_cycle(&cycle).await?;
                self.submit_planned(&call, last, chain.last_set).await
            }
            Err(error) => Err(error),
        };
        note_way(&mut cycle, &sent);
        let at = note_result(&mut cycle, sent, chain.block);
        let now = self.state.clock.now();
        self.state
            .store
            .move_cycle(&cycle, CycleState::Pending, at, now)
            .await
    }
}

/// Notes in a cycle whether the chain may still take the call that was submitted: only if its end is not known.
fn note_way(cycle: &mut StoredCycle, result: &Result<CommitPosition, ChainError>) {
    if !matches!(result, Err(ChainError::Unconfirmed { .. })) {
        cycle.on_its_way = None;
    }
}

/// The weights of a cycle's scores. A uid may have passed to another miner since the cycle was scored; that miner has
/// not earned the weight.
fn earned_weights(cycle: &StoredCycle, chain: &ChainSnapshot) -> Vec<(Uid, u16)> {
    let neurons = scored_neurons(&chain.metagraph);
    let moved = follow_uids(&cycle.scores.scores, &neurons);
    if moved != cycle.scores.scores {
        tracing::warn!(
            cycle = cycle.number,
            "a miner lost or changed its uid since the cycle was scored; its weight went with it"
        );
    }
    weights_of(&moved, &neurons, chain.rules.hyperparameters.min_allowed_weights)
}

/// Notes in a cycle what came of submitting its weights at block `now`; returns the block at which its state changed.
fn note_result(
    cycle: &mut StoredCycle,
    result: Result<CommitPosition, ChainError>,
    now: BlockNumber,
) -> BlockNumber {
    match result {
        Ok(committed) => {
            cycle.error = None;
            cycle.state = match &mut cycle.reveal {
                Some(reveal) => {
                    reveal.committed = Some(committed);
                    tracing::info!(cycle = cycle.number, block = committed.block, "weights committed");
                    CycleState::Committed
                }
                None => {
                    tracing::info!(cycle = cycle.number, weights = ?cycle.weights, "weights set");
                    CycleState::Set
                }
            };
            BlockNumber(committed.block)
        }
        Err(error) => {
            let error = Causes(&error).to_string();
            let code = ErrorCode::WeightsNotSet;
            // A refusal that repeats at every block of a window is logged as an error once.
            if cycle.error.as_ref() == Some(&error) {
                tracing::debug!(%code, cycle = cycle.number, error, "weights not set; trying again");
            } else {
                tracing::error!(%code, cycle = cycle.number, error, "weights not set; trying again while the window is open");
            }
            cycle.error = Some(error);
            now
        }
    }
}

fn random() -> Result<[u8; 32], ChainError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|_| ChainError::Timelock(timelock::TimelockError::Randomness))?;
    Ok(seed)
}

fn salt(seed: [u8; 32]) -> Salt {
    let mut salt = Salt::default();
    for (number, pair) in salt.iter_mut().zip(seed.chunks_exact(2)) {
        *number = pair.iter().fold(0, |number, byte| number << 8 | u16::from(*byte));
    }
    salt
}
