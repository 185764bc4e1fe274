//! The observations of batches: the capacities of miners, and the attempts that excuse executors until their receipts
//! count.

use std::collections::BTreeMap;

use muster_grading::batch_settlement::Capacity;
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, Timestamp};
use muster_scoring::{ExcuseState, ObservationKind};
use muster_store::columns::{parse_column, read_column, time_column, to_signed, to_unsigned};
use muster_store::{During as _, StoreError};
use sqlx::AnyConnection;

use super::GradingStore;
use super::columns::{kind_name, place_to_i64, read_kind, read_state, state_name};

type Result<T> = std::result::Result<T, StoreError>;

/// The capacity of one miner and class that one batch counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenCapacity {
    /// The kind of the batch.
    pub kind: ObservationKind,
    /// When the batch began.
    pub at: Timestamp,
    /// The miner of the executors.
    pub miner: MinerKey,
    /// The class of the executors.
    pub class: ExecutorClass,
    /// The number of executors that the plan had.
    pub announced: u32,
    /// The number of executors that proved themselves, or answered in the sessions that they serve.
    pub shown: u32,
    /// The number of them that proved all of their class.
    pub proven: u32,
    /// The credit of what they showed, in thousandths of an executor.
    pub credit: u64,
    /// The states of the excuses of further executors.
    pub excuses: Vec<ExcuseState>,
}

/// An excuse whose attempt has no finished receipt yet that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingExcuse {
    /// The id of the batch.
    pub batch: String,
    /// The attempt that excuses an executor.
    pub attempt: AttemptId,
    /// The time at which the executor was asked for: the counted time of the attempt has to cover it.
    pub at: Timestamp,
    /// The time by which the attempt must have ended.
    pub until: Timestamp,
}

/// Inserts the excuses of a miner's executors. They wait for the receipts of their attempts.
pub(super) async fn insert_excuses(
    connection: &mut AnyConnection,
    batch: &str,
    count: &Capacity,
) -> Result<()> {
    for excuse in &count.excuses {
        sqlx::query(
            "INSERT INTO excuses (batch_id, miner, class, attempt_id, at, until_at, state) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(batch.to_owned())
        .bind(count.miner.to_string())
        .bind(count.class.to_string())
        .bind(excuse.attempt.to_string())
        .bind(excuse.shown_at.micros())
        .bind(excuse.until.micros())
        .bind(state_name(ExcuseState::Waiting))
        .execute(&mut *connection)
        .await
        .during("keep the excuses of a batch")?;
    }
    Ok(())
}

impl GradingStore {
    /// The capacities that batches of a kind between these blocks counted, both included, oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn capacities_between(
        &self,
        kind: ObservationKind,
        first: u64,
        last: u64,
    ) -> Result<Vec<SeenCapacity>> {
        const OPERATION: &str = "read proven capacities";
        let rows = sqlx::query(
            "SELECT c.batch_id, c.miner, c.class, c.kind, c.proven, c.serving, c.announced, c.credit, b.began_at \
             FROM capacities AS c JOIN batches AS b ON b.batch_id = c.batch_id \
             WHERE c.kind = $1 AND c.block >= $2 AND c.block <= $3 ORDER BY c.block, b.began_at, c.miner, c.class",
        )
        .bind(kind_name(kind))
        .bind(to_signed(first))
        .bind(to_signed(last))
        .fetch_all(&self.pool)
        .await
        .during(OPERATION)?;
        let excused = sqlx::query(
            "SELECT e.batch_id, e.miner, e.class, e.state FROM excuses AS e JOIN batches AS b \
             ON b.batch_id = e.batch_id WHERE b.kind = $1 AND b.block >= $2 AND b.block <= $3 ORDER BY e.attempt_id",
        )
        .bind(kind_name(kind))
        .bind(to_signed(first))
        .bind(to_signed(last))
        .fetch_all(&self.pool)
        .await
        .during(OPERATION)?;
        let mut excuses = BTreeMap::<(String, MinerKey, ExecutorClass), Vec<ExcuseState>>::new();
        for row in &excused {
            let (miner, class) = (parse_column(row, "miner")?, parse_column(row, "class")?);
            let of = (read_column(row, "batch_id")?, miner, class);
            excuses.entry(of).or_default().push(read_state(row)?);
        }
        let number =
            |row, name| Ok::<_, StoreError>(u32::try_from(read_column::<i64>(row, name)?).unwrap_or(0));
        let mut seen = Vec::new();
        for row in &rows {
            let (miner, class) = (parse_column(row, "miner")?, parse_column(row, "class")?);
            let proven = number(row, "proven")?;
            seen.push(SeenCapacity {
                kind: read_kind(row)?,
                at: time_column(row, "began_at")?,
                miner,
                class,
                announced: number(row, "announced")?,
                shown: proven.saturating_add(number(row, "serving")?),
                proven,
                credit: to_unsigned(read_column(row, "credit")?),
                excuses: excuses
                    .remove(&(read_column(row, "batch_id")?, miner, class))
                    .unwrap_or_default(),
            });
        }
        Ok(seen)
    }

    /// The oldest excuses that wait, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn waiting_excuses(&self, limit: usize) -> Result<Vec<WaitingExcuse>> {
        let rows = sqlx::query(
            "SELECT batch_id, attempt_id, at, until_at FROM excuses WHERE state = $1 ORDER BY at, batch_id, attempt_id \
             LIMIT $2",
        )
        .bind(state_name(ExcuseState::Waiting))
        .bind(place_to_i64(limit))
        .fetch_all(&self.pool)
        .await
        .during("read excuses")?;
        let waiting = |row| {
            Ok(WaitingExcuse {
                batch: read_column(row, "batch_id")?,
                attempt: parse_column(row, "attempt_id")?,
                at: time_column(row, "at")?,
                until: time_column(row, "until_at")?,
            })
        };
        rows.iter().map(waiting).collect()
    }

    /// Writes the states of excuses that no longer wait.
    ///
    /// # Errors
    /// The database fails.
    pub async fn settle_excuses(&self, settled: &[(WaitingExcuse, ExcuseState)]) -> Result<()> {
        const OPERATION: &str = "settle excuses";
        let mut tx = self.writer.begin().await?;
        for (excuse, state) in settled {
            sqlx::query("UPDATE excuses SET state = $1 WHERE batch_id = $2 AND attempt_id = $3")
                .bind(state_name(*state))
                .bind(excuse.batch.clone())
                .bind(excuse.attempt.to_string())
                .execute(&mut *tx)
                .await
                .during(OPERATION)?;
        }
        tx.commit(OPERATION).await
    }
}
