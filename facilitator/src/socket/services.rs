//! The services behind validators' sessions, and the bounds of their connections.

use std::sync::Arc;

use muster_facilitator_store::Store;
use muster_file_store::checkpoint_blocks::CheckpointService;
use muster_process::connections::{ConnectionBounds, ConnectionCounts};
use muster_process::{SharedClock, Tasks};
use muster_websocket::Limits;

use crate::allowlist::Allowlist;
use crate::change_notices::Notifier;
use crate::gateways::GatewayDirectory;
use crate::live_output::LiveOutput;
use crate::validator_sessions::ValidatorSessions;

/// The most connections that may be between their upgrade and their authentication. Each gets seconds and 64 KiB.
const UNAUTHENTICATED: ConnectionBounds = ConnectionBounds {
    total: 128,
    per_address: 16,
};

pub(super) const LIMITS: Limits = Limits::facilitator();

/// The services behind validators' sessions.
pub(crate) struct SessionServices {
    pub(crate) store: Store,
    pub(crate) allowlist: Allowlist,
    pub(crate) sessions: Arc<ValidatorSessions>,
    pub(crate) gateways: Arc<GatewayDirectory>,
    pub(crate) notifier: Notifier,
    pub(crate) live_output: LiveOutput,
    pub(crate) checkpoints: Arc<CheckpointService>,
    pub(crate) trace_all: bool,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    /// Connections that have not authenticated.
    pub(crate) unauthenticated: ConnectionCounts,
}

/// The count of connections that have not authenticated.
pub(crate) fn count_unauthenticated() -> ConnectionCounts {
    ConnectionCounts::new(UNAUTHENTICATED)
}
