//! The marks of refunded answers: the bundle because of which an answer is refunded.

use std::collections::BTreeMap;

use muster_protocol::{Digest, MinerKey, Timestamp};
use muster_store::During as _;
use muster_store::columns::{parse_column, parse_column_option, read_column, time_column, unsigned_column};
use sqlx::AnyConnection;
use sqlx::any::AnyRow;

use super::{GatewayStore, Result};

/// An answer whose mark changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundableAnswer {
    /// The id of the answer.
    pub response: String,
    /// The pseudonym of its client.
    pub client: Digest,
    /// The model by its name in the whitelist.
    pub model: String,
    /// When it ended.
    pub ended_at: Timestamp,
    /// The tokens of its prompt.
    pub input_tokens: u64,
    /// The tokens of its text.
    pub output_tokens: u64,
}

impl GatewayStore {
    /// The bundles because of which answers are refunded now.
    ///
    /// # Errors
    /// The database fails.
    pub async fn refunding_bundles(&self) -> Result<Vec<Digest>> {
        let rows = sqlx::query("SELECT DISTINCT refunded FROM responses WHERE refunded IS NOT NULL")
            .fetch_all(&self.pool)
            .await
            .during("list refunds")?;
        rows.iter().map(|row| parse_column(row, "refunded")).collect()
    }

    /// The answers that are refunded because of a bundle, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn refunded_by(&self, bundle: &Digest, limit: i64) -> Result<Vec<RefundableAnswer>> {
        let rows = sqlx::query(
            "SELECT response_id, client, model, ended_at, input_tokens, output_tokens FROM responses \
             WHERE refunded = $1 ORDER BY response_id LIMIT $2",
        )
        .bind(bundle.to_string())
        .bind(limit)
        .fetch_all(&self.pool)
        .await
        .during("list the answers of a lifted conviction")?;
        rows.iter().map(refundable_from).collect()
    }

    /// The answers of a miner and a model that ended after `after` and no later than `until`, and are not refunded, at
    /// most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn unrefunded_answers(
        &self,
        miner: &MinerKey,
        model: &str,
        (after, until): (Timestamp, Timestamp),
        limit: i64,
    ) -> Result<Vec<RefundableAnswer>> {
        let rows = sqlx::query(
            "SELECT r.response_id, r.client, r.model, r.ended_at, r.input_tokens, r.output_tokens FROM responses r \
             JOIN sessions s ON s.session_id = r.session_id WHERE s.miner = $1 AND r.model = $2 \
             AND r.ended_at > $3 AND r.ended_at <= $4 AND r.refunded IS NULL ORDER BY r.response_id LIMIT $5",
        )
        .bind(miner.to_string())
        .bind(model.to_owned())
        .bind(after.micros())
        .bind(until.micros())
        .bind(limit)
        .fetch_all(&self.pool)
        .await
        .during("list the answers of a convicted miner")?;
        rows.iter().map(refundable_from).collect()
    }

    /// The number of refunded answers by the bundle that convicts.
    ///
    /// # Errors
    /// The database fails.
    pub async fn count_refunds(&self) -> Result<BTreeMap<String, u64>> {
        let rows = sqlx::query(
            "SELECT refunded, COUNT(*) AS many FROM responses WHERE refunded IS NOT NULL GROUP BY refunded",
        )
        .fetch_all(&self.pool)
        .await
        .during("count refunds")?;
        let mut counts = BTreeMap::new();
        for row in &rows {
            if let Some(bundle) = parse_column_option::<Digest>(row, "refunded")? {
                counts.insert(bundle.to_string(), unsigned_column(row, "many")?);
            }
        }
        Ok(counts)
    }
}

/// Marks an answer as refunded because of a bundle, or takes the mark off. A function of a connection, so that the
/// caller can store what it reports of the change in the same transaction.
///
/// # Errors
/// The database fails.
pub async fn mark_refund(
    connection: &mut AnyConnection,
    response: &str,
    bundle: Option<&Digest>,
) -> Result<()> {
    sqlx::query("UPDATE responses SET refunded = $1 WHERE response_id = $2")
        .bind(bundle.map(|digest| digest.to_string()))
        .bind(response.to_owned())
        .execute(connection)
        .await
        .during("mark refunded answers")?;
    Ok(())
}

fn refundable_from(row: &AnyRow) -> Result<RefundableAnswer> {
    Ok(RefundableAnswer {
        response: read_column(row, "response_id")?,
        client: parse_column(row, "client")?,
        model: read_column(row, "model")?,
        ended_at: time_column(row, "ended_at")?,
        input_tokens: unsigned_column(row, "input_tokens")?,
        output_tokens: unsigned_column(row, "output_tokens")?,
    })
}
