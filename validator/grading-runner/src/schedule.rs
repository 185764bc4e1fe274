//! Which block begins a batch: announced batches and unannounced probes are drawn by blocks' hashes, and operators ask
//! for batches.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use muster_grading::batch_plan::{BlockHash, is_due};
use muster_grading::probe_draw::{QUIET_BLOCKS, batch_pace, drawn_validator, is_probe_due, is_quiet};
use muster_protocol::ValidatorKey;
use muster_scoring::ObservationKind;
use tokio::sync::mpsc;

use crate::BatchRequest;
use crate::batch_run::run_batch;
use crate::runner_state::{BatchRejection, RunnerState};
use crate::settings::Settings;

/// Blocks between two miner polls: five minutes on the public network, as often as ComputeHorde's validators ask miners
/// for their executors. A probe is not preceded by questions of its own, which would announce it.
const POLL_BLOCKS: u64 = 25;

/// Runs the batches of a validator until it stops.
pub(crate) async fn run_batches(state: &Arc<RunnerState>, mut incoming: mpsc::Receiver<BatchRequest>) {
    let stop = state.tasks.token();
    let by_blocks = state.settings.is_drawn_by_blocks();
    let mut schedule = Schedule::default();
    loop {
        let request = tokio::select! {
            () = stop.cancelled() => return,
            request = incoming.recv() => match request {
                Some(request) => request,
                None => return,
            },
            block = state.subnet.wait_for_block_after(schedule.last), if by_blocks => {
                begin_drawn(state, &mut schedule, block).await;
                continue;
            }
        };
        let (block, hash) = tokio::select! {
            () = stop.cancelled() => return,
            next = state.subnet.wait_for_block_after(schedule.last) => next,
        };
        schedule.note(block, hash);
        run_once(state, request.kind, block, hash, Some(request)).await;
    }
}

/// Runs the batch that this block begins, if it begins one.
async fn begin_drawn(state: &Arc<RunnerState>, schedule: &mut Schedule, (block, hash): (u64, BlockHash)) {
    let (me, stakes) = (state.validator, state.stakes.lock().clone());
    let drawn = schedule.draw(&state.settings, me, &stakes, (block, hash));
    if schedule.take_poll_turn(&state.settings) {
        let asking = Arc::clone(state);
        let polling = async move { drop(asking.poll_miners().await) };
        drop(state.tasks.spawn("miner poll", polling));
    }
    match drawn {
        BlockDraw::Begins(kind) => run_once(state, kind, block, hash, None).await,
        BlockDraw::Disturbed => {
            tracing::info!(
                block,
                "a probe is left out, because another validator's batch may be under way"
            );
        }
        BlockDraw::Nothing => {}
    }
}

/// Runs one batch. A failure of the store ends the process; any other failure ends the batch.
async fn run_once(
    state: &Arc<RunnerState>,
    kind: ObservationKind,
    block: u64,
    hash: BlockHash,
    request: Option<BatchRequest>,
) {
    let outcome = match run_batch(state, kind, block, hash).await {
        Ok(outcome) => outcome,
        Err(error) => {
            (state.on_store_failure)(error);
            Err(BatchRejection::Stopping)
        }
    };
    if let Some(request) = request {
        // The operator's request may have been dropped.
        let _ = request.result.send(outcome);
    }
}

/// The blocks that the runner has seen.
#[derive(Debug, Default)]
struct Schedule {
    last: u64,
    /// The hashes of the last blocks, the newest at the end.
    recent: VecDeque<BlockHash>,
    /// The block of the last miner poll, if there was one.
    polled: Option<u64>,
}

/// The reason why a block begins a batch or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockDraw {
    /// It begins a batch of this kind.
    Begins(ObservationKind),
    /// This validator is drawn for a probe, and another validator's batch may be under way.
    Disturbed,
    /// It begins no batch of this validator.
    Nothing,
}

impl Schedule {
    /// Takes a new block, and draws by its hash.
    fn draw(
        &mut self,
        settings: &Settings,
        me: ValidatorKey,
        stakes: &BTreeMap<ValidatorKey, u64>,
        (block, hash): (u64, BlockHash),
    ) -> BlockDraw {
        let before: Vec<_> = self.recent.iter().copied().collect();
        self.note(block, hash);
        let is_probe = |hash: &BlockHash| is_probe_due(hash, settings.probe_every_blocks);
        if is_probe(&hash) {
            return match drawn_validator(&hash, stakes) == Some(me) {
                true if is_quiet(&before, stakes, settings.every_blocks) => {
                    BlockDraw::Begins(ObservationKind::Unannounced)
                }
                true => BlockDraw::Disturbed,
                false => BlockDraw::Nothing,
            };
        }
        // A batch that begins soon after a probe would find the probe's leases instead of executors.
        let every = settings.every_blocks.saturating_mul(batch_pace(me, stakes));
        if is_due(&hash, me, every) && !before.iter().any(is_probe) {
            BlockDraw::Begins(ObservationKind::Announced)
        } else {
            BlockDraw::Nothing
        }
    }

    fn note(&mut self, block: u64, hash: BlockHash) {
        self.last = block;
        self.recent.push_back(hash);
        if self.recent.len() > QUIET_BLOCKS {
            self.recent.pop_front();
        }
    }

    /// Whether a miner poll is due at the last block. If so, the next one is due after [`POLL_BLOCKS`].
    fn take_poll_turn(&mut self, settings: &Settings) -> bool {
        let since = self.polled.map(|polled| self.last.saturating_sub(polled));
        let is_due = settings.probe_every_blocks > 0 && since.is_none_or(|blocks| blocks >= POLL_BLOCKS);
        if is_due {
            self.polled = Some(self.last);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;

    use super::*;

    const ANNOUNCED: BlockDraw = BlockDraw::Begins(ObservationKind::Announced);
    const UNANNOUNCED: BlockDraw = BlockDraw::Begins(ObservationKind::Unannounced);

    fn validator(seed: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([seed; 32]))
    }

    fn hash(number: u64) -> BlockHash {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_le_bytes());
        hash
    }

    #[test]
    fn one_of_two_validators_probes_and_no_batch_begins_beside_a_probe() {
        let settings = Settings {
            every_blocks: 50,
            probe_every_blocks: 40,
            ..Settings::default()
        };
        let stakes = [(validator(1), 3), (validator(2), 1)].into();
        let mut schedules = [Schedule::default(), Schedule::default()];
        let (mut probes, mut batches, mut busy_until) = ([0, 0], 0, 0);
        for number in 0..20_000 {
            let block = (number, hash(number));
            let [one, two] = &mut schedules;
            let drawn = [
                one.draw(&settings, validator(1), &stakes, block),
                two.draw(&settings, validator(2), &stakes, block),
            ];
            assert_ne!(drawn, [UNANNOUNCED, UNANNOUNCED], "block {number}");
            for (at, drawn) in drawn.iter().enumerate() {
                match drawn {
                    BlockDraw::Begins(ObservationKind::Unannounced) => {
                        assert!(
                            number >= busy_until,
                            "a probe begins beside a batch at block {number}"
                        );
                        probes[at] += 1;
                    }
                    BlockDraw::Begins(ObservationKind::Announced) => {
                        batches += 1;
                        busy_until = number + u64::try_from(QUIET_BLOCKS).unwrap();
                    }
                    BlockDraw::Disturbed | BlockDraw::Nothing => {}
                }
            }
        }
        assert!(
            probes[0] > 2 * probes[1] && probes[1] > 20,
            "by stake: {probes:?}"
        );
        assert!(batches > 400, "{batches}");
    }

    #[test]
    fn without_stakes_nobody_probes_and_without_probes_batches_go_on() {
        let mut settings = Settings {
            every_blocks: 5,
            probe_every_blocks: 1,
            ..Settings::default()
        };
        let draw = |settings: &Settings| {
            let mut schedule = Schedule::default();
            let blocks = 0..100;
            let drawn = blocks.map(|number| {
                schedule.draw(settings, validator(1), &BTreeMap::new(), (number, hash(number)))
            });
            drawn.collect::<Vec<_>>()
        };
        assert_eq!(
            draw(&settings),
            [BlockDraw::Nothing; 100],
            "every block may be a probe"
        );
        settings.probe_every_blocks = 0;
        assert!(draw(&settings).contains(&ANNOUNCED));
    }

    #[test]
    fn miners_are_asked_every_five_minutes_whether_a_probe_is_near_or_not() {
        let mut settings = Settings::default();
        let mut schedule = Schedule::default();
        let asked = |schedule: &mut Schedule, settings: &Settings, blocks: std::ops::Range<u64>| {
            let due = blocks.filter(|number| {
                schedule.note(*number, hash(*number));
                schedule.take_poll_turn(settings)
            });
            due.collect::<Vec<_>>()
        };
        assert_eq!(asked(&mut schedule, &settings, 7..90), [7, 32, 57, 82]);
        settings.probe_every_blocks = 0;
        assert!(asked(&mut schedule, &settings, 90..200).is_empty());
    }
}
