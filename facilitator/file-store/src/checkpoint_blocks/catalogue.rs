//! The tables of blocks and of kept checkpoints, in the facilitator's database.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use muster_protocol::job::KeptCheckpoint;
use muster_protocol::{Digest, JobId, Timestamp, ValidatorKey};
use muster_store::columns::to_signed;
use muster_store::{During as _, StoreError, begin};
use sqlx::query::QueryAs;
use sqlx::{Any, AnyPool, AssertSqlSafe, Transaction};

/// Rows that one statement of a sweep handles.
const BATCH: i64 = 256;

/// `job_blocks.durable` of a block whose object is being written.
const ANNOUNCED: i64 = 0;

/// `job_blocks.durable` of a block whose object is there.
const DURABLE: i64 = 1;

/// `job_blocks.durable` of a block whose object a sweep deletes. Nobody may write it until its row is gone.
const BEING_DROPPED: i64 = 2;

/// Blocks that one statement looks for.
const TOUCHED_AT_ONCE: usize = 128;

/// Touches the blocks `$3` and following of the job `$2`, and returns those that are there.
static TOUCH: LazyLock<String> = LazyLock::new(|| {
    let blocks: Vec<String> = (3..TOUCHED_AT_ONCE + 3)
        .map(|number| format!("${number}"))
        .collect();
    format!(
        "UPDATE job_blocks SET touched_at = $1 WHERE job = $2 AND durable = {DURABLE} AND block IN ({}) RETURNING block",
        blocks.join(", ")
    )
});

/// The tables in a database whose schema is up to date.
#[derive(Clone, Debug)]
pub struct BlockCatalogue {
    pool: AnyPool,
}

/// A job, as far as its blocks depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockOwner {
    /// The account that its blocks count towards.
    pub account: String,
    /// Whether it has ended.
    pub has_ended: bool,
    /// Its attempts from 1 to this one have ended; 0 if none is known to have.
    pub ended_attempts: u32,
}

/// The attempt that writes a block, and the bytes that blocks of it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptBound {
    /// The number of the attempt in its job, from 1.
    pub attempt: u32,
    /// The bytes that its blocks may take together.
    pub bytes: u64,
}

/// A block that is about to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock<'a> {
    /// The job that it belongs to.
    pub job: JobId,
    /// The SHA-256 of its content.
    pub block: Digest,
    /// The account that it counts towards.
    pub account: &'a str,
    /// Its length in bytes.
    pub bytes: u64,
    /// The attempt that writes it; `None` for a URL of the whole job.
    pub attempt: Option<AttemptBound>,
}

/// The answer to the announcement of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// Its object may be written.
    Write,
    /// There is no room for it.
    Full,
    /// The attempt that writes it has no room.
    AttemptFull,
    /// A sweep deletes an older object of it at this moment.
    BeingDropped,
}

/// The most bytes that blocks and files take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockBounds {
    /// Those of one account, its files included.
    pub account: u64,
    /// Those of all accounts, their files included.
    pub all: u64,
}

impl BlockCatalogue {
    /// The tables behind `pool`.
    pub const fn new(pool: AnyPool) -> Self {
        Self { pool }
    }

    /// The job with this id; `None` if there is none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn owner(&self, job: JobId) -> Result<Option<BlockOwner>, StoreError> {
        let statement = "SELECT j.account, j.ended_at, COALESCE(c.ended_attempts, 0) FROM jobs AS j \
                         LEFT JOIN job_checkpoints AS c ON c.job = j.uuid WHERE j.uuid = $1";
        let row: Option<(String, i64, i64)> = sqlx::query_as(statement)
            .bind(job.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("read the job of a block")?;
        Ok(row.map(|(account, ended_at, ended_attempts)| BlockOwner {
            account,
            has_ended: ended_at > 0,
            ended_attempts: u32::try_from(ended_attempts).unwrap_or(u32::MAX),
        }))
    }

    /// Notes that the attempts of a job from 1 to `through` have ended.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn end_attempts(&self, job: JobId, through: u32) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO job_checkpoints (job, told_at, kept, ended_attempts) VALUES ($1, 0, '[]', $2) \
             ON CONFLICT (job) DO UPDATE SET ended_attempts = excluded.ended_attempts \
             WHERE job_checkpoints.ended_attempts < excluded.ended_attempts",
        )
        .bind(job.to_string())
        .bind(i64::from(through))
        .execute(&self.pool)
        .await
        .during("note the ended attempts of a job")?;
        Ok(())
    }

    /// Notes that the job uses these blocks, and returns those of them that it has. They are not swept for a while.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn touch_all(
        &self,
        job: JobId,
        blocks: &[Digest],
        now: Timestamp,
    ) -> Result<BTreeSet<Digest>, StoreError> {
        let mut transaction = begin(&self.pool).await?;
        let mut found = BTreeSet::new();
        for chunk in blocks.chunks(TOUCHED_AT_ONCE) {
            let mut query: QueryAs<'_, Any, (String,), _> = sqlx::query_as(AssertSqlSafe(TOUCH.as_str()))
                .bind(now.micros())
                .bind(job.to_string());
            // The statement is the same for every number of blocks: the last one fills it up.
            let last = chunk.last().map(std::iter::repeat).into_iter().flatten();
            for block in chunk.iter().chain(last).take(TOUCHED_AT_ONCE) {
                query = query.bind(block.hex());
            }
            let rows = query
                .fetch_all(&mut *transaction)
                .await
                .during("look for blocks")?;
            let names: BTreeSet<String> = rows.into_iter().map(|(block,)| block).collect();
            found.extend(chunk.iter().filter(|block| names.contains(&block.hex())));
        }
        transaction.commit().await.during("look for blocks")?;
        Ok(found)
    }

    /// Announces a block that is about to be written. The announcement and its bytes are one transaction.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn announce(
        &self,
        new: NewBlock<'_>,
        bounds: BlockBounds,
        now: Timestamp,
    ) -> Result<Announcement, StoreError> {
        let NewBlock {
            job,
            block,
            account,
            bytes,
            attempt,
        } = new;
        if self.announce_again(job, block, now).await? {
            return Ok(Announcement::Write);
        }
        let mut transaction = begin(&self.pool).await?;
        // Takes the account's row, so that no other announcement of the account counts at the same time.
        let statement = "INSERT INTO block_bytes (account, bytes) VALUES ($1, 0) \
                         ON CONFLICT (account) DO UPDATE SET bytes = block_bytes.bytes";
        sqlx::query(statement)
            .bind(account)
            .execute(&mut *transaction)
            .await
            .during("announce a block")?;
        let statement = "UPDATE block_bytes SET bytes = bytes + $2 WHERE account = $1 \
                         AND $2 + (SELECT COALESCE(CAST(SUM(bytes) AS BIGINT), 0) FROM used_bytes WHERE account = $1) \
                         <= $3 AND $2 + (SELECT COALESCE(CAST(SUM(bytes) AS BIGINT), 0) FROM used_bytes) <= $4";
        let charged = sqlx::query(statement)
            .bind(account)
            .bind(to_signed(bytes))
            .bind(to_signed(bounds.account))
            .bind(to_signed(bounds.all))
            .execute(&mut *transaction)
            .await
            .during("take room for a block")?;
        if charged.rows_affected() != 1 {
            return Ok(Announcement::Full);
        }
        if let Some(attempt) = attempt
            && !charge_attempt(&mut transaction, job, attempt, bytes).await?
        {
            return Ok(Announcement::AttemptFull);
        }
        let statement = "INSERT INTO job_blocks (job, block, account, bytes, touched_at, durable, attempt) \
                         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (job, block) DO NOTHING";
        let announced = sqlx::query(statement)
            .bind(job.to_string())
            .bind(block.hex())
            .bind(account)
            .bind(to_signed(bytes))
            .bind(now.micros())
            .bind(ANNOUNCED)
            .bind(attempt.map_or(0, |attempt| i64::from(attempt.attempt)))
            .execute(&mut *transaction)
            .await
            .during("announce a block")?;
        if announced.rows_affected() == 1 {
            transaction.commit().await.during("announce a block")?;
            return Ok(Announcement::Write);
        }
        // Another request announced it meanwhile, or a sweep drops it now. It counts already.
        transaction.rollback().await.during("announce a block")?;
        match self.announce_again(job, block, now).await? {
            true => Ok(Announcement::Write),
            false => Ok(Announcement::BeingDropped),
        }
    }

    /// Notes that a block is written again that has a row, unless a sweep drops it now.
    async fn announce_again(&self, job: JobId, block: Digest, now: Timestamp) -> Result<bool, StoreError> {
        let done = sqlx::query(
            "UPDATE job_blocks SET touched_at = $1 WHERE job = $2 AND block = $3 AND durable <> $4",
        )
        .bind(now.micros())
        .bind(job.to_string())
        .bind(block.hex())
        .bind(BEING_DROPPED)
        .execute(&self.pool)
        .await
        .during("announce a block")?;
        Ok(done.rows_affected() == 1)
    }

    /// Notes that a block's object is durable. Returns whether the block is still announced.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn mark_durable(&self, job: JobId, block: Digest) -> Result<bool, StoreError> {
        let done =
            sqlx::query("UPDATE job_blocks SET durable = $3 WHERE job = $1 AND block = $2 AND durable <> $4")
                .bind(job.to_string())
                .bind(block.hex())
                .bind(DURABLE)
                .bind(BEING_DROPPED)
                .execute(&self.pool)
                .await
                .during("note a stored block")?;
        Ok(done.rows_affected() == 1)
    }

    /// The length of a block that the job has, in bytes.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn block_length(&self, job: JobId, block: Digest) -> Result<Option<u64>, StoreError> {
        let row: Option<(i64,)> =
            sqlx::query_as("SELECT bytes FROM job_blocks WHERE job = $1 AND block = $2 AND durable = $3")
                .bind(job.to_string())
                .bind(block.hex())
                .bind(DURABLE)
                .fetch_optional(&self.pool)
                .await
                .during("find a block")?;
        Ok(row.map(|(bytes,)| u64::try_from(bytes).unwrap_or_default()))
    }

    /// Stores the checkpoints of a job of this validator that are kept now, and that its attempts from 1 to
    /// `ended_attempts` have ended.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn record_kept(
        &self,
        validator: ValidatorKey,
        job: JobId,
        kept: &[KeptCheckpoint],
        ended_attempts: u32,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let text = serde_json::to_string(kept).unwrap_or_default();
        sqlx::query(
            "INSERT INTO job_checkpoints (job, told_at, kept, ended_attempts) \
             SELECT uuid, CAST($1 AS BIGINT), CAST($2 AS TEXT), CAST($5 AS BIGINT) FROM jobs \
             WHERE uuid = $3 AND validator = $4 \
             ON CONFLICT (job) DO UPDATE SET told_at = CAST($1 AS BIGINT), kept = CAST($2 AS TEXT), \
             ended_attempts = CASE WHEN job_checkpoints.ended_attempts < CAST($5 AS BIGINT) \
             THEN CAST($5 AS BIGINT) ELSE job_checkpoints.ended_attempts END",
        )
        .bind(now.micros())
        .bind(text)
        .bind(job.to_string())
        .bind(validator.to_string())
        .bind(i64::from(ended_attempts))
        .execute(&self.pool)
        .await
        .during("store the checkpoints of a job")?;
        Ok(())
    }

    /// The kept checkpoints of a job that its validator reported last, and when.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn kept(&self, job: JobId) -> Result<Option<(Timestamp, Vec<KeptCheckpoint>)>, StoreError> {
        let row: Option<(i64, String)> =
            sqlx::query_as("SELECT told_at, kept FROM job_checkpoints WHERE job = $1")
                .bind(job.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("read the checkpoints of a job")?;
        row.map(|(told_at, text)| {
            let kept = serde_json::from_str(&text)
                .map_err(|error| StoreError::corrupt("job_checkpoints.kept", error))?;
            Ok((Timestamp::from_micros(told_at), kept))
        })
        .transpose()
    }

    /// Whether a job belongs to this account.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn is_owned(&self, job: JobId, account: &str) -> Result<bool, StoreError> {
        let owner = self.owner(job).await?;
        Ok(owner.is_some_and(|owner| owner.account == account))
    }

    /// Some jobs with blocks or checkpoints, in order, after `after`: each with the time of its end, which is 0 while
    /// it is open and `None` if it is not there any more.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn jobs_with_blocks(&self, after: &str) -> Result<Vec<(String, Option<i64>)>, StoreError> {
        sqlx::query_as(
            "SELECT b.job, j.ended_at FROM (SELECT job FROM job_blocks WHERE job > $1 UNION \
             SELECT job FROM job_checkpoints WHERE job > $1) AS b \
             LEFT JOIN jobs AS j ON j.uuid = b.job ORDER BY b.job LIMIT $2",
        )
        .bind(after)
        .bind(BATCH)
        .fetch_all(&self.pool)
        .await
        .during("list jobs with blocks")
    }

    /// The blocks of a job that were used last before `before`.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn blocks_before(&self, job: &str, before: Timestamp) -> Result<Vec<String>, StoreError> {
        let rows: Vec<(String,)> =
            sqlx::query_as("SELECT block FROM job_blocks WHERE job = $1 AND touched_at < $2")
                .bind(job)
                .bind(before.micros())
                .fetch_all(&self.pool)
                .await
                .during("list old blocks")?;
        Ok(rows.into_iter().map(|(block,)| block).collect())
    }

    /// Takes a block that was used last before `before` out of what the job has. Returns whether it was taken out: then
    /// nobody is informed that it is there, nobody writes it, and its object may go.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn withdraw(&self, job: &str, block: &str, before: Timestamp) -> Result<bool, StoreError> {
        let done = sqlx::query(
            "UPDATE job_blocks SET durable = $4 WHERE job = $1 AND block = $2 AND touched_at < $3",
        )
        .bind(job)
        .bind(block)
        .bind(before.micros())
        .bind(BEING_DROPPED)
        .execute(&self.pool)
        .await
        .during("withdraw a block")?;
        Ok(done.rows_affected() == 1)
    }

    /// Forgets a withdrawn block whose object is gone, and gives its room back.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn forget(&self, job: &str, block: &str) -> Result<(), StoreError> {
        let mut transaction = begin(&self.pool).await?;
        let statement = "DELETE FROM job_blocks WHERE job = $1 AND block = $2 AND durable = $3 \
                         RETURNING account, bytes, attempt";
        let gone: Option<(String, i64, i64)> = sqlx::query_as(statement)
            .bind(job)
            .bind(block)
            .bind(BEING_DROPPED)
            .fetch_optional(&mut *transaction)
            .await
            .during("forget a block")?;
        let Some((account, bytes, attempt)) = gone else {
            return Ok(());
        };
        sqlx::query("UPDATE block_bytes SET bytes = bytes - $2 WHERE account = $1")
            .bind(account.as_str())
            .bind(bytes)
            .execute(&mut *transaction)
            .await
            .during("give back a block's room")?;
        // Nothing is remembered of an account without blocks.
        sqlx::query("DELETE FROM block_bytes WHERE account = $1 AND bytes <= 0")
            .bind(account.as_str())
            .execute(&mut *transaction)
            .await
            .during("forget an account's room")?;
        let statement = "UPDATE attempt_bytes SET bytes = bytes - $3 WHERE job = $1 AND attempt = $2";
        sqlx::query(statement)
            .bind(job)
            .bind(attempt)
            .bind(bytes)
            .execute(&mut *transaction)
            .await
            .during("give back an attempt's room")?;
        sqlx::query("DELETE FROM attempt_bytes WHERE job = $1 AND attempt = $2 AND bytes <= 0")
            .bind(job)
            .bind(attempt)
            .execute(&mut *transaction)
            .await
            .during("forget an attempt's room")?;
        transaction.commit().await.during("forget a block")
    }

    /// Forgets the list of checkpoints of a job that has no block any more.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn forget_checkpoints(&self, job: &str) -> Result<(), StoreError> {
        sqlx::query(
            "DELETE FROM job_checkpoints WHERE job = $1 \
             AND NOT EXISTS (SELECT 1 FROM job_blocks WHERE job = $1)",
        )
        .bind(job)
        .execute(&self.pool)
        .await
        .during("forget the checkpoints of a job")?;
        Ok(())
    }
}

/// Takes room for a block out of that of its attempt. Returns whether there was enough.
async fn charge_attempt(
    transaction: &mut Transaction<'_, Any>,
    job: JobId,
    bound: AttemptBound,
    bytes: u64,
) -> Result<bool, StoreError> {
    let attempt = i64::from(bound.attempt);
    let statement = "INSERT INTO attempt_bytes (job, attempt, bytes) VALUES ($1, $2, 0) \
                     ON CONFLICT (job, attempt) DO NOTHING";
    sqlx::query(statement)
        .bind(job.to_string())
        .bind(attempt)
        .execute(&mut **transaction)
        .await
        .during("take room for a block of an attempt")?;
    let statement = "UPDATE attempt_bytes SET bytes = bytes + $3 WHERE job = $1 AND attempt = $2 \
                     AND bytes + $3 <= $4";
    let charged = sqlx::query(statement)
        .bind(job.to_string())
        .bind(attempt)
        .bind(to_signed(bytes))
        .bind(to_signed(bound.bytes))
        .execute(&mut **transaction)
        .await
        .during("take room for a block of an attempt")?;
    Ok(charged.rows_affected() == 1)
}
