//! An executor's messages beyond ComputeHorde's: its job's output and progress, its machine's measurements, and the
//! messages of a persistent executor, which serves one lease after another over one connection.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::class::ExecutorClass;
use crate::digest::Digest;
use crate::ids::AttemptId;
use crate::job::ProgramReport;
use crate::macros::{open_enum, serde_as_text};
use crate::time::Timestamp;

/// The most output that one [`JobLog`] holds, in bytes.
pub const MAX_LOG_BYTES: usize = 64 * 1024;

/// The most GPUs that one [`ExecutorMetrics`] names.
pub const MAX_GPUS: usize = 64;

open_enum!(
    /// One of a program's two outputs.
    LogStream {
        /// The program's standard output.
        Stdout = "stdout",
        /// The program's standard error.
        Stderr = "stderr",
    }
);

open_enum!(
    /// A stage of a job whose progress is reported.
    ProgressOf {
        /// The image comes from a registry or an archive.
        ImagePull = "image_pull",
        /// The inputs are fetched.
        Download = "download",
        /// The program runs.
        Execution = "execution",
        /// The outputs are delivered.
        Upload = "upload",
    }
);

/// `MusterJobLog`: a piece of a job's output, sent while it runs.
///
/// A sender drops pieces when the receiver does not keep up: the next piece's `offset` shows how many bytes are
/// missing. Only the result is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLog {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The output that the program wrote to.
    pub stream: LogStream,
    /// Bytes of the stream before this piece.
    pub offset: u64,
    /// The bytes of the piece.
    pub data: LogBytes,
}

/// Bytes of output, at most [`MAX_LOG_BYTES`]. The text form is base64, since output need not be UTF-8.
#[derive(Clone, PartialEq, Eq)]
pub struct LogBytes(Vec<u8>);

/// The text is not a piece of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a piece of output is base64 of at most {MAX_LOG_BYTES} bytes")]
pub struct LogBytesError;

/// `MusterJobProgress`: the progress of a stage that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProgress {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The stage that is under way.
    pub of: ProgressOf,
    /// The amount done: bytes, or seconds for [`ProgressOf::Execution`].
    pub done: u64,
    /// The whole amount in the same unit, if it is known.
    #[serde(default)]
    pub total: Option<u64>,
    /// The layers of an image, with [`ProgressOf::ImagePull`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerCount>,
}

/// `MusterJobMetrics`: the newest state of a running program, as it reported itself. Only peers with the feature
/// `metrics` get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMetrics {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The time of the report by the executor's clock.
    pub at: Timestamp,
    /// The program's own words about its state.
    pub report: ProgramReport,
}

/// The layers of an image that is being fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LayerCount {
    /// Layers that are unpacked, or were there already.
    pub done: u32,
    /// Layers that are known of; the number grows while the fetch begins.
    pub total: u32,
}

/// `MusterExecutorUp`, executor to miner and miner to validator: the executor is there, and fetches the job's image.
/// An executor that has the image reports ready instead. Only peers with the feature `fetching` get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorUp {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The host of the registry that the image comes from, at most 255 bytes.
    pub registry: String,
    /// The time that the sender allows for the image, in seconds.
    pub image_s: u64,
}

/// `MusterFetchImage`, miner to executor: the answer to [`ExecutorUp`] once the miner has a slot for one more fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchImage {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
}

/// `MusterExecutorMetrics`, executor to miner, every few seconds: measurements of the executor's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorMetrics {
    /// The time of the measurement by the executor's clock.
    pub at: Timestamp,
    /// Processor load since the message before, in thousandths of all processors together.
    pub cpu_permille: u32,
    /// Main memory of the machine, in bytes.
    pub memory_total: u64,
    /// Main memory in use, in bytes.
    pub memory_used: u64,
    /// Size of the disk that holds the jobs, in bytes.
    pub disk_total: u64,
    /// Space in use on that disk, in bytes.
    pub disk_used: u64,
    /// Bytes received since the machine started, over all interfaces but loopback.
    pub network_received: u64,
    /// Bytes sent since the machine started, over all interfaces but loopback.
    pub network_sent: u64,
    /// One entry per GPU, at most [`MAX_GPUS`]; empty on a machine without one.
    #[serde(default)]
    pub gpus: Vec<GpuMetrics>,
}

/// Measurements of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMetrics {
    /// The vendor's id of the device.
    pub uuid: String,
    /// The device's model name.
    pub name: String,
    /// Load of the GPU, in percent.
    pub utilisation_percent: u32,
    /// GPU memory, in bytes.
    pub memory_total: u64,
    /// GPU memory in use, in bytes.
    pub memory_used: u64,
    /// Temperature, in degrees Celsius.
    pub temperature_c: u32,
    /// Power draw, in milliwatts.
    pub power_mw: u32,
}

/// `MusterExecutorHello`: the first message of a persistent executor on every connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorHello {
    /// The class that the executor offers.
    pub class: ExecutorClass,
    /// The number of jobs that the executor runs at once.
    pub capacity: u32,
    /// The executor's version, for people.
    pub version: String,
    /// The number of jobs that it runs from an earlier connection, and to whose leases it comes back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub busy: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// `MusterEnrolExecutor`: the one message of an executor that enrols. The connection carries its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolExecutor {
    /// The secret of the one-time token.
    pub secret: OneTimeSecret,
    /// The executor's name, for people.
    pub name: String,
}

/// `MusterExecutorEnrolled`, miner to executor: the miner has stored the executor's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorEnrolled {
    /// The class under which the miner lists the executor.
    pub class: ExecutorClass,
}

/// `MusterLeaseOver`: a persistent executor has removed everything of an attempt and is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseOver {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
}

/// `MusterSealSession`, executor to miner: the service accepts requests, and the miner is asked to attest the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealSession {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The bytes of `muster_response_proof::Attestation` that the miner is asked to sign, base64.
    pub statement: String,
}

/// `MusterSessionSealed`, miner to executor: the answer to [`SealSession`]. It has either an attestation or a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSealed {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The text form of the signed attestation.
    #[serde(default)]
    pub attestation: Option<String>,
    /// The reason why the miner attests nothing, as text.
    #[serde(default)]
    pub refusal: Option<String>,
}

/// `MusterSessionClosed`, executor to miner to validator: the signed end of a sealed session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionClosed {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The text form of the signed `muster_response_proof::SessionClose`.
    pub close: String,
}

/// `MusterLeaseHeld`, miner to executor, once the executor is admitted and again after each [`Reattach`]: the miner
/// keeps the lease while the executor's connection is lost. Only executors with the feature `reattach` get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHeld {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// Counts the connections that served the lease. A report counts only on the connection of the newest epoch.
    pub epoch: u64,
    /// The secret that the executor shows to come back; each works once.
    pub secret: OneTimeSecret,
    /// How long the miner keeps the lease after the connection is lost, in seconds.
    pub reattach_s: u64,
}

/// `MusterReattach`, executor to miner: the executor comes back to its lease over a new connection. The answer is
/// [`LeaseHeld`], or `MusterCancelJob` if the miner does not keep the lease any longer. After the answer the executor
/// repeats every report of the attempt; the miner takes a repeated report without effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reattach {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The epoch of the last [`LeaseHeld`].
    pub epoch: u64,
    /// The secret of the last [`LeaseHeld`].
    pub secret: OneTimeSecret,
    /// Milliseconds since the executor got the job; null if it has the offer only, or not even that.
    #[serde(default)]
    pub job_ms: Option<u64>,
}

/// `MusterEndStored`, miner to executor: the end of the attempt is durable at the miner, so the executor may forget it.
/// Only executors with the feature `reattach` get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndStored {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
}

/// 32 random bytes that admit an executor once; the text form is 64 hex digits. The miner keeps only their digest.
#[derive(Clone, PartialEq, Eq)]
pub struct OneTimeSecret([u8; 32]);

/// The text is not 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret is 64 hex digits")]
pub struct OneTimeSecretError;

// === impl LogBytes ===

impl LogBytes {
    /// Wraps a piece; `None` if it is longer than [`MAX_LOG_BYTES`].
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() <= MAX_LOG_BYTES).then_some(Self(bytes))
    }

    /// The piece as raw bytes.
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

// === impl OneTimeSecret ===

impl OneTimeSecret {
    /// Wraps bytes that the caller has drawn.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest that the miner keeps.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.0)
    }
}

impl fmt::Display for OneTimeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for OneTimeSecret {
    /// Keeps the secret out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneTimeSecret(…)")
    }
}

impl FromStr for OneTimeSecret {
    type Err = OneTimeSecretError;

    fn from_str(text: &str) -> Result<Self, OneTimeSecretError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| OneTimeSecretError)?;
        Ok(Self(bytes))
    }
}

serde_as_text!(OneTimeSecret);

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
        let secret = OneTimeSecret::from_bytes([7; 32]);
        assert_eq!(secret.to_string().parse::<OneTimeSecret>(), Ok(secret.clone()));
        assert!(!format!("{secret:?}").contains("07"));
        assert_eq!("07".parse::<OneTimeSecret>(), Err(OneTimeSecretError));
    }
}
