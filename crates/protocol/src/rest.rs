//! The users' door: bodies of the job REST API, as ComputeHorde's SDK sends and reads them.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::class::ExecutorClass;
use crate::ids::JobId;
use crate::keys::{Hotkey, ValidatorKey};
use crate::signature::Signature;
use crate::status::JobStatus;
use crate::time::Timestamp;
use crate::upload::FileUpload;
use crate::volume::VolumePart;
use crate::wire::facilitator::StatusMetadata;
use crate::wire::miner::StreamingDetails;
use crate::wire::signing::SignedJobFields;

/// Names of the headers that carry a user's signature on a request.
pub mod headers {
    /// Always `bittensor`.
    pub const SIGNATURE_TYPE: &str = "x-ch-signature-type";
    /// ss58 of who signed.
    pub const SIGNATORY: &str = "x-ch-signatory";
    /// Unix nanoseconds, part of what is signed.
    pub const TIMESTAMP_NS: &str = "x-ch-timestamp-ns";
    /// Base64.
    pub const SIGNATURE: &str = "x-ch-signature";
    /// `SignedFields` or `FullRequest`.
    pub const SIGNATURE_SCOPE: &str = "x-ch-signature-scope";
}

/// `GET /auth/nonce`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nonce {
    /// Opaque; the login signs its bytes.
    pub nonce: String,
}

/// `POST /auth/login`. Fields are optional so that each missing one can be named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// Who logs in.
    #[serde(default)]
    pub hotkey: Option<String>,
    /// Hex without `0x`, over the nonce's bytes.
    #[serde(default)]
    pub signature: Option<String>,
    /// From `GET /auth/nonce`.
    #[serde(default)]
    pub nonce: Option<String>,
}

impl Login {
    /// A login of `hotkey` with its signature over `nonce`.
    pub fn new(hotkey: Hotkey, signature: Signature, nonce: String) -> Self {
        Self {
            hotkey: Some(hotkey.to_string()),
            signature: Some(signature.to_bare_hex()),
            nonce: Some(nonce),
        }
    }
}

/// The answer to a login.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// A JWT for the header `Authorization: Bearer`.
    pub token: String,
}

/// `POST /api/v1/job-docker/`. The order of maps is signed and must survive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateJob {
    /// Who is to route it; not signed.
    pub target_validator_hotkey: ValidatorKey,
    /// The kind of executor.
    pub executor_class: ExecutorClass,
    /// The image.
    pub docker_image: String,
    /// Whose account of work it counts towards; not signed.
    #[serde(default)]
    pub job_namespace: Option<String>,
    /// The arguments of its entry point.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment.
    #[serde(default)]
    pub env: IndexMap<String, String>,
    /// Whether a GPU is wanted.
    #[serde(default)]
    pub use_gpu: bool,
    /// Folder whose files come back inside the result.
    #[serde(default)]
    pub artifacts_dir: Option<String>,
    /// Run it on the validator's own miner.
    #[serde(default)]
    pub on_trusted_miner: bool,
    /// Seconds.
    pub download_time_limit: u64,
    /// Seconds.
    pub execution_time_limit: u64,
    /// Seconds.
    pub streaming_start_time_limit: u64,
    /// Seconds.
    pub upload_time_limit: u64,
    /// Set for a streaming job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming_details: Option<StreamingDetails>,
    /// The inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<VolumePart>>,
    /// Where the outputs go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploads: Option<Vec<FileUpload>>,
}

impl CreateJob {
    /// The fields that the user's signature covers.
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
            volumes: self.volumes.clone().unwrap_or_default(),
            uploads: self.uploads.iter().flatten().cloned().map(Into::into).collect(),
        }
    }
}

/// A job as its user sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// Its name.
    pub uuid: JobId,
    /// The kind of executor.
    pub executor_class: ExecutorClass,
    /// When it was taken in.
    pub created_at: Timestamp,
    /// When it last came further.
    pub last_update: Timestamp,
    /// The last status in its legacy display form: `Streaming Ready`.
    pub status: String,
    /// The image.
    pub docker_image: String,
    /// Whose account of work it counts towards.
    #[serde(default)]
    pub job_namespace: Option<String>,
    /// The arguments of its entry point.
    pub args: Vec<String>,
    /// Environment.
    pub env: IndexMap<String, String>,
    /// Whether a GPU is wanted.
    pub use_gpu: bool,
    /// The user's own label.
    #[serde(default)]
    pub tag: String,
    /// What the program printed; empty until the end.
    #[serde(default)]
    pub stdout: String,
    /// Likewise.
    #[serde(default)]
    pub stderr: String,
    /// The inputs.
    #[serde(default)]
    pub volumes: Vec<VolumePart>,
    /// Where the outputs go.
    #[serde(default)]
    pub uploads: Vec<FileUpload>,
    /// Small output files: path in the container to base64.
    #[serde(default)]
    pub artifacts: IndexMap<String, String>,
    /// Folder whose files come back.
    #[serde(default)]
    pub artifacts_dir: Option<String>,
    /// Who routes it.
    pub target_validator_hotkey: ValidatorKey,
    /// Run on the validator's own miner.
    #[serde(default)]
    pub on_trusted_miner: bool,
    /// What the destinations answered.
    #[serde(default)]
    pub upload_results: IndexMap<String, String>,
    /// Seconds.
    pub download_time_limit: u64,
    /// Seconds.
    pub execution_time_limit: u64,
    /// Seconds.
    pub streaming_start_time_limit: u64,
    /// Seconds.
    pub upload_time_limit: u64,
    /// PEM; empty if none.
    #[serde(default)]
    pub streaming_client_cert: String,
    /// PEM; empty if none.
    #[serde(default)]
    pub streaming_server_cert: String,
    /// Host; empty if none.
    #[serde(default)]
    pub streaming_server_address: String,
    /// Port; 0 if none.
    #[serde(default)]
    pub streaming_server_port: u16,
    /// Every status it went through, oldest first.
    pub status_history: Vec<StatusEntry>,
}

impl JobView {
    /// The last status; a job always has one.
    pub fn last_status(&self) -> JobStatus {
        self.status_history
            .last()
            .map(|entry| entry.status)
            .unwrap_or_default()
    }
}

/// One step of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusEntry {
    /// How far.
    pub status: JobStatus,
    /// What goes with it, nulls removed.
    #[serde(default, serialize_with = "without_nulls")]
    pub metadata: Option<StatusMetadata>,
    /// When.
    pub created_at: Timestamp,
}

/// One page of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobPage {
    /// Jobs in all.
    pub count: u64,
    /// URL of the next page.
    pub next: Option<String>,
    /// URL of the page before.
    pub previous: Option<String>,
    /// The jobs, newest first.
    pub results: Vec<JobView>,
}

/// An error of the API proper: `{"detail": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    /// What failed and what to do.
    pub detail: String,
}

/// An error of the login: `{"error": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginError {
    /// What failed.
    pub error: String,
}

fn without_nulls<S: serde::Serializer>(metadata: &Option<StatusMetadata>, s: S) -> Result<S::Ok, S::Error> {
    let value = serde_json::to_value(metadata).map_err(serde::ser::Error::custom)?;
    // The SDK wants an object even where there is nothing to say.
    let value = if value.is_null() {
        Value::Object(serde_json::Map::new())
    } else {
        strip_nulls(value)
    };
    value.serialize(s)
}

fn strip_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(k, v)| (k, strip_nulls(v)))
            .collect(),
        Value::Array(items) => items.into_iter().map(strip_nulls).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}
