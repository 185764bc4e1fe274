//! HTTP as every role uses it.
//!
//! The pure part has no dependencies to speak of: [`event_stream`] (is a body a stream of events, and where do its lines
//! end) and [`range`] (`Range` and `Content-Range`). The feature `io` adds what needs sockets: `server` (the accept loop,
//! with a bound on connections and on the time of a request's head).

pub mod event_stream;
pub mod range;

pub use event_stream::is_event_stream;
