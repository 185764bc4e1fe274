//! The findings about validators that this miner keeps.

use muster_protocol::{Timestamp, ValidatorKey};
use muster_store::During as _;
use muster_store::columns::{parse_column, read_column, time_column};
use serde::Serialize;

use super::{AuditCheckStore, MAX_LISTED, Result};
use crate::finding::Finding;

/// Findings that are kept of one validator, the newest ones.
const MAX_FINDINGS: i64 = 1_000;

/// A finding as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedFinding {
    /// The validator that it is about.
    pub validator: ValidatorKey,
    /// The kind by its name.
    pub kind: String,
    /// The bucket, answer or bundle that it is about.
    pub about: String,
    /// The finding as text.
    pub words: String,
    /// When it was found.
    pub found_at: Timestamp,
}

impl AuditCheckStore {
    /// Keeps findings about a validator; the oldest go beyond a bound. Returns those that are new.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_findings(
        &self,
        validator: ValidatorKey,
        findings: Vec<Finding>,
        now: Timestamp,
    ) -> Result<Vec<Finding>> {
        const OPERATION: &str = "keep a finding";
        let mut new = Vec::new();
        for finding in findings {
            let inserted = sqlx::query(
                "INSERT INTO audit_findings (validator, kind, about, words, found_at) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT (validator, kind, about) DO NOTHING",
            )
            .bind(validator.to_string())
            .bind(finding.kind.name())
            .bind(finding.about.clone())
            .bind(finding.words.clone())
            .bind(now.micros())
            .execute(&self.pool)
            .await
            .during(OPERATION)?;
            if inserted.rows_affected() > 0 {
                new.push(finding);
            }
        }
        if !new.is_empty() {
            sqlx::query(
                "DELETE FROM audit_findings WHERE validator = $1 AND found_at < (SELECT MIN(n.found_at) FROM \
                 (SELECT found_at FROM audit_findings WHERE validator = $1 ORDER BY found_at DESC LIMIT $2) AS n)",
            )
            .bind(validator.to_string())
            .bind(MAX_FINDINGS)
            .execute(&self.pool)
            .await
            .during(OPERATION)?;
        }
        Ok(new)
    }

    /// The newest findings, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn findings(&self) -> Result<Vec<ListedFinding>> {
        let rows = sqlx::query("SELECT * FROM audit_findings ORDER BY found_at DESC, kind, about LIMIT $1")
            .bind(MAX_LISTED)
            .fetch_all(&self.pool)
            .await
            .during("list findings")?;
        rows.iter()
            .map(|row| {
                Ok(ListedFinding {
                    validator: parse_column(row, "validator")?,
                    kind: read_column(row, "kind")?,
                    about: read_column(row, "about")?,
                    words: read_column(row, "words")?,
                    found_at: time_column(row, "found_at")?,
                })
            })
            .collect()
    }
}
