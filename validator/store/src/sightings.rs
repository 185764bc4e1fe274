//! The statements of capacity that this validator has read on anybody's pages. Two of one validator for a cycle that
//! differ are the evidence that it contradicts itself.

use muster_chain::Epoch;
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_store::columns::{parse_column, read_column, time_column, to_signed, to_unsigned};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{Result, Store, query_error};

/// Two statements of one validator for one cycle are evidence; more add nothing.
const MAX_OF_ONE: i64 = 2;

/// A signed statement as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenStatement {
    /// The validator that signed it.
    pub validator: ValidatorKey,
    /// The first block of the cycle for which it is stated.
    pub cycle: Epoch,
    /// The digest of the signed text.
    pub digest: Digest,
    /// The text with its signature.
    pub body: String,
    /// The validator on whose pages it was read, if not its own.
    pub source: Option<ValidatorKey>,
}

/// Two statements of one validator for one cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Contradiction {
    /// The validator that signed both.
    pub validator: ValidatorKey,
    /// The first block of their cycle.
    pub cycle: u64,
    /// The digests of the signed texts.
    pub digests: Vec<Digest>,
    /// When the second one was read.
    pub found_at: Timestamp,
}

impl Store {
    /// Stores a statement whose signature was checked. Returns whether it is the second one of its validator for its
    /// cycle, which shows that the validator contradicts itself. A third one is not stored.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_sighting(&self, seen: &SeenStatement, now: Timestamp) -> Result<bool> {
        let known = self.sightings_of(seen.validator, seen.cycle).await?;
        if known.iter().any(|known| known.digest == seen.digest) {
            return Ok(false);
        }
        self.write("write a statement that was seen", |draft| {
            draft.script.add(
                "INSERT INTO capacity_sightings (chain, cycle, validator, digest, body, source, seen_at) \
                 SELECT $1, $2, $3, $4, $5, $6, $7 WHERE (SELECT COUNT(*) FROM capacity_sightings \
                 WHERE chain = $1 AND cycle = $2 AND validator = $3) < $8 ON CONFLICT DO NOTHING",
                [
                    draft.chain.genesis.clone().into(),
                    to_signed(seen.cycle.0).into(),
                    seen.validator.to_string().into(),
                    seen.digest.to_string().into(),
                    seen.body.clone().into(),
                    seen.source
                        .map(|source| source.to_string())
                        .unwrap_or_default()
                        .into(),
                    now.micros().into(),
                    MAX_OF_ONE.into(),
                ],
            );
        })
        .await?;
        Ok(known.len() == 1)
    }

    /// The statements of a validator for a cycle, as they came; at most two.
    ///
    /// # Errors
    /// The database fails.
    pub async fn sightings_of(&self, validator: ValidatorKey, cycle: Epoch) -> Result<Vec<SeenStatement>> {
        let rows = sqlx::query(
            "SELECT validator, cycle, digest, body, source FROM capacity_sightings \
             WHERE chain = $1 AND cycle = $2 AND validator = $3 ORDER BY seen_at, digest",
        )
        .bind(self.chain().genesis)
        .bind(to_signed(cycle.0))
        .bind(validator.to_string())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the statements of a validator"))?;
        rows.iter().map(seen).collect()
    }

    /// All statements for a cycle that were read, by validator.
    ///
    /// # Errors
    /// The database fails.
    pub async fn sightings_in(&self, cycle: Epoch) -> Result<Vec<SeenStatement>> {
        let rows = sqlx::query(
            "SELECT validator, cycle, digest, body, source FROM capacity_sightings \
             WHERE chain = $1 AND cycle = $2 ORDER BY validator, seen_at, digest",
        )
        .bind(self.chain().genesis)
        .bind(to_signed(cycle.0))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the statements that were seen"))?;
        rows.iter().map(seen).collect()
    }

    /// The statement whose signed text has this digest; `None` if none was read, or no more.
    ///
    /// # Errors
    /// The database fails.
    pub async fn sighting(&self, digest: Digest) -> Result<Option<String>> {
        let row =
            sqlx::query("SELECT body FROM capacity_sightings WHERE digest = $1 ORDER BY seen_at LIMIT 1")
                .bind(digest.to_string())
                .fetch_optional(&self.pool)
                .await
                .map_err(query_error("read a statement that was seen"))?;
        row.map(|row| read_column(&row, "body")).transpose()
    }

    /// The newest contradictions, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn contradictions(&self, limit: u32) -> Result<Vec<Contradiction>> {
        let rows = sqlx::query(
            "SELECT validator, cycle, MIN(digest) AS one, MAX(digest) AS other, MAX(seen_at) AS found_at \
             FROM capacity_sightings WHERE chain = $1 GROUP BY validator, cycle HAVING COUNT(*) > 1 \
             ORDER BY MAX(seen_at) DESC, validator LIMIT $2",
        )
        .bind(self.chain().genesis)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read which validators contradict themselves"))?;
        let contradiction = |row| {
            Ok(Contradiction {
                validator: parse_column(row, "validator")?,
                cycle: to_unsigned(read_column(row, "cycle")?),
                digests: vec![parse_column(row, "one")?, parse_column(row, "other")?],
                found_at: time_column(row, "found_at")?,
            })
        };
        rows.iter().map(contradiction).collect()
    }
}

fn seen(row: &AnyRow) -> Result<SeenStatement> {
    let source: String = read_column(row, "source")?;
    Ok(SeenStatement {
        validator: parse_column(row, "validator")?,
        cycle: Epoch(to_unsigned(read_column(row, "cycle")?)),
        digest: parse_column(row, "digest")?,
        body: read_column(row, "body")?,
        source: source.parse().ok(),
    })
}
