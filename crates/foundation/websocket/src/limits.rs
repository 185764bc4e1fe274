//! The bounds of a socket: a peer's silence, message size and slowness are each limited.

use std::time::Duration;

use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

const MIB: usize = 1024 * 1024;

/// The bounds of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the largest message, received or sent.
    pub max_frame: usize,
    /// The silence after which a peer is pinged.
    pub heartbeat: Duration,
    /// The silence after which a peer counts as gone. At least two heartbeats, so that one may be lost.
    pub idle: Duration,
    /// The time for connecting and upgrading, and for the closing handshake.
    pub handshake: Duration,
    /// The time in which a peer must read a message.
    pub write: Duration,
}

impl Limits {
    /// Between validator, miner and executor: 50 MiB, as ComputeHorde's clients allow.
    pub const fn miner() -> Self {
        Self::with_frame(50 * MIB)
    }

    /// Between validator and facilitator: 16 MiB, as ComputeHorde's facilitator allows; a job may contain its input.
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

    /// The same bounds in the websocket library's form.
    pub(crate) fn websocket(&self) -> WebSocketConfig {
        WebSocketConfig::default()
            .max_message_size(Some(self.max_frame))
            .max_frame_size(Some(self.max_frame))
    }
}
