//! The messages between roles, one file per socket, and the texts that they sign.
//!
//! ComputeHorde's JSON, understood and produced exactly. A message is one JSON object in one websocket text frame,
//! told apart by `message_type`. What Muster adds carries a name that begins with `Muster` and is sent to Muster peers only.

pub mod executor;
pub mod facilitator;
pub mod miner;
pub mod muster;
pub mod signing;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A frame that is not a message.
#[derive(Debug, thiserror::Error)]
#[error("malformed message: {reason}")]
pub struct WireError {
    /// What is wrong with it, in words for the peer's operator.
    pub reason: String,
}

impl WireError {
    /// A reason quotes the frame: it is cut, so that it does not carry the frame back.
    fn because(reason: impl std::fmt::Display) -> Self {
        Self {
            reason: reason.to_string().chars().take(MAX_REASON_CHARS).collect(),
        }
    }
}

/// The longest reason that travels back to a peer.
const MAX_REASON_CHARS: usize = 300;

/// Reads one frame.
///
/// # Errors
/// Garbage, a wrong type, an unknown `message_type` or class, nesting deeper than 128: a reason in words, never a panic.
pub fn decode<M: DeserializeOwned>(frame: &str) -> Result<M, WireError> {
    serde_json::from_str(frame).map_err(WireError::because)
}

/// Writes one frame: compact, every field, nulls included, in the order of the wire's own definition.
pub fn encode<M: Serialize>(message: &M) -> String {
    // Messages are structs of texts, numbers, lists and maps with text keys, which always have a JSON form.
    serde_json::to_string(message).unwrap_or_default()
}
