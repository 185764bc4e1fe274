//! Statements of capacity: this validator's own with their evidence, and those of others as they came.

use muster_chain::Epoch;
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_scoring::CapacityStatement;

use super::{Result, Store, query_error};
use muster_store::columns::{parse_column, read_column, to_signed};

/// Two statements of one validator for one cycle show that it contradicts itself; more add nothing.
const MAX_OF_ONE: i64 = 2;

/// A statement as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredStatement {
    /// The validator that states it.
    pub validator: ValidatorKey,
    /// The signed text.
    pub body: String,
}

impl Store {
    /// Stores a statement whose signature was checked.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_statement(&self, stated: &CapacityStatement, body: &str, now: Timestamp) -> Result<()> {
        self.write("write a statement of capacity", |draft| {
            draft.script.add(
                "INSERT INTO capacity_statements (chain, cycle, validator, digest, body, received_at) \
                 SELECT $1, $2, $3, $4, $5, $6 WHERE (SELECT COUNT(*) FROM capacity_statements \
                 WHERE chain = $1 AND cycle = $2 AND validator = $3) < $7 ON CONFLICT DO NOTHING",
                [
                    draft.chain.genesis.clone().into(),
                    to_signed(stated.cycle).into(),
                    stated.validator.to_string().into(),
                    Digest::of(body.as_bytes()).to_string().into(),
                    body.to_owned().into(),
                    now.micros().into(),
                    MAX_OF_ONE.into(),
                ],
            );
        })
        .await
    }

    /// The statements for a cycle, by validator; none of a validator that is known to contradict itself in it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn statements_for(&self, cycle: Epoch) -> Result<Vec<StoredStatement>> {
        let rows = sqlx::query(
            "SELECT validator, body FROM capacity_statements AS s WHERE chain = $1 AND cycle = $2 \
             AND (SELECT COUNT(*) FROM capacity_sightings AS t WHERE t.chain = s.chain AND t.cycle = s.cycle \
             AND t.validator = s.validator) < 2 ORDER BY validator, received_at, digest",
        )
        .bind(self.chain().genesis)
        .bind(to_signed(cycle.0))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the statements of a cycle"))?;
        let stored = |row| {
            Ok(StoredStatement {
                validator: parse_column(row, "validator")?,
                body: read_column(row, "body")?,
            })
        };
        rows.iter().map(stored).collect()
    }

    /// The first statement of a validator for a cycle; `None` without one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn statement_of(&self, validator: ValidatorKey, cycle: Epoch) -> Result<Option<String>> {
        let row = sqlx::query(
            "SELECT body FROM capacity_statements WHERE chain = $1 AND cycle = $2 AND validator = $3 \
             ORDER BY received_at, digest LIMIT 1",
        )
        .bind(self.chain().genesis)
        .bind(to_signed(cycle.0))
        .bind(validator.to_string())
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error("read a statement of capacity"))?;
        row.map(|row| read_column(&row, "body")).transpose()
    }

    /// Stores the evidence of one of this validator's statements.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_evidence(&self, digest: Digest, body: &str, now: Timestamp) -> Result<()> {
        self.write("write the evidence of a statement", |draft| {
            draft.script.add(
                "INSERT INTO capacity_evidence (digest, body, written_at) VALUES ($1, $2, $3) \
                 ON CONFLICT (digest) DO UPDATE SET written_at = excluded.written_at",
                [
                    digest.to_string().into(),
                    body.to_owned().into(),
                    now.micros().into(),
                ],
            );
        })
        .await
    }

    /// The evidence with this digest; `None` if there is none, or no more.
    ///
    /// # Errors
    /// The database fails.
    pub async fn evidence(&self, digest: Digest) -> Result<Option<String>> {
        let row = sqlx::query("SELECT body FROM capacity_evidence WHERE digest = $1")
            .bind(digest.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("read the evidence of a statement"))?;
        row.map(|row| read_column(&row, "body")).transpose()
    }
}
