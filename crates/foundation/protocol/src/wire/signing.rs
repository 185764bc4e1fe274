//! The exact bytes that ComputeHorde's parties sign. `muster-identity` makes and checks the signatures.

use std::borrow::Cow;

use blake2::{Blake2b512, Digest as _};
use indexmap::IndexMap;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::executor_socket::MinerToExecutor;
use super::facilitator::UserJobRequest;
use super::miner::{StreamingDetails, ValidatorAuth};
use super::muster::ChallengeNonce;
use super::validator_socket::ValidatorToMiner;
use super::{WireError, decode, decode_on_socket, encode};
use crate::canonical;
use crate::class::ExecutorClass;
use crate::ids::AttemptId;
use crate::keys::{MinerKey, ValidatorKey};
use crate::signature::Signature;
use crate::upload::OutputUpload;
use crate::volume::{Volume, VolumePart};

/// The field that compute-horde 0.0.27 added to the two job requests; it stands first in the object.
const VALIDATOR_SIGNATURE: &str = "validator_signature";

/// The most JSON values, keys included, in one message of a validator. A job with a thousand volumes has some ten
/// thousand, and a value may cost a hundred bytes more in memory than its text.
const MAX_VALUES: usize = 100_000;

/// The bytes that a validator signs when it connects to a miner: `{validator}:{miner}:{unix seconds}`.
pub fn validator_auth(validator: ValidatorKey, miner: MinerKey, timestamp: i64) -> Vec<u8> {
    format!("{validator}:{miner}:{timestamp}").into_bytes()
}

impl ValidatorAuth {
    /// The bytes that its signature covers.
    pub fn signed_bytes(&self) -> Vec<u8> {
        validator_auth(self.validator_hotkey, self.miner_hotkey, self.timestamp)
    }
}

/// Keeps the answer to a facilitator's challenge apart from everything else that a validator signs.
const CHALLENGE_DOMAIN: &[u8] = b"muster/facilitator-challenge/1";

/// The bytes that a validator signs when a facilitator challenges its greeting: the domain, the nonce, the validator's
/// public key.
pub fn facilitator_challenge(nonce: &ChallengeNonce, validator: ValidatorKey) -> Vec<u8> {
    [
        CHALLENGE_DOMAIN,
        nonce.as_bytes().as_slice(),
        validator.0.as_bytes().as_slice(),
    ]
    .concat()
}

/// The bytes that a miner signs when a streaming job is ready: `{job}:{ip}:{port}:{certificate}`.
pub fn streaming_ready(attempt: AttemptId, ip: &str, port: u16, certificate: &str) -> Vec<u8> {
    format!("{attempt}:{ip}:{port}:{certificate}").into_bytes()
}

/// The fields of a job that its user signs, in the order in which the SDK signs them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SignedJobFields {
    /// The class of executor that the job needs.
    pub executor_class: ExecutorClass,
    /// The reference of the image to run.
    pub docker_image: String,
    /// The arguments of the image's entry point.
    pub args: Vec<String>,
    /// Environment variables, in the user's order.
    pub env: IndexMap<String, String>,
    /// Deprecated by ComputeHorde and without effect: the class decides.
    pub use_gpu: bool,
    /// The folder in the container whose files come back; empty where the user named none.
    pub artifacts_dir: String,
    /// Whether the job must run on the validator's own miner.
    pub on_trusted_miner: bool,
    /// Limit for fetching the inputs, in seconds.
    pub download_time_limit: u64,
    /// Limit for the program, in seconds.
    pub execution_time_limit: u64,
    /// Limit for delivering the outputs, in seconds.
    pub upload_time_limit: u64,
    /// Limit from the program's start to its first answer, in seconds; streaming jobs only.
    pub streaming_start_time_limit: u64,
    /// Present for a streaming job only.
    pub streaming_details: Option<StreamingDetails>,
    /// The job's inputs.
    pub volumes: Vec<VolumePart>,
    /// The destinations of the outputs.
    pub uploads: Vec<OutputUpload>,
}

impl SignedJobFields {
    /// The BLAKE2b-512 hash that is signed, of the time and of the fields as a JSON text inside a JSON text.
    pub fn digest(&self, timestamp_ns: i64) -> [u8; 64] {
        json_text_digest(timestamp_ns, &encode(self))
    }
}

impl UserJobRequest {
    /// The signed fields, computed again from the request that arrived.
    pub fn signed_fields(&self) -> SignedJobFields {
        SignedJobFields {
            executor_class: self.executor_class,
            docker_image: self.docker_image.clone(),
            args: self.args.clone(),
            env: self.env.clone(),
            use_gpu: self.use_gpu,
            artifacts_dir: self.artifacts_dir.clone().unwrap_or_default(),
            on_trusted_miner: self.on_trusted_miner,
            download_time_limit: self.download_time_limit,
            execution_time_limit: self.execution_time_limit,
            upload_time_limit: self.upload_time_limit,
            streaming_start_time_limit: self.streaming_start_time_limit,
            streaming_details: self.streaming_details.clone(),
            volumes: self.volume.clone().map(Volume::into_parts).unwrap_or_default(),
            uploads: self
                .output_upload
                .clone()
                .map(OutputUpload::into_parts)
                .unwrap_or_default(),
        }
    }

    /// The hash that its signature covers.
    pub fn signed_digest(&self) -> [u8; 64] {
        self.signed_fields().digest(self.signature.timestamp_ns)
    }
}

/// The hash that a user signs with scope `FullRequest`: the sorted body as a JSON text inside a JSON text.
pub fn full_request_digest(timestamp_ns: i64, body: &Value) -> [u8; 64] {
    json_text_digest(timestamp_ns, &canonical::sorted_spaced(body))
}

/// The hash that ComputeHorde's validator expects for scope `FullRequest`: the sorted body as an object, not as a JSON
/// text.
pub fn full_request_object_digest(timestamp_ns: i64, body: &Value) -> [u8; 64] {
    timed_digest(timestamp_ns, &canonical::sorted_spaced(body))
}

fn json_text_digest(timestamp_ns: i64, inner: &str) -> [u8; 64] {
    timed_digest(timestamp_ns, &canonical::ascii_literal(inner))
}

fn timed_digest(timestamp_ns: i64, message: &str) -> [u8; 64] {
    let hash = Blake2b512::new()
        .chain_update(timestamp_ns.to_be_bytes())
        .chain_update(message);
    hash.finalize().into()
}

/// A frame for a miner that begins with the `validator_signature` of compute-horde 0.0.27.
///
/// `sign` gets the canonical bytes of the message without that field. A frame that is not an object is returned
/// unchanged, and nothing is signed.
pub fn with_validator_signature(message: &ValidatorToMiner, sign: impl FnOnce(&[u8]) -> Signature) -> String {
    let frame = encode(message);
    let (Some(rest), Ok(object)) = (frame.strip_prefix('{'), serde_json::from_str(&frame)) else {
        return frame;
    };
    let signature = sign(canonical::sorted_compact(&Value::Object(object)).as_bytes());
    format!(
        "{{\"{VALIDATOR_SIGNATURE}\":\"{}\",{rest}",
        signature.to_prefixed_hex()
    )
}

/// A message from a validator with the bytes that its `validator_signature` covers, if it carries one.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedFrame {
    /// The message without its signature.
    pub message: ValidatorToMiner,
    /// The signature and the bytes it must cover.
    pub signature: Option<(Signature, Vec<u8>)>,
}

/// The fields of a frame that decide how the rest is read.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    message_type: Cow<'a, str>,
    #[serde(default)]
    validator_signature: Option<IgnoredAny>,
}

impl Head<'_> {
    /// Only the two job requests carry a signature of the whole object.
    fn is_signed(&self) -> bool {
        let job_request = matches!(&*self.message_type, "V0InitialJobRequest" | "V0JobRequest");
        job_request && self.validator_signature.is_some()
    }
}

/// Reads a validator's frame and keeps the bytes that its signature covers: the object *as received*, unknown fields
/// included.
///
/// Memory use stays in proportion to the frame's length: a frame with very many values is refused before any is made.
///
/// # Errors
/// As [`decode`], a message that only an executor receives, and a `validator_signature` that is neither null nor a
/// signature.
pub fn decode_from_validator(frame: &str) -> Result<SignedFrame, WireError> {
    if too_many_values(frame) {
        return Err(WireError::because(format_args!(
            "more than {MAX_VALUES} values in one message"
        )));
    }
    let head: Head<'_> = serde_json::from_str(frame).map_err(WireError::because)?;
    if head.is_signed() {
        return decode_signed(frame);
    }
    Ok(SignedFrame {
        message: decode_on_socket::<_, MinerToExecutor>(frame)?,
        signature: None,
    })
}

fn decode_signed(frame: &str) -> Result<SignedFrame, WireError> {
    let mut value: Value = decode(frame)?;
    let claimed = value
        .as_object_mut()
        .and_then(|object| object.shift_remove(VALIDATOR_SIGNATURE));
    let Some(Value::String(text)) = claimed else {
        return Err(WireError::because(format_args!(
            "{VALIDATOR_SIGNATURE} is not a text"
        )));
    };
    let signature = Signature::from_hex(&text)
        .map_err(|error| WireError::because(format_args!("{VALIDATOR_SIGNATURE}: {error}")))?;
    let covered = canonical::sorted_compact(&value).into_bytes();
    let message = serde_json::from_value(value).map_err(WireError::because)?;
    Ok(SignedFrame {
        message,
        signature: Some((signature, covered)),
    })
}

/// Whether a frame may hold more values than any job has. Each value begins the frame or follows one of `[{,:` outside
/// texts.
fn too_many_values(frame: &str) -> bool {
    let (mut in_text, mut escaped) = (false, false);
    let begins_value = |byte: &u8| {
        if escaped {
            escaped = false;
            return false;
        }
        match byte {
            b'"' => in_text = !in_text,
            b'\\' => escaped = in_text,
            b'[' | b'{' | b',' | b':' => return !in_text,
            _ => {}
        }
        false
    };
    frame.bytes().filter(begins_value).nth(MAX_VALUES).is_some()
}
