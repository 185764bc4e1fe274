//! The options of `muster job report`.

use clap::Args;
use muster_protocol::JobId;
use muster_protocol::rest::ReportCheat;
use serde_json::Value;

/// A report of a job that was cheated on.
#[derive(Debug, Args)]
pub struct ReportOptions {
    /// The job that was cheated on.
    pub id: JobId,
    /// The same job, run with `--on-trusted-miner`.
    #[arg(long, value_name = "JOB")]
    pub trusted: JobId,
    /// The fault of its result, in words.
    #[arg(long, value_name = "TEXT")]
    pub details: Option<String>,
}

impl ReportOptions {
    /// The body of the report.
    pub fn body(&self) -> ReportCheat {
        ReportCheat {
            job_uuid: self.id,
            trusted_job_uuid: self.trusted,
            details: self.details.clone().map(Value::String),
        }
    }
}
