//! One probe of all executors: a batch is drawn, judged and counted by the real code of grading.

use std::collections::BTreeMap;

use muster_grading::batch_plan::{Announcement, BatchBounds, BatchPlan, draw_batch};
use muster_grading::batch_settlement::{Capacity, ProvenBefore, count_capacities, settle};
use muster_grading::judgement::Absence;
use muster_grading::{GradeSpec, Judgement};
use muster_hardware_proof::grade::Components;
use muster_protocol::receipt::AttemptAtWork;
use muster_protocol::{AttemptId, MinerKey, Timestamp, ValidatorKey};
use muster_scoring::{
    CountedAttempts, ExcuseState, OBSERVATIONS, Observation, ObservationKind, settle_excuse,
};

use crate::hardware::Presence;
use crate::subnet::CLASS;

/// Observations of one kind that are kept.
const KEPT: usize = OBSERVATIONS * 2;

/// A miner at a probe.
pub(crate) struct Probed {
    pub(crate) miner: MinerKey,
    pub(crate) announced: u32,
    pub(crate) presence: Presence,
    /// Attempts that run on executors that are there.
    pub(crate) at_work: Vec<AttemptId>,
    /// Attempts that are claimed to run on executors that are not there.
    pub(crate) pretended: Vec<AttemptId>,
}

/// The probes of one miner by one validator.
#[derive(Clone, Default)]
pub(crate) struct ProbeHistory {
    observations: Vec<SeenProbe>,
    /// The executors that it proved in full in each of the last eight batches.
    proven: Vec<u32>,
}

#[derive(Clone)]
struct SeenProbe {
    observation: Observation,
    /// The attempts behind the excuses that wait.
    attempts: Vec<AttemptId>,
}

impl ProbeHistory {
    /// The most executors that one of the last eight batches proved.
    fn most_proven(&self) -> u32 {
        self.proven.iter().copied().max().unwrap_or(0)
    }

    fn note(&mut self, seen: SeenProbe, proven: u32) {
        let kind = seen.observation.kind;
        self.observations.push(seen);
        let of_kind = |seen: &&SeenProbe| seen.observation.kind == kind;
        if self.observations.iter().filter(of_kind).count() > KEPT
            && let Some(oldest) = self
                .observations
                .iter()
                .position(|seen| seen.observation.kind == kind)
        {
            self.observations.remove(oldest);
        }
        if kind == ObservationKind::Announced {
            self.proven.push(proven);
            let old = self.proven.len().saturating_sub(OBSERVATIONS);
            self.proven.drain(..old);
        }
    }

    /// Settles the excuses that wait, once the receipts of their time are scored.
    pub(crate) fn settle(&mut self, counted: &CountedAttempts) {
        for seen in &mut self.observations {
            let at = seen.observation.at;
            let excuses = seen.attempts.drain(..);
            let settled: Vec<_> = excuses
                .map(|attempt| settle_excuse(attempt, at, counted, true))
                .collect();
            if !settled.is_empty() {
                seen.observation.excuses = settled;
            }
        }
    }

    /// The observations, oldest first.
    pub(crate) fn observations(&self) -> Vec<Observation> {
        self.observations
            .iter()
            .map(|seen| seen.observation.clone())
            .collect()
    }
}

/// The thresholds that executors of the class are judged by.
pub(crate) struct Judge {
    full: GradeSpec,
    /// The rate that an executor has to reach in a session that it serves.
    least_in_session: u64,
}

impl Judge {
    /// The judge of the simulated class; none if the class has no thresholds.
    pub(crate) fn new() -> Option<Self> {
        let full = GradeSpec::for_class(CLASS)?;
        let least_in_session = full.for_session().thresholds.least.int8;
        Some(Self {
            full,
            least_in_session,
        })
    }

    /// Probes all miners and notes what was seen in their records.
    pub(crate) fn probe(
        &self,
        kind: ObservationKind,
        at: Timestamp,
        validator: ValidatorKey,
        probed: &[Probed],
        records: &mut [ProbeHistory],
    ) {
        let plan = draw(kind, at, validator, probed);
        let places: BTreeMap<MinerKey, usize> = (0..).zip(probed).map(|(at, one)| (one.miner, at)).collect();
        let before: ProvenBefore = probed
            .iter()
            .zip(records.iter())
            .map(|(one, record)| ((one.miner, CLASS), record.most_proven()))
            .collect();
        let (mut judged, mut absent) = (BTreeMap::new(), BTreeMap::new());
        for (place, participant) in plan.participants.iter().enumerate() {
            let one = places.get(&participant.miner).and_then(|at| probed.get(*at));
            match one.and_then(|one| self.judge(one, participant.index, at)) {
                Some(Ok(judgement)) => {
                    judged.insert(place, judgement);
                }
                Some(Err(absence)) => {
                    absent.insert(place, absence);
                }
                None => {}
            }
        }
        let settled = settle(&plan.participants, &absent, &judged, &before);
        let specs = std::slice::from_ref(&self.full);
        let counted = count_capacities(&plan.participants, &settled, specs);
        let counted: BTreeMap<_, _> = counted.into_iter().map(|count| (count.miner, count)).collect();
        for (one, record) in probed.iter().zip(records) {
            let Some(capacity) = counted.get(&one.miner) else {
                continue;
            };
            record.note(observe(kind, at, one, capacity), capacity.proven);
        }
    }

    /// The judgement of a miner's executor with this number, or the reason why it was not challenged.
    fn judge(&self, one: &Probed, index: u32, at: Timestamp) -> Option<Result<Judgement, Absence>> {
        let count = |attempts: &[AttemptId]| u32::try_from(attempts.len()).unwrap_or(u32::MAX);
        let presence = one.presence;
        let idle = presence.proving.saturating_sub(count(&one.at_work));
        let serving = idle.saturating_add(presence.serving);
        let excused = serving
            .saturating_add(count(&one.at_work))
            .saturating_add(count(&one.pretended));
        let shown = |attempt: &AttemptId| AttemptAtWork {
            attempt: *attempt,
            shown_at: at,
            until: at,
            is_organic: true,
        };
        let not_leased = |backed| Absence::NotLeased {
            said: String::new(),
            backed,
            at_work: match backed {
                true => one.at_work.iter().chain(&one.pretended).map(shown).collect(),
                false => Vec::new(),
            },
        };
        let full = self.full.thresholds.least;
        Some(match index {
            _ if !presence.reachable => Err(not_leased(false)),
            index if index < idle => Ok(Judgement::Proven {
                measured: full,
                provisional: false,
            }),
            index if index < serving => {
                // The cards share their rate among the sessions.
                let int8 = full.int8 / u64::from(presence.sessions_each.max(1));
                if int8 < self.least_in_session {
                    Err(not_leased(false))
                } else {
                    Ok(Judgement::Serving {
                        measured: Components {
                            int8,
                            ..Components::default()
                        },
                        provisional: false,
                    })
                }
            }
            index if index < excused => Err(not_leased(true)),
            _ => Err(not_leased(false)),
        })
    }
}

/// All miners take part in every batch; no miner is proven beyond the bound for one.
fn draw(kind: ObservationKind, at: Timestamp, validator: ValidatorKey, probed: &[Probed]) -> BatchPlan {
    let announced: Vec<_> = probed
        .iter()
        .map(|one| Announcement {
            miner: one.miner,
            class: CLASS,
            count: one.announced,
        })
        .collect();
    let bounds = BatchBounds {
        executors: u32::MAX,
        ..BatchBounds::default()
    };
    let mut hash = [0; 32];
    for (byte, of_time) in hash.iter_mut().zip(at.micros().to_le_bytes()) {
        *byte = of_time;
    }
    draw_batch(kind, &hash, validator, &announced, bounds)
}

/// The observation of a probe. Excuses wait until the receipts of their attempts are scored.
fn observe(kind: ObservationKind, at: Timestamp, one: &Probed, capacity: &Capacity) -> SeenProbe {
    let attempts: Vec<_> = capacity.excuses.iter().map(|excuse| excuse.attempt).collect();
    SeenProbe {
        observation: Observation {
            kind,
            at,
            announced: one.announced,
            shown: capacity.proven.saturating_add(capacity.serving),
            credit: capacity.credit,
            excuses: vec![ExcuseState::Waiting; attempts.len()],
        },
        attempts,
    }
}
