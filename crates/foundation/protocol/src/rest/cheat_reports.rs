//! A user's report of a job that was cheated on, with the comparison of its outputs with those of the trusted miner.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::wire::checks::JobCheck;
use crate::{Digest, JobId, Timestamp};

/// `GET /api/v1/jobs/{uuid}/cheat-report/`: the report about a job, and what comparing the outputs shows now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheatReportView {
    /// The job that was reported.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub job_uuid: JobId,
    /// The same job on the trusted miner.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub trusted_job_uuid: JobId,
    /// The user's evidence, as reported.
    pub details: Option<Value>,
    /// The time of the report.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub reported_at: Timestamp,
    /// The comparison of the outputs of both jobs.
    pub comparison: OutputComparison,
    /// The validator's finding by running the job again; null until it has told.
    #[serde(default)]
    pub check: Option<JobCheck>,
}

/// Whether two jobs have the same outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ComparisonVerdict {
    /// Every output is the same.
    Same,
    /// At least one output differs, or only one of the jobs has it.
    Differs,
    /// The outputs say nothing about each other; the reason says why.
    NotCompared,
}

/// The outputs of a job and of the same job on the trusted miner, by digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OutputComparison {
    /// The result of the comparison.
    pub verdict: ComparisonVerdict,
    /// The reason in words.
    pub reason: String,
    /// Every output that was compared: standard output, then each artifact by its path. Files that were uploaded
    /// elsewhere are not read.
    pub outputs: Vec<ComparedOutput>,
}

/// One output of both jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ComparedOutput {
    /// `stdout`, or the path of an artifact.
    pub name: String,
    /// The digest in the reported job; null if that job has no such output.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub job: Option<Digest>,
    /// The digest in the job on the trusted miner; null if that job has no such output.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub trusted_job: Option<Digest>,
}
