//! The options of `muster job report`.

use clap::Args;
use muster_protocol::rest::ReportCheat;
use muster_protocol::{JobId, JobReference};
use serde_json::Value;

/// A report of a job that was cheated on.
#[derive(Debug, Args)]
pub struct ReportOptions {
    /// The job that was cheated on.
    #[arg(value_name = "JOB")]
    pub id: JobReference,
    /// The same job, run with `--on-trusted-miner`.
    #[arg(long, value_name = "JOB")]
    pub trusted: JobReference,
    /// The fault of its result, in words.
    #[arg(long, value_name = "TEXT")]
    pub details: Option<String>,
}

impl ReportOptions {
    /// The body of the report, with the ids of both jobs.
    pub fn body(&self, id: JobId, trusted: JobId) -> ReportCheat {
        ReportCheat {
            job_uuid: id,
            trusted_job_uuid: trusted,
            details: self.details.clone().map(Value::String),
        }
    }
}
