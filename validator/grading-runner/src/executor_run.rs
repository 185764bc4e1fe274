//! Runs one executor of a batch: leases it, waits at the barrier, challenges it on command, and releases it.

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::backend::{JobNews, StreamingJobOrder};
use muster_grading::batch::BatchEvent;
use muster_grading::batch_file::ProofEvidence;
use muster_grading::batch_plan::Participant;
use muster_grading::evidence_signatures::{GRADE_PATH, IN_SESSION_PATH};
use muster_grading::grade_spec::GradeSpec;
use muster_grading::judgement::{Absence, sanitize_words};
use muster_grading::trial_result::TrialResult;
use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce};
use muster_hardware_proof::challenge_message::ProofSpec;
use muster_hardware_proof::conversation::ValidatorConversation;
use muster_hardware_proof::spec::WalkMemory;
use muster_hardware_proof::{InstructionSet, ProofVerdict};
use muster_process::backoff::Backoff;
use muster_process::certificate;
use muster_protocol::JobId;
use muster_scoring::ObservationKind;
use muster_sealed_client::{AddressPermit, SealedSession, SessionParameters};
use muster_session_pool::Service;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use crate::conversation::TimedConversation;
use crate::runner_state::{RunnerState, micros};
use crate::transport::{SessionTransport, Transport};

/// The number of news of one job that may wait.
const MAX_WAITING_NEWS: usize = 8;
/// The time between two health checks of an executor at the barrier. The checks also keep the connection in use.
const HEALTH_INTERVAL: Duration = Duration::from_secs(10);

/// The time limit for starting the grader beside a session in use.
const GRADER_START_LIMIT: Duration = Duration::from_secs(150);
/// The reason for a void if this validator ended the session meanwhile.
const SESSION_ENDED: &str = "the validator ended the session in which it was challenged";

/// The pauses between attempts to lease an executor whose miner has none free.
const LEASE_BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(500),
    max: Duration::from_secs(8),
};
/// The time before the barrier closes in which no further attempt is made.
const LAST_LEASE: Duration = Duration::from_secs(1);

/// The times of all leases of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTimes {
    /// The kind of the batch.
    pub(crate) kind: ObservationKind,
    /// The time to reach the barrier, beyond the slowest spin-up time.
    pub(crate) gather: Duration,
    /// The instant after which no executor reaches the barrier.
    pub(crate) barrier_closes: Instant,
    /// The time after which a lease ends.
    pub(crate) lifetime: Duration,
    /// The time for which a miner is asked again whose executors work for users: their work may be about to end. A
    /// probe asks once, since an executor that is leased later is not ready in time.
    pub(crate) at_work: Duration,
}

impl LeaseTimes {
    /// How long a miner is asked again that refuses with this absence, from `now` on; none if it is not asked again. A
    /// miner whose executors are leased to another validator's grader is asked until the barrier closes, since no
    /// receipt of that lease will ever count as an excuse.
    fn patience(&self, absence: &Absence, asked_since: Instant, now: Instant) -> Option<Duration> {
        let until_barrier = self
            .barrier_closes
            .checked_duration_since(now)?
            .checked_sub(LAST_LEASE)?;
        match absence {
            Absence::NotLeased { .. } if self.kind == ObservationKind::Unannounced => None,
            Absence::NotLeased { at_work, .. } if at_work.iter().any(|attempt| !attempt.is_organic) => {
                Some(until_barrier)
            }
            Absence::NotLeased { .. } => {
                let asked = now.saturating_duration_since(asked_since);
                Some(until_barrier.min(self.at_work.checked_sub(asked)?))
            }
            Absence::NotReady { .. } | Absence::LeftBarrier { .. } | Absence::Void { .. } => None,
        }
    }
}

/// A command from the batch to the task of one executor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RunCommand {
    /// Challenge the executor now, with the trial of this number.
    Challenge(usize),
    /// Draw, take the opening, and judge it. No clock of the batch runs any longer.
    Judge,
    /// Release the executor.
    Release,
}

/// A report from the task of one executor to the batch.
#[derive(Debug)]
pub(crate) enum RunReport {
    /// An event for the state machine of the batch.
    Event(BatchEvent),
    /// The job of the executor's session, and its miner's attestation of the session.
    Session(JobId, String),
    /// A proof has been judged and stored.
    Judged(Box<TrialResult>),
}

/// The task of one executor in a batch.
pub(crate) struct ExecutorRun {
    pub(crate) state: Arc<RunnerState>,
    pub(crate) batch: BatchId,
    pub(crate) place: usize,
    pub(crate) participant: Participant,
    pub(crate) grade_spec: GradeSpec,
    /// The session in which the executor is challenged, if it serves one. It is not leased then.
    pub(crate) session: Option<Arc<SealedSession>>,
    /// The start of the batch, to which the times in the evidence are relative.
    pub(crate) batch_started_at: Instant,
    pub(crate) times: LeaseTimes,
    pub(crate) reports: mpsc::UnboundedSender<(usize, RunReport)>,
}

impl ExecutorRun {
    /// Runs the executor until it is released.
    pub(crate) async fn run(self, mut commands: mpsc::UnboundedReceiver<RunCommand>) {
        if let Some(line) = self.session.clone() {
            tokio::select! {
                ready = line.start_grader(GRADER_START_LIMIT) => self.run_in_session(&line, ready, &mut commands).await,
                _ = commands.recv() => {}
            }
            return;
        }
        let job = Mutex::new(None);
        let (leased, mut incoming_news) = tokio::select! {
            leased = self.lease(&job) => leased,
            _ = commands.recv() => {
                self.give_back(&job, "the barrier has closed").await;
                return;
            }
        };
        match leased {
            Ok(line) => {
                if let Some(job) = *job.lock() {
                    self.report(RunReport::Session(job, line.attestation().to_owned()));
                }
                self.report(RunReport::Event(BatchEvent::Ready));
                let transport = SessionTransport {
                    line: &line,
                    path: GRADE_PATH,
                };
                self.follow_batch(transport, &mut commands, &mut incoming_news)
                    .await;
            }
            Err(absence) => self.report(RunReport::Event(BatchEvent::Absent(absence))),
        }
        self.give_back(&job, "its grading is over").await;
    }

    /// Challenges the executor in the session that it serves.
    async fn run_in_session(
        &self,
        line: &SealedSession,
        ready: Result<(), String>,
        commands: &mut mpsc::UnboundedReceiver<RunCommand>,
    ) {
        self.report(RunReport::Session(line.job(), line.attestation().to_owned()));
        match ready {
            Ok(()) => self.report(RunReport::Event(BatchEvent::Ready)),
            Err(_) if line.is_ending() => {
                return self.report(RunReport::Event(BatchEvent::EndedByValidator(
                    SESSION_ENDED.to_owned(),
                )));
            }
            Err(why) => {
                let said = sanitize_words(&format!("in the session that it serves: {why}"));
                return self.report(RunReport::Event(BatchEvent::Absent(Absence::NotReady { said })));
            }
        }
        // The gateway receives the news of this session, so this channel stays empty.
        let (_quiet, mut incoming_news) = mpsc::channel(1);
        let transport = SessionTransport {
            line,
            path: IN_SESSION_PATH,
        };
        self.follow_batch(transport, commands, &mut incoming_news).await;
    }

    async fn give_back(&self, job: &Mutex<Option<JobId>>, why: &'static str) {
        let job = *job.lock();
        if let Some(job) = job {
            self.state.own_jobs.end(job, why).await;
        }
    }

    /// Leases the executor. A miner that has none free is asked again for a while, because its work may be about to
    /// end.
    async fn lease(
        &self,
        job: &Mutex<Option<JobId>>,
    ) -> (Result<SealedSession, Absence>, mpsc::Receiver<JobNews>) {
        let asked_since = Instant::now();
        let mut pauses = LEASE_BACKOFF.pauses(u32::MAX);
        loop {
            let id = JobId::from_uuid(Uuid::new_v4());
            *job.lock() = Some(id);
            let (news, mut incoming_news) = mpsc::channel(MAX_WAITING_NEWS);
            let leased = self.try_lease(id, news, &mut incoming_news).await;
            let patience = match &leased {
                Err(absence) => self.times.patience(absence, asked_since, Instant::now()),
                Ok(_) => None,
            };
            let pause = patience.and_then(|patience| pauses.next().filter(|pause| *pause <= patience));
            match pause {
                Some(pause) => self.state.clock.sleep(pause).await,
                None => return (leased, incoming_news),
            }
        }
    }

    async fn try_lease(
        &self,
        job: JobId,
        news: mpsc::Sender<JobNews>,
        incoming_news: &mut mpsc::Receiver<JobNews>,
    ) -> Result<SealedSession, Absence> {
        let void = |why: &dyn std::fmt::Display| Absence::Void {
            said: why.to_string(),
        };
        let state = &self.state;
        let service = state.settings.service(self.participant.class);
        let service: Service = service.ok_or_else(|| void(&"no grader for its class"))?;
        let names = ["muster-grading".to_owned()];
        let generated = certificate::make_self_signed(&names).map_err(|error| void(&error))?;
        let order = StreamingJobOrder {
            job,
            service: service.clone(),
            certificate: generated.pem,
            lifetime: self.times.lifetime,
            start_limit: self.times.gather,
            miner: Some(self.participant.miner),
            news,
        };
        state.own_jobs.begin(order).await.map_err(|why| void(&why))?;
        let (miner, ready) = match incoming_news.recv().await {
            Some(JobNews::Ready { miner, ready }) => (miner, ready),
            Some(JobNews::Ended { why, at_work, .. }) => {
                let (said, backed) = (sanitize_words(&why), !at_work.is_empty());
                return Err(Absence::NotLeased {
                    said,
                    backed,
                    at_work,
                });
            }
            Some(JobNews::Closed(_)) => {
                let said = "its session was over before it began".to_owned();
                return Err(Absence::NotReady { said });
            }
            None => return Err(void(&"its job was forgotten")),
        };
        let opening = SessionParameters {
            me: state.validator,
            job,
            service: &service,
            identity: &generated.identity,
            until: state.clock.now().plus(self.times.lifetime),
            skew: Duration::from_millis(state.settings.skew_ms),
            permits: AddressPermit(&|host, address| state.rules.permit(host, address.ip(), address.port())),
            clock: &state.clock,
            tasks: &state.tasks,
        };
        let opened = SealedSession::open(&opening, miner, *ready).await;
        opened.map_err(|why| Absence::NotReady {
            said: sanitize_words(&why),
        })
    }

    /// Waits at the barrier and follows the commands of the batch.
    async fn follow_batch(
        &self,
        transport: SessionTransport<'_>,
        commands: &mut mpsc::UnboundedReceiver<RunCommand>,
        incoming_news: &mut mpsc::Receiver<JobNews>,
    ) {
        let first_round = self.grade_spec.first_round();
        let mut first = self.prepare_challenge(first_round, None);
        let mut trial = first_round;
        // The memory that the executor filled last, to which its products are bound.
        let mut memory = None;
        let mut under_way: Option<TimedConversation> = None;
        let mut number = 0;
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(RunCommand::Challenge(which)) => {
                        // The first challenge is prepared before the barrier opens.
                        let prepared = first.take().filter(|_| which == first_round);
                        let Some(prepared) = prepared.or_else(|| self.prepare_challenge(which, memory)) else {
                            return;
                        };
                        let (spec, mut conversation) = prepared;
                        memory = spec.walk_memory().or(memory);
                        trial = which;
                        conversation.run_to_commitment(&transport as &dyn Transport).await;
                        under_way = Some(conversation);
                        self.report(RunReport::Event(BatchEvent::Committed));
                    }
                    Some(RunCommand::Judge) => {
                        let Some(conversation) = under_way.take() else { continue };
                        self.judge(trial, number, conversation, transport).await;
                        number += 1;
                    }
                    Some(RunCommand::Release) | None => return,
                },
                news = incoming_news.recv(), if under_way.is_none() => {
                    let why = match news {
                        Some(JobNews::Ended { why, .. }) => why,
                        Some(JobNews::Ready { .. }) => "it moved to another address".to_owned(),
                        Some(JobNews::Closed(_)) => "its session was closed".to_owned(),
                        None => "its job was forgotten".to_owned(),
                    };
                    self.report(RunReport::Event(BatchEvent::Lost(sanitize_words(&why))));
                    return;
                }
                () = tokio::time::sleep(HEALTH_INTERVAL), if under_way.is_none() => {
                    if let Err(why) = transport.line.check_health().await {
                        tracing::info!(place = self.place, why, "an executor at the barrier is not healthy");
                    }
                }
            }
        }
    }

    /// Prepares a challenge with a nonce of its own, and encodes its message. `memory` is that of the executor's last
    /// WALK.
    fn prepare_challenge(
        &self,
        trial: usize,
        memory: Option<WalkMemory>,
    ) -> Option<(ProofSpec, TimedConversation)> {
        let asked = self.grade_spec.trial_in(trial)?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).ok()?;
        let identity = ChallengeIdentity {
            batch: self.batch,
            executor: self.participant.executor_name(),
            nonce: ChallengeNonce(nonce),
        };
        let spec = asked.shape.challenge_spec(identity, memory).ok()?;
        let conversation = ValidatorConversation::new(spec, asked.limits());
        Some((spec, TimedConversation::new(conversation)))
    }

    /// Takes the opening, judges it on a blocking thread, stores the evidence, and reports.
    async fn judge(
        &self,
        trial: usize,
        number: u32,
        conversation: TimedConversation,
        transport: SessionTransport<'_>,
    ) {
        let permits = &self.state.judging_permits;
        let Some(permit) = permits.acquire(self.participant.miner).await else {
            return;
        };
        let sent_us = micros(
            conversation
                .sent_at
                .saturating_duration_since(self.batch_started_at),
        );
        let (evidence, remarks) = conversation.take_opening(&transport, permit.patience()).await;
        if remarks.is_late {
            permit.note_late();
        }
        let trouble = remarks.trouble.clone();
        let judging = tokio::task::spawn_blocking(move || {
            let result = TrialResult::from_evidence(trial, &evidence, trouble, InstructionSet::best());
            (result, evidence)
        });
        let Ok((result, evidence)) = judging.await else {
            // The verifier has a defect. The time limit of the round makes the executor void.
            tracing::error!(place = self.place, "an executor's proof could not be judged");
            return;
        };
        if transport.line.is_ending()
            && matches!(result.verdict, ProofVerdict::Zero(reason) if !reason.is_wrong())
        {
            // The validator itself ended the session, so the missing answer is not the executor's fault.
            return self.report(RunReport::Event(BatchEvent::EndedByValidator(
                SESSION_ENDED.to_owned(),
            )));
        }
        let proof = ProofEvidence {
            trouble: remarks.trouble,
            seals: remarks.seals,
            ..ProofEvidence::new(trial, sent_us, &evidence)
        };
        match self
            .state
            .store
            .insert_proof(&self.batch, self.place, number, &proof)
            .await
        {
            Ok(()) => self.report(RunReport::Judged(Box::new(result))),
            Err(error) => (self.state.on_store_failure)(error),
        }
    }

    fn report(&self, report: RunReport) {
        // A batch that is over takes no more reports.
        let _ = self.reports.send((self.place, report));
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::receipt::AttemptAtWork;
    use muster_protocol::{AttemptId, Timestamp};

    use super::*;

    #[test]
    fn a_miner_is_asked_again_as_long_as_its_work_may_end_in_time() {
        let start = Instant::now();
        let times = |kind| LeaseTimes {
            kind,
            gather: Duration::from_secs(120),
            barrier_closes: start + Duration::from_secs(120),
            lifetime: Duration::from_secs(900),
            at_work: Duration::from_secs(24),
        };
        let refused = |is_organic| Absence::NotLeased {
            said: "busy".to_owned(),
            backed: true,
            at_work: vec![AttemptAtWork {
                attempt: AttemptId::from_uuid(Uuid::nil()),
                shown_at: Timestamp::from_secs(1),
                until: Timestamp::from_secs(2),
                is_organic,
            }],
        };
        let at = |second| start + Duration::from_secs(second);
        let patience = |absence: &Absence, second| {
            let patience = times(ObservationKind::Announced).patience(absence, start, at(second));
            patience.map(|patience| patience.as_secs())
        };
        assert_eq!(
            (patience(&refused(true), 4), patience(&refused(true), 25)),
            (Some(20), None)
        );
        assert_eq!(
            (patience(&refused(false), 25), patience(&refused(false), 118)),
            (Some(94), Some(1)),
            "another validator's batch ends soon"
        );
        assert_eq!(patience(&refused(false), 120), None);
        let said = String::new();
        assert_eq!(patience(&Absence::NotReady { said }, 0), None);
        let probe = times(ObservationKind::Unannounced).patience(&refused(false), start, start);
        assert_eq!(probe, None);
    }
}
