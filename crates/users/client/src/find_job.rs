//! The job that a person means, among those of the account.

use std::fmt;

use muster_protocol::rest::JobView;
use muster_protocol::{JobId, JobIdPrefix, JobName, JobReference, Timestamp};

use crate::client::Client;
use crate::error::ClientError;

/// The most jobs that the refusal of an ambiguous reference lists.
const MAX_CANDIDATES: usize = 5;

/// A job whose id begins as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobCandidate {
    /// The id of the job.
    pub id: JobId,
    /// The time at which the facilitator accepted the job.
    pub created_at: Timestamp,
    /// The reference of its image.
    pub image: String,
}

impl fmt::Display for JobCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}  {}", self.id, self.created_at, self.image)
    }
}

/// The jobs whose ids begin with one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobCandidates {
    /// Some of them, the newest first.
    pub jobs: Vec<JobCandidate>,
    /// The number of all of them.
    pub count: u64,
}

impl fmt::Display for JobCandidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for job in &self.jobs {
            write!(f, "\n  {job}")?;
        }
        let listed = self.jobs.len() as u64;
        match self.count.checked_sub(listed) {
            Some(more) if more > 0 => write!(f, "\n  and {more} more"),
            Some(_) | None => Ok(()),
        }
    }
}

impl Client {
    /// The id of the account's job that `reference` means. A name means the newest job of that name, and goes before
    /// the beginning of an id.
    ///
    /// # Errors
    /// No job of the account, or more than one, is meant; or see [`ClientError`].
    pub async fn find_job(&self, reference: &JobReference) -> Result<JobId, ClientError> {
        let unknown = || ClientError::UnknownJob {
            job: reference.to_string(),
        };
        match reference {
            JobReference::Id(id) => Ok(*id),
            JobReference::Last => {
                let newest = self.jobs(1, 1).await?.results;
                newest.first().map(|job| job.uuid).ok_or_else(unknown)
            }
            JobReference::Text(text) => {
                if let Some(named) = self.newest_of_name(text).await? {
                    return Ok(named);
                }
                match text.as_str().parse() {
                    Ok(prefix) => self.only_of_prefix(&prefix).await,
                    Err(_) => Err(unknown()),
                }
            }
        }
    }

    async fn newest_of_name(&self, name: &JobName) -> Result<Option<JobId>, ClientError> {
        let found = self.jobs_where(&format!("tag={name}"), 1).await?.results;
        // A facilitator that keeps no names finds none, or lists every job.
        let newest = found.iter().find(|job| job.tag == name.as_str());
        Ok(newest.map(|job| job.uuid))
    }

    async fn only_of_prefix(&self, prefix: &JobIdPrefix) -> Result<JobId, ClientError> {
        let size = u32::try_from(MAX_CANDIDATES).unwrap_or(u32::MAX);
        let page = self.jobs_where(&format!("id_prefix={prefix}"), size).await?;
        // An older facilitator lists every job.
        if page.results.iter().any(|job| !prefix.matches(job.uuid)) {
            return Err(ClientError::NeedsWholeId {
                base: self.base().to_owned(),
            });
        }
        let job = prefix.to_string();
        match page.results.as_slice() {
            [] => Err(ClientError::UnknownJob { job }),
            [only] => Ok(only.uuid),
            several => Err(ClientError::AmbiguousJob {
                job,
                candidates: JobCandidates {
                    jobs: several.iter().map(candidate).collect(),
                    count: page.count,
                },
            }),
        }
    }
}

fn candidate(view: &JobView) -> JobCandidate {
    JobCandidate {
        id: view.uuid,
        created_at: view.created_at,
        image: view.docker_image.clone(),
    }
}
