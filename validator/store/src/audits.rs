//! The verdicts about miners' streamed answers that count in this validator's scores, or did.

use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp, ValidatorKey};
use muster_store::columns::{
    json_column, parse_column, read_column, time_column, time_column_option, to_signed, to_unsigned,
};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{Draft, Result, Store, corrupt, query_error, text_of};

/// How a verdict came to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditOrigin {
    /// This validator audited the answers.
    Own,
    /// The operator adopted the bundle.
    Operator,
    /// The scores of this validator's own reference convict by another validator's bundle.
    Rescored,
    /// Two further validators signed that theirs do.
    Endorsed,
    /// Its author took back its own accusation, which counted by others' statements.
    Withdrawn,
    /// It was adopted by a release that did not note how.
    Earlier,
}

impl AuditOrigin {
    const ALL: [Self; 6] = [
        Self::Own,
        Self::Operator,
        Self::Rescored,
        Self::Endorsed,
        Self::Withdrawn,
        Self::Earlier,
    ];

    /// The name in the database and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Operator => "operator",
            Self::Rescored => "rescored",
            Self::Endorsed => "endorsed",
            Self::Withdrawn => "withdrawn",
            Self::Earlier => "earlier",
        }
    }
}

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
    /// When it was adopted.
    pub adopted_at: Timestamp,
    /// How it came to count.
    pub origin: AuditOrigin,
    /// The validator that made the bundle; `None` for [`AuditOrigin::Earlier`].
    pub author: Option<ValidatorKey>,
    /// The last bucket whose answers are judged.
    pub through_bucket: u64,
    /// The bucket of the newest answer that a conviction rests on.
    pub newest_answer: u64,
    /// The answers that references scored.
    pub scored: u64,
}

impl AdoptedAudit {
    /// Keeps the newest answer of an earlier conviction that counts, if this verdict takes its place as a conviction:
    /// to judge answers again makes no conviction older.
    pub fn keep_newest(&mut self, earlier: &Self) {
        let subject = |audit: &Self| {
            (
                audit.author,
                audit.coldkey,
                audit.model.clone(),
                audit.verdict.clone(),
            )
        };
        if subject(self) == subject(earlier) {
            self.newest_answer = self.newest_answer.max(earlier.newest_answer);
        }
    }
}

/// A conviction that counts, with what is known about its support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingConviction {
    /// The verdict that convicts.
    pub audit: AdoptedAudit,
    /// The block since which too few of those whose word it rests on have had a permit; `None` if enough have.
    pub unsupported_since: Option<u64>,
    /// When this validator asked the coldkey for fresh answers last because of this conviction or an earlier one.
    pub asked_at: Option<Timestamp>,
}

/// A conviction that has ended, with what is known about the coldkey since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndedConviction {
    /// The verdict that convicted.
    #[serde(flatten)]
    pub audit: AdoptedAudit,
    /// When it stopped to count.
    pub ended_at: Timestamp,
    /// Why it did, as text.
    pub reason: String,
    /// The most answers that references scored for a `consistent` verdict of this validator since then.
    pub consistent_since: u64,
}

/// SQL: the columns of verdict `a` that make an [`AdoptedAudit`].
macro_rules! audit_columns {
    () => {
        "a.digest, a.coldkey, a.miners, a.model, a.verdict, a.quality, a.adopted_at, a.origin, a.author, \
         a.through_bucket, a.newest_answer, a.scored"
    };
}

/// SQL: whether verdict `a` was set aside when it was stored, so that it never counted. Only convictions end later.
macro_rules! is_set_aside {
    () => {
        "(a.ended_at IS NOT NULL AND a.verdict <> 'convicted')"
    };
}
pub(crate) use is_set_aside;

/// SQL: whether verdict `b` takes the place of the earlier verdict `a` about the same coldkey and model. Only
/// `consistent` lifts a conviction: a later verdict of its author that says less leaves it as it is, and so does one
/// that was set aside. A verdict of an unknown author goes with the next one of anybody that counts, and the operator's
/// order goes before all.
macro_rules! takes_the_place {
    () => {
        "(b.origin = 'operator' OR ((b.author = a.author OR a.author = '') \
         AND (b.ended_at IS NULL OR b.verdict = 'convicted') \
         AND (b.verdict IN ('consistent', 'convicted') OR (b.verdict = 'suspect' AND a.verdict <> 'convicted'))))"
    };
}
pub(crate) use takes_the_place;

/// SQL: whether verdict `a` says anything about its coldkey. Verdicts that are unproven or weak are kept as a record of
/// the audit, and never count.
macro_rules! says_something {
    () => {
        "a.verdict IN ('consistent', 'suspect', 'convicted')"
    };
}
pub(crate) use says_something;

impl Draft<'_> {
    /// Adds a verdict with its bundle. One that is there already becomes the newest.
    pub(super) fn add_audit(&mut self, audit: &AdoptedAudit, bundle: &str) {
        let author = audit.author.map(|author| author.to_string());
        self.script.add(
            "INSERT INTO audit_verdicts (genesis, digest, coldkey, miners, model, verdict, quality, body, \
             adopted_at, origin, author, through_bucket, newest_answer, scored) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) ON CONFLICT (genesis, digest) \
             DO UPDATE SET adopted_at = excluded.adopted_at, origin = excluded.origin, ended_at = NULL, \
             ended_reason = NULL, settled_at = NULL, unsupported_since = NULL",
            [
                self.chain.genesis.clone().into(),
                audit.digest.to_string().into(),
                audit.coldkey.to_string().into(),
                text_of(&audit.miners).into(),
                audit.model.clone().into(),
                audit.verdict.clone().into(),
                i64::from(audit.quality_per_mille).into(),
                bundle.to_owned().into(),
                audit.adopted_at.micros().into(),
                audit.origin.name().into(),
                author.unwrap_or_default().into(),
                to_signed(audit.through_bucket).into(),
                to_signed(audit.newest_answer).into(),
                to_signed(audit.scored).into(),
            ],
        );
    }

    fn end_audit(&mut self, digest: Digest, reason: &str, now: Timestamp) {
        self.script.add(
            "UPDATE audit_verdicts SET ended_at = $1, ended_reason = $2 WHERE genesis = $3 AND digest = $4",
            [
                now.micros().into(),
                reason.to_owned().into(),
                self.chain.genesis.clone().into(),
                digest.to_string().into(),
            ],
        );
    }
}

impl Store {
    /// Stores a verdict with its bundle. One that is there already is adopted anew: it becomes the newest.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_audit(&self, audit: &AdoptedAudit, bundle: &str) -> Result<()> {
        self.write("write an adopted verdict", |draft| draft.add_audit(audit, bundle))
            .await
    }

    /// Stores a verdict as a record that counts for nothing, for this reason.
    ///
    /// # Errors
    /// The database fails.
    pub async fn set_audit_aside(&self, audit: &AdoptedAudit, bundle: &str, reason: &str) -> Result<()> {
        self.write("write a verdict that does not count", |draft| {
            draft.add_audit(audit, bundle);
            draft.end_audit(audit.digest, reason, audit.adopted_at);
        })
        .await
    }

    /// The newest verdicts on this chain that count or did, newest first, at most `limit`: without those that were set
    /// aside.
    ///
    /// # Errors
    /// The database fails.
    pub async fn audits(&self, limit: u32) -> Result<Vec<AdoptedAudit>> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            audit_columns!(),
            " FROM audit_verdicts AS a WHERE a.genesis = $1 AND NOT ",
            is_set_aside!(),
            " ORDER BY a.adopted_at DESC, a.digest LIMIT $2",
        ))
        .bind(self.chain().genesis)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list adopted verdicts"))?;
        rows.iter().map(audit_from).collect()
    }

    /// The verdict of this validator about a coldkey and a model that was stored at `since` or later, whether or not it
    /// counts.
    ///
    /// # Errors
    /// The database fails.
    pub async fn own_audit_since(
        &self,
        coldkey: &Hotkey,
        model: &str,
        since: Timestamp,
    ) -> Result<Option<AdoptedAudit>> {
        let row = sqlx::query(concat!(
            "SELECT ",
            audit_columns!(),
            " FROM audit_verdicts AS a WHERE a.genesis = $1 AND a.origin = 'own' AND a.coldkey = $2 AND a.model = $3 \
             AND a.adopted_at >= $4 ORDER BY a.adopted_at DESC, a.digest LIMIT 1",
        ))
        .bind(self.chain().genesis)
        .bind(coldkey.to_string())
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error("look for the verdict of an audit"))?;
        row.as_ref().map(audit_from).transpose()
    }

    /// The verdicts that count on this chain: of each author the newest about a coldkey and a model that proves
    /// anything, unless the operator adopted another one later. A conviction counts until it is lifted or ends: see
    /// [`Self::end_conviction`]. A verdict of an unknown author counts until there is a newer one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn counting_audits(&self) -> Result<Vec<AdoptedAudit>> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            audit_columns!(),
            " FROM audit_verdicts AS a WHERE a.genesis = $1 AND a.ended_at IS NULL AND ",
            says_something!(),
            " AND NOT EXISTS (SELECT 1 FROM audit_verdicts AS b \
             WHERE b.genesis = a.genesis AND b.coldkey = a.coldkey AND b.model = a.model AND ",
            takes_the_place!(),
            " AND (b.adopted_at > a.adopted_at OR (b.adopted_at = a.adopted_at AND b.digest > a.digest))) \
             ORDER BY a.coldkey, a.model, a.author",
        ))
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the verdicts that count"))?;
        rows.iter().map(audit_from).collect()
    }

    /// The convictions that count on this chain.
    ///
    /// # Errors
    /// The database fails.
    pub async fn standing_convictions(&self) -> Result<Vec<StandingConviction>> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            audit_columns!(),
            ", a.unsupported_since, (SELECT MAX(n.asked_at) FROM audit_verdicts AS n WHERE n.genesis = a.genesis \
             AND n.coldkey = a.coldkey AND n.model = a.model) AS asked_at FROM audit_verdicts AS a \
             WHERE a.genesis = $1 AND a.ended_at IS NULL AND a.verdict = 'convicted' AND NOT EXISTS \
             (SELECT 1 FROM audit_verdicts AS b \
             WHERE b.genesis = a.genesis AND b.coldkey = a.coldkey AND b.model = a.model AND ",
            takes_the_place!(),
            " AND (b.adopted_at > a.adopted_at OR (b.adopted_at = a.adopted_at AND b.digest > a.digest))) \
             ORDER BY a.coldkey, a.model, a.author",
        ))
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the convictions that count"))?;
        let read = |row: &AnyRow| {
            let since: Option<i64> = read_column(row, "unsupported_since")?;
            Ok(StandingConviction {
                audit: audit_from(row)?,
                unsupported_since: since.map(to_unsigned),
                asked_at: time_column_option(row, "asked_at")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Notes since which block too few of those whose word a conviction rests on have a permit.
    ///
    /// # Errors
    /// The database fails.
    pub async fn note_support(&self, digest: Digest, unsupported_since: Option<u64>) -> Result<()> {
        self.write("note who supports a conviction", |draft| {
            draft.script.add(
                "UPDATE audit_verdicts SET unsupported_since = $1 WHERE genesis = $2 AND digest = $3",
                [
                    unsupported_since.map(to_signed).into(),
                    draft.chain.genesis.clone().into(),
                    digest.to_string().into(),
                ],
            );
        })
        .await
    }

    /// Lets a conviction count no longer, for this reason. The same bundle counts again only if it is adopted anew.
    ///
    /// # Errors
    /// The database fails.
    pub async fn end_conviction(&self, digest: Digest, reason: &str, now: Timestamp) -> Result<()> {
        self.write("end a conviction", |draft| draft.end_audit(digest, reason, now))
            .await
    }

    /// Notes that this validator asks a convict for fresh answers.
    ///
    /// # Errors
    /// The database fails.
    pub async fn note_asked(&self, coldkey: &Hotkey, model: &str, now: Timestamp) -> Result<()> {
        self.write("note that a convict is asked", |draft| {
            draft.script.add(
                "UPDATE audit_verdicts SET asked_at = $1 WHERE genesis = $2 AND coldkey = $3 AND model = $4 \
                 AND verdict = 'convicted'",
                [
                    now.micros().into(),
                    draft.chain.genesis.clone().into(),
                    coldkey.to_string().into(),
                    model.to_owned().into(),
                ],
            );
        })
        .await
    }

    /// The convictions on this chain that have ended and are not settled: see [`Self::settle_conviction`].
    ///
    /// # Errors
    /// The database fails.
    pub async fn ended_convictions(&self) -> Result<Vec<EndedConviction>> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            audit_columns!(),
            ", a.ended_at, a.ended_reason, CAST(COALESCE((SELECT MAX(b.scored) FROM audit_verdicts AS b \
             WHERE b.genesis = a.genesis AND b.coldkey = a.coldkey AND b.model = a.model AND b.origin = 'own' \
             AND b.verdict = 'consistent' AND b.ended_at IS NULL AND b.adopted_at > a.ended_at), 0) AS BIGINT) AS consistent_since \
             FROM audit_verdicts AS a WHERE a.genesis = $1 AND a.verdict = 'convicted' AND a.ended_at IS NOT NULL \
             AND a.settled_at IS NULL ORDER BY a.coldkey, a.model, a.digest",
        ))
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list the convictions that have ended"))?;
        let read = |row: &AnyRow| {
            let reason: Option<String> = read_column(row, "ended_reason")?;
            Ok(EndedConviction {
                audit: audit_from(row)?,
                ended_at: time_column(row, "ended_at")?,
                reason: reason.unwrap_or_default(),
                consistent_since: to_unsigned(read_column(row, "consistent_since")?),
            })
        };
        rows.iter().map(read).collect()
    }

    /// Notes that nothing more follows from a conviction that has ended.
    ///
    /// # Errors
    /// The database fails.
    pub async fn settle_conviction(&self, digest: Digest, now: Timestamp) -> Result<()> {
        self.write("settle a conviction that has ended", |draft| {
            draft.script.add(
                "UPDATE audit_verdicts SET settled_at = $1 WHERE genesis = $2 AND digest = $3",
                [
                    now.micros().into(),
                    draft.chain.genesis.clone().into(),
                    digest.to_string().into(),
                ],
            );
        })
        .await
    }

    /// The newest verdict that a validator made about each coldkey and model and that counts, with the length of its
    /// bundle in bytes, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn shown_audits(&self, author: ValidatorKey, limit: u32) -> Result<Vec<(AdoptedAudit, u64)>> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            audit_columns!(),
            ", CAST(LENGTH(a.body) AS BIGINT) AS length FROM audit_verdicts AS a WHERE a.genesis = $1 AND a.author = $2 AND a.ended_at IS NULL AND ",
            says_something!(),
            " AND NOT EXISTS (SELECT 1 FROM audit_verdicts AS b \
             WHERE b.genesis = a.genesis AND b.author = a.author AND b.coldkey = a.coldkey AND b.model = a.model AND ",
            takes_the_place!(),
            " AND (b.through_bucket > a.through_bucket OR (b.through_bucket = a.through_bucket \
             AND (b.adopted_at > a.adopted_at OR (b.adopted_at = a.adopted_at AND b.digest > a.digest))))) \
             ORDER BY a.adopted_at DESC, a.digest LIMIT $3",
        ))
        .bind(self.chain().genesis)
        .bind(author.to_string())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list the verdicts of a validator"))?;
        let read = |row: &AnyRow| Ok((audit_from(row)?, to_unsigned(read_column(row, "length")?)));
        rows.iter().map(read).collect()
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
        row.map(|row| read_column(&row, "body")).transpose()
    }
}

fn audit_from(row: &AnyRow) -> Result<AdoptedAudit> {
    let (origin, author): (String, String) = (read_column(row, "origin")?, read_column(row, "author")?);
    let origin = AuditOrigin::ALL.into_iter().find(|one| one.name() == origin);
    Ok(AdoptedAudit {
        digest: parse_column(row, "digest")?,
        coldkey: parse_column(row, "coldkey")?,
        miners: json_column(row, "miners")?,
        model: read_column(row, "model")?,
        verdict: read_column(row, "verdict")?,
        quality_per_mille: u16::try_from(to_unsigned(read_column(row, "quality")?)).unwrap_or(u16::MAX),
        adopted_at: time_column(row, "adopted_at")?,
        origin: origin.ok_or_else(|| corrupt("origin", &"no origin of a verdict"))?,
        author: match author.as_str() {
            "" => None,
            author => Some(author.parse().map_err(|error| corrupt("author", &error))?),
        },
        through_bucket: to_unsigned(read_column(row, "through_bucket")?),
        newest_answer: to_unsigned(read_column(row, "newest_answer")?),
        scored: to_unsigned(read_column(row, "scored")?),
    })
}
