//! How much anybody may ask of the data path.

use std::time::Duration;

/// The largest answer of known length that is held back until it is signed, so that its proof can stand in a header.
pub const BUFFERED: u64 = 1024 * 1024;

/// Bounds of one sealed endpoint. Every one of them is there because a peer may be hostile, on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub request: usize,
    /// Bytes of an answer's body; what is longer is cut there, and signed as cut.
    pub response: u64,
    /// Requests at once. One more is refused.
    pub in_flight: usize,
    /// Connections at once. One more is hung up on.
    pub connections: usize,
    /// Streams of one HTTP/2 connection.
    pub streams: u32,
    /// From accepting a connection to a known certificate.
    pub handshake: Duration,
    /// From the first byte of a request's head to its last.
    pub head: Duration,
    /// For the body of a request.
    pub upload: Duration,
    /// For a connection to the engine.
    pub connect: Duration,
    /// How long an engine may say nothing, before its answer or within it.
    pub silence: Duration,
    /// How long a client may take nothing of what waits for it.
    pub stall: Duration,
    /// How long a connection may stay open without a request.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request: 16 * 1024 * 1024,
            response: 1024 * 1024 * 1024,
            in_flight: 4_096,
            connections: 4_096,
            streams: 256,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            upload: Duration::from_secs(120),
            connect: Duration::from_secs(5),
            silence: Duration::from_secs(600),
            stall: Duration::from_secs(120),
            idle: Duration::from_secs(300),
        }
    }
}
