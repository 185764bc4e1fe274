//! Limits of a sealed connection, which the executor's proxy enforces and the gateway's client keeps to.

use std::time::Duration;

/// The largest response of known length, in bytes, that is held back until it is signed, so that a header can carry its
/// proof.
pub const MAX_HELD_BACK: u64 = 1024 * 1024;

/// Limits of one sealed endpoint. The peers on both sides may be hostile: the client and the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of a request's body.
    pub request: usize,
    /// The most bytes of all requests' bodies together that arrive or wait for the engine. A request that would need
    /// more is rejected as one too many.
    pub requests: usize,
    /// The most bytes of a response's body. A longer one is cut there and signed as cut.
    pub response: u64,
    /// The most requests at once. Another one is rejected.
    pub in_flight: usize,
    /// The most connections at once. Another one is closed.
    pub connections: usize,
    /// The most streams of one HTTP/2 connection.
    pub streams: u32,
    /// The longest TLS handshake, from accepting a connection to knowing its certificate.
    pub handshake: Duration,
    /// The longest time from the first byte of a request's head to the last.
    pub head: Duration,
    /// The longest time in which the body of a request arrives.
    pub upload: Duration,
    /// The longest time in which a connection to the engine is made.
    pub connect: Duration,
    /// The longest time for which an engine may send nothing, before its response or within it.
    pub silence: Duration,
    /// The longest time for which a client may take nothing although bytes wait for it.
    pub stall: Duration,
    /// The longest time for which a connection stays open without a request.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request: 16 * 1024 * 1024,
            requests: 256 * 1024 * 1024,
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
