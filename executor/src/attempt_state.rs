//! The life of one attempt on an executor as a pure state machine: events with their time go in, effects come out.
//!
//! Each stage has a clock of its own: loading an image never eats into the job's time, and a quick download does not
//! let the program run longer than its user signed for. ComputeHorde carries unused time over to the next stage. A
//! validator still does so, because ComputeHorde's miners need it; that leaves the validator time to receive a time-out
//! here (ADR 0009).

mod attempt_limits;
mod events;
mod failure_blame;
mod offer_terms;
mod program_end;

use std::time::Duration;

use muster_protocol::job::{Fault, ImageFetchFailure};
use muster_protocol::{ErrorCode, HordeFailureReason, JobFailureReason, JobStage, Timestamp};

pub(crate) use self::attempt_limits::{StageLimits, WaitLimits};
pub(crate) use self::events::{Abandonment, Conclusion, Effect, Event};
pub(crate) use self::failure_blame::{AttemptFailure, FailureKind, ResumeHint};
pub(crate) use self::offer_terms::{OfferTerms, StreamingMode};
pub(crate) use self::program_end::{ProgramExit, StopReason};

/// The time after its grace in which a container must be dead; after that the attempt gives up on stopping it.
const KILL_LIMIT: Duration = Duration::from_secs(20);
/// How long a session may take to close once its time is over.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(15);

/// The current stage of an attempt, with the time limits of the job from the offer on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptState {
    /// The executor is connected; the miner has not offered the job yet.
    AwaitingOffer,
    /// The image is being looked for on this machine.
    PreparingImage(StageLimits),
    /// The image is missing, and the miner has not granted its fetch yet.
    AwaitingFetch(StageLimits),
    /// The image is being fetched.
    PullingImage(StageLimits),
    /// The image of the offer is there; the rest of the request is missing.
    AwaitingJob(StageLimits),
    /// The request names another image than the offer, which is being fetched. The second field is the time that was
    /// left for the inputs: that clock stands still meanwhile.
    FetchingImage(StageLimits, Duration),
    /// Inputs are being put in place.
    PlacingVolumes(StageLimits),
    /// The program runs.
    Running(StageLimits),
    /// The program of a streaming job runs, and its health check has not succeeded yet.
    Starting(StageLimits),
    /// The program of a streaming job answers requests.
    Serving(StageLimits),
    /// The session of a streaming job is being closed.
    Closing(StageLimits),
    /// The program was asked to stop.
    Stopping(StopReason),
    /// The program has ended well; its outputs are being collected.
    Collecting,
    /// The program has failed or was stopped; its artifacts are being collected all the same.
    Salvaging,
    /// The attempt has ended.
    Over,
}

/// The state machine of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttemptMachine {
    state: AttemptState,
    deadline: Timestamp,
    waits: WaitLimits,
    streaming: Option<StreamingMode>,
    /// As in [`OfferTerms::image`].
    image: Option<Duration>,
    /// Whether the miner granted a fetch: it may then take a while to hand the job over.
    fetched_apart: bool,
    /// Slack and time for outputs; zero before the offer.
    last: Duration,
    /// The failure that is reported once salvaging ends.
    failure: Option<AttemptFailure>,
}

// === impl AttemptMachine ===

impl AttemptMachine {
    /// The machine of an attempt that began at `now`.
    pub(crate) fn new(now: Timestamp, waits: WaitLimits) -> Self {
        Self {
            state: AttemptState::AwaitingOffer,
            deadline: now.plus(waits.offer),
            waits,
            streaming: None,
            image: None,
            fetched_apart: false,
            last: Duration::ZERO,
            failure: None,
        }
    }

    /// The machine of an attempt whose program another process started at `started`. Its clock went on counting.
    pub(crate) fn resumed(limits: StageLimits, started: Timestamp, waits: WaitLimits) -> Self {
        Self {
            state: AttemptState::Running(limits),
            deadline: started.plus(limits.execution),
            last: limits.leeway.saturating_add(limits.upload),
            ..Self::new(started, waits)
        }
    }

    /// The current stage.
    pub(crate) fn state(&self) -> AttemptState {
        self.state
    }

    /// When [`Event::Tick`] is due.
    pub(crate) fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// Takes in an event that happened at `now`. An event that does not belong to the current state changes nothing: it
    /// was sent twice, or came too late to matter.
    pub(crate) fn apply(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        if self.state == AttemptState::Over {
            return vec![];
        }
        match event {
            Event::Abandoned(reason) => self.conclude(Conclusion::Abandoned(reason)),
            Event::Failed(failure) => self.fail(failure),
            Event::Tick if now < self.deadline => vec![],
            Event::Tick => self.expire(now),
            Event::Offered(terms) => self.accept_offer(terms, now),
            Event::ImageMissing => self.fetch_image(now),
            Event::FetchGranted => self.begin_fetch(),
            Event::ImageReady => self.advance_past_image(now),
            Event::Requested { image_ready } => self.accept_request(image_ready, now),
            Event::VolumesReady => self.start_program(now),
            Event::SessionOpened => self.start_serving(now),
            Event::SessionClosed => self.end_session(now),
            Event::DiskFull(limit) => self.stop_running(StopReason::DiskFull(limit), now),
            Event::Stalled(seconds) => self.stop_running(StopReason::Stalled(seconds), now),
            Event::Exited(exit) => self.handle_exit(&exit, now),
            Event::Collected => self.finish(),
        }
    }

    // === events ===

    fn accept_offer(&mut self, terms: OfferTerms, now: Timestamp) -> Vec<Effect> {
        if self.state != AttemptState::AwaitingOffer {
            return vec![];
        }
        self.streaming = terms.streaming;
        self.image = terms.image;
        self.state = AttemptState::PreparingImage(terms.limits);
        self.deadline = now.plus(self.waits.image);
        self.last = terms.limits.leeway.saturating_add(terms.limits.upload);
        vec![Effect::PrepareImage]
    }

    /// The image has to be fetched: with the miner's grant where it gives one, at once otherwise.
    fn fetch_image(&mut self, now: Timestamp) -> Vec<Effect> {
        match (self.state, self.image) {
            (AttemptState::PreparingImage(limits), Some(image)) => {
                self.state = AttemptState::AwaitingFetch(limits);
                self.deadline = now.plus(image.min(self.waits.image));
                vec![Effect::ReportUp]
            }
            (AttemptState::PreparingImage(limits), None) => {
                self.state = AttemptState::PullingImage(limits);
                self.deadline = now.plus(self.waits.image);
                vec![Effect::FetchImage]
            }
            (AttemptState::FetchingImage(_, _), _) => vec![Effect::FetchImage],
            (
                AttemptState::AwaitingOffer
                | AttemptState::AwaitingFetch(_)
                | AttemptState::PullingImage(_)
                | AttemptState::AwaitingJob(_)
                | AttemptState::PlacingVolumes(_)
                | AttemptState::Running(_)
                | AttemptState::Starting(_)
                | AttemptState::Serving(_)
                | AttemptState::Closing(_)
                | AttemptState::Stopping(_)
                | AttemptState::Collecting
                | AttemptState::Salvaging
                | AttemptState::Over,
                _,
            ) => vec![],
        }
    }

    fn begin_fetch(&mut self) -> Vec<Effect> {
        let AttemptState::AwaitingFetch(limits) = self.state else {
            return vec![];
        };
        self.state = AttemptState::PullingImage(limits);
        self.fetched_apart = true;
        vec![Effect::FetchImage]
    }

    fn advance_past_image(&mut self, now: Timestamp) -> Vec<Effect> {
        if let AttemptState::PreparingImage(limits) | AttemptState::PullingImage(limits) = self.state {
            self.state = AttemptState::AwaitingJob(limits);
            self.deadline = if self.fetched_apart {
                // The miner hands the job over once one of its executors is free.
                now.plus(self.waits.image)
            } else {
                now.plus(limits.leeway).plus(limits.download)
            };
            return vec![Effect::ReportReady];
        }
        if let AttemptState::FetchingImage(limits, left) = self.state {
            self.state = AttemptState::PlacingVolumes(limits);
            self.deadline = now.plus(left);
            return vec![Effect::PlaceVolumes];
        }
        vec![]
    }

    fn accept_request(&mut self, image_ready: bool, now: Timestamp) -> Vec<Effect> {
        let AttemptState::AwaitingJob(limits) = self.state else {
            return vec![];
        };
        if self.fetched_apart {
            self.deadline = now.plus(limits.leeway).plus(limits.download);
        }
        if image_ready {
            self.state = AttemptState::PlacingVolumes(limits);
            return vec![Effect::PlaceVolumes];
        }
        self.state = AttemptState::FetchingImage(limits, self.deadline.since(now));
        self.deadline = now.plus(self.waits.image);
        vec![Effect::PrepareImage]
    }

    fn start_program(&mut self, now: Timestamp) -> Vec<Effect> {
        let AttemptState::PlacingVolumes(limits) = self.state else {
            return vec![];
        };
        if self.streaming.is_some() {
            self.state = AttemptState::Starting(limits);
            self.deadline = now.plus(limits.streaming_start);
            return vec![Effect::ReportVolumesReady, Effect::Run, Effect::OpenSession];
        }
        self.state = AttemptState::Running(limits);
        self.deadline = now.plus(limits.execution);
        vec![Effect::ReportVolumesReady, Effect::Run]
    }

    fn start_serving(&mut self, now: Timestamp) -> Vec<Effect> {
        let AttemptState::Starting(limits) = self.state else {
            return vec![];
        };
        self.state = AttemptState::Serving(limits);
        self.deadline = now.plus(limits.execution);
        vec![Effect::ReportSession]
    }

    fn end_session(&mut self, now: Timestamp) -> Vec<Effect> {
        if matches!(self.state, AttemptState::Serving(_) | AttemptState::Closing(_)) {
            return self.stop(StopReason::SessionOver, now);
        }
        vec![]
    }

    /// Stops the program if it runs.
    fn stop_running(&mut self, reason: StopReason, now: Timestamp) -> Vec<Effect> {
        match self.state {
            AttemptState::Running(_)
            | AttemptState::Starting(_)
            | AttemptState::Serving(_)
            | AttemptState::Closing(_) => self.stop(reason, now),
            AttemptState::AwaitingOffer
            | AttemptState::PreparingImage(_)
            | AttemptState::AwaitingFetch(_)
            | AttemptState::PullingImage(_)
            | AttemptState::AwaitingJob(_)
            | AttemptState::FetchingImage(_, _)
            | AttemptState::PlacingVolumes(_)
            | AttemptState::Stopping(_)
            | AttemptState::Collecting
            | AttemptState::Salvaging
            | AttemptState::Over => vec![],
        }
    }

    fn handle_exit(&mut self, exit: &ProgramExit, now: Timestamp) -> Vec<Effect> {
        match self.state {
            AttemptState::Running(limits) => self.collect_or_salvage(limits, exit, now),
            AttemptState::Starting(_) => self.salvage(AttemptFailure::of_early_exit(exit), now),
            AttemptState::Serving(limits) | AttemptState::Closing(limits) => {
                // The program ended by itself: requests under way in its session are signed as far as they came.
                let mut effects = vec![Effect::CloseSession];
                effects.extend(self.collect_or_salvage(limits, exit, now));
                effects
            }
            AttemptState::Stopping(StopReason::SessionOver) => self.collect(self.last, now),
            AttemptState::Stopping(reason) => self.salvage(AttemptFailure::of_stop(reason, Some(exit)), now),
            AttemptState::AwaitingOffer
            | AttemptState::PreparingImage(_)
            | AttemptState::AwaitingFetch(_)
            | AttemptState::PullingImage(_)
            | AttemptState::AwaitingJob(_)
            | AttemptState::FetchingImage(_, _)
            | AttemptState::PlacingVolumes(_)
            | AttemptState::Collecting
            | AttemptState::Salvaging
            | AttemptState::Over => vec![],
        }
    }

    fn finish(&mut self) -> Vec<Effect> {
        if self.state == AttemptState::Salvaging {
            return self.conclude_salvage();
        }
        if self.state == AttemptState::Collecting {
            return self.conclude(Conclusion::Finished);
        }
        vec![]
    }

    fn fail(&mut self, failure: AttemptFailure) -> Vec<Effect> {
        // The first failure is the one that is reported.
        if self.state == AttemptState::Salvaging {
            return self.conclude_salvage();
        }
        self.conclude(Conclusion::Failed(failure))
    }

    /// Acts on a deadline that has passed.
    fn expire(&mut self, now: Timestamp) -> Vec<Effect> {
        let failure = match self.state {
            AttemptState::AwaitingOffer => {
                return self.conclude(Conclusion::Abandoned(Abandonment::NoOffer));
            }
            AttemptState::PreparingImage(_) => {
                let message = "the executor could not find out in time whether it has the image";
                AttemptFailure::horde(
                    HordeFailureReason::ExecutorSpinupFailed,
                    JobStage::ExecutorStartup,
                    message,
                )
            }
            AttemptState::AwaitingFetch(_)
            | AttemptState::PullingImage(_)
            | AttemptState::FetchingImage(_, _) => {
                let message = "the image did not arrive within the time that is allowed for it";
                AttemptFailure::image(ImageFetchFailure::TimedOut, message)
            }
            AttemptState::AwaitingJob(_) => {
                let message = "the job's request did not arrive while the time for its inputs ran";
                AttemptFailure::horde(
                    HordeFailureReason::VolumesTimedOut,
                    JobStage::VolumeDownload,
                    message,
                )
                .blame(Fault::Validator)
            }
            AttemptState::PlacingVolumes(_) => {
                let message = "the inputs were not in place within the time the job allows for them";
                AttemptFailure::job(JobFailureReason::Timeout, JobStage::VolumeDownload, message)
                    .with_code(ErrorCode::JobTimeout)
            }
            AttemptState::Running(_) => return self.stop(StopReason::TimedOut, now),
            AttemptState::Starting(_) => return self.stop(StopReason::NeverAnswered, now),
            AttemptState::Serving(limits) => {
                return match self.streaming {
                    Some(StreamingMode::Sealed) => self.close_session(limits, now),
                    Some(StreamingMode::Direct) | None => self.stop(StopReason::TimedOut, now),
                };
            }
            AttemptState::Closing(_) => return self.stop(StopReason::SessionOver, now),
            AttemptState::Stopping(reason) => AttemptFailure::of_stop(reason, None),
            AttemptState::Collecting => {
                let message = "the outputs were not gathered within the time the job allows for them";
                AttemptFailure::job(JobFailureReason::Timeout, JobStage::ResultUpload, message)
                    .with_code(ErrorCode::JobTimeout)
            }
            AttemptState::Salvaging => return self.conclude_salvage(),
            AttemptState::Over => return vec![],
        };
        self.conclude(Conclusion::Failed(failure))
    }

    // === transitions that several events share ===

    fn collect_or_salvage(&mut self, limits: StageLimits, exit: &ProgramExit, now: Timestamp) -> Vec<Effect> {
        if exit.code != 0 || exit.not_started.is_some() {
            return self.salvage(AttemptFailure::of_exit(exit), now);
        }
        self.collect(limits.leeway.saturating_add(limits.upload), now)
    }

    fn collect(&mut self, limit: Duration, now: Timestamp) -> Vec<Effect> {
        self.state = AttemptState::Collecting;
        self.deadline = now.plus(limit);
        vec![Effect::ReportExecutionDone, Effect::Collect]
    }

    fn stop(&mut self, reason: StopReason, now: Timestamp) -> Vec<Effect> {
        self.state = AttemptState::Stopping(reason);
        self.deadline = now.plus(self.waits.grace).plus(KILL_LIMIT);
        if self.streaming.is_some() {
            return vec![Effect::CloseSession, Effect::Stop];
        }
        vec![Effect::Stop]
    }

    /// Closes a session whose time is over: requests under way get [`CLOSE_LIMIT`] to end.
    fn close_session(&mut self, limits: StageLimits, now: Timestamp) -> Vec<Effect> {
        self.state = AttemptState::Closing(limits);
        self.deadline = now.plus(CLOSE_LIMIT);
        vec![Effect::CloseSession]
    }

    /// Collects the artifacts of a job that has failed: they often show why.
    fn salvage(&mut self, failure: AttemptFailure, now: Timestamp) -> Vec<Effect> {
        self.state = AttemptState::Salvaging;
        self.deadline = now.plus(self.last);
        self.failure = Some(failure);
        vec![Effect::Collect]
    }

    fn conclude_salvage(&mut self) -> Vec<Effect> {
        match self.failure.take() {
            Some(failure) => self.conclude(Conclusion::Failed(failure)),
            // Salvaging begins with a failure.
            None => vec![],
        }
    }

    fn conclude(&mut self, conclusion: Conclusion) -> Vec<Effect> {
        self.state = AttemptState::Over;
        vec![Effect::Conclude(conclusion)]
    }
}

#[cfg(test)]
mod tests;
