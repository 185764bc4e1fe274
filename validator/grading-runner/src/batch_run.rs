//! Runs one batch, from its block to its last judgement.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_grading::batch::{Batch, BatchAction, BatchEvent, BatchRules, JUDGING_US};
use muster_grading::batch_file::{BatchHead, ParticipantEvidence, ProvenCount, index_proven};
use muster_grading::batch_plan::{
    BatchPlan, BlockHash, Participant, ServingSession, assign_sessions, draw_batch,
};
use muster_grading::batch_settlement::{Capacity, count_capacities, judge_silent_miner};
use muster_grading::full_course_draw::draw_full_courses;
use muster_grading::grade_spec::GradeSpec;
use muster_grading::judgement::Judgement;
use muster_protocol::ExecutorClass;
use muster_scoring::{ObservationKind, is_probed_by};
use muster_sealed_client::SealedSession;
use muster_store::StoreError;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::announcements::Announcements;
use crate::executor_run::{ExecutorRun, LeaseTimes, RunCommand, RunReport};
use crate::runner_state::{BatchRejection, RunnerState, micros};

/// The time that a lease lasts beyond all trials, for fetching openings and for judging.
const LEASE_MARGIN: Duration = Duration::from_micros(JUDGING_US);

/// One batch under way.
struct BatchRun {
    state: Arc<RunnerState>,
    plan: BatchPlan,
    batch: Batch,
    /// The sessions in which executors are challenged, by place.
    sessions: BTreeMap<usize, Arc<SealedSession>>,
    started_at: Instant,
    times: LeaseTimes,
    /// The channel to the task of each executor, by place.
    commands: BTreeMap<usize, mpsc::UnboundedSender<RunCommand>>,
    reports: mpsc::UnboundedSender<(usize, RunReport)>,
    evidence: BTreeMap<usize, ParticipantEvidence>,
}

/// Runs the batch of this kind that begins with this block. Returns its id, or the reason why there is none.
pub(crate) async fn run_batch(
    state: &Arc<RunnerState>,
    kind: ObservationKind,
    block: u64,
    hash: BlockHash,
) -> Result<Result<String, BatchRejection>, StoreError> {
    let stop = state.tasks.token();
    let announcements = tokio::select! {
        () = stop.cancelled() => return Ok(Err(BatchRejection::Stopping)),
        announcements = announcements_for(state, kind) => announcements,
    };
    let classes: Vec<_> = state.grade_specs.iter().map(GradeSpec::class).collect();
    let announcements = select_graded(&classes, kind, state.settings.executors, announcements);
    let plan = draw_batch(
        kind,
        &hash,
        state.validator,
        &announcements.announced,
        state.settings.bounds(),
    );
    if plan.participants.is_empty() && announcements.silent.is_empty() {
        return Ok(Err(BatchRejection::NoExecutors));
    }
    let proven_before = state.store.proven_before(&plan.participants).await?;
    let lines = keep_serving(state, &plan, kind, &hash, &proven_before).await;
    let head = BatchHead {
        validator: state.validator,
        kind,
        block,
        hash,
        announced: announcements.announced,
        silent: announcements.silent,
        serving: lines.iter().map(|line| describe_session(line)).collect(),
        bounds: state.settings.bounds(),
        proven_before,
        grade_specs: state.grade_specs.clone(),
    };
    let sessions = match_sessions(&plan.participants, &head.serving, &lines);
    let id = hex::encode(plan.id.0);
    tracing::info!(
        batch = id,
        ?kind,
        block,
        executors = plan.participants.len(),
        beyond = plan.above_bound.len(),
        left_out = plan.left_out.len(),
        silent = head.silent.len(),
        in_sessions = sessions.len(),
        "a batch begins"
    );
    if !state
        .store
        .begin_batch(&plan.id, &head, state.clock.now())
        .await?
    {
        return Ok(Err(BatchRejection::Begun));
    }
    let (reports, incoming) = mpsc::unbounded_channel();
    let mut run = BatchRun::new(state, kind, plan, sessions, reports);
    let finished = tokio::select! {
        () = stop.cancelled() => false,
        () = run.drive(incoming) => true,
    };
    if !finished {
        return Ok(Err(BatchRejection::Stopping));
    }
    run.finish(&head).await?;
    Ok(Ok(id))
}

/// The miners' announcements for a batch. A probe goes by those of the last miner poll: questions would announce it.
/// After a start there is none yet.
async fn announcements_for(state: &RunnerState, kind: ObservationKind) -> Announcements {
    let known = match kind {
        ObservationKind::Announced => None,
        ObservationKind::Unannounced => state.polled.lock().clone(),
    };
    match known {
        Some(announcements) => announcements,
        None => state.poll_miners().await,
    }
}

/// The announcements that count: executors of those `classes` that this kind of batch grades, and as many silent miners
/// as a batch may have executors.
fn select_graded(
    classes: &[ExecutorClass],
    kind: ObservationKind,
    executors: u32,
    announcements: Announcements,
) -> Announcements {
    let Announcements {
        mut announced,
        mut silent,
    } = announcements;
    announced.retain(|announcement| {
        let class = announcement.class;
        announcement.count > 0 && classes.contains(&class) && is_probed_by(class, kind)
    });
    silent.sort_unstable();
    silent.truncate(usize::try_from(executors).unwrap_or(usize::MAX));
    Announcements { announced, silent }
}

/// The sessions in which executors are challenged. Before an announced batch, the sessions of drawn miners are drained,
/// and their executors are leased like those that serve nobody. A probe drains none: its instant comes too soon. Nor
/// does a batch that waits for nobody at work.
async fn keep_serving(
    state: &RunnerState,
    plan: &BatchPlan,
    kind: ObservationKind,
    hash: &BlockHash,
    proven_before: &[ProvenCount],
) -> Vec<Arc<SealedSession>> {
    let mut lines = state.serving_sessions().await;
    let drained = match kind {
        ObservationKind::Unannounced => return lines,
        ObservationKind::Announced if state.settings.at_work_s == 0 => return lines,
        ObservationKind::Announced => {
            let is_graded = |session: &ServingSession| {
                let mut drawn = plan.participants.iter();
                drawn.any(|drawn| (drawn.miner, drawn.class) == (session.miner, session.class))
            };
            let serving = lines.iter().map(|line| describe_session(line));
            let serving: Vec<_> = serving.filter(is_graded).collect();
            let one_in = state.settings.full_course_one_in;
            let before = index_proven(proven_before);
            draw_full_courses(hash, state.validator, &serving, &before, one_in)
        }
    };
    lines.retain(|line| {
        let keeps = !drained.contains(&(line.miner(), line.class()));
        if !keeps {
            tracing::info!(job = %line.job(), miner = %line.miner(), "drains a session for a full proof of its class");
            if let Some(gateway) = &state.gateway {
                gateway.drain_session(line.job());
            }
        }
        keeps
    });
    lines
}

/// Describes a session in the form of the evidence.
fn describe_session(line: &SealedSession) -> ServingSession {
    ServingSession {
        miner: line.miner(),
        class: line.class(),
        job: line.job(),
    }
}

/// The sessions in which executors of the batch are challenged, by place.
fn match_sessions(
    participants: &[Participant],
    serving: &[ServingSession],
    lines: &[Arc<SealedSession>],
) -> BTreeMap<usize, Arc<SealedSession>> {
    let places = assign_sessions(participants, serving).into_iter();
    places
        .filter_map(|(place, job)| {
            let line = lines.iter().find(|line| line.job() == job)?;
            Some((place, Arc::clone(line)))
        })
        .collect()
}

/// The longest time in microseconds that all trials of a class can take, including retries.
fn longest_us(grade_spec: &GradeSpec) -> u64 {
    let trials = grade_spec
        .trials
        .iter()
        .map(|trial| trial.longest_us().saturating_mul(2));
    trials.fold(0, u64::saturating_add)
}

impl BatchRun {
    /// A batch run whose clock starts now.
    fn new(
        state: &Arc<RunnerState>,
        kind: ObservationKind,
        plan: BatchPlan,
        sessions: BTreeMap<usize, Arc<SealedSession>>,
        reports: mpsc::UnboundedSender<(usize, RunReport)>,
    ) -> Self {
        let started_at = Instant::now();
        // Without randomness the instant of a probe is its earliest one.
        let mut random = [0; 8];
        let _ = getrandom::fill(&mut random);
        let gather = state.settings.gather_time(kind, u64::from_le_bytes(random));
        let rules = BatchRules {
            kind,
            gather_us: micros(gather),
        };
        let longest = state.grade_specs.iter().map(longest_us).max().unwrap_or(0);
        let batch = Batch::new(plan.participants.clone(), state.grade_specs.clone(), rules, 0);
        let spin_up = plan
            .participants
            .iter()
            .map(|participant| participant.class.spin_up_time())
            .max();
        Self {
            state: Arc::clone(state),
            batch: batch.with_sessions(sessions.keys().copied()),
            sessions,
            plan,
            started_at,
            times: LeaseTimes {
                kind,
                gather,
                barrier_closes: started_at + spin_up.unwrap_or_default() + gather,
                lifetime: gather + Duration::from_micros(longest) + LEASE_MARGIN,
                at_work: Duration::from_secs(state.settings.at_work_s),
            },
            commands: BTreeMap::new(),
            reports,
            evidence: BTreeMap::new(),
        }
    }

    /// Drives the batch until all executors are judged.
    async fn drive(&mut self, mut incoming: mpsc::UnboundedReceiver<(usize, RunReport)>) {
        let mut actions = self.batch.tick(0);
        loop {
            if self.perform_actions(actions) {
                return;
            }
            let due = self
                .batch
                .deadline_us()
                .map(|us| self.started_at + Duration::from_micros(us));
            actions = tokio::select! {
                // Reports that arrived before a time limit come before the limit.
                biased;
                report = incoming.recv() => match report {
                    Some((place, report)) => self.handle_report(place, report),
                    // Cannot happen: this run holds a sender itself.
                    None => return,
                },
                () = sleep_until(due.unwrap_or(self.started_at)), if due.is_some() => {
                    let now = self.now();
                    self.batch.tick(now)
                }
            };
        }
    }

    fn handle_report(&mut self, place: usize, report: RunReport) -> Vec<BatchAction> {
        let now = self.now();
        match report {
            RunReport::Event(event) => {
                if let BatchEvent::Absent(absence) = &event {
                    tracing::info!(place, ?absence, "an executor will not reach the barrier");
                }
                self.batch.apply(place, event, now)
            }
            RunReport::Session(job, attestation) => {
                let participant = self.evidence.entry(place).or_default();
                participant.job = Some(job.to_string());
                participant.attestation = Some(attestation);
                Vec::new()
            }
            RunReport::Judged(result) => self.batch.apply(place, BatchEvent::Judged(result), now),
        }
    }

    /// Carries out the actions. Returns whether the batch is over.
    fn perform_actions(&mut self, actions: Vec<BatchAction>) -> bool {
        let mut over = false;
        for action in actions {
            match action {
                BatchAction::Lease(places) => {
                    for place in places {
                        self.start_executor(place);
                    }
                }
                BatchAction::Challenge {
                    trial,
                    attempt,
                    participants,
                } => {
                    tracing::info!(
                        trial,
                        attempt,
                        executors = participants.len(),
                        "challenges go out"
                    );
                    self.send_command(&participants, RunCommand::Challenge(trial));
                }
                BatchAction::Judge(places) => self.send_command(&places, RunCommand::Judge),
                BatchAction::Release(places) => {
                    self.send_command(&places, RunCommand::Release);
                    for place in places {
                        self.commands.remove(&place);
                    }
                }
                BatchAction::Finish => over = true,
            }
        }
        over
    }

    fn send_command(&self, places: &[usize], command: RunCommand) {
        for place in places {
            if let Some(run) = self.commands.get(place) {
                // A task that has ended has reported so, or the time limit of the round gives its executor up.
                let _ = run.send(command);
            }
        }
    }

    fn start_executor(&mut self, place: usize) {
        let (Some(participant), Some(grade_spec)) =
            (self.plan.participants.get(place), self.batch.grade_spec(place))
        else {
            return;
        };
        let (sender, commands) = mpsc::unbounded_channel();
        let run = ExecutorRun {
            state: Arc::clone(&self.state),
            batch: self.plan.id,
            place,
            participant: *participant,
            grade_spec: grade_spec.clone(),
            session: self.sessions.get(&place).cloned(),
            batch_started_at: self.started_at,
            times: self.times,
            reports: self.reports.clone(),
        };
        drop(self.state.tasks.spawn("executor in a batch", run.run(commands)));
        self.commands.insert(place, sender);
    }

    async fn finish(mut self, head: &BatchHead) -> Result<(), StoreError> {
        let Some((mut judgements, fingerprints)) = self.batch.judgements(&head.proven_before()) else {
            return Ok(());
        };
        for (place, absence) in self.batch.absences() {
            self.evidence.entry(*place).or_default().absence = Some(absence.clone());
        }
        let mut counted = count_capacities(&self.plan.participants, &judgements, &head.grade_specs);
        // Capacities that a silent miner proved in earlier batches count no longer.
        counted.extend(head.silent.iter().flat_map(|silent| {
            let classes = head.grade_specs.iter().map(GradeSpec::class);
            classes.map(|class| Capacity::none(silent.miner, class))
        }));
        judgements.extend(head.silent.iter().map(judge_silent_miner));
        let now = self.state.clock.now();
        let store = &self.state.store;
        store
            .finish_batch(
                &self.plan,
                head,
                &fingerprints,
                &judgements,
                &self.evidence,
                &counted,
                now,
            )
            .await?;
        log_outcome(&self.plan, head, &judgements, &counted);
        // The capacities stay; the evidence is large and is deleted after a time.
        store
            .forget_evidence_before(self.state.settings.evidence_cutoff(now))
            .await
    }

    fn now(&self) -> u64 {
        micros(Instant::now().saturating_duration_since(self.started_at))
    }
}

fn log_outcome(plan: &BatchPlan, head: &BatchHead, judgements: &[Judgement], counted: &[Capacity]) {
    metrics::counter!("muster_validator_grading_batches_total").increment(1);
    for judgement in judgements {
        metrics::counter!("muster_validator_grades_total", "grade" => judgement.name()).increment(1);
    }
    for (participant, judgement) in plan.participants.iter().zip(judgements) {
        tracing::info!(miner = %participant.miner, class = %participant.class, executor = participant.index, %judgement, "graded");
    }
    for silent in &head.silent {
        tracing::info!(miner = %silent.miner, said = silent.said, "a miner did not announce its executors: they count for nothing");
    }
    let proven: u32 = counted.iter().map(|count| count.proven).sum();
    let excused: usize = counted.iter().map(|count| count.excuses.len()).sum();
    tracing::info!(
        batch = hex::encode(plan.id.0),
        executors = judgements.len(),
        proven,
        excused,
        "a batch is over"
    );
}

#[cfg(test)]
mod tests {
    use muster_grading::batch_plan::{Announcement, SilentMiner};
    use muster_protocol::{Hotkey, MinerKey};

    use super::*;

    #[test]
    fn a_probe_leaves_out_classes_that_take_minutes_to_appear() {
        let (test, spin_up, other) = (
            ExecutorClass::AlwaysOnTest,
            ExecutorClass::SpinUpGpu24Gb,
            ExecutorClass::AlwaysOnLlmA6000,
        );
        let miner = |seed| MinerKey(Hotkey::from_bytes([seed; 32]));
        let announced = |kind| {
            let said = [(1, test, 2), (1, spin_up, 3), (2, test, 0), (2, other, 1)];
            let announced = said.map(|(seed, class, count)| Announcement {
                miner: miner(seed),
                class,
                count,
            });
            let silent = [4, 3].map(|seed| SilentMiner {
                miner: miner(seed),
                said: "silence".to_owned(),
            });
            let all = Announcements {
                announced: announced.to_vec(),
                silent: silent.to_vec(),
            };
            select_graded(&[test, spin_up], kind, 1, all)
        };
        let classes = |kind| {
            announced(kind)
                .announced
                .iter()
                .map(|said| said.class)
                .collect::<Vec<_>>()
        };
        assert_eq!(classes(ObservationKind::Announced), [test, spin_up]);
        assert_eq!(classes(ObservationKind::Unannounced), [test]);
        let silent = announced(ObservationKind::Announced).silent;
        assert_eq!(
            silent.iter().map(|silent| silent.miner).collect::<Vec<_>>(),
            [miner(3)]
        );
    }
}
