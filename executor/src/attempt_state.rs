//! The life of one attempt on an executor as a pure machine: what happened and when goes in, what to do comes out.
//!
//! Each stage has a clock of its own: loading an image never eats into the job's time, and a quick download does not
//! let the program run longer than its user signed for. ComputeHorde carries unused time over; a validator does so still
//! (it must, for ComputeHorde's miners), which leaves it time to hear of a time-out here (ADR 0009).

use std::time::Duration;

use muster_protocol::job::Fault;
use muster_protocol::wire::miner::InitialJobRequest;
use muster_protocol::{ErrorCode, HordeFailureReason, JobFailureReason, JobStage, Timestamp};

/// How much longer than its grace a container may take to be killed before it is given up.
const KILL_LIMIT: Duration = Duration::from_secs(20);
/// How long a session may take to close once its time is over.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(15);
/// For a job without stage clocks: what Python validators send in the field that preceded them.
const DEFAULT_TIMEOUT_SECS: u64 = 300;
const DEFAULT_LEEWAY_SECS: u64 = 5;

/// How long each stage may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Slack for the whole job.
    pub leeway: Duration,
    /// For the rest of the request and the inputs.
    pub download: Duration,
    /// For the program.
    pub execution: Duration,
    /// For the outputs.
    pub upload: Duration,
    /// From started to answering, for streaming jobs.
    pub streaming_start: Duration,
}

/// How long an attempt waits for what is not the job's own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the miner to offer the job.
    pub offer: Duration,
    /// For the image to get ready.
    pub image: Duration,
    /// For the program to stop by itself.
    pub grace: Duration,
}

/// What an offer says that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The clocks.
    pub timing: Timing,
    /// The job answers requests while it runs.
    pub streaming: Option<Streaming>,
}

/// How a streaming job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streaming {
    /// By itself; when its time is over it has failed, as in ComputeHorde.
    Direct,
    /// With its session, whose end is signed; its time is what its validator wanted it for.
    Sealed,
}

/// How the program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 + signal if it was killed.
    pub code: i64,
    /// The kernel killed it for its memory.
    pub oom_killed: bool,
    /// Why it could not even be started, in the engine's words.
    pub not_started: Option<String>,
}

/// Why a running program is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Its time is over.
    TimedOut,
    /// It wrote more than this many bytes.
    DiskFull(u64),
    /// It did not answer in time.
    NeverAnswered,
    /// Its session is over.
    SessionOver,
}

/// Where an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Connected; the miner has not said what the job is.
    AwaitingOffer,
    /// The image is being looked for or loaded.
    PreparingImage(Timing),
    /// Ready; the rest of the request is missing.
    AwaitingJob(Timing),
    /// The request names an image that the offer did not; the time for the inputs stands still meanwhile.
    FetchingImage(Timing, Duration),
    /// Inputs are being put in place.
    PlacingVolumes(Timing),
    /// The program runs.
    Running(Timing),
    /// The program of a streaming job runs and does not answer yet.
    Starting(Timing),
    /// It answers.
    Serving(Timing),
    /// Its session is being closed.
    Closing(Timing),
    /// The program was told to stop.
    Stopping(Halt),
    /// The program has ended well; its outputs are being gathered.
    Collecting,
    /// The program has failed or was stopped; what it left is being gathered all the same.
    Salvaging,
    /// The end.
    Over,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The miner offered the job.
    Offered(Terms),
    /// The image is there.
    ImageReady,
    /// The rest of the request arrived.
    Requested {
        /// The image that it names is the one that is there.
        image_ready: bool,
    },
    /// Inputs are in place.
    VolumesReady,
    /// The program has ended, or could not be started.
    Exited(Exit),
    /// The job wrote more than this many bytes.
    DiskFull(u64),
    /// It answers, and its session is open.
    Answers,
    /// Its session is over, and that is signed.
    SessionOver,
    /// Outputs are gathered.
    Collected,
    /// What was being done cannot be done.
    Failed(Failure),
    /// The miner no longer wants it, or is not there any more.
    Parted(Parting),
    /// Time has passed.
    Tick,
}

/// What to do next, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Look for the image, load it if need be.
    PrepareImage,
    /// Tell the miner: ready.
    SayReady,
    /// Put the inputs in place.
    PlaceVolumes,
    /// Tell the miner: inputs are in place.
    SayVolumesReady,
    /// Create and start the container.
    Run,
    /// Wait until the program answers, and open its session.
    OpenSession,
    /// Tell the miner where it answers.
    SayAnswers,
    /// Close the session.
    CloseSession,
    /// Ask the container to stop, kill it after its grace.
    Stop,
    /// Tell the miner: the program has ended.
    SayExecutionDone,
    /// Gather the outputs.
    Collect,
    /// Tell the miner how it ended, tidy up, leave.
    Conclude(Conclusion),
}

/// How an attempt ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// Success.
    Finished,
    /// A failure that the miner is told.
    Failed(Failure),
    /// Nobody is left to be told.
    Parted(Parting),
}

/// A failure: whose, where, what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The job's own or the subnet's.
    pub kind: FailureKind,
    /// Where in its life.
    pub stage: JobStage,
    /// In words.
    pub message: String,
    /// Its page.
    pub code: Option<ErrorCode>,
    /// Whose it is.
    pub fault: Fault,
}

/// Which of the two messages reports a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// `V0JobFailedRequest`.
    Job {
        /// Its reason.
        reason: JobFailureReason,
        /// The program's exit code, if it ended.
        exit_code: Option<i64>,
    },
    /// `V0HordeFailedRequest`.
    Horde(HordeFailureReason),
}

/// Why an attempt ends without a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parting {
    /// `MusterCancelJob`.
    Cancelled(String),
    /// The miner's socket closed or broke.
    MinerLost(String),
    /// The miner does not know this lease.
    Refused(String),
    /// The miner said nothing within the startup limit.
    NoOffer,
    /// This process was told to stop.
    ShutDown,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    state: State,
    deadline: Timestamp,
    patience: Patience,
    streaming: Option<Streaming>,
    /// Slack and time for outputs, once they are known.
    last: Duration,
    /// Why the program's outputs are salvaged rather than gathered.
    failure: Option<Failure>,
}

// === impl Timing ===

impl Timing {
    /// The clocks of an offer. Where it brings none, the older single time-out bounds the whole job.
    pub fn of(offer: &InitialJobRequest) -> Self {
        let secs = Duration::from_secs;
        match offer.executor_timing {
            Some(timing) => Self {
                leeway: secs(timing.allowed_leeway),
                download: secs(timing.download_time_limit),
                execution: secs(timing.execution_time_limit),
                upload: secs(timing.upload_time_limit),
                streaming_start: secs(timing.streaming_start_time_limit),
            },
            None => Self {
                leeway: secs(DEFAULT_LEEWAY_SECS),
                download: Duration::ZERO,
                execution: secs(offer.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECS)),
                upload: Duration::ZERO,
                streaming_start: secs(offer.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECS)),
            },
        }
    }
}

// === impl Failure ===

impl Failure {
    /// The job's own failure, its user's fault.
    pub fn job(reason: JobFailureReason, stage: JobStage, message: impl Into<String>) -> Self {
        let kind = FailureKind::Job {
            reason,
            exit_code: None,
        };
        Self {
            kind,
            stage,
            message: message.into(),
            code: None,
            fault: Fault::User,
        }
    }

    /// The subnet's failure, this executor's fault.
    pub fn horde(reason: HordeFailureReason, stage: JobStage, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Horde(reason),
            stage,
            message: message.into(),
            code: None,
            fault: Fault::Executor,
        }
    }

    /// With its page.
    #[must_use]
    pub fn coded(self, code: ErrorCode) -> Self {
        Self {
            code: Some(code),
            ..self
        }
    }

    /// With another party at fault.
    #[must_use]
    pub fn blame(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    fn of_exit(exit: &Exit) -> Self {
        let message = match (&exit.not_started, exit.oom_killed) {
            (Some(reason), _) => format!("the program could not be started: {reason}"),
            (None, true) => "the program was killed for using more memory than it is allowed".to_owned(),
            (None, false) => format!("the program ended with exit code {}", exit.code),
        };
        let kind = FailureKind::Job {
            reason: JobFailureReason::NonzeroReturnCode,
            exit_code: Some(exit.code),
        };
        Self {
            kind,
            ..Self::job(JobFailureReason::NonzeroReturnCode, JobStage::Execution, message)
        }
        .coded(ErrorCode::JobExitCode)
    }

    fn of_early_exit(exit: &Exit) -> Self {
        let failure = Self::of_exit(exit);
        Self {
            stage: JobStage::StreamingStartup,
            message: format!("{}, before it answered", failure.message),
            ..failure
        }
    }

    fn of_halt(halt: Halt, exit: Option<&Exit>) -> Self {
        match halt {
            Halt::TimedOut => {
                let message = "the job ran longer than it was allowed and was stopped";
                let kind = FailureKind::Job {
                    reason: JobFailureReason::Timeout,
                    exit_code: exit.map(|exit| exit.code),
                };
                Self {
                    kind,
                    ..Self::job(JobFailureReason::Timeout, JobStage::Execution, message)
                }
                .coded(ErrorCode::JobTimeout)
            }
            Halt::NeverAnswered => {
                let message =
                    "the streaming job did not answer its health check within the time it has to start";
                let kind = FailureKind::Job {
                    reason: JobFailureReason::Timeout,
                    exit_code: exit.map(|exit| exit.code),
                };
                Self {
                    kind,
                    ..Self::job(JobFailureReason::Timeout, JobStage::StreamingStartup, message)
                }
                .coded(ErrorCode::SessionUnanswered)
            }
            Halt::SessionOver => Self::horde(
                HordeFailureReason::GenericError,
                JobStage::Execution,
                "the container could not be stopped after its session",
            ),
            Halt::DiskFull(limit) => {
                let message = format!("the job wrote more than {limit} bytes and was stopped");
                let reason = JobFailureReason::NonzeroReturnCode;
                let kind = FailureKind::Job {
                    reason,
                    exit_code: exit.map(|exit| exit.code),
                };
                Self {
                    kind,
                    ..Self::job(reason, JobStage::Execution, message)
                }
                .coded(ErrorCode::JobExitCode)
            }
        }
    }
}

// === impl Attempt ===

impl Attempt {
    /// An attempt that began at `now`.
    pub fn new(now: Timestamp, patience: Patience) -> Self {
        Self {
            state: State::AwaitingOffer,
            deadline: now.plus(patience.offer),
            patience,
            streaming: None,
            last: Duration::ZERO,
            failure: None,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// When [`Event::Tick`] is due.
    pub fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// Takes in what happened at `now`. What does not belong to the state it is in changes nothing.
    pub fn apply(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let state = self.state;
        match (state, event) {
            (State::Over, _) => vec![],
            (_, Event::Parted(parting)) => self.conclude(Conclusion::Parted(parting)),
            // What went wrong first is what is told.
            (State::Salvaging, Event::Failed(_) | Event::Collected) => self.salvaged(),
            (_, Event::Failed(failure)) => self.conclude(Conclusion::Failed(failure)),
            (_, Event::Tick) if now < self.deadline => vec![],
            (_, Event::Tick) => self.late(now),

            (State::AwaitingOffer, Event::Offered(terms)) => self.offered(terms, now),
            (State::PreparingImage(timing), Event::ImageReady) => {
                self.state = State::AwaitingJob(timing);
                self.deadline = now.plus(timing.leeway).plus(timing.download);
                vec![Effect::SayReady]
            }
            (State::AwaitingJob(timing), Event::Requested { image_ready: true }) => {
                self.state = State::PlacingVolumes(timing);
                vec![Effect::PlaceVolumes]
            }
            (State::AwaitingJob(timing), Event::Requested { image_ready: false }) => {
                self.state = State::FetchingImage(timing, self.deadline.since(now));
                self.deadline = now.plus(self.patience.image);
                vec![Effect::PrepareImage]
            }
            (State::FetchingImage(timing, left), Event::ImageReady) => {
                self.state = State::PlacingVolumes(timing);
                self.deadline = now.plus(left);
                vec![Effect::PlaceVolumes]
            }
            (State::PlacingVolumes(timing), Event::VolumesReady) => {
                if self.streaming.is_some() {
                    self.state = State::Starting(timing);
                    self.deadline = now.plus(timing.streaming_start);
                    return vec![Effect::SayVolumesReady, Effect::Run, Effect::OpenSession];
                }
                self.state = State::Running(timing);
                self.deadline = now.plus(timing.execution);
                vec![Effect::SayVolumesReady, Effect::Run]
            }
            (State::Starting(timing), Event::Answers) => {
                self.state = State::Serving(timing);
                self.deadline = now.plus(timing.execution);
                vec![Effect::SayAnswers]
            }
            (State::Starting(_), Event::Exited(exit)) => self.salvage(Failure::of_early_exit(&exit), now),
            (State::Serving(timing) | State::Closing(timing), Event::Exited(exit)) => {
                self.served(timing, &exit, now)
            }
            (State::Serving(_) | State::Closing(_), Event::SessionOver) => self.halt(Halt::SessionOver, now),
            (State::Running(timing), Event::Exited(exit)) => self.exited(timing, &exit, now),
            (
                State::Running(_) | State::Starting(_) | State::Serving(_) | State::Closing(_),
                Event::DiskFull(limit),
            ) => self.halt(Halt::DiskFull(limit), now),
            (State::Stopping(Halt::SessionOver), Event::Exited(_)) => self.done(now),
            (State::Stopping(halt), Event::Exited(exit)) => {
                self.salvage(Failure::of_halt(halt, Some(&exit)), now)
            }
            (State::Collecting, Event::Collected) => self.conclude(Conclusion::Finished),

            // Said twice, or too late to matter.
            (
                State::AwaitingOffer
                | State::PreparingImage(_)
                | State::AwaitingJob(_)
                | State::FetchingImage(_, _)
                | State::PlacingVolumes(_)
                | State::Running(_)
                | State::Starting(_)
                | State::Serving(_)
                | State::Closing(_)
                | State::Stopping(_)
                | State::Collecting
                | State::Salvaging,
                Event::Offered(_)
                | Event::ImageReady
                | Event::Requested { .. }
                | Event::VolumesReady
                | Event::Exited(_)
                | Event::DiskFull(_)
                | Event::Answers
                | Event::SessionOver
                | Event::Collected,
            ) => vec![],
        }
    }

    fn offered(&mut self, terms: Terms, now: Timestamp) -> Vec<Effect> {
        self.streaming = terms.streaming;
        self.state = State::PreparingImage(terms.timing);
        self.deadline = now.plus(self.patience.image);
        self.last = terms.timing.leeway.saturating_add(terms.timing.upload);
        vec![Effect::PrepareImage]
    }

    fn exited(&mut self, timing: Timing, exit: &Exit, now: Timestamp) -> Vec<Effect> {
        if exit.code != 0 || exit.not_started.is_some() {
            return self.salvage(Failure::of_exit(exit), now);
        }
        self.state = State::Collecting;
        self.deadline = now.plus(timing.leeway).plus(timing.upload);
        vec![Effect::SayExecutionDone, Effect::Collect]
    }

    /// A program that answered has ended by itself: what is under way in its session is signed as it stands.
    fn served(&mut self, timing: Timing, exit: &Exit, now: Timestamp) -> Vec<Effect> {
        let mut effects = vec![Effect::CloseSession];
        effects.extend(self.exited(timing, exit, now));
        effects
    }

    /// It has ended because it was to.
    fn done(&mut self, now: Timestamp) -> Vec<Effect> {
        self.state = State::Collecting;
        self.deadline = now.plus(self.last);
        vec![Effect::SayExecutionDone, Effect::Collect]
    }

    fn halt(&mut self, halt: Halt, now: Timestamp) -> Vec<Effect> {
        self.state = State::Stopping(halt);
        self.deadline = now.plus(self.patience.grace).plus(KILL_LIMIT);
        if self.streaming.is_some() {
            return vec![Effect::CloseSession, Effect::Stop];
        }
        vec![Effect::Stop]
    }

    /// The time of a session is over: what is under way gets a while to end.
    fn close(&mut self, timing: Timing, now: Timestamp) -> Vec<Effect> {
        self.state = State::Closing(timing);
        self.deadline = now.plus(CLOSE_LIMIT);
        vec![Effect::CloseSession]
    }

    /// The job has failed; what it left is worth having all the same.
    fn salvage(&mut self, failure: Failure, now: Timestamp) -> Vec<Effect> {
        self.state = State::Salvaging;
        self.deadline = now.plus(self.last);
        self.failure = Some(failure);
        vec![Effect::Collect]
    }

    fn salvaged(&mut self) -> Vec<Effect> {
        match self.failure.take() {
            Some(failure) => self.conclude(Conclusion::Failed(failure)),
            // Nothing is salvaged without a failure.
            None => vec![],
        }
    }

    /// The deadline has passed.
    fn late(&mut self, now: Timestamp) -> Vec<Effect> {
        let failure = match self.state {
            State::AwaitingOffer => return self.conclude(Conclusion::Parted(Parting::NoOffer)),
            State::PreparingImage(_) | State::FetchingImage(_, _) => {
                let message = "the image was not ready within the time that the executor allows for one";
                Failure::horde(
                    HordeFailureReason::ExecutorSpinupFailed,
                    JobStage::ExecutorStartup,
                    message,
                )
            }
            State::AwaitingJob(_) => {
                let message = "the job's request did not arrive while the time for its inputs ran";
                Failure::horde(
                    HordeFailureReason::VolumesTimedOut,
                    JobStage::VolumeDownload,
                    message,
                )
                .blame(Fault::Validator)
            }
            State::PlacingVolumes(_) => {
                let message = "the inputs were not in place within the time the job allows for them";
                Failure::job(JobFailureReason::Timeout, JobStage::VolumeDownload, message)
                    .coded(ErrorCode::JobTimeout)
            }
            State::Running(_) => return self.halt(Halt::TimedOut, now),
            State::Starting(_) => return self.halt(Halt::NeverAnswered, now),
            State::Serving(timing) => {
                return match self.streaming {
                    Some(Streaming::Sealed) => self.close(timing, now),
                    Some(Streaming::Direct) | None => self.halt(Halt::TimedOut, now),
                };
            }
            State::Closing(_) => return self.halt(Halt::SessionOver, now),
            State::Stopping(halt) => Failure::of_halt(halt, None),
            State::Collecting => {
                let message = "the outputs were not gathered within the time the job allows for them";
                Failure::job(JobFailureReason::Timeout, JobStage::ResultUpload, message)
                    .coded(ErrorCode::JobTimeout)
            }
            State::Salvaging => return self.salvaged(),
            State::Over => return vec![],
        };
        self.conclude(Conclusion::Failed(failure))
    }

    fn conclude(&mut self, conclusion: Conclusion) -> Vec<Effect> {
        self.state = State::Over;
        vec![Effect::Conclude(conclusion)]
    }
}

#[cfg(test)]
mod tests;
