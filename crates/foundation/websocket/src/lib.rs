//! Websocket sessions: one text frame is one message, in both directions, between two roles.
//!
//! Read in this order: [`limits`] (what is bounded), [`socket`] (frames, pings, closing), [`client`], [`server`] and [`tls`]
//! (how a socket comes to be), [`session`] (only a peer that was greeted can exchange messages), [`reconnect`] (staying connected),
//! [`lines`] (many attempts of one validator on one session with a miner).
//!
//! This crate carries messages and does not know what they mean; of a miner's it knows which attempt they are about.

mod allowance;
pub mod client;
pub mod error;
pub mod limits;
pub mod lines;
mod liveness;
pub mod reconnect;
pub mod server;
pub mod session;
pub mod socket;
pub mod tls;

pub use client::connect;
pub use error::{ConnectError, SocketError, UpgradeError};
pub use limits::Limits;
pub use session::{Greeting, Peer, Session, SessionError};
pub use socket::{Closed, Socket, SocketReader, SocketWriter};
