//! The node of the local chain: it keeps blocks and the state after each of them, runs the runtime natively, and serves the
//! JSON-RPC that Substrate clients speak.
//!
//! Reading order: [`spec`] (how a chain begins), [`state`] (what a block leaves behind), [`chain`] (blocks and the pool),
//! [`node`] (the one place that changes the chain), [`rpc`] (what clients see), [`server`] (sockets).

pub mod chain;
pub mod clock;
pub mod node;
pub mod pool;
pub mod rpc;
pub mod server;
pub mod spec;
pub mod state;
