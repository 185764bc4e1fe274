//! The verdicts about miners' streamed answers that the operator has adopted.

use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{
    Result, Store, column, parse_column, parse_json, query_error, text_of, time_column, to_unsigned,
};

/// An adopted verdict about one coldkey and one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdoptedAudit {
    /// The digest of the bundle's text.
    pub digest: Digest,
    /// The coldkey that was judged.
    pub coldkey: Hotkey,
    /// The hotkeys whose answers were judged.
    pub miners: Vec<MinerKey>,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The verdict by its name, such as `convicted`.
    pub verdict: String,
    /// The factor of the miners' quality in scores, in thousandths; 0 takes what is not paid yet, too.
    pub quality_per_mille: u16,
    /// When the operator adopted it.
    pub adopted_at: Timestamp,
}

impl Store {
    /// Stores a verdict with its bundle. One that is there already is adopted anew: it becomes the newest.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_audit(&self, audit: &AdoptedAudit, bundle: &str) -> Result<()> {
        let miners = text_of(&audit.miners);
        self.write("write an adopted verdict", |draft| {
            draft.script.add(
                "INSERT INTO audit_verdicts \
                 (genesis, digest, coldkey, miners, model, verdict, quality, body, adopted_at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
                 ON CONFLICT (genesis, digest) DO UPDATE SET adopted_at = excluded.adopted_at",
                [
                    draft.chain.genesis.clone().into(),
                    audit.digest.to_string().into(),
                    audit.coldkey.to_string().into(),
                    miners.into(),
                    audit.model.clone().into(),
                    audit.verdict.clone().into(),
                    i64::from(audit.quality_per_mille).into(),
                    bundle.to_owned().into(),
                    audit.adopted_at.micros().into(),
                ],
            );
        })
        .await
    }

    /// The newest verdicts on this chain, newest first, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn audits(&self, limit: u32) -> Result<Vec<AdoptedAudit>> {
        let rows = sqlx::query(
            "SELECT digest, coldkey, miners, model, verdict, quality, adopted_at FROM audit_verdicts \
             WHERE genesis = $1 ORDER BY adopted_at DESC, digest LIMIT $2",
        )
        .bind(self.chain().genesis)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list adopted verdicts"))?;
        rows.iter().map(audit_from).collect()
    }

    /// The newest verdict about each coldkey and model on this chain: the ones that count.
    ///
    /// # Errors
    /// The database fails.
    pub async fn counting_audits(&self) -> Result<Vec<AdoptedAudit>> {
        let rows = sqlx::query(
            "SELECT a.digest, a.coldkey, a.miners, a.model, a.verdict, a.quality, a.adopted_at \
             FROM audit_verdicts AS a WHERE a.genesis = $1 AND NOT EXISTS (SELECT 1 FROM audit_verdicts AS b \
             WHERE b.genesis = a.genesis AND b.coldkey = a.coldkey AND b.model = a.model \
             AND (b.adopted_at > a.adopted_at OR (b.adopted_at = a.adopted_at AND b.digest > a.digest))) \
             ORDER BY a.coldkey, a.model",
        )
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the verdicts that count"))?;
        rows.iter().map(audit_from).collect()
    }

    /// The text of an adopted bundle; `None` if none has this digest.
    ///
    /// # Errors
    /// The database fails.
    pub async fn audit_bundle(&self, digest: Digest) -> Result<Option<String>> {
        let row = sqlx::query("SELECT body FROM audit_verdicts WHERE genesis = $1 AND digest = $2")
            .bind(self.chain().genesis)
            .bind(digest.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("read an adopted bundle"))?;
        row.map(|row| column(&row, "body")).transpose()
    }
}

fn audit_from(row: &AnyRow) -> Result<AdoptedAudit> {
    Ok(AdoptedAudit {
        digest: parse_column(row, "digest")?,
        coldkey: parse_column(row, "coldkey")?,
        miners: parse_json(row, "miners")?,
        model: column(row, "model")?,
        verdict: column(row, "verdict")?,
        quality_per_mille: u16::try_from(to_unsigned(column(row, "quality")?)).unwrap_or(u16::MAX),
        adopted_at: time_column(row, "adopted_at")?,
    })
}
