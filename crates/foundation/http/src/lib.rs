//! HTTP as every role uses it.
//!
//! The pure part has no dependencies to speak of: [`event_stream`] (is a body a stream of events), [`range`] (`Range`
//! and `Content-Range`), [`addresses`] (which addresses may be connected to when another party named the URL) and
//! [`origin`] (the scheme, host and port of a server that a peer names). The feature `io` adds what needs sockets:
//! `server` (HTTP/1.1 and HTTP/2 on one port, with bounds on connections and on the times that a client could stretch),
//! `http1` (HTTP/1.1 for connections that wait for long) and `rate_limit` (the requests that one caller may make). The
//! feature `client` adds `pinned` (clients that connect to checked addresses only).

pub mod addresses;
pub mod event_stream;
#[cfg(feature = "io")]
pub mod http1;
pub mod origin;
#[cfg(feature = "client")]
pub mod pinned;
pub mod range;
#[cfg(feature = "io")]
pub mod rate_limit;
#[cfg(feature = "io")]
pub mod server;

pub use event_stream::is_event_stream;
pub use origin::{Origin, OriginError};
