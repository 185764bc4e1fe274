//! What bounds a socket. Nothing here is ever unlimited: a peer's silence, size and slowness each have an end.

use std::time::Duration;

use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

const MIB: usize = 1024 * 1024;

/// The bounds of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest message in bytes, received or sent.
    pub max_frame: usize,
    /// How often a silent peer is pinged.
    pub heartbeat: Duration,
    /// After how long without any frame a peer counts as gone. At least two heartbeats, so that one may be lost.
    pub idle: Duration,
    /// How long connecting and upgrading may take, and the closing handshake.
    pub handshake: Duration,
    /// How long a peer may take to read what we send.
    pub write: Duration,
}

impl Limits {
    /// Between validator, miner and executor: 50 MiB, as ComputeHorde's clients allow.
    pub const fn miner() -> Self {
        Self::with_frame(50 * MIB)
    }

    /// Between validator and facilitator: 16 MiB, as ComputeHorde's facilitator allows; a job may carry its input inside.
    pub const fn facilitator() -> Self {
        Self::with_frame(16 * MIB)
    }

    const fn with_frame(max_frame: usize) -> Self {
        Self {
            max_frame,
            heartbeat: Duration::from_secs(20),
            idle: Duration::from_secs(60),
            handshake: Duration::from_secs(10),
            write: Duration::from_secs(30),
        }
    }

    /// The same bounds as the websocket library takes them.
    pub(crate) fn websocket(&self) -> WebSocketConfig {
        WebSocketConfig::default()
            .max_message_size(Some(self.max_frame))
            .max_frame_size(Some(self.max_frame))
    }
}
