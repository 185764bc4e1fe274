//! Websocket sessions: one text frame is one message, in both directions, between two roles.
//!
//! Read in this order: [`limits`] (the bounds), [`socket`] (frames, pings, closing), [`client`], [`server`] and [`tls`]
//! (opening a socket), [`session`] (only a peer that was greeted exchanges messages) and [`reconnect`] (staying
//! connected).
//!
//! This crate carries messages and does not know what they mean.

mod allowance;
pub mod client;
pub mod close_code;
pub mod error;
mod handshake;
mod io;
pub mod limits;
mod liveness;
mod peer;
pub mod reconnect;
pub mod server;
pub mod session;
pub mod socket;
pub mod tls;

pub use client::{connect, pinned, with_path};
pub use close_code::CloseCode;
pub use error::{ConnectError, SocketError, UpgradeError};
pub use limits::Limits;
pub use session::{Greeting, Peer, PeerSession, SessionError};
pub use socket::{PeerClose, Socket, SocketReader, SocketWriter};
