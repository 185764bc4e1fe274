//! The state of a connection that the validator keeps up, as its status page shows it.

use serde::Serialize;

/// The state of the connection to the facilitator, or to the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LinkState {
    /// No connection has succeeded since the validator started, or a lost one is being dialled again.
    #[default]
    Connecting,
    /// The peer answers, and has accepted this validator.
    Connected,
    /// The connection failed, or the peer refused this validator.
    Lost {
        /// The error with its causes, for the operator.
        reason: String,
    },
}
