//! The events that the state machine takes and the effects that it returns.

use super::failure_blame::AttemptFailure;
use super::offer_terms::OfferTerms;
use super::program_end::ProgramExit;

/// An event in the life of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The miner offered the job.
    Offered(OfferTerms),
    /// The image is not on this machine and has to be fetched.
    ImageMissing,
    /// The miner has a slot for the fetch.
    FetchGranted,
    /// The image is there.
    ImageReady,
    /// The rest of the request arrived.
    Requested {
        /// The image that the request names is the one that is there.
        image_ready: bool,
    },
    /// Inputs are in place.
    VolumesReady,
    /// The program has ended, or could not be started.
    Exited(ProgramExit),
    /// The job wrote more than this many bytes.
    DiskFull(u64),
    /// The program made no progress for this many seconds, the longest that its job allows.
    Stalled(u32),
    /// The program answers, and its session is open.
    SessionOpened,
    /// The session is over, and its close is signed.
    SessionClosed,
    /// Outputs are collected.
    Collected,
    /// A piece of work failed.
    Failed(AttemptFailure),
    /// The miner no longer wants the job, or this executor cannot go on with it.
    Abandoned(Abandonment),
    /// Time has passed.
    Tick,
}

/// The next work of the driver. Effects are carried out in the order in which they are returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Look for the image on this machine.
    PrepareImage,
    /// Report that the executor is up and has to fetch the image.
    ReportUp,
    /// Fetch the image.
    FetchImage,
    /// Report that the executor is ready.
    ReportReady,
    /// Put the inputs in place.
    PlaceVolumes,
    /// Report that the inputs are in place.
    ReportVolumesReady,
    /// Create and start the container.
    Run,
    /// Wait until the program answers, and open its session.
    OpenSession,
    /// Report the address of the session.
    ReportSession,
    /// Close the session.
    CloseSession,
    /// Ask the container to stop; kill it after its grace.
    Stop,
    /// Report that the program has ended.
    ReportExecutionDone,
    /// Collect the outputs.
    Collect,
    /// Report how the attempt ended, remove everything, and leave.
    Conclude(Conclusion),
}

/// How an attempt ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// The job succeeded.
    Finished,
    /// The job failed, and the miner receives the failure.
    Failed(AttemptFailure),
    /// The attempt ends without a report.
    Abandoned(Abandonment),
}

/// Why an attempt ends without a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Abandonment {
    /// `MusterCancelJob` arrived, with this reason.
    Cancelled(String),
    /// The miner's socket closed or broke.
    MinerLost(String),
    /// The miner does not know this lease.
    Refused(String),
    /// The miner offered no job within the startup limit.
    NoOffer,
    /// This process was asked to stop.
    ShutDown,
}
