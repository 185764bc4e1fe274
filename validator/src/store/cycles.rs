//! Scored cycles: what was earned and what was set. The row is written before the weights are sent.

use muster_chain::{BlockNumber, PendingReveal};
use muster_protocol::Timestamp;
use muster_scoring::Scores;
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{Result, Store, column, corrupt, failed, json, json_option, signed, text_of, time, unsigned};
use crate::cycle::Progress;

/// What has become of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CycleState {
    /// It is scored; its weights are on their way.
    Pending,
    /// The chain has a commit to its weights; they are revealed in a later epoch.
    Committed,
    /// Its weights are on the chain.
    Set,
    /// Nobody earned anything; the weights on the chain stay.
    Kept,
    /// Its commit was lost before it was revealed. Its work is scored again.
    Expired,
    /// Its weights never reached the chain. Its work was scored again, or is too old.
    Missed,
}

impl CycleState {
    const ALL: [Self; 6] = [
        Self::Pending,
        Self::Committed,
        Self::Set,
        Self::Kept,
        Self::Expired,
        Self::Missed,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Committed => "committed",
            Self::Set => "set",
            Self::Kept => "kept",
            Self::Expired => "expired",
            Self::Missed => "missed",
        }
    }

    /// What it means for the decision what to do, having come about at block `at`.
    pub fn progress(self, at: BlockNumber) -> Progress {
        match self {
            Self::Pending => Progress::Pending,
            Self::Committed | Self::Set => Progress::Sent(at),
            Self::Kept | Self::Expired | Self::Missed => Progress::Settled,
        }
    }
}

/// A cycle that was scored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredCycle {
    /// Its number.
    pub number: u64,
    /// The first block.
    pub first_block: u64,
    /// The last block.
    pub last_block: u64,
    /// What has become of it.
    pub state: CycleState,
    /// What was earned, and which receipts did not count.
    #[serde(flatten)]
    pub scores: Scores,
    /// What is set: uid and weight.
    pub weights: Vec<(u16, u16)>,
    /// What must survive until they are revealed, if they are committed first. Nobody is shown it: it holds the salt.
    #[serde(skip)]
    pub reveal: Option<PendingReveal>,
    /// Why the chain did not take them at the last try.
    pub error: Option<String>,
    /// The block at which its state changed last.
    pub at_block: u64,
    /// When its state changed last.
    pub changed_at: Timestamp,
}

impl Store {
    /// Writes a scored cycle; `false` if it was scored before, which changes nothing. What it scores again of cycles whose
    /// commit was lost is settled with it.
    ///
    /// # Errors
    /// The database's.
    pub async fn begin_cycle(&self, cycle: &StoredCycle) -> Result<bool> {
        const OPERATION: &str = "write a scored cycle";
        let mut write = self.write().await?;
        let done = sqlx::query(
            "INSERT INTO cycles (last_block, first_block, number, state, scores, weights, error, at_block, changed_at, chain, reveal) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING",
        )
        .bind(signed(cycle.last_block))
        .bind(signed(cycle.first_block))
        .bind(signed(cycle.number))
        .bind(cycle.state.as_str())
        .bind(text_of(&cycle.scores))
        .bind(text_of(&cycle.weights))
        .bind(cycle.error.clone())
        .bind(signed(cycle.at_block))
        .bind(cycle.changed_at.micros())
        .bind(self.chain().genesis)
        .bind(cycle.reveal.as_ref().map(text_of))
        .execute(&mut *write.tx)
        .await
        .map_err(failed(OPERATION))?;
        sqlx::query(
            "UPDATE cycles SET state = 'missed' WHERE state = 'expired' AND last_block < $1 AND chain = $2",
        )
        .bind(signed(cycle.last_block))
        .bind(self.chain().genesis)
        .execute(&mut *write.tx)
        .await
        .map_err(failed(OPERATION))?;
        write.commit(OPERATION).await?;
        Ok(done.rows_affected() > 0)
    }

    /// Writes down what is about to be handed in for a pending cycle: its weights, and what reveals them.
    ///
    /// # Errors
    /// The database's.
    pub async fn plan_cycle(
        &self,
        last_block: u64,
        weights: &[(u16, u16)],
        reveal: Option<&PendingReveal>,
    ) -> Result<()> {
        const OPERATION: &str = "write down what is about to be sent";
        let mut write = self.write().await?;
        sqlx::query(
            "UPDATE cycles SET weights = $1, reveal = $2 WHERE last_block = $3 AND state = 'pending' AND chain = $4",
        )
        .bind(text_of(&weights))
        .bind(reveal.map(text_of))
        .bind(signed(last_block))
        .bind(self.chain().genesis)
        .execute(&mut *write.tx)
        .await
        .map_err(failed(OPERATION))?;
        write.commit(OPERATION).await
    }

    /// Notes what has become of a cycle that was `from`, and what reveals it.
    ///
    /// # Errors
    /// The database's.
    pub async fn move_cycle(
        &self,
        cycle: &StoredCycle,
        from: CycleState,
        at: BlockNumber,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "note what has become of a commit";
        let mut write = self.write().await?;
        sqlx::query(
            "UPDATE cycles SET state = $1, reveal = $2, error = $3, at_block = $4, changed_at = $5 \
             WHERE last_block = $6 AND state = $7 AND chain = $8",
        )
        .bind(cycle.state.as_str())
        .bind(cycle.reveal.as_ref().map(text_of))
        .bind(cycle.error.clone())
        .bind(signed(at.0))
        .bind(now.micros())
        .bind(signed(cycle.last_block))
        .bind(from.as_str())
        .bind(self.chain().genesis)
        .execute(&mut *write.tx)
        .await
        .map_err(failed(OPERATION))?;
        write.commit(OPERATION).await
    }

    /// The cycles in this state, oldest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn cycles_in(&self, state: CycleState) -> Result<Vec<StoredCycle>> {
        let rows = sqlx::query(
            "SELECT last_block, first_block, number, state, scores, weights, reveal, error, at_block, changed_at FROM cycles \
             WHERE state = $1 AND chain = $2 ORDER BY last_block LIMIT 100",
        )
        .bind(state.as_str())
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the cycles of a state"))?;
        rows.iter().map(read).collect()
    }

    /// Notes what has become of a pending cycle, with the chain's refusal if there was one.
    ///
    /// # Errors
    /// The database's.
    pub async fn note_cycle(
        &self,
        last_block: u64,
        state: CycleState,
        error: Option<&str>,
        at: BlockNumber,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "note what has become of a cycle";
        let mut write = self.write().await?;
        sqlx::query(
            "UPDATE cycles SET state = $1, error = $2, at_block = $3, changed_at = $4 WHERE last_block = $5 AND state = 'pending' AND chain = $6",
        )
        .bind(state.as_str())
        .bind(error.map(str::to_owned))
        .bind(signed(at.0))
        .bind(now.micros())
        .bind(signed(last_block))
        .bind(self.chain().genesis)
        .execute(&mut *write.tx)
        .await
        .map_err(failed(OPERATION))?;
        write.commit(OPERATION).await
    }

    /// Marks every pending cycle that ended before `first` as missed, keeping why; how many there were.
    ///
    /// # Errors
    /// The database's.
    pub async fn miss_cycles_before(&self, first: BlockNumber, now: Timestamp) -> Result<u64> {
        const OPERATION: &str = "note missed cycles";
        let mut write = self.write().await?;
        let done = sqlx::query(
            "UPDATE cycles SET state = 'missed', changed_at = $1 WHERE state = 'pending' AND last_block < $2 AND chain = $3",
        )
        .bind(now.micros())
        .bind(signed(first.0))
        .bind(self.chain().genesis)
        .execute(&mut *write.tx)
        .await
        .map_err(failed(OPERATION))?;
        write.commit(OPERATION).await?;
        Ok(done.rows_affected())
    }

    /// The last block whose work is in weights that were set or committed, or was found to be none.
    ///
    /// # Errors
    /// The database's.
    pub async fn settled_through(&self) -> Result<Option<BlockNumber>> {
        let row = sqlx::query(
            "SELECT MAX(last_block) AS last FROM cycles WHERE state IN ('set', 'kept', 'committed') AND chain = $1",
        )
        .bind(self.chain().genesis)
        .fetch_one(&self.pool)
        .await
        .map_err(failed("read the cycles"))?;
        let last: Option<i64> = column(&row, "last")?;
        Ok(last.map(|last| BlockNumber(unsigned(last))))
    }

    /// The last block whose work was scored, whatever became of the weights.
    ///
    /// # Errors
    /// The database's.
    pub async fn scored_through(&self) -> Result<Option<BlockNumber>> {
        let row = sqlx::query("SELECT MAX(last_block) AS last FROM cycles WHERE chain = $1")
            .bind(self.chain().genesis)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("read the cycles"))?;
        let last: Option<i64> = column(&row, "last")?;
        Ok(last.map(|last| BlockNumber(unsigned(last))))
    }

    /// The cycle that ended with this block, if it was scored.
    ///
    /// # Errors
    /// The database's.
    pub async fn cycle(&self, last_block: BlockNumber) -> Result<Option<StoredCycle>> {
        let row = sqlx::query(
            "SELECT last_block, first_block, number, state, scores, weights, reveal, error, at_block, changed_at FROM cycles \
             WHERE last_block = $1 AND chain = $2",
        )
        .bind(signed(last_block.0))
        .bind(self.chain().genesis)
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("read a cycle"))?;
        row.as_ref().map(read).transpose()
    }

    /// The newest scored cycles, newest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn cycles(&self, limit: u32) -> Result<Vec<StoredCycle>> {
        let rows = sqlx::query(
            "SELECT last_block, first_block, number, state, scores, weights, reveal, error, at_block, changed_at FROM cycles \
             WHERE chain = $2 ORDER BY last_block DESC LIMIT $1",
        )
        .bind(i64::from(limit))
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the cycles"))?;
        rows.iter().map(read).collect()
    }
}

fn read(row: &AnyRow) -> Result<StoredCycle> {
    let state: String = column(row, "state")?;
    let known = CycleState::ALL.into_iter().find(|known| known.as_str() == state);
    Ok(StoredCycle {
        number: unsigned(column(row, "number")?),
        first_block: unsigned(column(row, "first_block")?),
        last_block: unsigned(column(row, "last_block")?),
        state: known.ok_or_else(|| corrupt("state", &state))?,
        scores: json(row, "scores")?,
        weights: json(row, "weights")?,
        reveal: json_option(row, "reveal")?,
        error: column(row, "error")?,
        at_block: unsigned(column(row, "at_block")?),
        changed_at: time(row, "changed_at")?,
    })
}
