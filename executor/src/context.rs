//! Shared state: that of the attempts of one process, and that of the steps of one attempt.

use std::sync::Arc;

use muster_process::{SharedClock, Tasks};
use muster_protocol::{AttemptId, ExecutorToken};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::engine_cache::EngineCache;
use crate::live_updates::LiveUpdates;
use crate::warm_containers::WarmPool;

/// Shared by the attempts of one process.
#[derive(Clone)]
pub(crate) struct ProcessContext {
    pub(crate) config: Arc<Config>,
    pub(crate) cache: EngineCache,
    /// Containers that wait for jobs; `None` in a process that runs a single job, and where the operator wants none.
    pub(crate) warm: Option<WarmPool>,
    /// Cancelled when this process is asked to stop.
    pub(crate) shutdown: CancellationToken,
    pub(crate) clock: SharedClock,
    /// Runs the background tasks of sessions.
    pub(crate) tasks: Tasks,
}

/// Shared by the steps of one attempt.
#[derive(Clone)]
pub(crate) struct AttemptContext {
    pub(crate) process: ProcessContext,
    pub(crate) token: ExecutorToken,
    pub(crate) live: LiveUpdates,
    /// Cancelled when the steps of this attempt must end.
    pub(crate) called_off: CancellationToken,
}

impl AttemptContext {
    pub(crate) fn attempt(&self) -> AttemptId {
        self.token.attempt()
    }

    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.process.config
    }

    pub(crate) fn clock(&self) -> &SharedClock {
        &self.process.clock
    }
}
