//! The checkpoints of jobs, and where attempts began.

use muster_protocol::job::KeptCheckpoint;
use muster_protocol::{AttemptId, JobId};

use super::{Result, Store, query_error, text_of};
use muster_store::columns::{json_column, parse_column, read_column, to_unsigned};

/// A checkpoint as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredCheckpoint {
    /// The facts about it.
    pub facts: KeptCheckpoint,
    /// Whether it is kept no longer.
    pub is_dropped: bool,
}

/// Where an attempt begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptBeginning {
    /// The checkpoint that it begins from; `None` if it begins anew.
    pub from: Option<u32>,
    /// How often its batch was halved.
    pub halvings: u32,
}

fn to_ordinal(number: i64) -> u32 {
    u32::try_from(to_unsigned(number)).unwrap_or(u32::MAX)
}

impl Store {
    /// Stores a checkpoint of a job, and drops those of these ordinals. A dropped one is forgotten once its attempt
    /// has a newer one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn keep_checkpoint(&self, job: JobId, facts: &KeptCheckpoint, dropped: &[u32]) -> Result<()> {
        self.write("keep a checkpoint", |draft| {
            draft.script.add(
                "INSERT INTO checkpoints (job_id, ordinal, attempt_id, facts, kept_at, dropped) \
                 VALUES ($1, $2, $3, $4, $5, 0) ON CONFLICT DO NOTHING",
                [
                    job.to_string().into(),
                    i64::from(facts.ordinal).into(),
                    facts.attempt.to_string().into(),
                    text_of(facts).into(),
                    facts.at.micros().into(),
                ],
            );
            for ordinal in dropped {
                draft.script.add(
                    "UPDATE checkpoints SET dropped = 1 WHERE job_id = $1 AND ordinal = $2",
                    [job.to_string().into(), i64::from(*ordinal).into()],
                );
            }
            draft.script.add(
                "DELETE FROM checkpoints WHERE job_id = $1 AND dropped = 1 AND EXISTS (SELECT 1 FROM checkpoints AS n \
                 WHERE n.job_id = checkpoints.job_id AND n.attempt_id = checkpoints.attempt_id \
                 AND n.ordinal > checkpoints.ordinal)",
                [job.to_string().into()],
            );
            draft.script.add(
                "UPDATE attempts SET kept = 1 WHERE attempt_id = $1",
                [facts.attempt.to_string().into()],
            );
        })
        .await
    }

    /// Whether the job of this attempt is still open.
    ///
    /// # Errors
    /// The database fails.
    pub async fn is_open_attempt(&self, attempt: AttemptId) -> Result<bool> {
        let row = sqlx::query(
            "SELECT j.job_id FROM jobs AS j JOIN attempts AS a ON a.job_id = j.job_id \
             WHERE a.attempt_id = $1 AND j.closed_at IS NULL",
        )
        .bind(attempt.to_string())
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error("look for the job of an attempt"))?;
        Ok(row.is_some())
    }

    /// The checkpoints of a job, oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn checkpoints(&self, job: JobId) -> Result<Vec<StoredCheckpoint>> {
        let rows = sqlx::query("SELECT facts, dropped FROM checkpoints WHERE job_id = $1 ORDER BY ordinal")
            .bind(job.to_string())
            .fetch_all(&self.pool)
            .await
            .map_err(query_error("read a job's checkpoints"))?;
        let read = |row| {
            let dropped: i64 = read_column(row, "dropped")?;
            Ok(StoredCheckpoint {
                facts: json_column(row, "facts")?,
                is_dropped: dropped != 0,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Where the attempts of a job began, as far as it is decided.
    ///
    /// # Errors
    /// The database fails.
    pub async fn beginnings(&self, job: JobId) -> Result<Vec<(AttemptId, AttemptBeginning)>> {
        let rows = sqlx::query(
            "SELECT attempt_id, resumed_from, halvings FROM attempts WHERE job_id = $1 AND halvings IS NOT NULL",
        )
        .bind(job.to_string())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read where attempts began"))?;
        let read = |row| {
            let from: Option<i64> = read_column(row, "resumed_from")?;
            let beginning = AttemptBeginning {
                from: from.map(to_ordinal),
                halvings: to_ordinal(read_column(row, "halvings")?),
            };
            Ok((parse_column(row, "attempt_id")?, beginning))
        };
        rows.iter().map(read).collect()
    }

    /// Stores where an attempt begins.
    ///
    /// # Errors
    /// The database fails.
    pub async fn set_beginning(&self, attempt: AttemptId, beginning: AttemptBeginning) -> Result<()> {
        self.write("store where an attempt begins", |draft| {
            draft.script.add(
                "UPDATE attempts SET resumed_from = $1, halvings = $2 WHERE attempt_id = $3",
                [
                    beginning.from.map(i64::from).into(),
                    i64::from(beginning.halvings).into(),
                    attempt.to_string().into(),
                ],
            );
        })
        .await
    }
}
