//! The bounds of a server's connections and times.

use std::time::Duration;

/// The bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Open connections. A connection that was upgraded to a websocket counts until its peer is known.
    pub connections: usize,
    /// Those of them that come from one address, or from one IPv6 network of 64 bits. Behind a trusted proxy, the
    /// requests of one client that are answered at a time.
    pub per_address: usize,
    /// From the moment a request is waited for until its head is complete; a connection that idles longer is closed.
    pub head: Duration,
    /// The time in which a request's body must bring another KiB, or end.
    pub body: Duration,
    /// The time in which a client must take something of a response that waits for it.
    pub stall: Duration,
    /// How long requests may go on after the server was asked to stop.
    pub drain: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            per_address: 1_024,
            head: Duration::from_secs(30),
            body: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            drain: Duration::from_secs(10),
        }
    }
}
