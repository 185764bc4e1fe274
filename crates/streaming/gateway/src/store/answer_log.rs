//! The log of proven answers in the database: buckets, places, draws, and the words that wait for them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_protocol::{Digest, MinerKey, Timestamp};
use muster_response_proof::{
    AnswerLeaf, BucketNumber, ClientKey, ClientOpening, Envelope, ResponseProof, SessionId,
};
use muster_store::columns::{parse_column, read_column, time_column, to_signed, unsigned_column};
use muster_store::{During as _, StoreError};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::rows::{client_key, session_id};
use super::{AnswerText, BodyForm, GatewayStore, Result, SealedText};

/// A query for rows of [`LoggedAnswer`].
macro_rules! answers {
    ($rest:literal) => {
        concat!(
            "SELECT r.response_id, r.session_id, r.client, r.client_key, r.model, r.proof, r.sequence, r.output_tokens, r.earned, \
             r.bucket, r.position, r.drawn, r.consent, r.cut, r.ended_at, s.miner, s.attestation \
             FROM responses r JOIN sessions s ON s.session_id = r.session_id ",
            $rest
        )
    };
}
pub(super) use answers;

/// A client's consent about the words of its request and of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextConsent {
    /// A drawn answer may be scored; its words are shown to nobody.
    #[default]
    Private,
    /// The words may be published as evidence.
    Publish,
    /// The words are not kept, so a drawn answer is not scored.
    Declined,
}

impl TextConsent {
    /// The name in the database and in the request's header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Publish => "publish",
            Self::Declined => "decline",
        }
    }

    /// The consent of this name; `None` if there is none.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Private, Self::Publish, Self::Declined]
            .into_iter()
            .find(|consent| consent.name() == name)
    }
}

/// A proven answer at its place in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedAnswer {
    /// The id of the answer, 64 hex digits.
    pub id: String,
    /// The session that answered.
    pub session: SessionId,
    /// The session's miner.
    pub miner: MinerKey,
    /// The session's signed attestation, in text form.
    pub attestation: String,
    /// The name of the client; of an own prompt the pseudonym under which it was asked.
    pub client: Digest,
    /// The client's key; `None` of an answer that an earlier release kept.
    pub client_key: Option<ClientKey>,
    /// The model that was asked.
    pub model: String,
    /// The signed proof, in text form.
    pub proof: String,
    /// The number of the proof in its session.
    pub sequence: u64,
    /// Tokens of the answer, by the gateway's count.
    pub output_tokens: u64,
    /// The miner's earnings in rao.
    pub earned: u64,
    /// The bucket in which the answer stands.
    pub bucket: BucketNumber,
    /// The place among the leaves of the bucket.
    pub position: u64,
    /// Whether the draw has chosen the answer.
    pub is_drawn: bool,
    /// The client's consent about its words.
    pub consent: TextConsent,
    /// Whether the connection ended before the answer did although the client was there.
    pub cut: bool,
    /// When the answer ended.
    pub ended_at: Timestamp,
}

/// An answer with a sealed text.
pub(crate) struct SealedAnswer {
    /// The id of the answer.
    pub(crate) id: String,
    /// The session that answered.
    pub(crate) session: SessionId,
    /// The name of the client.
    pub(crate) client: Digest,
    /// The session's miner.
    pub(crate) miner: MinerKey,
    /// Bytes of request and answer, as they are sealed.
    pub(crate) bytes: u64,
}

/// A closed bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBucket {
    /// The number of the bucket.
    pub bucket: BucketNumber,
    /// The number of its answers.
    pub answers: u64,
    /// The signed header, in text form.
    pub header: String,
    /// The shares to which the header commits, as the validator stored them.
    pub shares: String,
    /// The root over the lists of own prompts to which the header commits.
    pub canary_list: Digest,
    /// When the bucket was closed.
    pub closed_at: Timestamp,
    /// The draw, if it was made.
    pub draw: Option<StoredDraw>,
}

/// A draw from a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDraw {
    /// The hash of the draw block.
    pub block_hash: Digest,
    /// The draw with its proof, as the validator stored it.
    pub text: String,
    /// When the draw was made.
    pub at: Timestamp,
}

impl LoggedAnswer {
    /// The content of the leaf's commitment to the client; `None` of an answer that an earlier release kept, or if the
    /// stored proof cannot be decoded.
    pub fn client_opening(&self) -> Option<ClientOpening> {
        let envelope = Envelope::<ResponseProof>::from_text(&self.proof).ok()?;
        let key = self.client_key?;
        Some(key.opening(&envelope.digest(), self.bucket.day()))
    }

    /// The answer's leaf; `None` if the stored proof cannot be decoded. Earlier releases logged the client's name,
    /// which was its pseudonym.
    pub fn leaf(&self) -> Option<AnswerLeaf> {
        let envelope = Envelope::<ResponseProof>::from_text(&self.proof).ok()?;
        Some(AnswerLeaf {
            session: self.session,
            sequence: self.sequence,
            proof: envelope.digest(),
            output_tokens: self.output_tokens,
            earned: self.earned,
            stratum: match self.client_key {
                Some(key) => key.opening(&envelope.digest(), self.bucket.day()).commitment(),
                None => self.client,
            },
        })
    }
}

impl GatewayStore {
    /// Gives every proven answer that stands in no bucket yet a place in this one, and returns all answers of the
    /// bucket in their order. A bucket that is closed keeps its answers.
    ///
    /// # Errors
    /// The database fails.
    pub async fn fill_bucket(&self, bucket: BucketNumber) -> Result<Vec<LoggedAnswer>> {
        const OPERATION: &str = "fill a bucket of answers";
        let number = to_signed(bucket.0);
        let mut tx = self.writer.begin().await?;
        let closed = sqlx::query("SELECT bucket FROM answer_buckets WHERE bucket = $1")
            .bind(number)
            .fetch_optional(&mut *tx)
            .await
            .during(OPERATION)?;
        if closed.is_none() {
            let next: i64 = sqlx::query("SELECT COUNT(*) AS many FROM responses WHERE bucket = $1")
                .bind(number)
                .fetch_one(&mut *tx)
                .await
                .during(OPERATION)?
                .try_get("many")
                .during(OPERATION)?;
            let open = sqlx::query(
                "SELECT response_id FROM responses WHERE bucket IS NULL AND sequence IS NOT NULL \
                 AND verdict = 'proven' ORDER BY ended_at, response_id",
            )
            .fetch_all(&mut *tx)
            .await
            .during(OPERATION)?;
            for (position, row) in (next..).zip(&open) {
                let id: String = read_column(row, "response_id")?;
                sqlx::query("UPDATE responses SET bucket = $1, position = $2 WHERE response_id = $3")
                    .bind(number)
                    .bind(position)
                    .bind(id)
                    .execute(&mut *tx)
                    .await
                    .during(OPERATION)?;
            }
        }
        tx.commit(OPERATION).await?;
        self.answers_of_bucket(bucket).await
    }

    /// Stores the signed header of a bucket. A bucket is closed once; another header for it is not stored.
    ///
    /// # Errors
    /// The database fails.
    pub async fn close_bucket(&self, closed: &StoredBucket) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO answer_buckets (bucket, answers, header, shares, canary_list, closed_at) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (bucket) DO NOTHING",
        )
        .bind(to_signed(closed.bucket.0))
        .bind(to_signed(closed.answers))
        .bind(closed.header.clone())
        .bind(closed.shares.clone())
        .bind(closed.canary_list.to_string())
        .bind(closed.closed_at.micros());
        self.writer
            .execute("close a bucket of answers", statement)
            .await?;
        Ok(())
    }

    /// Takes answers out of buckets that an earlier process filled and did not close: they stand in a later one. Such
    /// buckets come after all closed ones. The bucket of an older answer may be gone because it is old: the answer was
    /// logged, and is not logged again.
    ///
    /// # Errors
    /// The database fails.
    pub async fn release_unclosed(&self) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE responses SET bucket = NULL, position = NULL, drawn = 0 \
             WHERE bucket > (SELECT COALESCE(MAX(bucket), -1) FROM answer_buckets)",
        );
        self.writer
            .execute("take answers out of unclosed buckets", statement)
            .await?;
        Ok(())
    }

    /// The newest closed bucket.
    ///
    /// # Errors
    /// The database fails.
    pub async fn last_bucket(&self) -> Result<Option<StoredBucket>> {
        let row = sqlx::query("SELECT * FROM answer_buckets ORDER BY bucket DESC LIMIT 1")
            .fetch_optional(&self.pool)
            .await
            .during("read the last bucket of answers")?;
        row.as_ref().map(bucket_from).transpose()
    }

    /// The closed buckets from the first to the last of these, in rising order.
    ///
    /// # Errors
    /// The database fails.
    pub async fn buckets_between(
        &self,
        first: BucketNumber,
        last: BucketNumber,
    ) -> Result<Vec<StoredBucket>> {
        let rows =
            sqlx::query("SELECT * FROM answer_buckets WHERE bucket >= $1 AND bucket <= $2 ORDER BY bucket")
                .bind(to_signed(first.0))
                .bind(to_signed(last.0))
                .fetch_all(&self.pool)
                .await
                .during("read buckets of answers")?;
        rows.iter().map(bucket_from).collect()
    }

    /// The closed buckets from which nothing was drawn yet, in rising order.
    ///
    /// # Errors
    /// The database fails.
    pub async fn undrawn_buckets(&self) -> Result<Vec<StoredBucket>> {
        let rows = sqlx::query("SELECT * FROM answer_buckets WHERE draw IS NULL ORDER BY bucket")
            .fetch_all(&self.pool)
            .await
            .during("list buckets before their draw")?;
        rows.iter().map(bucket_from).collect()
    }

    /// A closed bucket; `None` if none has this number.
    ///
    /// # Errors
    /// The database fails.
    pub async fn find_bucket(&self, bucket: BucketNumber) -> Result<Option<StoredBucket>> {
        let row = sqlx::query("SELECT * FROM answer_buckets WHERE bucket = $1")
            .bind(to_signed(bucket.0))
            .fetch_optional(&self.pool)
            .await
            .during("look for a bucket of answers")?;
        row.as_ref().map(bucket_from).transpose()
    }

    /// The signed headers of the buckets after `after` and before `before`, the newest `limit` of them, in rising
    /// order.
    ///
    /// # Errors
    /// The database fails.
    pub async fn headers_between(
        &self,
        after: BucketNumber,
        before: BucketNumber,
        limit: u32,
    ) -> Result<Vec<String>> {
        let rows = sqlx::query(
            "SELECT header FROM answer_buckets WHERE bucket > $1 AND bucket < $2 ORDER BY bucket DESC LIMIT $3",
        )
        .bind(to_signed(after.0))
        .bind(to_signed(before.0))
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("read headers")?;
        rows.iter().rev().map(|row| read_column(row, "header")).collect()
    }

    /// The answers of a bucket, in their order.
    ///
    /// # Errors
    /// The database fails.
    pub async fn answers_of_bucket(&self, bucket: BucketNumber) -> Result<Vec<LoggedAnswer>> {
        let rows = sqlx::query(answers!("WHERE r.bucket = $1 ORDER BY r.position"))
            .bind(to_signed(bucket.0))
            .fetch_all(&self.pool)
            .await
            .during("read the answers of a bucket")?;
        rows.iter().map(answer_from).collect()
    }

    /// Keeps proofs of a session that are not in the log, by their numbers.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_other_proofs(
        &self,
        session: SessionId,
        proofs: &[(u64, String)],
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "keep the proofs of checks";
        let mut tx = self.writer.begin().await?;
        for (sequence, proof) in proofs {
            sqlx::query(
                "INSERT INTO other_proofs (session_id, sequence, proof, kept_at) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT (session_id, sequence) DO NOTHING",
            )
            .bind(session.to_string())
            .bind(to_signed(*sequence))
            .bind(proof.clone())
            .bind(now.micros())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        tx.commit(OPERATION).await
    }

    /// The proofs of a session that are not in the log, in the order of their numbers.
    ///
    /// # Errors
    /// The database fails.
    pub async fn other_proofs(&self, session: SessionId) -> Result<Vec<(u64, String)>> {
        let rows =
            sqlx::query("SELECT sequence, proof FROM other_proofs WHERE session_id = $1 ORDER BY sequence")
                .bind(session.to_string())
                .fetch_all(&self.pool)
                .await
                .during("read the proofs of checks")?;
        rows.iter()
            .map(|row| Ok((unsigned_column(row, "sequence")?, read_column(row, "proof")?)))
            .collect()
    }

    /// A bucket's answers with sealed texts, in the order of their ids.
    ///
    /// # Errors
    /// The database fails.
    pub(crate) async fn sealed_answers(&self, bucket: BucketNumber) -> Result<Vec<SealedAnswer>> {
        let rows = sqlx::query(
            "SELECT p.response_id, r.session_id, r.client, s.miner, \
             CAST(LENGTH(p.request) + LENGTH(p.response) AS BIGINT) AS length FROM pairs p \
             JOIN responses r ON r.response_id = p.response_id JOIN sessions s ON s.session_id = r.session_id \
             WHERE r.bucket = $1 AND p.sealed_by IS NOT NULL ORDER BY p.response_id",
        )
        .bind(to_signed(bucket.0))
        .fetch_all(&self.pool)
        .await
        .during("list sealed words")?;
        let answer = |row: &AnyRow| {
            Ok(SealedAnswer {
                id: read_column(row, "response_id")?,
                session: session_id(row)?,
                client: parse_column(row, "client")?,
                miner: parse_column(row, "miner")?,
                // Base64 has four letters for three bytes.
                bytes: unsigned_column(row, "length")?.saturating_mul(3) / 4,
            })
        };
        rows.iter().map(answer).collect()
    }

    /// Stores the draw from a bucket: the drawn answers are marked, the words of `kept` are stored as `open` reads
    /// them, one answer after the other, and all other words of the bucket go.
    ///
    /// # Errors
    /// The database fails.
    pub(crate) async fn store_draw(
        &self,
        bucket: BucketNumber,
        draw: &StoredDraw,
        drawn: &[String],
        kept: &[String],
        open: &(dyn Fn(&str, &SealedText) -> Option<AnswerText> + Sync),
    ) -> Result<()> {
        const OPERATION: &str = "store a draw";
        let mut tx = self.writer.begin().await?;
        for id in drawn {
            sqlx::query("UPDATE responses SET drawn = 1 WHERE response_id = $1")
                .bind(id.clone())
                .execute(&mut *tx)
                .await
                .during(OPERATION)?;
        }
        for id in kept {
            let row = sqlx::query(
                "SELECT sealed_by, request, response, content_type, body_form FROM pairs \
                 WHERE response_id = $1 AND sealed_by IS NOT NULL",
            )
            .bind(id.clone())
            .fetch_optional(&mut *tx)
            .await
            .during(OPERATION)?;
            let Some(row) = row else { continue };
            let Some(words) = open(id, &sealed_from(&row)?) else {
                continue;
            };
            sqlx::query(
                "UPDATE pairs SET request = $1, response = $2, sealed_by = NULL WHERE response_id = $3",
            )
            .bind(STANDARD.encode(&words.request))
            .bind(STANDARD.encode(&words.response))
            .bind(id.clone())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        sqlx::query(
            "DELETE FROM pairs WHERE sealed_by IS NOT NULL AND response_id IN \
             (SELECT response_id FROM responses WHERE bucket = $1)",
        )
        .bind(to_signed(bucket.0))
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        sqlx::query("UPDATE answer_buckets SET block_hash = $1, draw = $2, drawn_at = $3 WHERE bucket = $4")
            .bind(draw.block_hash.to_string())
            .bind(draw.text.clone())
            .bind(draw.at.micros())
            .bind(to_signed(bucket.0))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        tx.commit(OPERATION).await
    }

    /// The lowest number of a key that stored words need; `None` if no words are sealed.
    ///
    /// # Errors
    /// The database fails.
    pub(crate) async fn oldest_needed_key(&self) -> Result<Option<u64>> {
        let row =
            sqlx::query("SELECT sealed_by FROM pairs WHERE sealed_by IS NOT NULL ORDER BY sealed_by LIMIT 1")
                .fetch_optional(&self.pool)
                .await
                .during("look for the oldest sealed words")?;
        row.map(|row| unsigned_column(&row, "sealed_by")).transpose()
    }

    /// Deletes the words that an earlier process sealed: their keys ended with it.
    ///
    /// # Errors
    /// The database fails.
    pub(crate) async fn drop_unreadable_words(&self) -> Result<u64> {
        let statement = sqlx::query("DELETE FROM pairs WHERE sealed_by IS NOT NULL");
        self.writer
            .execute("delete words that nobody can read", statement)
            .await
    }

    /// Deletes the words of an answer that was audited.
    ///
    /// # Errors
    /// The database fails.
    pub async fn drop_text(&self, id: &str) -> Result<()> {
        let statement = sqlx::query("DELETE FROM pairs WHERE response_id = $1").bind(id.to_owned());
        self.writer
            .execute("delete the words of an answer", statement)
            .await?;
        Ok(())
    }

    /// The words of an answer; `None` if they were not kept, or are sealed until the draw.
    ///
    /// # Errors
    /// The database fails.
    pub async fn find_text(&self, id: &str) -> Result<Option<AnswerText>> {
        let row = sqlx::query(
            "SELECT request, response, content_type, body_form FROM pairs \
             WHERE response_id = $1 AND sealed_by IS NULL",
        )
        .bind(id.to_owned())
        .fetch_optional(&self.pool)
        .await
        .during("look for the words of an answer")?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(AnswerText {
            request: bytes_column(&row, "request")?,
            response: bytes_column(&row, "response")?,
            form: form_column(&row)?,
            content_type: read_column(&row, "content_type")?,
        }))
    }
}

fn sealed_from(row: &AnyRow) -> Result<SealedText> {
    Ok(SealedText {
        key: unsigned_column(row, "sealed_by")?,
        request: bytes_column(row, "request")?,
        response: bytes_column(row, "response")?,
        form: form_column(row)?,
        content_type: read_column(row, "content_type")?,
    })
}

fn form_column(row: &AnyRow) -> Result<BodyForm> {
    let form: String = read_column(row, "body_form")?;
    BodyForm::of_name(&form).ok_or_else(|| StoreError::corrupt("body_form", "no form".to_owned()))
}

fn bytes_column(row: &AnyRow, name: &'static str) -> Result<Vec<u8>> {
    let text: String = read_column(row, name)?;
    STANDARD
        .decode(text)
        .map_err(|error| StoreError::corrupt(name, error.to_string()))
}

pub(super) fn answer_from(row: &AnyRow) -> Result<LoggedAnswer> {
    let consent: String = read_column(row, "consent")?;
    let consent = TextConsent::of_name(&consent)
        .ok_or_else(|| StoreError::corrupt("consent", "no consent".to_owned()))?;
    Ok(LoggedAnswer {
        id: read_column(row, "response_id")?,
        session: session_id(row)?,
        miner: parse_column(row, "miner")?,
        attestation: read_column(row, "attestation")?,
        client: parse_column(row, "client")?,
        client_key: client_key(row)?,
        model: read_column(row, "model")?,
        proof: read_column(row, "proof")?,
        sequence: unsigned_column(row, "sequence")?,
        output_tokens: unsigned_column(row, "output_tokens")?,
        earned: unsigned_column(row, "earned")?,
        bucket: BucketNumber(unsigned_column(row, "bucket")?),
        position: unsigned_column(row, "position")?,
        is_drawn: unsigned_column(row, "drawn")? == 1,
        consent,
        cut: unsigned_column(row, "cut")? == 1,
        ended_at: time_column(row, "ended_at")?,
    })
}

fn bucket_from(row: &AnyRow) -> Result<StoredBucket> {
    let draw: Option<String> = read_column(row, "draw")?;
    let draw = match draw {
        None => None,
        Some(text) => Some(StoredDraw {
            block_hash: parse_column(row, "block_hash")?,
            text,
            at: time_column(row, "drawn_at")?,
        }),
    };
    Ok(StoredBucket {
        bucket: BucketNumber(unsigned_column(row, "bucket")?),
        answers: unsigned_column(row, "answers")?,
        header: read_column(row, "header")?,
        shares: read_column(row, "shares")?,
        canary_list: parse_column(row, "canary_list")?,
        closed_at: time_column(row, "closed_at")?,
        draw,
    })
}
