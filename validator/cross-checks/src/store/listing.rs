//! Checks as everybody may see them.

use muster_protocol::wire::checks::{CheckOrigin, CheckedOutput};
use muster_protocol::{AttemptId, Digest, Hotkey, JobId, MinerKey, Timestamp};
use muster_store::During as _;
use muster_store::columns::{json_column, parse_column, parse_column_option, read_column, time_column};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{CheckStore, StoreResult, origin_of};
use crate::outputs::JobOutputs;

/// A check as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckView {
    /// The user's job.
    pub job: JobId,
    /// Why it was run again.
    pub origin: CheckOrigin,
    /// `waiting`, `undrawn`, `pending`, `agrees`, `differs` or `unproven`.
    pub state: String,
    /// The reason as text.
    pub reason: String,
    /// The miner that ran the job.
    pub miner: Option<MinerKey>,
    /// The owner of that miner when the job ended.
    pub coldkey: Option<Hotkey>,
    /// The attempt that the user got.
    pub attempt: Option<AttemptId>,
    /// The digest of the attempt's finished receipt, by which the job is drawn.
    pub receipt: Option<Digest>,
    /// The block whose hash draws.
    pub draw_block: Option<u64>,
    /// The hash of that block.
    pub block_hash: Option<Digest>,
    /// The proof of the draw, in hex.
    pub draw: Option<String>,
    /// The comparison of the outputs, those that differ first.
    pub compared: Vec<CheckedOutput>,
    /// Runs on the validator's own miner that have completed.
    pub runs: u64,
    /// When the user's job ended.
    pub ended_at: Timestamp,
    /// When the check last changed.
    pub changed_at: Timestamp,
}

impl CheckStore {
    /// The newest checks, newest first, at most `limit`. Jobs that wait for their draw or were not drawn are left out.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(&self, limit: u32) -> StoreResult<Vec<CheckView>> {
        let rows = sqlx::query(
            "SELECT * FROM cross_checks WHERE state NOT IN ('waiting', 'undrawn') \
             ORDER BY changed_at DESC, job_id LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("list checks")?;
        rows.iter().map(view_of).collect()
    }
}

fn view_of(row: &AnyRow) -> StoreResult<CheckView> {
    let runs: Vec<JobOutputs> = json_column(row, "runs")?;
    let block: Option<i64> = read_column(row, "draw_block")?;
    Ok(CheckView {
        job: parse_column(row, "job_id")?,
        origin: origin_of(row)?,
        state: read_column(row, "state")?,
        reason: read_column(row, "reason")?,
        miner: parse_column_option(row, "miner")?,
        coldkey: parse_column_option(row, "coldkey")?,
        attempt: parse_column_option(row, "attempt_id")?,
        receipt: parse_column_option(row, "receipt")?,
        draw_block: block.and_then(|block| u64::try_from(block).ok()),
        block_hash: parse_column_option(row, "block_hash")?,
        draw: read_column(row, "draw")?,
        compared: json_column(row, "compared")?,
        runs: u64::try_from(runs.len()).unwrap_or(u64::MAX),
        ended_at: time_column(row, "ended_at")?,
        changed_at: time_column(row, "changed_at")?,
    })
}
