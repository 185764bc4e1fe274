//! What an executor says beyond ComputeHorde: what its job prints and how far it is, what its machine does, and the words
//! of a standing executor, which serves one lease after another over one connection.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::class::ExecutorClass;
use crate::digest::Digest;
use crate::ids::AttemptId;
use crate::macros::{open_enum, serde_as_text};
use crate::time::Timestamp;

/// The most that one [`JobLog`] holds, in bytes of output.
pub const MAX_LOG_BYTES: usize = 64 * 1024;

/// The most GPUs that one [`ExecutorMetrics`] names.
pub const MAX_GPUS: usize = 64;

open_enum!(
    /// Which of a program's two outputs.
    LogStream {
        /// Standard output.
        Stdout = "stdout",
        /// Standard error.
        Stderr = "stderr",
    }
);

open_enum!(
    /// What is under way.
    ProgressOf {
        /// The image, on its way from a registry or an archive.
        ImagePull = "image_pull",
        /// Inputs, on their way.
        Download = "download",
        /// The program.
        Execution = "execution",
        /// Outputs, on their way.
        Upload = "upload",
    }
);

/// `MusterJobLog`: a piece of what a job prints, while it runs.
///
/// Pieces are dropped where a receiver does not keep up: the next one's `offset` shows how much is missing. What is
/// complete is the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLog {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// Where it was printed.
    pub stream: LogStream,
    /// Bytes that the stream had before this piece.
    pub offset: u64,
    /// The piece itself.
    pub data: LogBytes,
}

/// Bytes of output; text form base64, since programs print what they like. At most [`MAX_LOG_BYTES`].
#[derive(Clone, PartialEq, Eq)]
pub struct LogBytes(Vec<u8>);

/// A text that is not a piece of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a piece of output is base64 of at most {MAX_LOG_BYTES} bytes")]
pub struct LogBytesError;

/// `MusterJobProgress`: how far something is that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProgress {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// What is under way.
    pub of: ProgressOf,
    /// How much is done: bytes, or seconds for [`ProgressOf::Execution`].
    pub done: u64,
    /// Of how much, if that is known.
    #[serde(default)]
    pub total: Option<u64>,
}

/// `MusterExecutorMetrics`, executor to miner, every few seconds: what its machine does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorMetrics {
    /// When, by the executor's clock.
    pub at: Timestamp,
    /// How busy its processors were since the message before, in thousandths of all of them.
    pub cpu_permille: u32,
    /// Bytes.
    pub memory_total: u64,
    /// Bytes.
    pub memory_used: u64,
    /// Bytes of the disk that jobs are on.
    pub disk_total: u64,
    /// Bytes.
    pub disk_used: u64,
    /// Bytes received since the machine started, over all interfaces but loopback.
    pub network_received: u64,
    /// Bytes sent, likewise.
    pub network_sent: u64,
    /// One entry a GPU; empty where there is none.
    #[serde(default)]
    pub gpus: Vec<GpuMetrics>,
}

/// What one GPU does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMetrics {
    /// The vendor's id of the device.
    pub uuid: String,
    /// The model.
    pub name: String,
    /// How busy it is, in percent.
    pub utilisation_percent: u32,
    /// Bytes.
    pub memory_total: u64,
    /// Bytes.
    pub memory_used: u64,
    /// Degrees Celsius.
    pub temperature_c: u32,
    /// Milliwatts.
    pub power_mw: u32,
}

/// `MusterExecutorHello`: the first message of a standing executor on every connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorHello {
    /// Of which kind it is.
    pub class: ExecutorClass,
    /// How many jobs it runs at once.
    pub capacity: u32,
    /// Its version, for people.
    pub version: String,
}

/// `MusterEnrolExecutor`: the one message of an executor that enrols. Its certificate came with the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolExecutor {
    /// The secret of the one-time token.
    pub secret: EnrolSecret,
    /// Its name, for people.
    pub name: String,
}

/// `MusterExecutorEnrolled`, miner to executor: its certificate is known from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorEnrolled {
    /// Of which kind the miner takes it to be.
    pub class: ExecutorClass,
}

/// `MusterLeaseOver`: everything of an attempt is gone from a standing executor, which is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseOver {
    /// The attempt.
    pub job_uuid: AttemptId,
}

/// `MusterSealSession`, executor to miner: the service answers, and its miner is to attest the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealSession {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// The bytes of `muster_response_proof::Attestation`, base64: what the miner is to sign.
    pub statement: String,
}

/// `MusterSessionSealed`, miner to executor: the answer to [`SealSession`]. One of both is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSealed {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// The text form of the signed attestation.
    #[serde(default)]
    pub attestation: Option<String>,
    /// Why there is none, in words.
    #[serde(default)]
    pub refusal: Option<String>,
}

/// `MusterSessionClosed`, executor to miner to validator: the last word of a sealed session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionClosed {
    /// The attempt.
    pub job_uuid: AttemptId,
    /// The text form of the signed `muster_response_proof::SessionClose`.
    pub close: String,
}

/// 32 random bytes that admit an executor once; text form 64 hex digits. Kept by the miner as a digest only.
#[derive(Clone, PartialEq, Eq)]
pub struct EnrolSecret([u8; 32]);

/// A text that is not 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret is 64 hex digits")]
pub struct EnrolSecretError;

// === impl LogBytes ===

impl LogBytes {
    /// A piece; `None` if it is too long.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() <= MAX_LOG_BYTES).then_some(Self(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for LogBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(&self.0))
    }
}

impl fmt::Debug for LogBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogBytes({} bytes)", self.0.len())
    }
}

impl FromStr for LogBytes {
    type Err = LogBytesError;

    fn from_str(text: &str) -> Result<Self, LogBytesError> {
        if text.len() > MAX_LOG_BYTES.div_ceil(3) * 4 {
            return Err(LogBytesError);
        }
        let bytes = STANDARD.decode(text).map_err(|_| LogBytesError)?;
        Self::new(bytes).ok_or(LogBytesError)
    }
}

serde_as_text!(LogBytes);

// === impl EnrolSecret ===

impl EnrolSecret {
    /// Wraps bytes that the caller has drawn.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// What a miner keeps of it.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.0)
    }
}

impl fmt::Display for EnrolSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for EnrolSecret {
    /// It stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnrolSecret(…)")
    }
}

impl FromStr for EnrolSecret {
    type Err = EnrolSecretError;

    fn from_str(text: &str) -> Result<Self, EnrolSecretError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| EnrolSecretError)?;
        Ok(Self(bytes))
    }
}

serde_as_text!(EnrolSecret);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_output_is_bounded_both_ways() {
        let whole = LogBytes::new(vec![0xff; MAX_LOG_BYTES]).unwrap();
        assert_eq!(whole.to_string().parse::<LogBytes>(), Ok(whole));
        assert_eq!(LogBytes::new(vec![0; MAX_LOG_BYTES + 1]), None);
        let long = STANDARD.encode(vec![0; MAX_LOG_BYTES + 1]);
        for bad in ["?", "QQ", &long, &"A".repeat(1 << 20)] {
            assert_eq!(bad.parse::<LogBytes>(), Err(LogBytesError));
        }
        assert_eq!("QQ==".parse::<LogBytes>().unwrap().as_bytes(), b"A");
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        let secret = EnrolSecret::from_bytes([7; 32]);
        assert_eq!(secret.to_string().parse::<EnrolSecret>(), Ok(secret.clone()));
        assert!(!format!("{secret:?}").contains("07"));
        assert_eq!("07".parse::<EnrolSecret>(), Err(EnrolSecretError));
    }
}
