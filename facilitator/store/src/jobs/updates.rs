//! Changes of a job's history: updates of validators, cancellations, and jobs that no validator answers.

use muster_facilitator_core::history::{HistoryEntry, UpdateRejection};
use muster_protocol::wire::facilitator::{JobStatusUpdate, RejectionDetails, StatusMetadata};
use muster_protocol::{JobId, JobRejectionReason, JobStatus, ParticipantType, Timestamp, ValidatorKey};
use muster_store::{During as _, StoreError, json};

use super::{append, mark_answered, read_history};
use crate::Store;
use crate::audit::{Actor, AuditAction};
use crate::queue_places::end_place;

/// The most attempts to write an update while other facilitators write to the same job.
const MAX_RACES: usize = 16;

/// The outcome of a user's cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancellationOutcome {
    /// No validator had answered the job, and it has ended.
    Ended,
    /// The validator must be asked to stop the job.
    Requested,
    /// The job had ended before, with this status.
    TooLate(JobStatus),
}

/// The outcome of a validator's update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The update is durable.
    Recorded,
    /// There is no such job, or it is another validator's. The validator does not learn which.
    NoSuchJob,
    /// Another facilitator holds the validator.
    HeldElsewhere,
    /// The update does not fit the job's history.
    Rejected(UpdateRejection),
}

// === impl Store ===

impl Store {
    /// Stores a validator's update of one of its jobs, if it fits the job's history.
    ///
    /// # Errors
    /// The store failed. Whether the update was stored is not known.
    pub async fn record(
        &self,
        validator: ValidatorKey,
        update: &JobStatusUpdate,
        now: Timestamp,
    ) -> Result<UpdateOutcome, StoreError> {
        // The whole check is in one transaction. A query outside of it would wait for the commit of others.
        let mut transaction = self.writer.begin().await?;
        let statement = "SELECT jobs.validator, COALESCE(validators.replica, '') FROM jobs \
                         LEFT JOIN validators ON validators.hotkey = jobs.validator WHERE uuid = $1";
        let holder: Option<(String, String)> = sqlx::query_as(statement)
            .bind(update.uuid.to_string())
            .fetch_optional(&mut *transaction)
            .await
            .during("look for a job")?;
        match holder {
            Some((holder, replica)) if holder == validator.to_string() => {
                if !replica.is_empty() && replica != *self.replica {
                    return Ok(UpdateOutcome::HeldElsewhere);
                }
            }
            Some(_) | None => return Ok(UpdateOutcome::NoSuchJob),
        }
        let entry = HistoryEntry {
            status: update.status,
            metadata: update.metadata.clone(),
            at: now,
        };
        for _ in 0..MAX_RACES {
            let history = read_history(&mut transaction, update.uuid).await?;
            if let Err(rejection) = history.check(update) {
                let is_of_attempt = !matches!(update.status, JobStatus::Sent | JobStatus::Received);
                if is_of_attempt && end_place(&mut transaction, update.uuid, now).await? {
                    transaction.commit("store that a job waits no more").await?;
                }
                return Ok(UpdateOutcome::Rejected(rejection));
            }
            if append(&mut transaction, update.uuid, history.len(), &entry).await? {
                mark_answered(&mut transaction, update.uuid, &entry).await?;
                transaction.commit("store a status").await?;
                return Ok(UpdateOutcome::Recorded);
            }
        }
        Err(StoreError::corrupt(
            "statuses",
            "a job's history changes faster than it can be read",
        ))
    }

    /// Cancels a job. If no validator has answered it, it ends at once. Otherwise the cancellation is stored, and the
    /// validator must be asked to stop the job.
    ///
    /// # Errors
    /// The store failed. Whether the cancellation was stored is not known.
    pub async fn cancel(
        &self,
        actor: &Actor,
        job: JobId,
        now: Timestamp,
    ) -> Result<CancellationOutcome, StoreError> {
        let message = "cancelled by its user before a validator had taken it";
        let cancelled = serde_json::json!({ "cancelled": true });
        let (outcome, changed) = match self.end_unanswered(job, message, Some(cancelled), now).await? {
            Some(ended) => (ended, true),
            None => {
                let statement =
                    "UPDATE jobs SET cancelled_at = $1 WHERE uuid = $2 AND cancelled_at = 0 AND ended_at = 0";
                let done = sqlx::query(statement)
                    .bind(now.micros())
                    .bind(job.to_string())
                    .execute(&self.pool)
                    .await
                    .during("cancel a job")?;
                let history = self.history(job).await?;
                let status = history.visible_status();
                let outcome = if status.is_terminal() {
                    CancellationOutcome::TooLate(status)
                } else {
                    CancellationOutcome::Requested
                };
                (outcome, done.rows_affected() > 0)
            }
        };
        if changed {
            self.audit(actor, AuditAction::JobCancelled, &job.to_string(), now)
                .await?;
        }
        Ok(outcome)
    }

    /// Ends jobs that were created before `before` and that no validator has answered, and returns them.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn expire(&self, before: Timestamp, now: Timestamp) -> Result<Vec<JobId>, StoreError> {
        let statement =
            "SELECT uuid FROM jobs WHERE ended_at = 0 AND answered = 0 AND created_at < $1 LIMIT 256";
        let rows: Vec<(String,)> = sqlx::query_as(statement)
            .bind(before.micros())
            .fetch_all(&self.pool)
            .await
            .during("look for unanswered jobs")?;
        let mut ended = Vec::new();
        for (uuid,) in rows {
            let job = json::parse("jobs.uuid", &uuid)?;
            let message = "its validator has not taken it in time; send it to another one";
            if self.end_unanswered(job, message, None, now).await?.is_some() {
                ended.push(job);
            }
        }
        Ok(ended)
    }

    /// Ends a job as rejected by the facilitator. Returns `None` if its validator has answered it.
    async fn end_unanswered(
        &self,
        job: JobId,
        message: &str,
        context: Option<serde_json::Value>,
        now: Timestamp,
    ) -> Result<Option<CancellationOutcome>, StoreError> {
        let history = self.history(job).await?;
        // The facilitator writes the first entry. Every further one answers the job.
        if history.len() != 1 {
            return Ok(None);
        }
        let details = RejectionDetails {
            rejected_by: ParticipantType::Facilitator,
            reason: JobRejectionReason::Unknown,
            message: message.to_owned(),
            context,
        };
        let entry = HistoryEntry {
            status: JobStatus::Rejected,
            metadata: Some(StatusMetadata {
                job_rejection_details: Some(details),
                ..StatusMetadata::default()
            }),
            at: now,
        };
        let mut transaction = self.writer.begin().await?;
        if !append(&mut transaction, job, history.len(), &entry).await? {
            return Ok(None);
        }
        sqlx::query("UPDATE jobs SET cancelled_at = $1 WHERE uuid = $2")
            .bind(now.micros())
            .bind(job.to_string())
            .execute(&mut *transaction)
            .await
            .during("end a job")?;
        mark_answered(&mut transaction, job, &entry).await?;
        transaction.commit("end a job").await?;
        Ok(Some(CancellationOutcome::Ended))
    }
}
