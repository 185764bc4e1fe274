//! HTTP as every role uses it.
//!
//! The pure part has no dependencies to speak of: [`event_stream`] (is a body a stream of events) and [`range`]
//! (`Range` and `Content-Range`). The feature `io` adds what needs sockets: `server` (HTTP/1.1 and HTTP/2 on one port,
//! with bounds on connections and on the time of a request's head) and [`http1`] (HTTP/1.1 for connections that wait
//! for long).

pub mod event_stream;
#[cfg(feature = "io")]
pub mod http1;
pub mod range;
#[cfg(feature = "io")]
pub mod server;

pub use event_stream::is_event_stream;
