//! Bodies about jobs: a new job, a job's view with its statuses, its live events, and reports about its result.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::class::ExecutorClass;
use crate::ids::JobId;
use crate::keys::ValidatorKey;
use crate::status::JobStatus;
use crate::time::Timestamp;
use crate::upload::FileUpload;
use crate::volume::VolumePart;
use crate::wire::executor::{LogStream, ProgressOf};
use crate::wire::facilitator::StatusMetadata;
use crate::wire::miner::StreamingDetails;
use crate::wire::signing::SignedJobFields;

/// `POST /api/v1/job-docker/`. The order of maps is signed and must survive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateJob {
    /// Who is to route it; not signed.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub target_validator_hotkey: ValidatorKey,
    /// The kind of executor.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
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
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800))]
    pub download_time_limit: u64,
    /// Seconds.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800))]
    pub execution_time_limit: u64,
    /// Seconds.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800))]
    pub streaming_start_time_limit: u64,
    /// Seconds.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800))]
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
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobView {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub uuid: JobId,
    /// The kind of executor.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub executor_class: ExecutorClass,
    /// When it was taken in.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub created_at: Timestamp,
    /// When it last came further.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
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
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
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
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatusEntry {
    /// How far.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub status: JobStatus,
    /// What goes with it, nulls removed.
    #[serde(default, serialize_with = "without_nulls")]
    #[cfg_attr(feature = "openapi", schema(value_type = StatusMetadata))]
    pub metadata: Option<StatusMetadata>,
    /// When.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub created_at: Timestamp,
}

/// One page of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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

/// `POST /api/v1/cheated-job/`: the user's reason to believe that a job was cheated on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportCheat {
    /// The job that was cheated on.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub job_uuid: JobId,
    /// The same job on a miner that is trusted.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub trusted_job_uuid: JobId,
    /// In any form.
    #[serde(default)]
    pub details: Option<Value>,
}

/// `PUT /api/v1/jobs/{uuid}/feedback/`: what the user thinks of a result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Feedback {
    /// From 0, wrong, to 1, right.
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0, maximum = 1.0))]
    pub result_correctness: f64,
    /// Seconds that it should have taken.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0))]
    pub expected_duration: Option<f64>,
}

/// Names of the events of `GET /api/v1/jobs/{uuid}/events/`. Each carries an id from which `Last-Event-ID` resumes.
pub mod events {
    /// The data is a [`super::StatusEntry`]. The stream ends after one that is terminal.
    pub const STATUS: &str = "status";
    /// The data is a [`super::LogEvent`].
    pub const LOG: &str = "log";
    /// The data is a [`super::ProgressEvent`].
    pub const PROGRESS: &str = "progress";
}

/// A piece of what a job prints, while it runs. Pieces may be missing: the next one's `offset` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogEvent {
    /// Where it was printed: `stdout` or `stderr`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub stream: LogStream,
    /// The piece; bytes that are no UTF-8 are shown as U+FFFD.
    pub text: String,
    /// When the facilitator took it in.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// Bytes that the stream had before this piece.
    pub offset: u64,
}

/// How far something is that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProgressEvent {
    /// What is under way: `image_pull`, `download`, `execution` or `upload`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub stage: ProgressOf,
    /// How much is done: bytes, or seconds of `execution`.
    pub done: u64,
    /// Of how much, if that is known.
    #[serde(default)]
    pub total: Option<u64>,
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
