//! The node of the local chain: it keeps blocks and the states after the last of them, runs the runtime natively, and
//! serves the JSON-RPC that Substrate clients speak.
//!
//! Reading order: [`spec`] (how a chain begins), [`state`] (what a block leaves behind), [`block`] (how one is made),
//! [`pool`] (what waits for one), [`view`] (which blocks are held), [`node`] (the one place that changes the chain),
//! [`resume`] (how it goes on after a stop), [`faults`] (what goes wrong on purpose), [`rpc`] (what clients see),
//! [`server`] (sockets).

pub mod block;
pub mod clock;
mod connection;
pub mod faults;
pub mod node;
pub mod pool;
pub mod rejection;
pub mod resume;
pub mod root;
pub mod rpc;
pub mod server;
pub mod spec;
pub mod state;
pub mod view;
pub mod watchers;
