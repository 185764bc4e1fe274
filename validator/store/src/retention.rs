//! Which rows of the validator may go, and when.
//!
//! Receipts come first: one goes only after its time, and only if no cycle can be scored by it any more and no user
//! disputes its job. The attempt, the session and the job behind a receipt stay as long as the receipt. A job goes
//! last, with its user's signature, once that signature is too old to be accepted again.

use std::time::Duration;

use muster_protocol::Timestamp;
use muster_protocol::receipt::{PAGE_SECS, SERVED_SECS, page_of};
use muster_store::Value;
use muster_store::columns::{read_column, to_signed, to_unsigned};
use muster_store::retention::{AgedRows, Deletion, Keep, PaceSettings, read_cutoff};
use muster_store::size::TableSize;
use serde::Deserialize;

use super::audits::{is_set_aside, says_something, takes_the_place};
use super::{Result, Store, query_error};

/// The least time for which gathered receipts stay, in seconds. A receipt that is accepted again after it was deleted
/// would count twice, and receipts are accepted up to the age of [`SERVED_SECS`].
pub const GATHERED_NEEDED_SECS: i64 = SERVED_SECS + 24 * 3600;

/// The time beyond the largest age of a signature for which it stays, so that its refusal names its age.
const SIGNATURE_MARGIN: Duration = Duration::from_secs(3600);

/// The least days for which epochs stay: as long as the longest job, and the day before it whose blocks it may name.
const EPOCHS_NEEDED_DAYS: u32 = 32;

/// The most turns of accounts without waiting jobs.
const MOST_TURNS: i64 = 100_000;

/// The tables of sessions, of the log of their answers, and of audits.
const ANSWER_TABLES: &[&str] = &[
    "responses",
    "sessions",
    "answer_buckets",
    "answer_scores",
    "other_proofs",
    "canaries",
    "own_lists",
    "request_forms",
    "written_prompts",
    "audit_runs",
    "nonce_periods",
    "audit_verdicts",
    "self_tests",
    "audit_offers",
    "audit_endorsements",
    "audit_self_tests",
    "answer_ids",
    "audit_notices",
    "audit_appeals",
];

/// The tables of the stakes and statements by which cycles were scored.
const EPOCH_TABLES: &[&str] = &[
    "epochs",
    "capacity_statements",
    "capacity_evidence",
    "capacity_sightings",
    "audit_header_notes",
    "audit_second_headers",
    "main_hotkeys",
    "burned_transfers",
];

/// The times of a table's rows, newest first, as [`read_cutoff`] asks for them.
macro_rules! newest {
    ($table:literal, $age:literal) => {
        concat!(
            "SELECT ",
            $age,
            " FROM ",
            $table,
            " ORDER BY ",
            $age,
            " DESC LIMIT 1 OFFSET $1"
        )
    };
}

/// The name of the horizon of users' signatures.
pub(super) const SIGNATURES: &str = "signatures";

/// How long rows stay, and how many: `[retention]` of a validator's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValidatorRetentionConfig {
    /// Jobs that have ended, with their attempts, signatures and status updates.
    pub jobs: Keep,
    /// The reasons of routing.
    pub routes: Keep,
    /// This validator's own receipts.
    pub receipts: Keep,
    /// Receipts of all validators, as they were gathered; at least 3 days.
    pub gathered: Keep,
    /// Scored cycles with their weights, once they are settled.
    pub cycles: Keep,
    /// Sessions of the gateway, and their answers with the proofs.
    pub answers: Keep,
    /// Requests and answers that were kept for a later check.
    pub samples: Keep,
    /// Users' reports of cheating, and so the receipts of the jobs that they name.
    pub disputes: Keep,
    /// Batches of grading and what they proved. `grading.keep_days` bounds their evidence.
    pub batches: Keep,
    /// The counts of refused receipts, after the last refusal.
    pub refusals: Keep,
    /// The stakes at the begin of epochs, validators' statements of capacity with their evidence, and the notes of
    /// others' headers; at least 32 days, since the receipt of a job of thirty days names blocks from before it.
    pub epochs: Keep,
    /// The pace of the janitor.
    pub pace: PaceSettings,
}

/// Bounds that other parts of the configuration and the chain set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionBounds {
    /// The largest age at which a user's signature is accepted.
    pub signature_age: Duration,
    /// The age up to which receipt pages are read.
    pub catch_up: Duration,
    /// The blocks before a cycle's first within which a grading batch counts in the cycle.
    pub batch_blocks: u64,
}

/// The cycles on which it depends which receipts are still needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CycleFacts {
    /// The last block whose work is in weights that were set or committed, or earned nothing.
    pub settled_through: Option<u64>,
    /// The first blocks of the cycles that may still be scored, sent or revealed again: those that are pending,
    /// committed or expired, and the newest, which a reorganisation of the chain may open again.
    pub open: Vec<u64>,
}

/// The times and blocks before which rows of each kind may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionCutoffs {
    /// The chain's genesis hash, and the first block that a cycle may still be scored by; `None` if no chain has
    /// answered, or nothing is settled yet. Then no receipt and no cycle goes.
    pub scored: Option<(String, u64)>,
    /// In nanoseconds since 1970: signatures from before it are refused, and may go with their jobs.
    pub signatures_ns: i64,
    /// The first receipt page that is still read.
    pub oldest_page: i64,
    /// The blocks before the floor within which grading batches count.
    pub batch_blocks: u64,
    /// Turns of accounts before this ticket, of which more than a hundred thousand are newer.
    pub oldest_turn: i64,
    jobs: Timestamp,
    routes: Timestamp,
    receipts: Timestamp,
    gathered: Timestamp,
    cycles: Timestamp,
    answers: Timestamp,
    samples: Timestamp,
    disputes: Timestamp,
    batches: Timestamp,
    refusals: Timestamp,
    epochs: Timestamp,
    /// The first of this validator's own receipt pages that others may still read.
    served_page: i64,
}

/// The first block whose receipts a cycle may still be scored by; `None` if no cycle is settled yet.
pub fn first_needed_block(cycles: &CycleFacts) -> Option<u64> {
    let unsettled = cycles.settled_through?.saturating_add(1);
    Some(cycles.open.iter().copied().fold(unsettled, u64::min))
}

/// The horizon of signatures at `now`, in nanoseconds since 1970. It lies below every signature that is accepted.
pub fn signature_horizon_ns(now: Timestamp, largest_age: Duration) -> i64 {
    let oldest = now.minus(largest_age.saturating_add(SIGNATURE_MARGIN));
    oldest.micros().saturating_mul(1_000)
}

impl Default for ValidatorRetentionConfig {
    fn default() -> Self {
        let keep = |days, rows, mib| Keep { days, rows, mib };
        Self {
            jobs: keep(30, 1_000_000, 20_480),
            routes: keep(7, 1_000_000, 4_096),
            receipts: keep(30, 5_000_000, 10_240),
            gathered: keep(7, 5_000_000, 10_240),
            cycles: keep(400, 100_000, 4_096),
            answers: keep(30, 5_000_000, 10_240),
            samples: keep(14, 100_000, 10_240),
            disputes: keep(365, 100_000, 1_024),
            batches: keep(400, 100_000, 4_096),
            refusals: keep(30, 100_000, 256),
            epochs: keep(40, 1_000_000, 10_240),
            pace: PaceSettings::default(),
        }
    }
}

impl ValidatorRetentionConfig {
    /// All problems of the settings. `table` is the name of their table in the configuration.
    pub fn problems(&self, table: &str) -> Vec<muster_process::config::Problem> {
        let keeps = [
            ("jobs", self.jobs, 1),
            ("routes", self.routes, 1),
            ("receipts", self.receipts, 1),
            ("gathered", self.gathered, 3),
            ("cycles", self.cycles, 1),
            ("answers", self.answers, 1),
            ("samples", self.samples, 1),
            ("disputes", self.disputes, 1),
            ("batches", self.batches, 1),
            ("refusals", self.refusals, 1),
            ("epochs", self.epochs, EPOCHS_NEEDED_DAYS),
        ];
        let problems = keeps
            .into_iter()
            .flat_map(|(key, keep, least)| keep.problems(&format!("{table}.{key}"), least));
        problems
            .chain(self.pace.problems(&format!("{table}.pace")))
            .collect()
    }
}

// === impl Store ===

impl Store {
    /// The deletions that are due at `now`, in the order in which they must happen. Before it returns, signatures that
    /// are about to be forgotten are refused for good.
    ///
    /// # Errors
    /// The database fails.
    pub async fn due_deletions(
        &self,
        config: &ValidatorRetentionConfig,
        bounds: RetentionBounds,
        now: Timestamp,
        sizes: &[TableSize],
    ) -> Result<Vec<Deletion>> {
        let cutoffs = self.retention_cutoffs(config, bounds, now, sizes).await?;
        self.refuse_signatures_before(cutoffs.signatures_ns).await?;
        Ok(cutoffs.deletions())
    }

    /// Refuses every signature from before `nanos` (since 1970) from now on. The horizon never goes back.
    ///
    /// # Errors
    /// The database fails.
    pub async fn refuse_signatures_before(&self, nanos: i64) -> Result<()> {
        self.write("raise the horizon of signatures", |draft| {
            draft.script.add(
                "INSERT INTO horizons (name, at) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET at = excluded.at \
                 WHERE horizons.at < excluded.at",
                [SIGNATURES.into(), nanos.into()],
            );
        })
        .await
    }

    /// Whether signatures of this time are refused because they may have been forgotten. `timestamp_ns` is in
    /// nanoseconds since 1970.
    ///
    /// # Errors
    /// The database fails.
    pub async fn is_below_horizon(&self, timestamp_ns: i64) -> Result<bool> {
        let row = sqlx::query("SELECT at FROM horizons WHERE name = $1 AND at > $2")
            .bind(SIGNATURES)
            .bind(timestamp_ns)
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("read the horizon of signatures"))?;
        Ok(row.is_some())
    }

    /// The cycles of the present chain, as far as retention needs them.
    ///
    /// # Errors
    /// The database fails.
    pub async fn cycle_facts(&self) -> Result<CycleFacts> {
        let genesis = self.chain().genesis;
        let settled_through = self.settled_through().await?.map(|block| block.0);
        let rows = sqlx::query(
            "SELECT first_block FROM cycles WHERE chain = $1 AND (state IN ('pending', 'committed', 'expired') \
             OR last_block = (SELECT MAX(last_block) FROM cycles WHERE chain = $1))",
        )
        .bind(genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read which cycles are open"))?;
        let open = rows
            .iter()
            .map(|row| read_column(row, "first_block").map(to_unsigned))
            .collect::<Result<_>>()?;
        Ok(CycleFacts {
            settled_through,
            open,
        })
    }

    /// The ticket of the newest turn beyond the bound on their number; the least number if there are fewer.
    async fn oldest_turn(&self) -> Result<i64> {
        let row = sqlx::query("SELECT ticket FROM queue_turns ORDER BY ticket DESC LIMIT 1 OFFSET $1")
            .bind(MOST_TURNS)
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("look for old turns of accounts"))?;
        row.map_or(Ok(i64::MIN), |row| read_column(&row, "ticket"))
    }

    async fn retention_cutoffs(
        &self,
        config: &ValidatorRetentionConfig,
        bounds: RetentionBounds,
        now: Timestamp,
        sizes: &[TableSize],
    ) -> Result<RetentionCutoffs> {
        let genesis = self.chain().genesis;
        let floor = first_needed_block(&self.cycle_facts().await?);
        let gathered_needed = now.minus(Duration::from_secs(GATHERED_NEEDED_SECS.unsigned_abs()));
        let of = async |keep, tables: &[&str], newest| {
            read_cutoff(&self.pool, keep, tables, newest, now, sizes).await
        };
        Ok(RetentionCutoffs {
            scored: floor.filter(|_| !genesis.is_empty()).map(|floor| (genesis, floor)),
            signatures_ns: signature_horizon_ns(now, bounds.signature_age),
            oldest_page: page_of(now.minus(bounds.catch_up)).saturating_sub(2),
            batch_blocks: bounds.batch_blocks,
            oldest_turn: self.oldest_turn().await?,
            jobs: of(
                config.jobs,
                &["jobs", "attempts", "outbox", "signatures"],
                "SELECT closed_at FROM jobs WHERE closed_at IS NOT NULL ORDER BY closed_at DESC LIMIT 1 OFFSET $1",
            )
            .await?,
            routes: of(
                config.routes,
                &["routes"],
                newest!("routes", "decided_at"),
            )
            .await?,
            receipts: of(
                config.receipts,
                &["receipts"],
                newest!("receipts", "written_at"),
            )
            .await?,
            gathered: of(
                config.gathered,
                &["gathered"],
                newest!("gathered", "written_at"),
            )
            .await?
            .min(gathered_needed),
            cycles: of(
                config.cycles,
                &["cycles", "scoring_snapshots", "scoring_snapshot_pieces"],
                newest!("cycles", "changed_at"),
            )
            .await?,
            answers: of(
                config.answers,
                ANSWER_TABLES,
                newest!("responses", "ended_at"),
            )
            .await?,
            samples: of(
                config.samples,
                &["pairs"],
                newest!("pairs", "gathered_at"),
            )
            .await?,
            disputes: of(
                config.disputes,
                &["cheat_reports", "disputes"],
                newest!("cheat_reports", "received_at"),
            )
            .await?,
            batches: of(
                config.batches,
                &["batches", "capacities", "excuses"],
                newest!("batches", "began_at"),
            )
            .await?,
            refusals: of(config.refusals, &["refused_receipts"], newest!("refused_receipts", "last_at")).await?,
            epochs: of(config.epochs, EPOCH_TABLES, newest!("capacity_statements", "received_at")).await?,
            served_page: page_of(now).saturating_sub(SERVED_SECS / PAGE_SECS),
        })
    }
}

// === impl RetentionCutoffs ===

impl RetentionCutoffs {
    /// The deletions of everything before these bounds: receipts before what they rest on, parts before wholes.
    pub fn deletions(&self) -> Vec<Deletion> {
        let mut all = self.scored_rows();
        all.extend(self.audit_rows());
        all.extend(self.streamed_rows());
        all.extend(self.notice_rows());
        all.extend(self.job_rows());
        all.extend(self.other_rows());
        all.extend(self.epoch_rows());
        all
    }

    /// The rows that scoring reads: only before the floor of this chain. Of other chains, age decides.
    fn scored_rows(&self) -> Vec<Deletion> {
        let Some((genesis, floor)) = &self.scored else {
            return Vec::new();
        };
        let of = |table, statement, before: Timestamp, floor: u64| Deletion::Rows {
            table,
            statement,
            values: vec![
                genesis.as_str().into(),
                to_signed(floor).into(),
                before.micros().into(),
            ],
        };
        let batch_floor = floor.saturating_sub(self.batch_blocks);
        vec![
            of(
                "receipts",
                "DELETE FROM receipts WHERE (attempt_id, kind) IN (SELECT r.attempt_id, r.kind FROM receipts AS r \
                 WHERE r.chain <> '' AND (r.chain <> $1 OR (r.block >= 0 AND r.block < $2)) AND r.written_at < $3 \
                 AND NOT EXISTS (SELECT 1 FROM attempts AS a JOIN jobs AS j ON j.job_id = a.job_id \
                 WHERE a.attempt_id = r.attempt_id AND (j.closed_at IS NULL \
                 OR EXISTS (SELECT 1 FROM disputes AS d WHERE d.job_id = j.job_id))) \
                 ORDER BY r.written_at LIMIT $4)",
                self.receipts,
                *floor,
            ),
            of(
                "gathered",
                "DELETE FROM gathered WHERE (validator, attempt_id, kind) IN \
                 (SELECT g.validator, g.attempt_id, g.kind FROM gathered AS g \
                 WHERE (g.chain <> $1 OR g.block < $2) AND g.written_at < $3 ORDER BY g.written_at LIMIT $4)",
                self.gathered,
                *floor,
            ),
            of(
                "cycles",
                "DELETE FROM cycles WHERE (chain, last_block) IN (SELECT chain, last_block FROM cycles \
                 WHERE state IN ('set', 'kept', 'missed') AND (chain <> $1 OR last_block < $2) AND changed_at < $3 \
                 LIMIT $4)",
                self.cycles,
                *floor,
            ),
            // A snapshot goes with the last cycle that was scored by it.
            rows(
                "scoring_snapshots",
                "DELETE FROM scoring_snapshots WHERE digest IN (SELECT s.digest FROM scoring_snapshots AS s \
                 WHERE NOT EXISTS (SELECT 1 FROM cycles AS c WHERE c.snapshot = s.digest) LIMIT $1)",
                [],
            ),
            // The pieces of a snapshot are written together with it.
            rows(
                "scoring_snapshot_pieces",
                "DELETE FROM scoring_snapshot_pieces WHERE (digest, piece) IN (SELECT p.digest, p.piece \
                 FROM scoring_snapshot_pieces AS p \
                 WHERE NOT EXISTS (SELECT 1 FROM scoring_snapshots AS s WHERE s.digest = p.digest) LIMIT $1)",
                [],
            ),
            // The chain of a batch is not stored, and the numbers of blocks grow on every chain.
            Deletion::Tree {
                table: "batches",
                find: "SELECT batch_id AS id FROM batches WHERE state <> 'open' AND block < $1 AND began_at < $2 \
                       AND NOT EXISTS (SELECT 1 FROM batch_proofs WHERE batch_proofs.batch_id = batches.batch_id) \
                       AND NOT EXISTS (SELECT 1 FROM grades WHERE grades.batch_id = batches.batch_id) \
                       ORDER BY began_at LIMIT $3",
                values: vec![to_signed(batch_floor).into(), self.batches.micros().into()],
                parts: &[
                    ("excuses", "batch_id"),
                    ("capacities", "batch_id"),
                    ("batches", "batch_id"),
                ],
            },
        ]
    }

    /// Answers and sessions stay as long as a receipt of their job, whose amount they explain.
    fn streamed_rows(&self) -> Vec<Deletion> {
        vec![
            AgedRows::oldest_first("pairs", "response_id", "gathered_at").before(self.samples.micros()),
            AgedRows::new("answer_scores", "response_id, reference", "scored_at")
                .before(self.answers.micros()),
            AgedRows::new("other_proofs", "session_id, sequence", "kept_at").before(self.answers.micros()),
            AgedRows::new("request_forms", "response_id", "seen_at").before(self.samples.micros()),
            AgedRows::new("written_prompts", "model, prompt", "written_at").before(self.samples.micros()),
            // The place of one prompt is opened with the hashes of all others, so a list goes as a whole, with the
            // prompts that were never sent.
            rows(
                "canaries",
                "DELETE FROM canaries WHERE (list, position) IN (SELECT c.list, c.position FROM canaries AS c \
                 WHERE c.made_at < $1 AND NOT EXISTS \
                 (SELECT 1 FROM canaries AS s WHERE s.list = c.list AND s.sent_at >= $1) LIMIT $2)",
                [self.answers.micros()],
            ),
            AgedRows::new("own_lists", "list", "committed_at").before(self.answers.micros()),
            // The newest one has the place at which the log goes on.
            rows(
                "answer_buckets",
                "DELETE FROM answer_buckets WHERE bucket IN (SELECT b.bucket FROM answer_buckets AS b \
                 WHERE b.closed_at < $1 AND EXISTS (SELECT 1 FROM answer_buckets AS n WHERE n.bucket > b.bucket) LIMIT $2)",
                [self.answers.micros()],
            ),
            AgedRows::new("nonce_periods", "period", "began_at").before(self.answers.micros()),
            rows(
                "responses",
                "DELETE FROM responses WHERE response_id IN (SELECT r.response_id FROM responses AS r \
                 JOIN sessions AS s ON s.session_id = r.session_id WHERE r.ended_at < $1 AND s.closed_at IS NOT NULL \
                 AND NOT EXISTS (SELECT 1 FROM pairs WHERE pairs.response_id = r.response_id) \
                 AND NOT EXISTS (SELECT 1 FROM attempts AS a JOIN receipts AS f ON f.attempt_id = a.attempt_id \
                 WHERE a.job_id = s.job_id) ORDER BY r.ended_at LIMIT $2)",
                [self.answers.micros()],
            ),
            rows(
                "sessions",
                "DELETE FROM sessions WHERE session_id IN (SELECT s.session_id FROM sessions AS s \
                 WHERE s.closed_at < $1 \
                 AND NOT EXISTS (SELECT 1 FROM responses AS r WHERE r.session_id = s.session_id) \
                 AND NOT EXISTS (SELECT 1 FROM other_proofs AS o WHERE o.session_id = s.session_id) \
                 AND NOT EXISTS (SELECT 1 FROM attempts AS a JOIN receipts AS f ON f.attempt_id = a.attempt_id \
                 WHERE a.job_id = s.job_id) ORDER BY s.closed_at LIMIT $2)",
                [self.answers.micros()],
            ),
        ]
    }

    /// Audits, verdicts, and all that validators exchange about them.
    fn audit_rows(&self) -> Vec<Deletion> {
        vec![
            AgedRows::new("audit_runs", "run_id", "ended_at").before(self.answers.micros()),
            // The newest test of a model decides when the next one is due.
            rows(
                "self_tests",
                "DELETE FROM self_tests WHERE test_id IN (SELECT t.test_id FROM self_tests AS t WHERE t.began_at < $1 \
                 AND EXISTS (SELECT 1 FROM self_tests AS n WHERE n.model = t.model AND n.began_at > t.began_at) LIMIT $2)",
                [self.answers.micros()],
            ),
            // A verdict counts until another one takes its place, however old it is, and a conviction that has ended
            // stays until it is settled. The oldest go first: without it, those whose place it took would count again.
            rows(
                "audit_verdicts",
                concat!(
                    "DELETE FROM audit_verdicts WHERE (genesis, digest) IN (SELECT a.genesis, a.digest \
                     FROM audit_verdicts AS a WHERE a.adopted_at < $1 AND ((a.origin <> 'operator' AND NOT ",
                    says_something!(),
                    ") OR ",
                    is_set_aside!(),
                    " OR a.settled_at IS NOT NULL OR (a.ended_at IS NULL AND EXISTS \
                     (SELECT 1 FROM audit_verdicts AS b WHERE b.genesis = a.genesis AND b.coldkey = a.coldkey AND b.model = a.model AND ",
                    takes_the_place!(),
                    " AND b.adopted_at > a.adopted_at))) ORDER BY a.adopted_at LIMIT $2)",
                ),
                [self.answers.micros()],
            ),
            AgedRows::new("audit_offers", "genesis, author, digest", "seen_at").before(self.answers.micros()),
            // A statement is shown for as long as its bundle counts here.
            rows(
                "audit_endorsements",
                "DELETE FROM audit_endorsements WHERE (genesis, digest, validator) IN \
                 (SELECT e.genesis, e.digest, e.validator FROM audit_endorsements AS e WHERE e.seen_at < $1 \
                 AND NOT EXISTS (SELECT 1 FROM audit_verdicts AS a WHERE a.genesis = e.genesis \
                 AND a.digest = e.digest) LIMIT $2)",
                [self.answers.micros()],
            ),
            // The newest test of a validator is shown, however old it is.
            rows(
                "audit_self_tests",
                "DELETE FROM audit_self_tests WHERE (genesis, validator, tested_at) IN \
                 (SELECT t.genesis, t.validator, t.tested_at FROM audit_self_tests AS t WHERE t.seen_at < $1 \
                 AND EXISTS (SELECT 1 FROM audit_self_tests AS n WHERE n.genesis = t.genesis \
                 AND n.validator = t.validator AND n.tested_at > t.tested_at) LIMIT $2)",
                [self.answers.micros()],
            ),
            AgedRows::new("answer_ids", "response_id", "kept_at").before(self.answers.micros()),
        ]
    }

    /// Notices to miners and their appeals stay as long as the answers that they are about.
    fn notice_rows(&self) -> Vec<Deletion> {
        vec![
            AgedRows::new("audit_notices", "miner, kind, about", "made_at").before(self.answers.micros()),
            rows(
                "audit_appeals",
                "DELETE FROM audit_appeals WHERE (bundle, received_at) IN \
                 (SELECT bundle, received_at FROM audit_appeals WHERE received_at < $1 AND ended_at IS NOT NULL LIMIT $2)",
                [self.answers.micros()],
            ),
        ]
    }

    fn job_rows(&self) -> Vec<Deletion> {
        vec![
            AgedRows::oldest_first("routes", "job_id, ordinal", "decided_at").before(self.routes.micros()),
            rows(
                "attempts",
                "DELETE FROM attempts WHERE attempt_id IN (SELECT a.attempt_id FROM attempts AS a \
                 JOIN jobs AS j ON j.job_id = a.job_id WHERE a.ended_at < $1 AND j.closed_at < $1 \
                 AND NOT EXISTS (SELECT 1 FROM receipts AS r WHERE r.attempt_id = a.attempt_id) \
                 AND NOT EXISTS (SELECT 1 FROM disputes AS d WHERE d.job_id = a.job_id) \
                 AND NOT EXISTS (SELECT 1 FROM outbox AS o WHERE o.job_id = a.job_id AND o.acknowledged_at IS NULL) \
                 ORDER BY a.ended_at LIMIT $2)",
                [self.jobs.micros()],
            ),
            Deletion::Tree {
                table: "jobs",
                find: "SELECT j.job_id AS id FROM jobs AS j WHERE j.closed_at < $1 \
                       AND NOT EXISTS (SELECT 1 FROM attempts AS a WHERE a.job_id = j.job_id) \
                       AND NOT EXISTS (SELECT 1 FROM routes AS t WHERE t.job_id = j.job_id) \
                       AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.job_id = j.job_id) \
                       AND NOT EXISTS (SELECT 1 FROM disputes AS d WHERE d.job_id = j.job_id) \
                       AND NOT EXISTS (SELECT 1 FROM queue AS q WHERE q.job_id = j.job_id) \
                       AND NOT EXISTS (SELECT 1 FROM outbox AS o \
                       WHERE o.job_id = j.job_id AND o.acknowledged_at IS NULL) \
                       AND NOT EXISTS (SELECT 1 FROM signatures AS u \
                       WHERE u.job_id = j.job_id AND u.timestamp_ns >= $2) ORDER BY j.closed_at LIMIT $3",
                values: vec![self.jobs.micros().into(), self.signatures_ns.into()],
                parts: &[
                    ("signatures", "job_id"),
                    ("outbox", "job_id"),
                    ("checkpoints", "job_id"),
                    ("jobs", "job_id"),
                ],
            },
        ]
    }

    fn other_rows(&self) -> Vec<Deletion> {
        vec![
            AgedRows::new("cheat_reports", "signatory, timestamp_ns", "received_at")
                .before(self.disputes.micros()),
            AgedRows::new("disputes", "job_id", "reported_at").before(self.disputes.micros()),
            AgedRows::new("refused_receipts", "miner, reason", "last_at").before(self.refusals.micros()),
            // An account whose turn is forgotten goes before others once. Turns of accounts with waiting jobs stay.
            rows(
                "queue_turns",
                "DELETE FROM queue_turns WHERE (class, account) IN (SELECT t.class, t.account FROM queue_turns AS t \
                 WHERE t.ticket < $1 AND NOT EXISTS (SELECT 1 FROM queue AS q \
                 WHERE q.class = t.class AND q.account = t.account) LIMIT $2)",
                [self.oldest_turn],
            ),
            AgedRows::new("pages_read", "miner, page", "page").before(self.oldest_page),
            // By then a receipt of the cycle is too old to be accepted.
            AgedRows::new("gathered_amounts", "chain, validator, miner, cycle", "written_at")
                .before(self.gathered.micros()),
            rows(
                "receipt_lines",
                "DELETE FROM receipt_lines WHERE (page, first) IN \
                 (SELECT page, first FROM receipt_lines WHERE page < $1 ORDER BY page, first LIMIT $2)",
                [self.served_page],
            ),
        ]
    }

    /// The stakes and statements by which cycles were scored. Cycles keep a copy of what counted in their snapshots.
    fn epoch_rows(&self) -> Vec<Deletion> {
        let before = self.epochs.micros();
        let served = self
            .served_page
            .saturating_mul(PAGE_SECS)
            .saturating_mul(1_000_000);
        vec![
            AgedRows::new("epochs", "chain, first_block", "first_ms").before(before / 1_000),
            AgedRows::new(
                "capacity_statements",
                "chain, cycle, validator, digest",
                "received_at",
            )
            .before(before),
            AgedRows::new("capacity_evidence", "digest", "written_at").before(before),
            AgedRows::new("capacity_sightings", "chain, cycle, validator, digest", "seen_at").before(before),
            // A statement that nothing contradicts is shown to others for as long as receipts are.
            rows(
                "capacity_sightings",
                "DELETE FROM capacity_sightings WHERE (chain, cycle, validator, digest) IN \
                 (SELECT s.chain, s.cycle, s.validator, s.digest FROM capacity_sightings AS s WHERE s.seen_at < $1 \
                 AND NOT EXISTS (SELECT 1 FROM capacity_sightings AS o WHERE o.chain = s.chain \
                 AND o.cycle = s.cycle AND o.validator = s.validator AND o.digest <> s.digest) LIMIT $2)",
                [served],
            ),
            AgedRows::new("audit_header_notes", "genesis, author, bucket", "seen_at").before(before),
            AgedRows::new("audit_second_headers", "genesis, author", "seen_at").before(before),
            AgedRows::new("main_hotkeys", "chain, cycle, miner", "answered_at").before(before),
            AgedRows::new("burned_transfers", "genesis, account, block, payer", "read_at").before(before),
        ]
    }
}

fn rows<const N: usize>(table: &'static str, statement: &'static str, values: [i64; N]) -> Deletion {
    Deletion::Rows {
        table,
        statement,
        values: values.into_iter().map(Value::from).collect(),
    }
}

#[cfg(test)]
mod tests;
