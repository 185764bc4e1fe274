//! Our own HTTP/1.1, for connections that wait for long: no task, no channel and no buffer while nothing arrives.
//!
//! * `head`: a request's head is written, a response's head is read. Pure.
//! * `header_lines`: the lines of heads and trailers, with their bounds. Pure.
//! * `framing`: the bytes of a response body are separated from its framing. Pure.
//! * [`client`]: requests to one peer, over connections that `pool` keeps; [`body`]: the response body as it arrives.
//! * [`chunked`]: a server writes a response of unknown length.
//! * [`stall`]: a connection whose peer must take what is written to it in time.
//!
//! hyper reads requests and writes short responses. [`chunked`] explains why it does not write long ones.

pub mod body;
pub mod chunked;
pub mod client;
mod framing;
#[cfg(test)]
mod fuzz;
mod head;
mod header_lines;
mod pool;
pub mod stall;

pub use body::{BodyError, ResponseBody};
pub use client::{Dial, Http1Client, SendError};
pub use header_lines::MalformedResponse;
pub use pool::{ByteStream, IoStream};
pub use stall::StallTimeout;
