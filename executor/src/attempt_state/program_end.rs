//! The end of a program: by itself, or by a stop.

/// How the program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramExit {
    /// The exit code; 128 + signal if the program was killed.
    pub code: i64,
    /// The kernel killed the program because it used too much memory.
    pub oom_killed: bool,
    /// The engine's error text, if the program could not be started.
    pub not_started: Option<String>,
}

/// Why a running program is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// Its time is over.
    TimedOut,
    /// The job wrote more than this many bytes.
    DiskFull(u64),
    /// It made no progress for this many seconds.
    Stalled(u32),
    /// Its health check did not succeed in time.
    NeverAnswered,
    /// Its session is over.
    SessionOver,
}
