//! Attempts: the job machine's state after every event, in one transaction with the receipts and statuses it caused.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use muster_chain::{BlockNumber, Uid};
use muster_protocol::job::Attempt;
use muster_protocol::wire::facilitator::StatusMetadata;
use muster_protocol::{AttemptId, ExecutorClass, JobId, JobStatus, MinerKey, Timestamp};
use sqlx::any::AnyRow;

use super::receipts::OwnReceipt;
use super::{Result, Store, column, corrupt, failed, json, parsed, text_of, time, unsigned};
use crate::routing::{Mark, mark};

/// One try of a job on one miner.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAttempt {
    /// Its id on the wire.
    pub id: AttemptId,
    /// The first is 1.
    pub ordinal: u32,
    /// Who is to run it.
    pub miner: MinerKey,
    /// The miner's place in the subnet at the time.
    pub uid: Uid,
    /// Where the miner listened at the time.
    pub address: SocketAddr,
    /// How far it is.
    pub machine: Attempt,
    /// When it began.
    pub started_at: Timestamp,
}

/// What one event changed.
#[derive(Clone, Debug)]
pub struct Step {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The attempt's state after the event.
    pub machine: Attempt,
    /// Receipts that were written because of it.
    pub receipts: Vec<OwnReceipt>,
    /// What the user is told because of it.
    pub reports: Vec<(JobStatus, Option<StatusMetadata>)>,
    /// The chain's head at the time; `None` while the chain has not answered yet.
    pub block: Option<BlockNumber>,
    /// When.
    pub now: Timestamp,
}

impl Store {
    /// An attempt is about to begin.
    ///
    /// # Errors
    /// The database's.
    pub async fn begin_attempt(&self, job: JobId, attempt: &StoredAttempt) -> Result<()> {
        const OPERATION: &str = "begin an attempt";
        let mut write = self.write().await?;
        sqlx::query(
            "INSERT INTO attempts (attempt_id, job_id, ordinal, miner, uid, address, class, machine, started_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(attempt.id.to_string())
        .bind(job.to_string())
        .bind(i64::from(attempt.ordinal))
        .bind(attempt.miner.to_string())
        .bind(i64::from(attempt.uid.0))
        .bind(attempt.address.to_string())
        .bind(attempt.machine.plan().class.as_str())
        .bind(text_of(&attempt.machine))
        .bind(attempt.started_at.micros())
        .execute(&mut *write.tx)
        .await
        .map_err(failed(OPERATION))?;
        write.commit(OPERATION).await
    }

    /// Writes what one event changed, all of it or nothing.
    ///
    /// # Errors
    /// The database's.
    pub async fn save(&self, step: &Step) -> Result<()> {
        const OPERATION: &str = "write the state of an attempt";
        let mut write = self.write().await?;
        let outcome = step.machine.outcome();
        let left = outcome.map_or(Mark::Clean, mark);
        sqlx::query("UPDATE attempts SET machine = $1, ended_at = $2, incident = $3, excuse = $4 WHERE attempt_id = $5")
            .bind(text_of(&step.machine))
            .bind(outcome.map(|_| step.now.micros()))
            .bind(i64::from(left == Mark::Incident))
            .bind(i64::from(left == Mark::Excuse))
            .bind(step.attempt.to_string())
            .execute(&mut *write.tx)
            .await
            .map_err(failed(OPERATION))?;
        for receipt in &step.receipts {
            write.put_receipt(receipt, step.block).await?;
        }
        for (status, metadata) in &step.reports {
            write
                .report(step.job, *status, metadata.as_ref(), step.now)
                .await?;
        }
        write.commit(OPERATION).await
    }

    /// Attempts that are under way, by miner and class.
    ///
    /// # Errors
    /// The database's.
    pub async fn open_attempts(&self) -> Result<BTreeMap<MinerKey, BTreeMap<ExecutorClass, u32>>> {
        let rows = sqlx::query("SELECT miner, class, COUNT(*) AS open FROM attempts WHERE ended_at IS NULL GROUP BY miner, class")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("count open attempts"))?;
        let mut open = BTreeMap::<_, BTreeMap<_, _>>::new();
        for row in &rows {
            let count = u32::try_from(column::<i64>(row, "open")?).unwrap_or(u32::MAX);
            open.entry(parsed(row, "miner")?)
                .or_default()
                .insert(parsed(row, "class")?, count);
        }
        Ok(open)
    }

    /// How many attempts of each miner ended in an incident since `since`.
    ///
    /// # Errors
    /// The database's.
    pub async fn incidents(&self, since: Timestamp) -> Result<BTreeMap<MinerKey, u32>> {
        self.marked(
            "SELECT miner, COUNT(*) AS marked FROM attempts WHERE ended_at >= $1 AND incident = 1 GROUP BY miner",
            since,
        )
        .await
    }

    /// How many attempts of each miner ended with an excuse since `since`.
    ///
    /// # Errors
    /// The database's.
    pub async fn excuses(&self, since: Timestamp) -> Result<BTreeMap<MinerKey, u32>> {
        self.marked(
            "SELECT miner, COUNT(*) AS marked FROM attempts WHERE ended_at >= $1 AND excuse = 1 GROUP BY miner",
            since,
        )
        .await
    }

    async fn marked(&self, query: &'static str, since: Timestamp) -> Result<BTreeMap<MinerKey, u32>> {
        let rows = sqlx::query(query)
            .bind(since.micros())
            .fetch_all(&self.pool)
            .await
            .map_err(failed("count failed attempts"))?;
        rows.iter()
            .map(|row| {
                let count = u32::try_from(column::<i64>(row, "marked")?).unwrap_or(u32::MAX);
                Ok((parsed(row, "miner")?, count))
            })
            .collect()
    }

    pub(super) async fn attempts_of(&self, job: JobId) -> Result<Vec<StoredAttempt>> {
        let rows = sqlx::query(
            "SELECT attempt_id, ordinal, miner, uid, address, machine, started_at FROM attempts WHERE job_id = $1 ORDER BY ordinal",
        )
        .bind(job.to_string())
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the attempts of a job"))?;
        rows.iter().map(read).collect()
    }

    /// An attempt by its id, of whichever job.
    ///
    /// # Errors
    /// The database's.
    pub async fn attempt(&self, attempt: AttemptId) -> Result<Option<StoredAttempt>> {
        let row = sqlx::query(
            "SELECT attempt_id, ordinal, miner, uid, address, machine, started_at FROM attempts WHERE attempt_id = $1",
        )
        .bind(attempt.to_string())
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("read an attempt"))?;
        row.as_ref().map(read).transpose()
    }
}

fn read(row: &AnyRow) -> Result<StoredAttempt> {
    let uid = u16::try_from(unsigned(column(row, "uid")?)).map_err(|error| corrupt("uid", &error))?;
    Ok(StoredAttempt {
        id: parsed(row, "attempt_id")?,
        ordinal: u32::try_from(unsigned(column(row, "ordinal")?)).unwrap_or(u32::MAX),
        miner: parsed(row, "miner")?,
        uid: Uid(uid),
        address: parsed(row, "address")?,
        machine: json(row, "machine")?,
        started_at: time(row, "started_at")?,
    })
}
