//! Users' reports of streamed answers, their delivery to the validator, and what the validator found.

use muster_facilitator_core::credentials::Account;
use muster_protocol::wire::checks::{CheckOrigin, CheckState, JobCheck};
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::CheatReport;
use muster_protocol::{JobId, Timestamp, ValidatorKey};
use muster_store::{During as _, StoreError, json};

use super::Store;
use super::audit::{Actor, AuditAction, write_audit_entry};

/// The most reports that one query returns.
const MAX_REPORTS: i64 = 16;
/// The reason in a finding that the validator has not reported yet.
const NOT_TOLD: &str = "the validator has not taken the report up yet";

/// A report of an answer that its validator has not been sent.
#[derive(Clone, Debug, PartialEq)]
pub struct DueAnswerReport {
    /// The job of the session that answered.
    pub job: JobId,
    /// The account that reports, as the tables name it.
    pub account: String,
    /// The frame for the validator.
    pub report: CheatReport,
}

// === impl Store ===

impl Store {
    /// Stores a report about an answer of the session that ran as `job`. Returns `false` if the account has reported
    /// the session before.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn report_answer(
        &self,
        actor: &Actor,
        job: JobId,
        validator: ValidatorKey,
        report: &CheatReport,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        const OPERATION: &str = "store a report of an answer";
        let mut transaction = self.writer.begin().await?;
        let done = sqlx::query(
            "INSERT INTO answer_reports (job, account, validator, report, reported_at) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (job, account) DO NOTHING",
        )
        .bind(job.to_string())
        .bind(actor.account.to_string())
        .bind(validator.to_string())
        .bind(encode(report))
        .bind(now.micros())
        .execute(&mut *transaction)
        .await
        .during(OPERATION)?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        let subject = job.to_string();
        write_audit_entry(&mut transaction, actor, AuditAction::CheatReported, &subject, now).await?;
        transaction.commit(OPERATION).await?;
        Ok(true)
    }

    /// The reports of answers that an account has made since a time.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn count_answer_reports(&self, account: &Account, since: Timestamp) -> Result<u64, StoreError> {
        let (many,): (i64,) =
            sqlx::query_as("SELECT COUNT(*) FROM answer_reports WHERE account = $1 AND reported_at > $2")
                .bind(account.to_string())
                .bind(since.micros())
                .fetch_one(&self.pool)
                .await
                .during("count an account's reports of answers")?;
        Ok(u64::try_from(many).unwrap_or_default())
    }

    /// The finding about a session that the account has reported: `pending` until the validator has sent one; `None`
    /// if the account has not reported it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn answer_check(&self, account: &Account, job: JobId) -> Result<Option<JobCheck>, StoreError> {
        let row: Option<(Option<String>, i64)> =
            sqlx::query_as("SELECT notice, reported_at FROM answer_reports WHERE job = $1 AND account = $2")
                .bind(job.to_string())
                .bind(account.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("read what a report of an answer led to")?;
        row.map(|(notice, reported_at)| match notice {
            Some(notice) => json::decode("answer_reports.notice", &notice),
            None => Ok(JobCheck {
                uuid: job,
                origin: CheckOrigin::Reported,
                state: CheckState::Pending,
                reason: NOT_TOLD.to_owned(),
                outputs: Vec::new(),
                at: Timestamp::from_micros(reported_at),
            }),
        })
        .transpose()
    }

    /// The reports of answers that `validator` has not been sent yet, oldest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn due_answer_reports(
        &self,
        validator: ValidatorKey,
    ) -> Result<Vec<DueAnswerReport>, StoreError> {
        let rows: Vec<(String, String, String)> = sqlx::query_as(
            "SELECT job, account, report FROM answer_reports WHERE validator = $1 AND delivered_at = 0 \
             ORDER BY reported_at, job, account LIMIT $2",
        )
        .bind(validator.to_string())
        .bind(MAX_REPORTS)
        .fetch_all(&self.pool)
        .await
        .during("list reports of answers")?;
        rows.into_iter()
            .map(|(job, account, report)| {
                Ok(DueAnswerReport {
                    job: json::parse("answer_reports.job", &job)?,
                    account,
                    report: json::decode("answer_reports.report", &report)?,
                })
            })
            .collect()
    }

    /// Records that a report of an answer was sent, and forgets the words in it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn mark_answer_report_delivered(
        &self,
        due: &DueAnswerReport,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE answer_reports SET delivered_at = $1, report = '' \
             WHERE job = $2 AND account = $3 AND delivered_at = 0",
        )
        .bind(now.micros())
        .bind(due.job.to_string())
        .bind(due.account.clone())
        .execute(&self.pool)
        .await
        .during("record a delivered report of an answer")?;
        Ok(())
    }

    /// Stores what a validator found about one of its sessions that users reported; returns whether any has.
    pub(crate) async fn record_answer_check(
        &self,
        validator: ValidatorKey,
        notice: &JobCheck,
    ) -> Result<bool, StoreError> {
        let done = sqlx::query("UPDATE answer_reports SET notice = $1 WHERE job = $2 AND validator = $3")
            .bind(encode(notice))
            .bind(notice.uuid.to_string())
            .bind(validator.to_string())
            .execute(&self.pool)
            .await
            .during("store what a report of an answer led to")?;
        Ok(done.rows_affected() > 0)
    }
}
