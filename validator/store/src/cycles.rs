//! Scored cycles: what miners earned, and which weights were set. A cycle is stored before its weights are sent.

use muster_chain::{BlockNumber, PendingReveal};
use muster_protocol::{Digest, Timestamp};
use muster_scoring::Scores;
use muster_store::columns::{json_column, read_column, time_column, to_signed, to_unsigned};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{Result, Store, corrupt, parse_json_option, query_error, text_of};

/// The state of a scored cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CycleState {
    /// The cycle is scored; its weights are to be sent.
    Pending,
    /// The chain has a commit to the weights, which are revealed in a later epoch.
    Committed,
    /// The weights are on the chain.
    Set,
    /// No miner earned anything; the weights on the chain stay as they are.
    Kept,
    /// The commit was lost before it was revealed. The cycle's work is scored again.
    Expired,
    /// The weights never reached the chain. The cycle's work was scored again, or is too old.
    Missed,
}

impl CycleState {
    /// Every state, in the order of a cycle's life.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Committed,
        Self::Set,
        Self::Kept,
        Self::Expired,
        Self::Missed,
    ];

    /// The text in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Committed => "committed",
            Self::Set => "set",
            Self::Kept => "kept",
            Self::Expired => "expired",
            Self::Missed => "missed",
        }
    }
}

/// A cycle that was scored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredCycle {
    /// The number of the cycle.
    pub number: u64,
    /// The first block whose work is scored.
    pub first_block: u64,
    /// The last block whose work is scored.
    pub last_block: u64,
    /// The state of the cycle.
    pub state: CycleState,
    /// The miners' scores, and the receipts that did not count.
    #[serde(flatten)]
    pub scores: Scores,
    /// The weights that are set: uid and weight.
    pub weights: Vec<(u16, u16)>,
    /// The commit and the secret that reveals it, if the weights are committed first. Never shown, since it holds the
    /// salt.
    #[serde(skip)]
    pub reveal: Option<PendingReveal>,
    /// The last block that may hold a call with the weights whose end is not known; `None` if no call is on its way.
    #[serde(skip)]
    pub on_its_way: Option<u64>,
    /// The chain's error at the last try to send the weights.
    pub error: Option<String>,
    /// The digest of the snapshot by which it was scored; `None` for a cycle of an earlier release.
    pub snapshot: Option<Digest>,
    /// The block at which the state changed last.
    pub at_block: u64,
    /// When the state changed last.
    pub changed_at: Timestamp,
}

impl Store {
    /// Stores a scored cycle with the pieces of its snapshot's text; returns `false` and changes no cycle if it was
    /// scored before. Earlier cycles whose commit was lost are settled, since this one scores their work again.
    ///
    /// # Errors
    /// The database fails.
    pub async fn begin_cycle(
        &self,
        cycle: &StoredCycle,
        snapshot: impl IntoIterator<Item = String, IntoIter: Send> + Send,
    ) -> Result<bool> {
        const OPERATION: &str = "write a scored cycle";
        let mut transaction = self.begin().await?;
        if let Some(digest) = cycle.snapshot {
            transaction.put_snapshot(digest, snapshot).await?;
        }
        let done = sqlx::query(
            "INSERT INTO cycles (last_block, first_block, number, state, scores, weights, error, at_block, changed_at, chain, reveal, snapshot) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT DO NOTHING",
        )
        .bind(to_signed(cycle.last_block))
        .bind(to_signed(cycle.first_block))
        .bind(to_signed(cycle.number))
        .bind(cycle.state.as_str())
        .bind(text_of(&cycle.scores))
        .bind(text_of(&cycle.weights))
        .bind(cycle.error.clone())
        .bind(to_signed(cycle.at_block))
        .bind(cycle.changed_at.micros())
        .bind(self.chain().genesis)
        .bind(cycle.reveal.as_ref().map(text_of))
        .bind(cycle.snapshot.map(|digest| digest.to_string()))
        .execute(&mut *transaction.tx)
        .await
        .map_err(query_error(OPERATION))?;
        sqlx::query(
            "UPDATE cycles SET state = 'missed' WHERE state = 'expired' AND last_block < $1 AND chain = $2",
        )
        .bind(to_signed(cycle.last_block))
        .bind(self.chain().genesis)
        .execute(&mut *transaction.tx)
        .await
        .map_err(query_error(OPERATION))?;
        transaction.commit(OPERATION).await?;
        Ok(done.rows_affected() > 0)
    }

    /// Stores the call that is about to be submitted for a pending cycle: its weights, the secret that reveals them,
    /// and the last block that may hold it. A process that another one has superseded gets an error, so it submits
    /// nothing.
    ///
    /// # Errors
    /// The database fails.
    pub async fn plan_cycle(&self, cycle: &StoredCycle) -> Result<()> {
        const OPERATION: &str = "write down what is about to be sent";
        let mut transaction = self.begin().await?;
        sqlx::query(
            "UPDATE cycles SET weights = $1, reveal = $2, on_its_way = $3 \
             WHERE last_block = $4 AND state = 'pending' AND chain = $5",
        )
        .bind(text_of(&cycle.weights))
        .bind(cycle.reveal.as_ref().map(text_of))
        .bind(cycle.on_its_way.map(to_signed))
        .bind(to_signed(cycle.last_block))
        .bind(self.chain().genesis)
        .execute(&mut *transaction.tx)
        .await
        .map_err(query_error(OPERATION))?;
        transaction.commit(OPERATION).await
    }

    /// Stores the new state of a cycle whose state was `from`, with its reveal.
    ///
    /// # Errors
    /// The database fails.
    pub async fn move_cycle(
        &self,
        cycle: &StoredCycle,
        from: CycleState,
        at: BlockNumber,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "note what has become of a commit";
        let mut transaction = self.begin().await?;
        sqlx::query(
            "UPDATE cycles SET state = $1, reveal = $2, error = $3, at_block = $4, changed_at = $5, on_its_way = $9 \
             WHERE last_block = $6 AND state = $7 AND chain = $8",
        )
        .bind(cycle.state.as_str())
        .bind(cycle.reveal.as_ref().map(text_of))
        .bind(cycle.error.clone())
        .bind(to_signed(at.0))
        .bind(now.micros())
        .bind(to_signed(cycle.last_block))
        .bind(from.as_str())
        .bind(self.chain().genesis)
        .bind(cycle.on_its_way.map(to_signed))
        .execute(&mut *transaction.tx)
        .await
        .map_err(query_error(OPERATION))?;
        transaction.commit(OPERATION).await
    }

    /// The cycles in this state, oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn cycles_in(&self, state: CycleState) -> Result<Vec<StoredCycle>> {
        let rows = sqlx::query(
            "SELECT last_block, first_block, number, state, scores, weights, reveal, on_its_way, error, snapshot, at_block, changed_at FROM cycles \
             WHERE state = $1 AND chain = $2 ORDER BY last_block LIMIT 100",
        )
        .bind(state.as_str())
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the cycles of a state"))?;
        rows.iter().map(read).collect()
    }

    /// Stores the new state of a pending cycle, with the chain's error if there was one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn note_cycle(
        &self,
        last_block: u64,
        state: CycleState,
        error: Option<&str>,
        at: BlockNumber,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "note what has become of a cycle";
        let mut transaction = self.begin().await?;
        sqlx::query(
            "UPDATE cycles SET state = $1, error = $2, at_block = $3, changed_at = $4 WHERE last_block = $5 AND state = 'pending' AND chain = $6",
        )
        .bind(state.as_str())
        .bind(error.map(str::to_owned))
        .bind(to_signed(at.0))
        .bind(now.micros())
        .bind(to_signed(last_block))
        .bind(self.chain().genesis)
        .execute(&mut *transaction.tx)
        .await
        .map_err(query_error(OPERATION))?;
        transaction.commit(OPERATION).await
    }

    /// Marks every pending cycle that ended before `first` as missed, and keeps its error; returns how many there were.
    ///
    /// # Errors
    /// The database fails.
    pub async fn miss_cycles_before(&self, first: BlockNumber, now: Timestamp) -> Result<u64> {
        const OPERATION: &str = "note missed cycles";
        let mut transaction = self.begin().await?;
        let done = sqlx::query(
            "UPDATE cycles SET state = 'missed', changed_at = $1 WHERE state = 'pending' AND last_block < $2 AND chain = $3",
        )
        .bind(now.micros())
        .bind(to_signed(first.0))
        .bind(self.chain().genesis)
        .execute(&mut *transaction.tx)
        .await
        .map_err(query_error(OPERATION))?;
        transaction.commit(OPERATION).await?;
        Ok(done.rows_affected())
    }

    /// The last block whose work is in weights that were set or committed, or earned nothing.
    ///
    /// # Errors
    /// The database fails.
    pub async fn settled_through(&self) -> Result<Option<BlockNumber>> {
        let row = sqlx::query(
            "SELECT MAX(last_block) AS last FROM cycles WHERE state IN ('set', 'kept', 'committed') AND chain = $1",
        )
        .bind(self.chain().genesis)
        .fetch_one(&self.pool)
        .await
        .map_err(query_error("read the cycles"))?;
        let last: Option<i64> = read_column(&row, "last")?;
        Ok(last.map(|last| BlockNumber(to_unsigned(last))))
    }

    /// The last block whose work was scored, whatever the state of the weights.
    ///
    /// # Errors
    /// The database fails.
    pub async fn scored_through(&self) -> Result<Option<BlockNumber>> {
        let row = sqlx::query("SELECT MAX(last_block) AS last FROM cycles WHERE chain = $1")
            .bind(self.chain().genesis)
            .fetch_one(&self.pool)
            .await
            .map_err(query_error("read the cycles"))?;
        let last: Option<i64> = read_column(&row, "last")?;
        Ok(last.map(|last| BlockNumber(to_unsigned(last))))
    }

    /// The cycle that ended with this block, if it was scored.
    ///
    /// # Errors
    /// The database fails.
    pub async fn cycle(&self, last_block: BlockNumber) -> Result<Option<StoredCycle>> {
        let row = sqlx::query(
            "SELECT last_block, first_block, number, state, scores, weights, reveal, on_its_way, error, snapshot, at_block, changed_at FROM cycles \
             WHERE last_block = $1 AND chain = $2",
        )
        .bind(to_signed(last_block.0))
        .bind(self.chain().genesis)
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error("read a cycle"))?;
        row.as_ref().map(read).transpose()
    }

    /// The newest settled cycles that ended before `first`, newest first: their points are still being paid.
    ///
    /// # Errors
    /// The database fails.
    pub async fn settled_before(&self, first: BlockNumber, limit: usize) -> Result<Vec<StoredCycle>> {
        let rows = sqlx::query(
            "SELECT last_block, first_block, number, state, scores, weights, reveal, on_its_way, error, snapshot, at_block, changed_at FROM cycles \
             WHERE state IN ('set', 'kept', 'committed') AND last_block < $1 AND chain = $2 \
             ORDER BY last_block DESC LIMIT $3",
        )
        .bind(to_signed(first.0))
        .bind(self.chain().genesis)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the cycles before"))?;
        rows.iter().map(read).collect()
    }

    /// The newest scored cycles, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn cycles(&self, limit: u32) -> Result<Vec<StoredCycle>> {
        let rows = sqlx::query(
            "SELECT last_block, first_block, number, state, scores, weights, reveal, on_its_way, error, snapshot, at_block, changed_at FROM cycles \
             WHERE chain = $2 ORDER BY last_block DESC LIMIT $1",
        )
        .bind(i64::from(limit))
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the cycles"))?;
        rows.iter().map(read).collect()
    }
}

fn read(row: &AnyRow) -> Result<StoredCycle> {
    let state: String = read_column(row, "state")?;
    let known = CycleState::ALL.into_iter().find(|known| known.as_str() == state);
    Ok(StoredCycle {
        number: to_unsigned(read_column(row, "number")?),
        first_block: to_unsigned(read_column(row, "first_block")?),
        last_block: to_unsigned(read_column(row, "last_block")?),
        state: known.ok_or_else(|| corrupt("state", &state))?,
        scores: json_column(row, "scores")?,
        weights: json_column(row, "weights")?,
        reveal: parse_json_option(row, "reveal")?,
        on_its_way: read_column::<Option<i64>>(row, "on_its_way")?.map(to_unsigned),
        error: read_column(row, "error")?,
        snapshot: read_column::<Option<String>>(row, "snapshot")?
            .map(|text| text.parse().map_err(|error| corrupt("snapshot", &error)))
            .transpose()?,
        at_block: to_unsigned(read_column(row, "at_block")?),
        changed_at: time_column(row, "changed_at")?,
    })
}
