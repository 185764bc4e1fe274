//! The bundles of evidence that other validators show, their statements about them, and those about their own tests.

use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp, ValidatorKey};
use muster_store::columns::{
    json_column, parse_column, read_column, time_column, time_column_option, to_signed, to_unsigned,
};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{AdoptedAudit, Draft, Result, Store, corrupt, query_error, text_of};

/// The state of a bundle that another validator shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OfferState {
    /// It replays, and waits for what its adoption needs.
    Offered,
    /// Its verdict counts.
    Adopted,
    /// It is not adopted, for the reason beside it.
    Refused,
    /// It is not adopted: the own reference scored its answers, and they do not convict.
    Contradicted,
    /// It was not adopted within two cycles.
    NotAdoptedInTime,
    /// It replays, and changes nothing here.
    WithoutEffect,
    /// Its author shows a newer one about the same coldkey and model.
    Superseded,
}

impl OfferState {
    const ALL: [Self; 7] = [
        Self::Offered,
        Self::Adopted,
        Self::Refused,
        Self::Contradicted,
        Self::NotAdoptedInTime,
        Self::WithoutEffect,
        Self::Superseded,
    ];

    /// The name in the database and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Adopted => "adopted",
            Self::Refused => "refused",
            Self::Contradicted => "contradicted",
            Self::NotAdoptedInTime => "not_adopted_in_time",
            Self::WithoutEffect => "without_effect",
            Self::Superseded => "superseded",
        }
    }
}

/// The verdict of a bundle and its subject, once it was replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfferedVerdict {
    /// The coldkey that is judged.
    pub coldkey: Hotkey,
    /// The hotkeys whose answers were judged.
    pub miners: Vec<MinerKey>,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The verdict by its name, such as `convicted`.
    pub verdict: String,
    /// The factor of the miners' quality in scores, in thousandths.
    pub quality_per_mille: u16,
    /// The last bucket whose answers are judged.
    pub through_bucket: u64,
}

/// A bundle that another validator shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditOffer {
    /// The digest of the bundle's text.
    pub digest: Digest,
    /// The validator that shows it.
    pub author: ValidatorKey,
    /// The bundle's verdict; `None` if it does not replay.
    pub says: Option<OfferedVerdict>,
    /// The length of its text in bytes.
    pub bytes: u64,
    /// The state of its adoption.
    pub state: OfferState,
    /// The reason of the state, or what its adoption waits for.
    pub reason: Option<String>,
    /// When it was read.
    pub seen_at: Timestamp,
    /// The newest block at that time.
    pub seen_block: u64,
    /// When its state became final.
    pub decided_at: Option<Timestamp>,
}

/// The bundles of one author as far as they bound what is read of it next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorTally {
    /// The digests that were read before, whatever became of them.
    pub known: Vec<Digest>,
    /// The number of bundles that were read since the given time.
    pub lately: usize,
    /// The bytes of the texts that are stored.
    pub stored_bytes: u64,
}

/// A signed statement about a bundle, in text form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredEndorsement {
    /// The digest of the bundle's text.
    pub digest: Digest,
    /// The validator that signed.
    pub validator: ValidatorKey,
    /// The statement with its signature.
    pub statement: String,
    /// When it was read or signed.
    pub seen_at: Timestamp,
}

/// A signed statement about a validator's test of its own pipeline, in text form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredSelfTest {
    /// The validator that tested itself.
    pub validator: ValidatorKey,
    /// When the test ended, by the statement.
    pub tested_at: Timestamp,
    /// The statement with its signature.
    pub statement: String,
    /// When it was read or signed.
    pub seen_at: Timestamp,
}

impl Draft<'_> {
    fn set_offer(&mut self, offer: &AuditOffer) {
        let keeps_text = i64::from(offer.state == OfferState::Offered);
        self.script.add(
            "UPDATE audit_offers SET state = $1, reason = $2, decided_at = $3, \
             body = CASE WHEN $4 = 1 THEN body ELSE NULL END \
             WHERE genesis = $5 AND author = $6 AND digest = $7",
            [
                offer.state.name().into(),
                offer.reason.clone().into(),
                offer.decided_at.map(Timestamp::micros).into(),
                keeps_text.into(),
                self.chain.genesis.clone().into(),
                offer.author.to_string().into(),
                offer.digest.to_string().into(),
            ],
        );
    }

    fn add_endorsement(&mut self, endorsement: &StoredEndorsement) {
        self.script.add(
            "INSERT INTO audit_endorsements (genesis, digest, validator, statement, seen_at) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (genesis, digest, validator) DO NOTHING",
            [
                self.chain.genesis.clone().into(),
                endorsement.digest.to_string().into(),
                endorsement.validator.to_string().into(),
                endorsement.statement.clone().into(),
                endorsement.seen_at.micros().into(),
            ],
        );
    }
}

impl Store {
    /// Stores a bundle that another validator shows, once. Older ones of the same author about the same coldkey and
    /// model that wait are superseded by it. `body` is its text, if it waits for its adoption.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_offer(&self, offer: &AuditOffer, body: Option<&str>) -> Result<()> {
        let says = offer.says.clone();
        self.write("store a bundle of another validator", |draft| {
            let genesis = draft.chain.genesis.clone();
            let coldkey = says.as_ref().map(|says| says.coldkey.to_string());
            let model = says.as_ref().map(|says| says.model.clone());
            let through = to_signed(says.as_ref().map_or(0, |says| says.through_bucket));
            if offer.state == OfferState::Offered {
                draft.script.add(
                    "UPDATE audit_offers SET state = 'superseded', reason = NULL, body = NULL, decided_at = $1 \
                     WHERE genesis = $2 AND author = $3 AND coldkey = $4 AND model = $5 AND state = 'offered' \
                     AND through_bucket <= $6",
                    [
                        offer.seen_at.micros().into(),
                        genesis.clone().into(),
                        offer.author.to_string().into(),
                        coldkey.clone().into(),
                        model.clone().into(),
                        through.into(),
                    ],
                );
            }
            draft.script.add(
                "INSERT INTO audit_offers (genesis, author, digest, coldkey, miners, model, verdict, quality, \
                 through_bucket, bytes, state, reason, body, seen_at, seen_block, decided_at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) \
                 ON CONFLICT (genesis, author, digest) DO NOTHING",
                [
                    genesis.into(),
                    offer.author.to_string().into(),
                    offer.digest.to_string().into(),
                    coldkey.into(),
                    says.as_ref().map(|says| text_of(&says.miners)).into(),
                    model.into(),
                    says.as_ref().map(|says| says.verdict.clone()).into(),
                    says.as_ref().map(|says| i64::from(says.quality_per_mille)).into(),
                    through.into(),
                    to_signed(offer.bytes).into(),
                    offer.state.name().into(),
                    offer.reason.clone().into(),
                    body.map(str::to_owned).into(),
                    offer.seen_at.micros().into(),
                    to_signed(offer.seen_block).into(),
                    offer.decided_at.map(Timestamp::micros).into(),
                ],
            );
        })
        .await
    }

    /// Stores the state of an offer and its reason. The text of an offer that waits no longer goes.
    ///
    /// # Errors
    /// The database fails.
    pub async fn update_offer(&self, offer: &AuditOffer) -> Result<()> {
        self.write("store the state of another validator's bundle", |draft| {
            draft.set_offer(offer);
        })
        .await
    }

    /// Lets the verdict of an offer count, notes the offer as adopted, and stores this validator's statement about it,
    /// all or nothing.
    ///
    /// # Errors
    /// The database fails.
    pub async fn adopt_offer(
        &self,
        offer: &AuditOffer,
        audit: &AdoptedAudit,
        body: &str,
        endorsement: Option<&StoredEndorsement>,
    ) -> Result<()> {
        self.write("adopt another validator's bundle", |draft| {
            draft.add_audit(audit, body);
            draft.set_offer(offer);
            if let Some(endorsement) = endorsement {
                draft.add_endorsement(endorsement);
            }
        })
        .await
    }

    /// The newest offers on this chain, newest first, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn offers(&self, limit: u32) -> Result<Vec<AuditOffer>> {
        let rows = sqlx::query(
            "SELECT digest, author, coldkey, miners, model, verdict, quality, through_bucket, bytes, state, reason, \
             seen_at, seen_block, decided_at FROM audit_offers WHERE genesis = $1 \
             ORDER BY seen_at DESC, author, digest LIMIT $2",
        )
        .bind(self.chain().genesis)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list other validators' bundles"))?;
        rows.iter().map(offer_from).collect()
    }

    /// The offers that wait for their adoption, the oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn open_offers(&self) -> Result<Vec<AuditOffer>> {
        let rows = sqlx::query(
            "SELECT digest, author, coldkey, miners, model, verdict, quality, through_bucket, bytes, state, reason, \
             seen_at, seen_block, decided_at FROM audit_offers WHERE genesis = $1 AND state = 'offered' \
             ORDER BY seen_at, author, digest",
        )
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list the bundles that wait for their adoption"))?;
        rows.iter().map(offer_from).collect()
    }

    /// The text of an offer that waits for its adoption; `None` if none has this digest.
    ///
    /// # Errors
    /// The database fails.
    pub async fn offer_body(&self, digest: Digest) -> Result<Option<String>> {
        let row = sqlx::query(
            "SELECT body FROM audit_offers WHERE genesis = $1 AND digest = $2 AND body IS NOT NULL LIMIT 1",
        )
        .bind(self.chain().genesis)
        .bind(digest.to_string())
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error("read another validator's bundle"))?;
        row.map(|row| read_column(&row, "body")).transpose()
    }

    /// The bundles of an author that were read before. Those since `since` count as read lately.
    ///
    /// # Errors
    /// The database fails.
    pub async fn tally_author(&self, author: ValidatorKey, since: Timestamp) -> Result<AuthorTally> {
        let rows = sqlx::query(
            "SELECT digest, seen_at, CASE WHEN body IS NULL THEN 0 ELSE bytes END AS stored \
             FROM audit_offers WHERE genesis = $1 AND author = $2 UNION ALL \
             SELECT digest, 0 AS seen_at, 0 AS stored FROM audit_verdicts WHERE genesis = $1 AND author = $2",
        )
        .bind(self.chain().genesis)
        .bind(author.to_string())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list a validator's bundles"))?;
        let mut tally = AuthorTally::default();
        for row in &rows {
            tally.known.push(parse_column(row, "digest")?);
            tally.lately += usize::from(time_column(row, "seen_at")? >= since);
            let stored = to_unsigned(read_column(row, "stored")?);
            tally.stored_bytes = tally.stored_bytes.saturating_add(stored);
        }
        Ok(tally)
    }

    /// When own scores contradicted bundles of this author since `since`, the oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn contradictions_of(&self, author: ValidatorKey, since: Timestamp) -> Result<Vec<Timestamp>> {
        let rows = sqlx::query(
            "SELECT decided_at FROM audit_offers WHERE genesis = $1 AND author = $2 AND state = 'contradicted' \
             AND decided_at >= $3 ORDER BY decided_at",
        )
        .bind(self.chain().genesis)
        .bind(author.to_string())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list the contradicted bundles of a validator"))?;
        rows.iter().map(|row| time_column(row, "decided_at")).collect()
    }

    /// Stores a validator's statement about a bundle; its first one stands. Returns whether the bundle is one that
    /// was read or made here: statements about others are not kept.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_endorsement(&self, endorsement: &StoredEndorsement) -> Result<bool> {
        let row = sqlx::query(
            "SELECT 1 AS known FROM audit_offers WHERE genesis = $1 AND digest = $2 \
             UNION SELECT 1 AS known FROM audit_verdicts WHERE genesis = $1 AND digest = $2",
        )
        .bind(self.chain().genesis)
        .bind(endorsement.digest.to_string())
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error("look for a bundle"))?;
        if row.is_none() {
            return Ok(false);
        }
        self.write("store a statement about a bundle", |draft| {
            draft.add_endorsement(endorsement);
        })
        .await?;
        Ok(true)
    }

    /// The statements about bundles on this chain, the newest first, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn endorsements(&self, limit: u32) -> Result<Vec<StoredEndorsement>> {
        let rows = sqlx::query(
            "SELECT digest, validator, statement, seen_at FROM audit_endorsements WHERE genesis = $1 \
             ORDER BY seen_at DESC, digest, validator LIMIT $2",
        )
        .bind(self.chain().genesis)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list statements about bundles"))?;
        rows.iter().map(endorsement_from).collect()
    }

    /// The statements about one bundle.
    ///
    /// # Errors
    /// The database fails.
    pub async fn endorsements_of(&self, digest: Digest) -> Result<Vec<StoredEndorsement>> {
        let rows = sqlx::query(
            "SELECT digest, validator, statement, seen_at FROM audit_endorsements \
             WHERE genesis = $1 AND digest = $2 ORDER BY validator",
        )
        .bind(self.chain().genesis)
        .bind(digest.to_string())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list the statements about a bundle"))?;
        rows.iter().map(endorsement_from).collect()
    }

    /// The statements that one validator signed, the newest first, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn endorsements_by(
        &self,
        validator: ValidatorKey,
        limit: u32,
    ) -> Result<Vec<StoredEndorsement>> {
        let rows = sqlx::query(
            "SELECT digest, validator, statement, seen_at FROM audit_endorsements \
             WHERE genesis = $1 AND validator = $2 ORDER BY seen_at DESC, digest LIMIT $3",
        )
        .bind(self.chain().genesis)
        .bind(validator.to_string())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list a validator's statements about bundles"))?;
        rows.iter().map(endorsement_from).collect()
    }

    /// Stores a validator's statement about its own test; the first one about a time stands.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_self_test(&self, test: &StoredSelfTest) -> Result<()> {
        self.write("store a validator's self-test", |draft| {
            draft.script.add(
                "INSERT INTO audit_self_tests (genesis, validator, tested_at, statement, seen_at) \
                 VALUES ($1, $2, $3, $4, $5) ON CONFLICT (genesis, validator, tested_at) DO NOTHING",
                [
                    draft.chain.genesis.clone().into(),
                    test.validator.to_string().into(),
                    test.tested_at.micros().into(),
                    test.statement.clone().into(),
                    test.seen_at.micros().into(),
                ],
            );
        })
        .await
    }

    /// The newest self-test of each validator.
    ///
    /// # Errors
    /// The database fails.
    pub async fn newest_self_tests(&self) -> Result<Vec<StoredSelfTest>> {
        let rows = sqlx::query(
            "SELECT t.validator, t.tested_at, t.statement, t.seen_at FROM audit_self_tests AS t \
             WHERE t.genesis = $1 AND NOT EXISTS (SELECT 1 FROM audit_self_tests AS n WHERE n.genesis = t.genesis \
             AND n.validator = t.validator AND n.tested_at > t.tested_at) ORDER BY t.validator",
        )
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list validators' self-tests"))?;
        let read = |row: &AnyRow| {
            Ok(StoredSelfTest {
                validator: parse_column(row, "validator")?,
                tested_at: time_column(row, "tested_at")?,
                statement: read_column(row, "statement")?,
                seen_at: time_column(row, "seen_at")?,
            })
        };
        rows.iter().map(read).collect()
    }
}

fn endorsement_from(row: &AnyRow) -> Result<StoredEndorsement> {
    Ok(StoredEndorsement {
        digest: parse_column(row, "digest")?,
        validator: parse_column(row, "validator")?,
        statement: read_column(row, "statement")?,
        seen_at: time_column(row, "seen_at")?,
    })
}

fn offer_from(row: &AnyRow) -> Result<AuditOffer> {
    let state: String = read_column(row, "state")?;
    let state = OfferState::ALL.into_iter().find(|one| one.name() == state);
    let coldkey: Option<String> = read_column(row, "coldkey")?;
    let says = match coldkey {
        Some(_) => Some(says_from(row)?),
        None => None,
    };
    Ok(AuditOffer {
        digest: parse_column(row, "digest")?,
        author: parse_column(row, "author")?,
        says,
        bytes: to_unsigned(read_column(row, "bytes")?),
        state: state.ok_or_else(|| corrupt("state", &"no state of an offer"))?,
        reason: read_column(row, "reason")?,
        seen_at: time_column(row, "seen_at")?,
        seen_block: to_unsigned(read_column(row, "seen_block")?),
        decided_at: time_column_option(row, "decided_at")?,
    })
}

fn says_from(row: &AnyRow) -> Result<OfferedVerdict> {
    Ok(OfferedVerdict {
        coldkey: parse_column(row, "coldkey")?,
        miners: json_column(row, "miners")?,
        model: read_column(row, "model")?,
        verdict: read_column(row, "verdict")?,
        quality_per_mille: u16::try_from(to_unsigned(read_column(row, "quality")?)).unwrap_or(u16::MAX),
        through_bucket: to_unsigned(read_column(row, "through_bucket")?),
    })
}
