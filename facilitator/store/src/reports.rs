//! Users' reports about results: feedback, and cheat reports with their delivery to the validator.

use muster_protocol::rest::Feedback;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::CheatReport;
use muster_protocol::{JobId, Timestamp, ValidatorKey};
use muster_store::{During as _, StoreError, json};

use super::Store;
use super::audit::{Actor, AuditAction, write_audit_entry};

/// The most cheat reports that one query returns.
const MAX_REPORTS: i64 = 64;

/// A user's cheat report, as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredCheatReport {
    /// The report that its validator is sent.
    pub report: CheatReport,
    /// When the user made it.
    pub reported_at: Timestamp,
}

// === impl Store ===

impl Store {
    /// Stores the user's feedback on a job's result. Returns `false` if there is feedback already.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn give_feedback(
        &self,
        actor: &Actor,
        job: JobId,
        feedback: &Feedback,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.writer.begin().await?;
        let statement =
            "INSERT INTO feedback (job, feedback, given_at) VALUES ($1, $2, $3) ON CONFLICT (job) DO NOTHING";
        let done = sqlx::query(statement)
            .bind(job.to_string())
            .bind(encode(feedback))
            .bind(now.micros())
            .execute(&mut *transaction)
            .await
            .during("store feedback")?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        write_audit_entry(
            &mut transaction,
            actor,
            AuditAction::FeedbackGiven,
            &job.to_string(),
            now,
        )
        .await?;
        transaction.commit("store feedback").await?;
        Ok(true)
    }

    /// The user's feedback on a job's result, if there is any.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn feedback(&self, job: JobId) -> Result<Option<Feedback>, StoreError> {
        let row: Option<(String,)> = sqlx::query_as("SELECT feedback FROM feedback WHERE job = $1")
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("read feedback")?;
        row.map(|(feedback,)| json::decode("feedback.feedback", &feedback))
            .transpose()
    }

    /// Stores a cheat report about `job` for its `validator`. Returns `false` if there is one already.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn report_cheat(
        &self,
        actor: &Actor,
        job: JobId,
        validator: ValidatorKey,
        report: &CheatReport,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.writer.begin().await?;
        let statement = "INSERT INTO cheat_reports (job, validator, report, reported_at) VALUES ($1, $2, $3, $4) \
                         ON CONFLICT (job) DO NOTHING";
        let done = sqlx::query(statement)
            .bind(job.to_string())
            .bind(validator.to_string())
            .bind(encode(report))
            .bind(now.micros())
            .execute(&mut *transaction)
            .await
            .during("store a cheat report")?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        write_audit_entry(
            &mut transaction,
            actor,
            AuditAction::CheatReported,
            &job.to_string(),
            now,
        )
        .await?;
        transaction.commit("store a cheat report").await?;
        Ok(true)
    }

    /// The cheat report about a job, if there is one.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn cheat_report(&self, job: JobId) -> Result<Option<StoredCheatReport>, StoreError> {
        let row: Option<(String, i64)> =
            sqlx::query_as("SELECT report, reported_at FROM cheat_reports WHERE job = $1")
                .bind(job.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("read a cheat report")?;
        row.map(|(report, reported_at)| {
            Ok(StoredCheatReport {
                report: json::decode("cheat_reports.report", &report)?,
                reported_at: Timestamp::from_micros(reported_at),
            })
        })
        .transpose()
    }

    /// The cheat reports that `validator` has not been sent yet, oldest first, each with its job.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn due_reports(
        &self,
        validator: ValidatorKey,
    ) -> Result<Vec<(JobId, CheatReport)>, StoreError> {
        let statement = "SELECT job, report FROM cheat_reports WHERE validator = $1 AND delivered_at = 0 \
                         ORDER BY reported_at, job LIMIT $2";
        let rows: Vec<(String, String)> = sqlx::query_as(statement)
            .bind(validator.to_string())
            .bind(MAX_REPORTS)
            .fetch_all(&self.pool)
            .await
            .during("list cheat reports")?;
        rows.into_iter()
            .map(|(job, report)| {
                Ok((
                    json::parse("cheat_reports.job", &job)?,
                    json::decode("cheat_reports.report", &report)?,
                ))
            })
            .collect()
    }

    /// Records that a cheat report was sent. Validators do not answer it, so its arrival is not known.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn mark_report_delivered(&self, job: JobId, now: Timestamp) -> Result<(), StoreError> {
        sqlx::query("UPDATE cheat_reports SET delivered_at = $1 WHERE job = $2 AND delivered_at = 0")
            .bind(now.micros())
            .bind(job.to_string())
            .execute(&self.pool)
            .await
            .during("record a delivered report")?;
        Ok(())
    }
}
