//! What Muster adds to ComputeHorde's wire. Sent only to peers that showed the header `Muster-Protocol`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::executor::{LogBytes, LogStream, ProgressOf};
use crate::class::ExecutorClass;
use crate::digest::ImageId;
use crate::ids::{AttemptId, JobId};
use crate::macros::{constant_text, serde_as_text};
use crate::receipt::Receipt;
use crate::signature::Signature;

/// `MusterReceiptCountersigned`, miner to validator: a receipt the miner has signed and stored.
///
/// ComputeHorde's validators learn of the miner's half only by reading its receipt pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptCountersigned {
    /// With both signatures.
    pub receipt: Receipt,
}

/// `MusterCancelJob`, validator to miner and miner to executor: stop the attempt and free its executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelJob {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// In words.
    pub reason: String,
}

constant_text!(
    /// `MusterCancelJob`.
    CancelRequestTag = "MusterCancelJob"
);

/// `MusterCancelJob`, facilitator to validator: the job's user no longer wants it.
///
/// Nothing answers it but the job's last status. It is sent again after a reconnection until that has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Always `MusterCancelJob`.
    pub message_type: CancelRequestTag,
    /// The job, whichever attempt it is at.
    pub uuid: JobId,
    /// In words.
    pub reason: String,
}

impl CancelRequest {
    /// A request to stop `uuid`.
    pub fn new(uuid: JobId, reason: impl Into<String>) -> Self {
        Self {
            message_type: CancelRequestTag,
            uuid,
            reason: reason.into(),
        }
    }
}

/// `MusterJobLog`, validator to facilitator: a piece of what a job prints, passed on from its miner. Not answered.
///
/// It may be dropped anywhere: the next one's `offset` shows how much is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveLog {
    /// The job (attempts are the validator's affair).
    pub uuid: JobId,
    /// Where it was printed.
    pub stream: LogStream,
    /// Bytes that the stream had before this piece.
    pub offset: u64,
    /// The piece itself.
    pub data: LogBytes,
}

/// `MusterJobProgress`, validator to facilitator: how far something is that takes long. Not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveProgress {
    /// The job.
    pub uuid: JobId,
    /// What is under way.
    pub of: ProgressOf,
    /// How much is done: bytes, or seconds for [`ProgressOf::Execution`].
    pub done: u64,
    /// Of how much, if that is known.
    #[serde(default)]
    pub total: Option<u64>,
}

/// `MusterGateway`, validator to facilitator: where its gateway for streaming sessions answers, and what it serves. Not
/// answered. Said after every greeting; what is not named any more is not served any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayNotice {
    /// `http://` or `https://`, host and port; null if there is no gateway.
    pub url: Option<String>,
    /// What can be asked for there.
    pub models: Vec<ServedModel>,
}

/// A model that a gateway serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedModel {
    /// As clients name it.
    pub id: String,
    /// Rao for a million tokens of input.
    pub input_price: u64,
    /// Rao for a million tokens of output.
    pub output_price: u64,
}

/// The most images that one [`WhitelistNotice`] names; of a longer one the first are taken.
pub const MAX_LISTED_IMAGES: usize = 256;

/// `MusterWhitelist`, validator to miner and miner to standing executor: which images may serve behind the seal, so that they are at
/// hand before a session is wanted. Not answered. Said after every greeting; what is not named any more may no longer serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhitelistNotice {
    /// In the order of the validator's configuration.
    pub images: Vec<ListedImage>,
}

/// An image that may serve.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListedImage {
    /// The digest of its configuration: nothing else may serve under its name.
    pub image: ImageId,
    /// The name by which an engine that does not have it pulls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The kind of executor that it runs on.
    pub class: ExecutorClass,
    /// The model that it serves, for people.
    pub model: String,
}

impl WhitelistNotice {
    /// Whether an image may serve.
    pub fn lists(&self, image: ImageId) -> bool {
        self.images.iter().any(|listed| listed.image == image)
    }
}

/// The key `muster` inside the metadata of a status update, which ComputeHorde's models let pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusExtension {
    /// The attempt that brought the job this far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// Receipts of that attempt with both signatures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipts: Vec<Receipt>,
}

constant_text!(
    /// `MusterChallenge`.
    ChallengeTag = "MusterChallenge"
);

/// `MusterChallenge`, facilitator to validator: the answer to a greeting, which anyone may have captured.
///
/// Only a validator that signs the nonce is let in ([`super::signing::facilitator_challenge`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Challenge {
    /// Always `MusterChallenge`.
    pub message_type: ChallengeTag,
    /// Drawn for this connection only.
    pub nonce: ChallengeNonce,
}

impl Challenge {
    /// A challenge with this nonce.
    pub fn new(nonce: ChallengeNonce) -> Self {
        Self {
            message_type: ChallengeTag,
            nonce,
        }
    }
}

/// `MusterChallengeResponse`, validator to facilitator: the greeting was no copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChallengeResponse {
    /// Over [`super::signing::facilitator_challenge`].
    pub signature: Signature,
}

/// 32 random bytes; text form 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeNonce([u8; 32]);

/// A text that is not 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a nonce is 64 hex digits")]
pub struct ChallengeNonceError;

impl ChallengeNonce {
    /// Wraps bytes that the caller has drawn.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ChallengeNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for ChallengeNonce {
    type Err = ChallengeNonceError;

    fn from_str(text: &str) -> Result<Self, ChallengeNonceError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| ChallengeNonceError)?;
        Ok(Self(bytes))
    }
}

serde_as_text!(ChallengeNonce);
