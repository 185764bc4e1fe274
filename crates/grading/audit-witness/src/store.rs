//! The tables of validators' spot checks. They are the miner's; the migrations lie with it.

use std::time::Duration;

use muster_protocol::wire::audits::{AppealAnswer, HeaderNotice, LeafOutcome, SessionProofs, VerdictNotice};
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_response_proof::SessionId;
use muster_store::{During as _, StoreError, begin};
use serde::Serialize;
use sqlx::any::AnyRow;
use sqlx::{Any, AnyPool, Decode, Row as _, Type};
use uuid::Uuid;

use crate::evidence::ReadBundle;
use crate::finding::{Finding, FindingKind};
use crate::header_check::{CheckedHeader, CheckedLeaf, KnownHeader};
use crate::omissions::UnlistedAnswer;
use crate::outcome_check::KnownLeaf;

/// Findings that are kept of one validator, the newest ones.
const MAX_FINDINGS: i64 = 1_000;
/// Leaves that are kept of one validator; beyond them no headers are taken.
const MAX_LEAVES: i64 = 1_000_000;
/// Verdicts that are kept of one validator, the newest ones.
const MAX_VERDICTS: i64 = 64;
/// Bundles that are kept of one validator, the newest ones.
const MAX_BODIES: i64 = 8;
/// Rows of a list.
const MAX_LISTED: i64 = 200;
/// How long headers, leaves and the proofs of sessions are kept.
pub const KEPT: Duration = Duration::from_secs(10 * 86_400);

type Result<T> = std::result::Result<T, StoreError>;

/// The tables. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct WitnessStore {
    pool: AnyPool,
}

/// A verdict as the miner keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ToldVerdict {
    /// The validator that says so.
    pub validator: ValidatorKey,
    /// The digest of the bundle.
    pub bundle: Digest,
    /// The verdict by its name.
    pub verdict: String,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The factor of quality that the validator scores with, in thousandths.
    pub quality_per_mille: u64,
    /// Since when the verdict counts.
    pub since: Timestamp,
    /// Whether the bundle is kept here.
    pub has_bundle: bool,
    /// `agrees`, `other_verdict`, `proves_nothing`, or `not_fetched`.
    pub opinion: String,
    /// The opinion in words.
    pub words: String,
    /// The chain and the subnet of the bundle, if it could be replayed.
    #[serde(skip)]
    pub subnet: Option<(Digest, u16)>,
    /// When this miner appealed.
    pub appealed_at: Option<Timestamp>,
    /// The validator's answer to the appeal.
    pub answer: Option<String>,
}

/// A finding as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedFinding {
    /// The validator that it is about.
    pub validator: ValidatorKey,
    /// The kind by its name.
    pub kind: String,
    /// The bucket, answer or bundle that it is about.
    pub about: String,
    /// The finding in words.
    pub words: String,
    /// When it was found.
    pub found_at: Timestamp,
}

/// The numbers of one validator's log, as this miner has seen it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogCount {
    /// The validator that keeps the log.
    pub validator: ValidatorKey,
    /// Headers with answers of this miner.
    pub headers: u64,
    /// Headers whose draw was revealed.
    pub revealed: u64,
    /// The newest bucket.
    pub newest: u64,
    /// This miner's answers in them.
    pub answers: u64,
    /// Answers of them that have an outcome.
    pub audited: u64,
}

impl WitnessStore {
    /// The tables of an open store whose migrations have run.
    pub fn new(pool: AnyPool) -> Self {
        Self { pool }
    }

    /// Keeps the proofs that an executor tells of its session. Those that are known already stay.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_proofs(&self, told: &SessionProofs) -> Result<()> {
        const OPERATION: &str = "keep the proofs of a session";
        let mut tx = begin(&self.pool).await?;
        for (place, proof) in told.proofs.iter().enumerate() {
            let sequence = told
                .first
                .saturating_add(u64::try_from(place).unwrap_or(u64::MAX));
            sqlx::query(
                "INSERT INTO session_proofs (session, sequence, validator, digest, is_answer, ended_at) \
                 VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (session, sequence) DO NOTHING",
            )
            .bind(told.session.clone())
            .bind(to_signed(sequence))
            .bind(told.validator.to_string())
            .bind(proof.digest.to_string())
            .bind(i64::from(proof.is_answer))
            .bind(proof.at.micros())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        tx.commit().await.during(OPERATION)
    }

    /// The validator's newest header.
    ///
    /// # Errors
    /// The database fails.
    pub async fn last_header(&self, validator: ValidatorKey) -> Result<Option<KnownHeader>> {
        let row = sqlx::query(
            "SELECT bucket, digest FROM audit_headers WHERE validator = $1 ORDER BY bucket DESC LIMIT 1",
        )
        .bind(validator.to_string())
        .fetch_optional(&self.pool)
        .await
        .during("read the newest header")?;
        row.as_ref().map(known_header).transpose()
    }

    /// The validator's header of a bucket: what names it, and its text.
    ///
    /// # Errors
    /// The database fails.
    pub async fn header(
        &self,
        validator: ValidatorKey,
        bucket: u64,
    ) -> Result<Option<(KnownHeader, String)>> {
        let row = sqlx::query(
            "SELECT bucket, digest, header FROM audit_headers WHERE validator = $1 AND bucket = $2",
        )
        .bind(validator.to_string())
        .bind(to_signed(bucket))
        .fetch_optional(&self.pool)
        .await
        .during("read a header")?;
        row.as_ref()
            .map(|row| Ok((known_header(row)?, column(row, "header")?)))
            .transpose()
    }

    /// Whether so many leaves of a validator are kept that no more are taken.
    ///
    /// # Errors
    /// The database fails.
    pub async fn is_full(&self, validator: ValidatorKey) -> Result<bool> {
        let row = sqlx::query("SELECT COUNT(*) AS many FROM audit_leaves WHERE validator = $1")
            .bind(validator.to_string())
            .fetch_one(&self.pool)
            .await
            .during("count leaves")?;
        Ok(column::<i64>(&row, "many")? >= MAX_LEAVES)
    }

    /// The digest of the proof that an executor told for this number, and another place of the log that has the number
    /// already.
    ///
    /// # Errors
    /// The database fails.
    pub async fn known_of(
        &self,
        validator: ValidatorKey,
        leaf: &CheckedLeaf,
    ) -> Result<(Option<Digest>, Option<(u64, u64)>)> {
        let own = sqlx::query("SELECT digest FROM session_proofs WHERE session = $1 AND sequence = $2")
            .bind(leaf.session.to_string())
            .bind(to_signed(leaf.sequence))
            .fetch_optional(&self.pool)
            .await
            .during("look for a proof")?;
        let at = sqlx::query(
            "SELECT bucket, position FROM audit_leaves WHERE session = $1 AND sequence = $2 AND validator = $3 \
             ORDER BY bucket, position LIMIT 1",
        )
        .bind(leaf.session.to_string())
        .bind(to_signed(leaf.sequence))
        .bind(validator.to_string())
        .fetch_optional(&self.pool)
        .await
        .during("look for a leaf")?;
        let own = own.as_ref().map(|row| parse(row, "digest")).transpose()?;
        let at = at
            .as_ref()
            .map(|row| Ok::<_, StoreError>((unsigned(row, "bucket")?, unsigned(row, "position")?)))
            .transpose()?;
        Ok((own, at))
    }

    /// Stores a checked header with its leaves. An answer that was missing before is missing no more.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_header(
        &self,
        validator: ValidatorKey,
        notice: &HeaderNotice,
        checked: &CheckedHeader,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "store a header";
        let bucket = to_signed(checked.header.bucket.0);
        let mut tx = begin(&self.pool).await?;
        sqlx::query(
            "INSERT INTO audit_headers (validator, bucket, header, digest, own, received_at) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (validator, bucket) DO NOTHING",
        )
        .bind(validator.to_string())
        .bind(bucket)
        .bind(notice.header.clone())
        .bind(checked.digest.to_string())
        .bind(to_signed(notice.own))
        .bind(now.micros())
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        for leaf in &checked.leaves {
            sqlx::query(
                "INSERT INTO audit_leaves (validator, bucket, position, session, sequence, proof, model) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (validator, bucket, position) DO NOTHING",
            )
            .bind(validator.to_string())
            .bind(bucket)
            .bind(to_signed(leaf.position))
            .bind(leaf.session.to_string())
            .bind(to_signed(leaf.sequence))
            .bind(leaf.proof.to_string())
            .bind(leaf.model.clone())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
            sqlx::query("DELETE FROM audit_findings WHERE validator = $1 AND kind = $2 AND about = $3")
                .bind(validator.to_string())
                .bind(FindingKind::Withheld.name())
                .bind(crate::finding::about_answer(leaf.session, leaf.sequence))
                .execute(&mut *tx)
                .await
                .during(OPERATION)?;
        }
        tx.commit().await.during(OPERATION)
    }

    /// The answers for a validator that stand in no header of it, the oldest first, at most 1,000.
    ///
    /// # Errors
    /// The database fails.
    pub async fn unlisted(&self, validator: ValidatorKey, since: Timestamp) -> Result<Vec<UnlistedAnswer>> {
        let rows = sqlx::query(
            "SELECT p.session, p.sequence, p.ended_at, (SELECT MIN(l.bucket) FROM audit_leaves l \
             WHERE l.session = p.session AND l.sequence > p.sequence AND l.validator = p.validator) AS later \
             FROM session_proofs p WHERE p.validator = $1 AND p.is_answer = 1 AND p.ended_at >= $2 \
             AND NOT EXISTS (SELECT 1 FROM audit_leaves o WHERE o.session = p.session AND o.sequence = p.sequence \
             AND o.validator = p.validator) ORDER BY p.ended_at, p.session, p.sequence LIMIT 1000",
        )
        .bind(validator.to_string())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("look for answers without a place")?;
        rows.iter()
            .map(|row| {
                let later: Option<i64> = column(row, "later")?;
                Ok(UnlistedAnswer {
                    session: session(row)?,
                    sequence: unsigned(row, "sequence")?,
                    ended_at: time(row, "ended_at")?,
                    later_in: later.and_then(|bucket| u64::try_from(bucket).ok()),
                })
            })
            .collect()
    }

    /// The miner's answers in a bucket.
    ///
    /// # Errors
    /// The database fails.
    pub async fn leaves(&self, validator: ValidatorKey, bucket: u64) -> Result<Vec<KnownLeaf>> {
        let rows = sqlx::query(
            "SELECT session, sequence, proof, model, position FROM audit_leaves \
             WHERE validator = $1 AND bucket = $2 ORDER BY position",
        )
        .bind(validator.to_string())
        .bind(to_signed(bucket))
        .fetch_all(&self.pool)
        .await
        .during("read the leaves of a bucket")?;
        rows.iter()
            .map(|row| {
                Ok(KnownLeaf {
                    session: session(row)?,
                    sequence: unsigned(row, "sequence")?,
                    proof: parse(row, "proof")?,
                    model: column(row, "model")?,
                    position: unsigned(row, "position")?,
                })
            })
            .collect()
    }

    /// Stores the outcomes of a bucket's drawn answers.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_outcomes(
        &self,
        validator: ValidatorKey,
        bucket: u64,
        outcomes: impl IntoIterator<Item = (u64, LeafOutcome)>,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "store outcomes";
        let mut tx = begin(&self.pool).await?;
        sqlx::query("UPDATE audit_headers SET revealed_at = $1 WHERE validator = $2 AND bucket = $3")
            .bind(now.micros())
            .bind(validator.to_string())
            .bind(to_signed(bucket))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        sqlx::query("DELETE FROM audit_findings WHERE validator = $1 AND kind = $2 AND about = $3")
            .bind(validator.to_string())
            .bind(FindingKind::NoReveal.name())
            .bind(crate::finding::about_bucket(bucket))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        for (position, outcome) in outcomes {
            let text = serde_json::to_string(&outcome)
                .map_err(|error| StoreError::corrupt("outcome", error.to_string()))?;
            sqlx::query(
                "UPDATE audit_leaves SET outcome = $1 WHERE validator = $2 AND bucket = $3 AND position = $4",
            )
            .bind(text)
            .bind(validator.to_string())
            .bind(to_signed(bucket))
            .bind(to_signed(position))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        tx.commit().await.during(OPERATION)
    }

    /// The validator's buckets that came before a time and whose draw was not revealed.
    ///
    /// # Errors
    /// The database fails.
    pub async fn unrevealed(&self, validator: ValidatorKey, before: Timestamp) -> Result<Vec<u64>> {
        let rows = sqlx::query(
            "SELECT bucket FROM audit_headers WHERE validator = $1 AND revealed_at IS NULL AND received_at < $2 \
             ORDER BY bucket LIMIT 1000",
        )
        .bind(validator.to_string())
        .bind(before.micros())
        .fetch_all(&self.pool)
        .await
        .during("look for draws that were not revealed")?;
        rows.iter().map(|row| unsigned(row, "bucket")).collect()
    }

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

    /// Stores a verdict with the miner's own opinion. The oldest verdicts and bundles go beyond a bound.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_verdict(
        &self,
        validator: ValidatorKey,
        notice: &VerdictNotice,
        read: &ReadBundle,
        body: Option<String>,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "store a verdict about this miner";
        let mut tx = begin(&self.pool).await?;
        sqlx::query(
            "INSERT INTO audit_verdicts (validator, bundle, verdict, model, quality, since, told_at, body, opinion, \
             words, genesis, netuid) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
             ON CONFLICT (validator, bundle) DO UPDATE SET since = excluded.since, told_at = excluded.told_at",
        )
        .bind(validator.to_string())
        .bind(notice.bundle.to_string())
        .bind(notice.verdict.clone())
        .bind(notice.model.clone())
        .bind(i64::from(notice.quality_per_mille))
        .bind(notice.since.micros())
        .bind(now.micros())
        .bind(body)
        .bind(read.opinion.name())
        .bind(read.opinion.words())
        .bind(read.subnet.map(|(genesis, _)| genesis.to_string()))
        .bind(read.subnet.map(|(_, netuid)| i64::from(netuid)))
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        sqlx::query(
            "UPDATE audit_verdicts SET body = NULL WHERE validator = $1 AND body IS NOT NULL AND bundle NOT IN \
             (SELECT n.bundle FROM (SELECT bundle FROM audit_verdicts WHERE validator = $1 AND body IS NOT NULL \
             ORDER BY told_at DESC, bundle LIMIT $2) AS n)",
        )
        .bind(validator.to_string())
        .bind(MAX_BODIES)
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        sqlx::query(
            "DELETE FROM audit_verdicts WHERE validator = $1 AND bundle NOT IN (SELECT n.bundle FROM \
             (SELECT bundle FROM audit_verdicts WHERE validator = $1 ORDER BY told_at DESC, bundle LIMIT $2) AS n)",
        )
        .bind(validator.to_string())
        .bind(MAX_VERDICTS)
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        tx.commit().await.during(OPERATION)
    }

    /// The verdicts about this miner, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn verdicts(&self) -> Result<Vec<ToldVerdict>> {
        let rows = sqlx::query(
            "SELECT validator, bundle, verdict, model, quality, since, opinion, words, genesis, netuid, appealed_at, \
             answer, CAST(CASE WHEN body IS NULL THEN 0 ELSE 1 END AS BIGINT) AS has_bundle \
             FROM audit_verdicts ORDER BY since DESC, bundle LIMIT $1",
        )
        .bind(MAX_LISTED)
        .fetch_all(&self.pool)
        .await
        .during("list the verdicts about this miner")?;
        rows.iter().map(verdict_from).collect()
    }

    /// The text of a bundle; `None` if it is not kept.
    ///
    /// # Errors
    /// The database fails.
    pub async fn bundle(&self, bundle: Digest) -> Result<Option<String>> {
        let row =
            sqlx::query("SELECT body FROM audit_verdicts WHERE bundle = $1 AND body IS NOT NULL LIMIT 1")
                .bind(bundle.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("read a bundle")?;
        row.as_ref().map(|row| column(row, "body")).transpose()
    }

    /// Stores an appeal. It is sent once its validator connects, and again until the validator has answered. Returns
    /// whether there is such a verdict.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_appeal(
        &self,
        validator: ValidatorKey,
        bundle: Digest,
        appeal: &str,
        now: Timestamp,
    ) -> Result<bool> {
        let done = sqlx::query(
            "UPDATE audit_verdicts SET appeal = $1, appealed_at = $2, answer = NULL, answer_open = NULL \
             WHERE validator = $3 AND bundle = $4",
        )
        .bind(appeal.to_owned())
        .bind(now.micros())
        .bind(validator.to_string())
        .bind(bundle.to_string())
        .execute(&self.pool)
        .await
        .during("store an appeal")?;
        Ok(done.rows_affected() > 0)
    }

    /// The appeals that a validator has not answered.
    ///
    /// # Errors
    /// The database fails.
    pub async fn unanswered_appeals(&self, validator: ValidatorKey) -> Result<Vec<String>> {
        let rows = sqlx::query(
            "SELECT appeal FROM audit_verdicts WHERE validator = $1 AND appeal IS NOT NULL AND answer IS NULL \
             ORDER BY appealed_at LIMIT 16",
        )
        .bind(validator.to_string())
        .fetch_all(&self.pool)
        .await
        .during("list appeals")?;
        rows.iter().map(|row| column(row, "appeal")).collect()
    }

    /// Stores the answer to an appeal.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_appeal_answer(&self, validator: ValidatorKey, answer: &AppealAnswer) -> Result<()> {
        let words: String = answer.words.chars().take(500).collect();
        sqlx::query(
            "UPDATE audit_verdicts SET answer = $1, answer_open = $2 \
             WHERE validator = $3 AND bundle = $4 AND appeal IS NOT NULL",
        )
        .bind(words)
        .bind(i64::from(answer.is_open))
        .bind(validator.to_string())
        .bind(answer.bundle.to_string())
        .execute(&self.pool)
        .await
        .during("store the answer to an appeal")?;
        Ok(())
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
                    validator: parse(row, "validator")?,
                    kind: column(row, "kind")?,
                    about: column(row, "about")?,
                    words: column(row, "words")?,
                    found_at: time(row, "found_at")?,
                })
            })
            .collect()
    }

    /// The numbers of each validator's log.
    ///
    /// # Errors
    /// The database fails.
    pub async fn log_counts(&self) -> Result<Vec<LogCount>> {
        let rows = sqlx::query(
            "SELECT h.validator, COUNT(*) AS headers, COUNT(h.revealed_at) AS revealed, MAX(h.bucket) AS newest, \
             (SELECT COUNT(*) FROM audit_leaves l WHERE l.validator = h.validator) AS answers, \
             (SELECT COUNT(l.outcome) FROM audit_leaves l WHERE l.validator = h.validator) AS audited \
             FROM audit_headers h GROUP BY h.validator ORDER BY h.validator",
        )
        .fetch_all(&self.pool)
        .await
        .during("count headers")?;
        rows.iter()
            .map(|row| {
                Ok(LogCount {
                    validator: parse(row, "validator")?,
                    headers: unsigned(row, "headers")?,
                    revealed: unsigned(row, "revealed")?,
                    newest: unsigned(row, "newest")?,
                    answers: unsigned(row, "answers")?,
                    audited: unsigned(row, "audited")?,
                })
            })
            .collect()
    }
}

fn verdict_from(row: &AnyRow) -> Result<ToldVerdict> {
    let genesis: Option<String> = column(row, "genesis")?;
    let netuid: Option<i64> = column(row, "netuid")?;
    let genesis = genesis.and_then(|genesis| genesis.parse().ok());
    let netuid = netuid.and_then(|netuid| u16::try_from(netuid).ok());
    Ok(ToldVerdict {
        validator: parse(row, "validator")?,
        bundle: parse(row, "bundle")?,
        verdict: column(row, "verdict")?,
        model: column(row, "model")?,
        quality_per_mille: unsigned(row, "quality")?,
        since: time(row, "since")?,
        has_bundle: unsigned(row, "has_bundle")? == 1,
        opinion: column(row, "opinion")?,
        words: column(row, "words")?,
        subnet: genesis.zip(netuid),
        appealed_at: column::<Option<i64>>(row, "appealed_at")?.map(Timestamp::from_micros),
        answer: column(row, "answer")?,
    })
}

fn known_header(row: &AnyRow) -> Result<KnownHeader> {
    Ok(KnownHeader {
        bucket: unsigned(row, "bucket")?,
        digest: parse(row, "digest")?,
    })
}

fn session(row: &AnyRow) -> Result<SessionId> {
    parse::<Uuid>(row, "session").map(SessionId)
}

fn time(row: &AnyRow, name: &'static str) -> Result<Timestamp> {
    column(row, name).map(Timestamp::from_micros)
}

fn column<'r, T: Decode<'r, Any> + Type<Any>>(row: &'r AnyRow, name: &'static str) -> Result<T> {
    row.try_get(name)
        .map_err(|error| StoreError::corrupt(name, error.to_string()))
}

fn parse<T>(row: &AnyRow, name: &'static str) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: String = column(row, name)?;
    text.parse()
        .map_err(|error: T::Err| StoreError::corrupt(name, error.to_string()))
}

fn unsigned(row: &AnyRow, name: &'static str) -> Result<u64> {
    let number: i64 = column(row, name)?;
    Ok(u64::try_from(number).unwrap_or(0))
}

fn to_signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
