//! The tables of spot checks in the validator's database: own prompts, scores, and audits that were begun. The
//! validator's migrations create them; the log of answers is the gateway's.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::{Canary, CanaryList, NoncePeriod, OpenedWords};
use muster_gateway::store::GatewayStore;
use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp};
use muster_store::columns::{
    parse_column, parse_column_option, read_column, time_column, time_column_option, to_signed,
    unsigned_column,
};
use muster_store::{During as _, StoreError, begin};
use serde::Serialize;
use sqlx::AnyPool;
use sqlx::any::AnyRow;

use crate::audits::gathering::{Gathered, Subject};
use crate::audits::recovery::RESTARTED;
use crate::evidence::assemble::{BothOutcomes, ReferenceOutcome};

/// Missing answers that are looked at to see what has gathered, the newest ones.
const MAX_MISSING: u32 = 10_000;

pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// An audit that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRun {
    /// The id of the audit.
    pub run: String,
    /// The coldkey that is judged.
    pub coldkey: Hotkey,
    /// The model by its name in the whitelist.
    pub model: String,
    /// `starting` (a reference is being started), `scoring`, `judged`, `ended` without a verdict, or `interrupted`.
    pub state: RunState,
    /// The answers that are to be scored.
    pub answers: u64,
    /// The answers of them that a reference was asked about.
    pub scored: u64,
    /// When it began.
    pub began_at: Timestamp,
    /// When it ended, if it has.
    pub ended_at: Option<Timestamp>,
    /// The bundle that came of it.
    pub bundle: Option<Digest>,
    /// The verdict by its name.
    pub verdict: Option<String>,
    /// Why there is no verdict.
    pub reason: Option<String>,
}

impl AuditRun {
    /// The coldkey and the model that are judged.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            coldkey: self.coldkey,
            model: self.model.clone(),
        }
    }
}

/// The state of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A reference is being started.
    Starting,
    /// The references score.
    Scoring,
    /// There is a verdict.
    Judged,
    /// It ended without a verdict.
    Ended,
    /// Its process ended before it did. The subject is audited again.
    Interrupted,
}

impl RunState {
    const ALL: [Self; 5] = [
        Self::Starting,
        Self::Scoring,
        Self::Judged,
        Self::Ended,
        Self::Interrupted,
    ];

    /// The name in the database and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Scoring => "scoring",
            Self::Judged => "judged",
            Self::Ended => "ended",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A list of own prompts, and the place of the next one.
#[derive(Clone, Debug)]
pub(crate) struct PromptList {
    pub(crate) list: CanaryList,
    pub(crate) next: u64,
}

/// Reads and writes the tables. Clones share the connections.
#[derive(Clone, Debug)]
pub struct AuditStore {
    pub(crate) pool: AnyPool,
}

impl AuditStore {
    /// Uses the validator's database, which must be migrated.
    pub const fn new(pool: AnyPool) -> Self {
        Self { pool }
    }

    /// Stores a new list of own prompts.
    pub(crate) async fn insert_list(&self, list: &CanaryList, now: Timestamp) -> Result<()> {
        const OPERATION: &str = "store a list of own prompts";
        let root = list.root().to_string();
        let mut tx = begin(&self.pool).await?;
        for position in 0_u64.. {
            let Some(canary) = list.next(position) else { break };
            sqlx::query(
                "INSERT INTO canaries (list, position, salt, request, made_at) VALUES ($1, $2, $3, $4, $5)",
            )
            .bind(root.clone())
            .bind(to_signed(position))
            .bind(hex::encode(canary.salt))
            .bind(STANDARD.encode(&canary.request))
            .bind(now.micros())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        tx.commit().await.during(OPERATION)
    }

    /// A list of own prompts; empty if none has this root.
    pub(crate) async fn read_list(&self, root: &Digest) -> Result<PromptList> {
        let rows =
            sqlx::query("SELECT salt, request, sent_at FROM canaries WHERE list = $1 ORDER BY position")
                .bind(root.to_string())
                .fetch_all(&self.pool)
                .await
                .during("read a list of own prompts")?;
        let mut next = 0;
        let mut canaries = Vec::new();
        for (position, row) in (1_u64..).zip(&rows) {
            let sent: Option<i64> = read_column(row, "sent_at")?;
            if sent.is_some() {
                next = position;
            }
            canaries.push(canary_from(row)?);
        }
        let list = CanaryList::new(canaries);
        Ok(PromptList { list, next })
    }

    /// Notes that a prompt is being sent: it is used once, whatever becomes of it.
    pub(crate) async fn note_sent(&self, root: &Digest, position: u64, now: Timestamp) -> Result<()> {
        sqlx::query("UPDATE canaries SET sent_at = $1 WHERE list = $2 AND position = $3")
            .bind(now.micros())
            .bind(root.to_string())
            .bind(to_signed(position))
            .execute(&self.pool)
            .await
            .during("note a prompt as sent")?;
        Ok(())
    }

    /// Notes the answer to a prompt. The first answer stands: another one to the same prompt is no evidence.
    pub(crate) async fn note_answer(&self, root: &Digest, position: u64, answer: &str) -> Result<()> {
        sqlx::query(
            "UPDATE canaries SET response_id = $1 WHERE list = $2 AND position = $3 AND response_id IS NULL",
        )
        .bind(answer.to_owned())
        .bind(root.to_string())
        .bind(to_signed(position))
        .execute(&self.pool)
        .await
        .during("note the answer to a prompt")?;
        Ok(())
    }

    /// The lists and places of own prompts that were answered since, by the ids of the answers.
    pub(crate) async fn answered_prompts(&self, since: Timestamp) -> Result<BTreeMap<String, (Digest, u64)>> {
        let rows = sqlx::query(
            "SELECT response_id, list, position FROM canaries WHERE response_id IS NOT NULL AND sent_at >= $1",
        )
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("list answered prompts")?;
        rows.iter()
            .map(|row| {
                let place = (parse_column(row, "list")?, unsigned_column(row, "position")?);
                Ok((read_column(row, "response_id")?, place))
            })
            .collect()
    }

    /// Keeps the hash of a period's first block. A period that is known keeps its hash.
    pub(crate) async fn put_nonce_period(
        &self,
        period: NoncePeriod,
        block_hash: &Digest,
        now: Timestamp,
    ) -> Result<()> {
        sqlx::query(
            "INSERT INTO nonce_periods (period, block_hash, began_at) VALUES ($1, $2, $3) \
             ON CONFLICT (period) DO NOTHING",
        )
        .bind(to_signed(period.0))
        .bind(block_hash.to_string())
        .bind(now.micros())
        .execute(&self.pool)
        .await
        .during("keep the first block of a period of nonces")?;
        Ok(())
    }

    /// The hash of a period's first block; `None` if no nonce of the period was made by its key.
    pub(crate) async fn nonce_period(&self, period: NoncePeriod) -> Result<Option<Digest>> {
        let row = sqlx::query("SELECT block_hash FROM nonce_periods WHERE period = $1")
            .bind(to_signed(period.0))
            .fetch_optional(&self.pool)
            .await
            .during("read the first block of a period of nonces")?;
        row.map(|row| parse_column(&row, "block_hash")).transpose()
    }

    /// The proven answers of each miner and model since a time.
    pub(crate) async fn count_answers(&self, since: Timestamp) -> Result<Vec<(MinerKey, String, u64)>> {
        let rows = sqlx::query(
            "SELECT s.miner, r.model, COUNT(*) AS many FROM responses r JOIN sessions s ON s.session_id = r.session_id \
             WHERE r.ended_at >= $1 AND r.sequence IS NOT NULL GROUP BY s.miner, r.model",
        )
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("count the answers of a day")?;
        rows.iter()
            .map(|row| {
                let miner = parse_column(row, "miner")?;
                Ok((miner, read_column(row, "model")?, unsigned_column(row, "many")?))
            })
            .collect()
    }

    /// The answers that wait for a reference, by coldkey and model, of sessions that were opened at `opened_since` or
    /// later. Miners without a known owner wait until they have
    /// one.
    pub(crate) async fn gathered(
        &self,
        since: Timestamp,
        opened_since: Timestamp,
        owners: &BTreeMap<MinerKey, Hotkey>,
    ) -> Result<BTreeMap<Subject, Gathered>> {
        // From drawn buckets, drawn or own, and without a finding of the first reference.
        let rows = sqlx::query(
            "SELECT s.miner, r.model, COUNT(*) AS many, MIN(r.ended_at) AS oldest \
             FROM responses r JOIN sessions s ON s.session_id = r.session_id \
             JOIN answer_buckets b ON b.bucket = r.bucket WHERE b.draw IS NOT NULL AND r.ended_at >= $1 \
             AND s.opened_at >= $2 \
             AND (r.drawn = 1 OR EXISTS (SELECT 1 FROM canaries c WHERE c.response_id = r.response_id)) \
             AND NOT EXISTS (SELECT 1 FROM answer_scores a WHERE a.response_id = r.response_id AND a.reference = 0) \
             GROUP BY s.miner, r.model",
        )
        .bind(since.micros())
        .bind(opened_since.micros())
        .fetch_all(&self.pool)
        .await
        .during("count the answers that wait for a reference")?;
        let mut all = BTreeMap::new();
        for row in &rows {
            let miner: MinerKey = parse_column(row, "miner")?;
            let Some(coldkey) = owners.get(&miner).copied() else {
                continue;
            };
            let model = read_column(row, "model")?;
            let oldest = time_column(row, "oldest")?;
            let many = usize::try_from(unsigned_column(row, "many")?).unwrap_or(usize::MAX);
            let one = all
                .entry(Subject { coldkey, model })
                .or_insert(Gathered { answers: 0, oldest });
            one.answers = one.answers.saturating_add(many);
            one.oldest = one.oldest.min(oldest);
        }
        // Scores for an audit that a process did not end have no verdict yet.
        for subject in self.interrupted(since.max(opened_since)).await? {
            let oldest = Timestamp::from_micros(0);
            let one = all.entry(subject).or_insert(Gathered { answers: 0, oldest });
            one.answers = one.answers.max(1);
            one.oldest = oldest;
        }
        for (subject, ended_at) in self.unjudged_missing(since, opened_since, owners).await? {
            let one = all.entry(subject).or_insert(Gathered {
                answers: 0,
                oldest: ended_at,
            });
            one.answers = one.answers.saturating_add(1);
            one.oldest = one.oldest.min(ended_at);
        }
        Ok(all)
    }

    /// The subjects whose newest audit since a time had scores and was not ended by its process.
    async fn interrupted(&self, since: Timestamp) -> Result<Vec<Subject>> {
        // Earlier releases stored such an audit as one that has ended for this reason.
        let rows = sqlx::query(
            "SELECT a.coldkey, a.model FROM audit_runs a \
             WHERE (a.state = $1 OR (a.state = $2 AND a.reason = $3)) AND a.scored > 0 AND a.began_at >= $4 \
             AND NOT EXISTS (SELECT 1 FROM audit_runs b WHERE b.coldkey = a.coldkey AND b.model = a.model \
             AND b.began_at > a.began_at)",
        )
        .bind(RunState::Interrupted.name())
        .bind(RunState::Ended.name())
        .bind(RESTARTED)
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("look for audits that were not ended")?;
        rows.iter().map(subject_from).collect()
    }

    /// Whether the newest audit of a subject since a time had scores and was not ended by its process.
    pub(crate) async fn is_interrupted(&self, subject: &Subject, since: Timestamp) -> Result<bool> {
        Ok(self.interrupted(since).await?.contains(subject))
    }

    /// When the newest audit of each subject began that came to a verdict.
    pub(crate) async fn newest_judged(&self) -> Result<BTreeMap<Subject, Timestamp>> {
        let rows = sqlx::query(
            "SELECT coldkey, model, MAX(began_at) AS began FROM audit_runs WHERE verdict IS NOT NULL \
             GROUP BY coldkey, model",
        )
        .fetch_all(&self.pool)
        .await
        .during("look for the newest audits with a verdict")?;
        rows.iter()
            .map(|row| Ok((subject_from(row)?, time_column(row, "began")?)))
            .collect()
    }

    /// When each missing answer ended that no verdict has judged yet, up to a bound. An audit that began before the
    /// draw from its bucket did not see the answer.
    async fn unjudged_missing(
        &self,
        since: Timestamp,
        opened_since: Timestamp,
        owners: &BTreeMap<MinerKey, Hotkey>,
    ) -> Result<Vec<(Subject, Timestamp)>> {
        let judged = self.newest_judged().await?;
        let log = GatewayStore::new(self.pool.clone());
        let mut unjudged = Vec::new();
        for missing in log.missing_answers(since, opened_since, MAX_MISSING).await? {
            let Some(coldkey) = owners.get(&missing.miner).copied() else {
                continue;
            };
            let subject = Subject {
                coldkey,
                model: missing.model,
            };
            if judged
                .get(&subject)
                .is_none_or(|judged| *judged < missing.drawn_at)
            {
                unjudged.push((subject, missing.ended_at));
            }
        }
        Ok(unjudged)
    }

    /// Stores what a reference found about an answer. The first finding stands.
    pub(crate) async fn put_outcome(
        &self,
        answer: &str,
        reference: usize,
        outcome: &ReferenceOutcome,
        now: Timestamp,
    ) -> Result<()> {
        let text = serde_json::to_string(outcome)
            .map_err(|error| StoreError::corrupt("outcome", error.to_string()))?;
        sqlx::query(
            "INSERT INTO answer_scores (response_id, reference, outcome, scored_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (response_id, reference) DO NOTHING",
        )
        .bind(answer.to_owned())
        .bind(i64::try_from(reference).unwrap_or(i64::MAX))
        .bind(text)
        .bind(now.micros())
        .execute(&self.pool)
        .await
        .during("store a score")?;
        Ok(())
    }

    /// The references' findings about the answers of a model since a time, by the ids of the answers.
    pub(crate) async fn outcomes(
        &self,
        model: &str,
        since: Timestamp,
    ) -> Result<BTreeMap<String, BothOutcomes>> {
        let rows = sqlx::query(
            "SELECT a.response_id, a.reference, a.outcome FROM answer_scores a \
             JOIN responses r ON r.response_id = a.response_id WHERE r.model = $1 AND r.ended_at >= $2",
        )
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("read scores")?;
        let mut all: BTreeMap<String, BothOutcomes> = BTreeMap::new();
        for row in &rows {
            let text: String = read_column(row, "outcome")?;
            let outcome = serde_json::from_str(&text)
                .map_err(|error| StoreError::corrupt("outcome", error.to_string()))?;
            let place = usize::try_from(unsigned_column(row, "reference")?).unwrap_or(usize::MAX);
            let both = all.entry(read_column(row, "response_id")?).or_default();
            if let Some(slot) = both.get_mut(place) {
                *slot = Some(outcome);
            }
        }
        Ok(all)
    }

    /// Stores the words of an answer that may be published. A response that comes later is added to the ids.
    pub(crate) async fn put_words(&self, answer: &str, words: &OpenedWords, now: Timestamp) -> Result<()> {
        sqlx::query(
            "INSERT INTO answer_ids (response_id, prompt, output, request, kept_at, response) \
             VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (response_id) DO UPDATE SET response = COALESCE(excluded.response, answer_ids.response)",
        )
        .bind(answer.to_owned())
        .bind(id_list(&words.prompt))
        .bind(id_list(&words.output))
        .bind(words.request.clone())
        .bind(now.micros())
        .bind(words.response.clone())
        .execute(&self.pool)
        .await
        .during("store the words of an answer")?;
        Ok(())
    }

    /// The words of a model's answers since a time that may be published, by the ids of the answers.
    pub(crate) async fn opened_words(
        &self,
        model: &str,
        since: Timestamp,
    ) -> Result<BTreeMap<String, OpenedWords>> {
        let rows = sqlx::query(
            "SELECT a.response_id, a.prompt, a.output, a.request, a.response FROM answer_ids a \
             JOIN responses r ON r.response_id = a.response_id WHERE r.model = $1 AND r.ended_at >= $2",
        )
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("read the words of answers")?;
        let read = |row: &AnyRow| {
            let words = OpenedWords {
                prompt: id_column(row, "prompt")?,
                output: id_column(row, "output")?,
                request: read_column(row, "request")?,
                response: read_column(row, "response")?,
            };
            Ok((read_column(row, "response_id")?, words))
        };
        rows.iter().map(read).collect()
    }

    /// Stores an audit that begins.
    pub(crate) async fn insert_run(&self, run: &AuditRun) -> Result<()> {
        sqlx::query(
            "INSERT INTO audit_runs (run_id, coldkey, model, state, answers, scored, began_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(run.run.clone())
        .bind(run.coldkey.to_string())
        .bind(run.model.clone())
        .bind(run.state.name())
        .bind(to_signed(run.answers))
        .bind(to_signed(run.scored))
        .bind(run.began_at.micros())
        .execute(&self.pool)
        .await
        .during("store an audit")?;
        Ok(())
    }

    /// Stores the progress of an audit, or its end.
    pub(crate) async fn update_run(&self, run: &AuditRun) -> Result<()> {
        sqlx::query(
            "UPDATE audit_runs SET state = $1, answers = $2, scored = $3, ended_at = $4, bundle = $5, verdict = $6, \
             reason = $7 WHERE run_id = $8",
        )
        .bind(run.state.name())
        .bind(to_signed(run.answers))
        .bind(to_signed(run.scored))
        .bind(run.ended_at.map(Timestamp::micros))
        .bind(run.bundle.map(|digest| digest.to_string()))
        .bind(run.verdict.clone())
        .bind(run.reason.clone())
        .bind(run.run.clone())
        .execute(&self.pool)
        .await
        .during("store the progress of an audit")?;
        Ok(())
    }

    /// The audits that have not ended: after a start, those of an earlier process.
    pub(crate) async fn unended_runs(&self) -> Result<Vec<AuditRun>> {
        let rows = sqlx::query("SELECT * FROM audit_runs WHERE ended_at IS NULL ORDER BY began_at, run_id")
            .fetch_all(&self.pool)
            .await
            .during("list the audits of an earlier process")?;
        rows.iter().map(run_from).collect()
    }

    /// The first audit of a subject since a time that came to a verdict.
    pub(crate) async fn judged_run(&self, subject: &Subject, since: Timestamp) -> Result<Option<AuditRun>> {
        let row = sqlx::query(
            "SELECT * FROM audit_runs WHERE coldkey = $1 AND model = $2 AND began_at >= $3 AND verdict IS NOT NULL \
             ORDER BY began_at, run_id LIMIT 1",
        )
        .bind(subject.coldkey.to_string())
        .bind(subject.model.clone())
        .bind(since.micros())
        .fetch_optional(&self.pool)
        .await
        .during("look for the audit of an appeal")?;
        row.as_ref().map(run_from).transpose()
    }

    /// The newest audits, newest first, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list_runs(&self, limit: u32) -> Result<Vec<AuditRun>> {
        let rows = sqlx::query("SELECT * FROM audit_runs ORDER BY began_at DESC, run_id LIMIT $1")
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .during("list audits")?;
        rows.iter().map(run_from).collect()
    }
}

fn subject_from(row: &AnyRow) -> Result<Subject> {
    Ok(Subject {
        coldkey: parse_column(row, "coldkey")?,
        model: read_column(row, "model")?,
    })
}

fn run_from(row: &AnyRow) -> Result<AuditRun> {
    let state: String = read_column(row, "state")?;
    let state = RunState::ALL.into_iter().find(|one| one.name() == state);
    Ok(AuditRun {
        run: read_column(row, "run_id")?,
        coldkey: parse_column(row, "coldkey")?,
        model: read_column(row, "model")?,
        state: state.ok_or_else(|| StoreError::corrupt("state", "no state of an audit".to_owned()))?,
        answers: unsigned_column(row, "answers")?,
        scored: unsigned_column(row, "scored")?,
        began_at: time_column(row, "began_at")?,
        ended_at: time_column_option(row, "ended_at")?,
        bundle: parse_column_option(row, "bundle")?,
        verdict: read_column(row, "verdict")?,
        reason: read_column(row, "reason")?,
    })
}

fn canary_from(row: &AnyRow) -> Result<Canary> {
    let (salt, request): (String, String) = (read_column(row, "salt")?, read_column(row, "request")?);
    let mut bytes = [0; 32];
    hex::decode_to_slice(salt, &mut bytes).map_err(|error| StoreError::corrupt("salt", error.to_string()))?;
    let request = STANDARD
        .decode(request)
        .map_err(|error| StoreError::corrupt("request", error.to_string()))?;
    Ok(Canary { salt: bytes, request })
}

/// A JSON list of ids.
fn id_list(ids: &[u32]) -> String {
    // A list of numbers always has a JSON form.
    serde_json::to_string(ids).unwrap_or_default()
}

fn id_column(row: &AnyRow, name: &'static str) -> Result<Vec<u32>> {
    let text: String = read_column(row, name)?;
    serde_json::from_str(&text).map_err(|error| StoreError::corrupt(name, error.to_string()))
}

#[cfg(test)]
mod tests {
    use muster_store::testing::stores;
    use muster_validator_store::{MIGRATIONS, Store};

    use super::*;
    use crate::testing::key;

    async fn insert(pool: &AnyPool, statements: &[String]) {
        for statement in statements {
            // The statements have no text from outside this file.
            let inserted = sqlx::query(sqlx::AssertSqlSafe(statement.clone()));
            inserted.execute(pool).await.unwrap();
        }
    }

    fn run(run: &str, began_at: i64, state: RunState, reason: Option<&str>) -> AuditRun {
        AuditRun {
            run: run.to_owned(),
            coldkey: key(9),
            model: "tiny".to_owned(),
            state,
            answers: 3,
            scored: 3,
            began_at: Timestamp::from_micros(began_at),
            ended_at: Some(Timestamp::from_micros(began_at)),
            bundle: None,
            verdict: (state == RunState::Judged).then(|| "consistent".to_owned()),
            reason: reason.map(str::to_owned),
        }
    }

    async fn put(store: &AuditStore, run: &AuditRun) {
        store.insert_run(run).await.unwrap();
        store.update_run(run).await.unwrap();
    }

    #[tokio::test]
    async fn a_missing_answer_waits_from_the_draw_of_its_bucket_until_a_later_audit_has_judged_it() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            drop(Store::with_pool(test.pool.clone()).await.unwrap());
            let (pool, store) = (&test.pool, AuditStore::new(test.pool.clone()));
            let miner = MinerKey(key(1));
            let answer = |id: &str, ended_at: i64, how: &str| {
                format!(
                    "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, \
                     how_ended, verdict, bytes, input_tokens, output_tokens, earned) \
                     VALUES ('{id}', 's', 'c', 'tiny', 1, {ended_at}, 200, '{how}', 'unproven', 1, 0, 0, 0)"
                )
            };
            let bucket = |number: u64, closed_at: i64, draw: &str| {
                format!(
                    "INSERT INTO answer_buckets (bucket, answers, header, shares, canary_list, closed_at, draw, \
                     drawn_at) VALUES ({number}, 0, '', '', '', {closed_at}, {draw})"
                )
            };
            insert(
                pool,
                &[
                    format!(
                        "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at) \
                         VALUES ('s', 's', '{miner}', 'tiny', '', '', 1)"
                    ),
                    bucket(7, 10, "NULL, NULL"),
                    bucket(8, 20, "'drawn', 40"),
                    // Its bucket has no draw, whatever became of the next one.
                    answer("not drawn", 5, "completed"),
                    answer("missing", 15, "completed"),
                    answer("client gone", 16, "client-gone"),
                    answer("not closed", 25, "completed"),
                ],
            )
            .await;
            let gathered = async || {
                let (zero, owners) = (Timestamp::from_micros(0), BTreeMap::from([(miner, key(9))]));
                let all = store.gathered(zero, zero, &owners).await.unwrap();
                all.into_values()
                    .map(|one| (one.answers, one.oldest.micros()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(gathered().await, [(1, 15)], "{}", test.engine);
            put(&store, &run("before the draw", 30, RunState::Judged, None)).await;
            assert_eq!(gathered().await, [(1, 15)], "it did not see the answer");
            put(&store, &run("without a verdict", 50, RunState::Ended, None)).await;
            assert_eq!(gathered().await, [(1, 15)]);
            put(&store, &run("after the draw", 60, RunState::Judged, None)).await;
            assert_eq!(gathered().await, []);
        }
    }

    #[tokio::test]
    async fn an_interrupted_audit_is_known_by_its_state_and_one_of_an_earlier_release_by_its_reason() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            drop(Store::with_pool(test.pool.clone()).await.unwrap());
            let store = AuditStore::new(test.pool.clone());
            let is_interrupted = async || {
                let subject = run("", 0, RunState::Ended, None).subject();
                let since = Timestamp::from_micros(1);
                store.is_interrupted(&subject, since).await.unwrap()
            };
            assert!(!is_interrupted().await, "{}", test.engine);
            for (begun, (state, reason, expected)) in (2_i64..).zip([
                (RunState::Interrupted, None, true),
                (RunState::Ended, Some("the reference died"), false),
                (RunState::Ended, Some(RESTARTED), true),
                (RunState::Judged, Some(RESTARTED), false),
            ]) {
                put(&store, &run(&begun.to_string(), begun, state, reason)).await;
                assert_eq!(is_interrupted().await, expected, "{state:?}: {reason:?}");
            }
            let listed = store.list_runs(9).await.unwrap();
            assert_eq!(listed.last().unwrap().state, RunState::Interrupted);
        }
    }
}
