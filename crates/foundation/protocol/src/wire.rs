//! The messages between roles, one file per socket, and the texts that the roles sign.
//!
//! ComputeHorde's JSON, understood and produced exactly. A message is one JSON object in one websocket text frame; its
//! field `message_type` names its kind. The names of Muster's own messages begin with `Muster`; they are sent to Muster
//! peers only.

pub mod audits;
pub mod checkpoints;
pub mod checks;
pub mod executor;
pub mod executor_socket;
pub mod facilitator;
pub mod machines;
pub mod miner;
pub mod muster;
pub mod route;
pub mod signing;
pub mod validator_socket;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A frame that is not a message.
#[derive(Debug, thiserror::Error)]
#[error("malformed message: {reason}")]
pub struct WireError {
    /// The fault that the reader found, as text for the peer's operator; at most 300 characters.
    pub reason: String,
    is_misplaced: bool,
}

impl WireError {
    /// Cuts the reason: it quotes the frame and must not carry the whole frame back.
    fn because(reason: impl std::fmt::Display) -> Self {
        Self {
            reason: reason.to_string().chars().take(MAX_REASON_CHARS).collect(),
            is_misplaced: false,
        }
    }

    /// Whether the frame is a message of the protocol that no peer on this socket may send.
    pub fn is_misplaced(&self) -> bool {
        self.is_misplaced
    }
}

/// The longest reason that is sent back to a peer, in characters.
const MAX_REASON_CHARS: usize = 300;

/// Reads one frame.
///
/// # Errors
/// Bytes that are not JSON, a wrong type, an unknown `message_type` or class, or nesting deeper than 128. Never panics.
pub fn decode<M: DeserializeOwned>(frame: &str) -> Result<M, WireError> {
    serde_json::from_str(frame).map_err(WireError::because)
}

/// Reads one frame as `M`. A message of `Other`, which belongs to another socket, is refused as misplaced.
fn decode_on_socket<M: DeserializeOwned, Other: DeserializeOwned>(frame: &str) -> Result<M, WireError> {
    decode(frame).map_err(|error| WireError {
        is_misplaced: decode::<Other>(frame).is_ok(),
        ..error
    })
}

/// Writes one frame: compact JSON with every field, nulls included, in the order of the wire's own definition.
pub fn encode<M: Serialize>(message: &M) -> String {
    // Every message consists of texts, numbers, lists and maps with text keys, so it always has a JSON form.
    serde_json::to_string(message).unwrap_or_default()
}
