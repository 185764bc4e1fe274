//! HTTP as every role uses it.
//!
//! The pure part has no dependencies to speak of: [`event_stream`] (is a body a stream of events) and [`range`]
//! (`Range` and `Content-Range`). The feature `io` adds what needs sockets: `server` (HTTP/1.1 and HTTP/2 on one port,
//! with bounds on connections and on the time of a request's head).

pub mod event_stream;
pub mod range;
#[cfg(feature = "io")]
pub mod server;

pub use event_stream::is_event_stream;
