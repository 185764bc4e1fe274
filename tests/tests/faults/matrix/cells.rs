//! The faults of the matrix, the states in which they strike, and the allowed ends.

use muster_protocol::JobStatus;

/// A process that can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    Facilitator,
    Validator,
    Miner,
    Executor,
    /// The Docker engine.
    Engine,
    /// The PostgreSQL server that every role keeps its store in.
    Database,
}

impl Party {
    const ALL: [Self; 6] = [
        Self::Facilitator,
        Self::Validator,
        Self::Miner,
        Self::Executor,
        Self::Engine,
        Self::Database,
    ];
}

/// A fault of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Cut,
    Duplicated,
    Reordered,
    Delayed,
}

impl Wire {
    const ALL: [Self; 4] = [Self::Cut, Self::Duplicated, Self::Reordered, Self::Delayed];
}

/// A fault that strikes a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strike {
    Kill(Party),
    Socket(Wire),
    ChainGone,
}

impl Strike {
    pub(crate) fn all() -> Vec<Self> {
        let kills = Party::ALL.map(Self::Kill);
        let wires = Wire::ALL.map(Self::Socket);
        kills.into_iter().chain(wires).chain([Self::ChainGone]).collect()
    }
}

/// How a job is held in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The miner stands still, so nobody answers the offer.
    MinerStopped,
    /// Other jobs keep all executors, so it waits in the validator's queue. Those jobs are struck as well, in
    /// [`Self::ExecutorGated`].
    Queued,
    /// Its executor does not start.
    ExecutorGated,
    /// The registry keeps its image back, so its executor fetches.
    Fetching,
    /// Its input does not come.
    InputHeld,
    /// Its program takes its time.
    ProgramBusy,
    /// Its program has saved its state, and the blocks of that checkpoint are not taken.
    CheckpointHeld,
    /// Its program goes on after a checkpoint that is kept.
    CheckpointKept,
    /// Its program answers its user.
    Serving,
    /// Its output has arrived and is not acknowledged.
    OutputHeld,
    /// It is over.
    Over,
}

/// The ways in which a job is held while its user sees this state; none for what is no state of an organic job.
pub(crate) fn holds(state: JobStatus) -> &'static [Hold] {
    match state {
        JobStatus::Received => &[Hold::MinerStopped, Hold::Queued],
        // Also struck as accepted, behind the gate: the jobs that keep the executors in the cell of a queued job.
        JobStatus::Accepted => &[Hold::Fetching],
        JobStatus::ExecutorReady => &[Hold::InputHeld],
        JobStatus::VolumesReady => &[Hold::ProgramBusy, Hold::CheckpointHeld, Hold::CheckpointKept],
        JobStatus::StreamingReady => &[Hold::Serving],
        JobStatus::ExecutionDone => &[Hold::OutputHeld],
        JobStatus::Completed => &[Hold::Over],
        // A word of a newer peer; a moment inside the facilitator; and the ends that faults lead to.
        JobStatus::Unknown
        | JobStatus::Sent
        | JobStatus::Rejected
        | JobStatus::Failed
        | JobStatus::HordeFailed => &[],
    }
}

/// Whether a job that was struck in a held state ends in the attempt and in the run that it had then: its program has
/// begun, and its container outlives the fault. Where another attempt is allowed, its end is no sign of the first
/// one's.
pub(crate) fn stays(strike: Strike, at: Hold) -> bool {
    let outlives = match strike {
        Strike::Kill(Party::Facilitator | Party::Validator | Party::Miner)
        | Strike::Socket(Wire::Cut | Wire::Duplicated | Wire::Delayed)
        | Strike::ChainGone => true,
        // The session's key is gone with the executor's process.
        Strike::Kill(Party::Executor) => at != Hold::Serving,
        Strike::Kill(Party::Engine | Party::Database) | Strike::Socket(Wire::Reordered) => false,
    };
    match at {
        Hold::ProgramBusy
        | Hold::CheckpointHeld
        | Hold::CheckpointKept
        | Hold::Serving
        | Hold::OutputHeld
        | Hold::Over => outlives,
        Hold::MinerStopped | Hold::Queued | Hold::ExecutorGated | Hold::Fetching | Hold::InputHeld => false,
    }
}

/// How a job may end that was struck in a held state.
pub(crate) fn allowed(strike: Strike, at: Hold) -> &'static [JobStatus] {
    const WELL: &[JobStatus] = &[JobStatus::Completed];
    const LOST: &[JobStatus] = &[JobStatus::HordeFailed];
    const EITHER: &[JobStatus] = &[JobStatus::Completed, JobStatus::HordeFailed];
    match (strike, at) {
        // Nobody who runs the job is hurt, and everything else is sent again.
        (
            Strike::Kill(Party::Facilitator | Party::Validator)
            | Strike::Socket(Wire::Cut | Wire::Duplicated | Wire::Delayed)
            | Strike::ChainGone,
            _,
        ) => WELL,
        // The executor goes on without its miner, and comes back to the next one. If it has not dialled in, the other
        // miner gets the job.
        (Strike::Kill(Party::Miner), _) => WELL,
        // Not yet, or no longer, on an executor; in a container that the next executor takes over; or, as long as its
        // program has not begun, on the other miner's executor.
        (
            Strike::Kill(Party::Executor),
            Hold::MinerStopped
            | Hold::Queued
            | Hold::ExecutorGated
            | Hold::Fetching
            | Hold::InputHeld
            | Hold::ProgramBusy
            | Hold::CheckpointHeld
            | Hold::CheckpointKept
            | Hold::OutputHeld
            | Hold::Over,
        ) => WELL,
        // The session's key is gone with its process, and the user has received the address.
        (Strike::Kill(Party::Executor), Hold::Serving) => LOST,
        // The engine is there again when the job goes on. A container that it had is lost, which is never the user's
        // fault.
        (
            Strike::Kill(Party::Engine),
            Hold::MinerStopped
            | Hold::Queued
            | Hold::ExecutorGated
            | Hold::Fetching
            | Hold::InputHeld
            | Hold::Over,
        ) => WELL,
        // The job goes on from its checkpoint, or anew if none is kept.
        (Strike::Kill(Party::Engine), Hold::CheckpointHeld | Hold::CheckpointKept) => WELL,
        (Strike::Kill(Party::Engine), Hold::ProgramBusy | Hold::Serving | Hold::OutputHeld) => EITHER,
        // Whether a miner outlasts it: it tries again for some seconds before it gives its leases up.
        (Strike::Kill(Party::Database), Hold::Over) => WELL,
        (
            Strike::Kill(Party::Database),
            Hold::MinerStopped
            | Hold::Queued
            | Hold::ExecutorGated
            | Hold::Fetching
            | Hold::InputHeld
            | Hold::ProgramBusy
            | Hold::CheckpointHeld
            | Hold::CheckpointKept
            | Hold::Serving
            | Hold::OutputHeld,
        ) => EITHER,
        // A peer that swaps frames breaks the protocol; whatever it swapped, there is one end.
        (Strike::Socket(Wire::Reordered), Hold::Over) => WELL,
        (
            Strike::Socket(Wire::Reordered),
            Hold::MinerStopped
            | Hold::Queued
            | Hold::ExecutorGated
            | Hold::Fetching
            | Hold::InputHeld
            | Hold::ProgramBusy
            | Hold::CheckpointHeld
            | Hold::CheckpointKept
            | Hold::Serving
            | Hold::OutputHeld,
        ) => EITHER,
    }
}
