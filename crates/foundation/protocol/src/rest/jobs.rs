//! Bodies about jobs: a new job, a job's view with its statuses, its live events, and reports about its result.

use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::webhooks::WebhookDelivery;
use crate::class::ExecutorClass;
use crate::features::FeatureSet;
use crate::ids::JobId;
use crate::job::{CompletionReport, KeptCheckpoint, MetricName, MetricValue, NonFiniteValue, ProgramReport};
use crate::keys::{MinerKey, ValidatorKey};
use crate::status::JobStatus;
use crate::time::Timestamp;
use crate::upload::FileUpload;
use crate::volume::VolumePart;
use crate::wire::executor::{LayerCount, LogStream, ProgressOf};
use crate::wire::facilitator::StatusMetadata;
use crate::wire::miner::{JobImage, StreamingDetails};
use crate::wire::muster::{JobExtension, features_of};
use crate::wire::signing::SignedJobFields;

/// `POST /api/v1/job-docker/`. The user's signature covers the order of maps, so they keep it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateJob {
    /// The validator that the facilitator hands the job to; not signed.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub target_validator_hotkey: ValidatorKey,
    /// The class of executor that the job needs.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub executor_class: ExecutorClass,
    /// The reference of the image to run.
    pub docker_image: String,
    /// The account that the job counts towards; not signed.
    #[serde(default)]
    pub job_namespace: Option<String>,
    /// The arguments of the image's entry point.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables of the container, in the signed order.
    #[serde(default)]
    pub env: IndexMap<String, String>,
    /// Deprecated by ComputeHorde and without effect: the class decides.
    #[serde(default)]
    pub use_gpu: bool,
    /// The folder in the container whose files come back inside the result.
    #[serde(default)]
    pub artifacts_dir: Option<String>,
    /// Whether the job must run on the validator's own miner.
    #[serde(default)]
    pub on_trusted_miner: bool,
    /// Limit for fetching the inputs, in seconds.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800))]
    pub download_time_limit: u64,
    /// Limit for the program, in seconds.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800))]
    pub execution_time_limit: u64,
    /// Limit from the program's start to its first answer, in seconds; streaming jobs only.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800))]
    pub streaming_start_time_limit: u64,
    /// Limit for delivering the outputs, in seconds.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800))]
    pub upload_time_limit: u64,
    /// Present for a streaming job only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming_details: Option<StreamingDetails>,
    /// The job's inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<VolumePart>>,
    /// The destinations of the outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploads: Option<Vec<FileUpload>>,
    /// Muster's own: the job's terms. They are signed by themselves, not with the fields above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muster: Option<Box<JobExtension>>,
    /// Muster's own: the user's label of the job; not signed, and it stays at the facilitator. A letter or a digit,
    /// then letters, digits, hyphens, dots and underscores, and no uuid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 64))]
    pub tag: Option<String>,
    /// Muster's own: the URL that is told of the job's end; not signed, and it stays at the facilitator. The account
    /// must have a secret (`PUT /api/v1/webhook/`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2048))]
    pub webhook: Option<String>,
}

impl CreateJob {
    /// The features that every peer needs to keep what the job asks for.
    pub fn needed_features(&self) -> FeatureSet {
        let uploads = self.uploads.iter().flatten();
        features_of(self.muster.as_deref(), uploads)
    }
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
    /// The id of the job.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub uuid: JobId,
    /// The class of executor that the job needs.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub executor_class: ExecutorClass,
    /// The time at which the facilitator accepted the job.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub created_at: Timestamp,
    /// The time of the last change of status.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub last_update: Timestamp,
    /// The last status in its legacy display form: `Streaming Ready`. This field and the statuses of `status_history`
    /// stay as they are; pages and commands show people one of seven states instead.
    pub status: String,
    /// The reference of the image.
    pub docker_image: String,
    /// The account that the job counts towards.
    #[serde(default)]
    pub job_namespace: Option<String>,
    /// The arguments of the image's entry point.
    pub args: Vec<String>,
    /// Environment variables of the container.
    pub env: IndexMap<String, String>,
    /// Deprecated by ComputeHorde and without effect: the class decides.
    pub use_gpu: bool,
    /// The user's own label; empty for a job without one.
    #[serde(default)]
    pub tag: String,
    /// The program's standard output; empty until the end.
    #[serde(default)]
    pub stdout: String,
    /// The program's standard error; empty until the end.
    #[serde(default)]
    pub stderr: String,
    /// The job's inputs.
    #[serde(default)]
    pub volumes: Vec<VolumePart>,
    /// The destinations of the outputs.
    #[serde(default)]
    pub uploads: Vec<FileUpload>,
    /// Small output files: path in the container to base64.
    #[serde(default)]
    pub artifacts: IndexMap<String, String>,
    /// The folder in the container whose files come back.
    #[serde(default)]
    pub artifacts_dir: Option<String>,
    /// The validator that routes the job.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub target_validator_hotkey: ValidatorKey,
    /// Whether the job must run on the validator's own miner.
    #[serde(default)]
    pub on_trusted_miner: bool,
    /// The answers of the upload destinations, by path.
    #[serde(default)]
    pub upload_results: IndexMap<String, String>,
    /// Limit for fetching the inputs, in seconds.
    pub download_time_limit: u64,
    /// Limit for the program, in seconds.
    pub execution_time_limit: u64,
    /// Limit from the program's start to its first answer, in seconds; streaming jobs only.
    pub streaming_start_time_limit: u64,
    /// Limit for delivering the outputs, in seconds.
    pub upload_time_limit: u64,
    /// The client's certificate, PEM; empty if the job does not stream.
    #[serde(default)]
    pub streaming_client_cert: String,
    /// The server's certificate, PEM; empty until the job accepts requests.
    #[serde(default)]
    pub streaming_server_cert: String,
    /// The server's host name or IP address; empty until the job accepts requests.
    #[serde(default)]
    pub streaming_server_address: String,
    /// The server's TCP port; 0 until the job accepts requests.
    #[serde(default)]
    pub streaming_server_port: u16,
    /// Every status that the job has reached, oldest first.
    pub status_history: Vec<StatusEntry>,
    /// Muster's own: the job's terms, without their signature. Absent for a job without terms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muster: Option<Box<JobExtension>>,
    /// Muster's own: the place of a job that waits for an executor. Only in answers to requests whose header
    /// `Muster-Features` names `queue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Box<QueuedJob>>,
    /// Muster's own: the image that ran, as its executor tells it. Absent until the job has ended, and for a job that
    /// no executor of Muster ran. Only in answers to requests whose header `Muster-Features` names `results`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Box<JobImage>>,
    /// Muster's own: what the program of the last attempt left and used, as its executor tells it. Absent until the job
    /// has ended. Only in answers to requests whose header `Muster-Features` names `completion`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<Box<CompletionReport>>,
    /// Muster's own: where the message about the job's end stands. Only for a job with a webhook, and only in answers
    /// for one job to requests whose header `Muster-Features` names `webhooks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Box<WebhookDelivery>>,
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

impl JobView {
    /// The miner of the last attempt, by the route that its end brought, or by its receipts.
    pub fn miner(&self) -> Option<MinerKey> {
        let last = self.status_history.last()?.metadata.as_ref()?.muster.as_ref()?;
        let routed = last.route.iter().rev().find_map(|step| step.miner);
        routed.or_else(|| Some(last.receipts.last()?.payload.miner()))
    }
}

/// One status of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatusEntry {
    /// The status that the job reached.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub status: JobStatus,
    /// Details of the status, without null fields.
    #[serde(default, serialize_with = "without_nulls")]
    #[cfg_attr(feature = "openapi", schema(value_type = StatusMetadata))]
    pub metadata: Option<StatusMetadata>,
    /// The time at which the facilitator learned of the status.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub created_at: Timestamp,
}

/// One page of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobPage {
    /// The number of jobs on all pages together.
    pub count: u64,
    /// The URL of the next page; null on the last one.
    pub next: Option<String>,
    /// The URL of the page before; null on the first one.
    pub previous: Option<String>,
    /// The jobs of this page, newest first.
    pub results: Vec<JobView>,
}

/// `POST /api/v1/cheated-job/`: a user reports a job that was cheated on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportCheat {
    /// The job that was cheated on.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub job_uuid: JobId,
    /// The same job, run on a trusted miner.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub trusted_job_uuid: JobId,
    /// The user's evidence, free in form.
    #[serde(default)]
    pub details: Option<Value>,
}

/// `PUT /api/v1/jobs/{uuid}/feedback/`: the user's rating of a result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Feedback {
    /// From 0 (wrong) to 1 (right).
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0, maximum = 1.0))]
    pub result_correctness: f64,
    /// The duration that the user expected, in seconds.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0))]
    pub expected_duration: Option<f64>,
}

/// Names of the events of `GET /api/v1/jobs/{uuid}/events/`. Each event carries an id from which `Last-Event-ID`
/// resumes.
pub mod events {
    /// The data is a [`super::StatusEntry`]. The stream ends after a terminal one.
    pub const STATUS: &str = "status";
    /// The data is a [`super::LogEvent`].
    pub const LOG: &str = "log";
    /// The data is a [`super::ProgressEvent`].
    pub const PROGRESS: &str = "progress";
    /// The data is a [`super::QueueEvent`].
    pub const QUEUED: &str = "queued";
    /// The data is a [`super::ReportedState`].
    pub const METRICS: &str = "metrics";
}

/// A piece of a running job's output. Pieces may be missing: the next one's `offset` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogEvent {
    /// The output that the program wrote to: `stdout` or `stderr`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub stream: LogStream,
    /// The text of the piece; bytes that are not UTF-8 appear as U+FFFD.
    pub text: String,
    /// The time at which the facilitator received the piece.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// Bytes of the stream before this piece.
    pub offset: u64,
}

/// The progress of a stage that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProgressEvent {
    /// The stage that is under way: `image_pull`, `download`, `execution` or `upload`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub stage: ProgressOf,
    /// The amount done: bytes, or seconds for `execution`.
    pub done: u64,
    /// The whole amount in the same unit, if it is known.
    #[serde(default)]
    pub total: Option<u64>,
    /// The layers of an image, with `image_pull`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerCount>,
}

/// The newest state of a job's program, as it reported itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportedState {
    /// The time at which the facilitator received the report.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// The program's own words about its state.
    pub report: ProgramReport,
}

/// The metrics of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobMetricsView {
    /// The newest state; null if the program has reported nothing.
    pub newest: Option<ReportedState>,
    /// The values of each metric, sorted by name; 2,000 points at most. A longer series has lost every second point.
    pub series: Vec<MetricSeries>,
}

/// The checkpoints of a job that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobCheckpointsView {
    /// The checkpoints, oldest first.
    pub checkpoints: Vec<KeptCheckpoint>,
    /// The signed URL below which the manifests and the blocks of all of them are read, each by its SHA-256.
    pub blocks: String,
}

/// The values of one metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MetricSeries {
    /// The metric's name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: MetricName,
    /// The values, the oldest first.
    pub points: Vec<MetricPoint>,
    /// The values that are no finite numbers, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub non_finite: Vec<NonFinitePoint>,
}

/// One value of a metric that is no finite number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NonFinitePoint {
    /// The time at which the facilitator received it.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// The program's step at that time; null if the program counts none.
    pub step: Option<u64>,
    /// The value that the program reported.
    pub value: NonFiniteValue,
}

impl MetricSeries {
    /// The newest value of the series.
    pub fn newest(&self) -> Option<Result<MetricValue, NonFiniteValue>> {
        let (finite, other) = (self.points.last(), self.non_finite.last());
        match other.filter(|other| finite.is_none_or(|finite| finite.at < other.at)) {
            Some(other) => Some(Err(other.value)),
            None => finite.map(|finite| Ok(finite.value)),
        }
    }
}

/// One value of a metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MetricPoint {
    /// The time at which the facilitator received it.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// The program's step at that time; null if the program counts none.
    pub step: Option<u64>,
    /// The number that the program reported.
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub value: MetricValue,
}

/// The place of a job that waits for an executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueEvent {
    /// The class of executor that the job waits for.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub class: ExecutorClass,
    /// Jobs of the class that start before this one.
    pub ahead: u64,
    /// Jobs that wait for the class, this one included.
    pub waiting: u64,
    /// Seconds until the job is likely to start; null if that is unknown.
    pub estimate_s: Option<u64>,
    /// The reason why the jobs of the class wait, in words; empty if it is unknown.
    pub why: String,
}

/// The place of a job that waits for an executor, as its validator last told it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueuedJob {
    /// The class of executor that the job waits for.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub class: ExecutorClass,
    /// The job's position in the line of its class; the first is 1.
    pub position: u64,
    /// Jobs that wait for the class, this one included.
    pub waiting: u64,
    /// The reason why the jobs of the class wait, in words; empty if it is unknown.
    pub why: String,
    /// The time at which the facilitator learned of the place.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub told_at: Timestamp,
    /// The time at which the job is likely to start; null if that is unknown.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "date-time"))]
    pub estimated_start: Option<Timestamp>,
}

impl QueuedJob {
    /// The place that an event told at `told_at`.
    pub fn new(told: &QueueEvent, told_at: Timestamp) -> Self {
        let seconds = told.estimate_s.map(Duration::from_secs);
        Self {
            class: told.class,
            position: told.ahead.saturating_add(1),
            waiting: told.waiting,
            why: told.why.clone(),
            told_at,
            estimated_start: seconds.map(|seconds| told_at.plus(seconds)),
        }
    }
}

fn without_nulls<S: serde::Serializer>(metadata: &Option<StatusMetadata>, s: S) -> Result<S::Ok, S::Error> {
    let value = serde_json::to_value(metadata).map_err(serde::ser::Error::custom)?;
    // The SDK expects an object even without details.
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
