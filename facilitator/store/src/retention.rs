//! Which rows of the facilitator may go, and when: live output an hour after its job's end, ended jobs with all that
//! belongs to them, the audit log, the use of models, keys that were revoked or have ended, validators that never came
//! back, and the rows of deleted accounts.

use std::time::Duration;

use muster_protocol::Timestamp;
use muster_store::retention::{AgedRows, Deletion, RetentionRules, read_cutoff};
use muster_store::size::TableSize;
use muster_store::{StoreError, Value};

use super::Store;
use super::account_deletion::deletions_of;
use super::jobs::JOB_PARTS;
use super::miner_reports::KEPT as MINER_REPORTS_KEPT;
use crate::settings::FacilitatorRetentionConfig;

/// The time for which a used nonce is remembered beyond its expiry: replicas whose clocks differ by less than this
/// cannot make each other forget a nonce that one of them still takes.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 60 * 60);

/// The time after a job's end in which its output is kept for event streams. The result contains all of it.
pub(super) const LIVE_KEPT: Duration = Duration::from_secs(3600);

const DAY_MICROS: i64 = 86_400_000_000;

/// The tables whose bytes count as those of jobs.
const JOB_TABLES: [&str; 6] = [
    "jobs",
    "statuses",
    "feedback",
    "cheat_reports",
    "webhook_messages",
    "metric_points",
];

/// The rules of the facilitator's store.
#[derive(Clone, Debug)]
pub struct FacilitatorRetention {
    store: Store,
    config: FacilitatorRetentionConfig,
}

/// The times before which rows of each kind may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionCutoffs {
    /// The time now, for rows that have an end of their own.
    pub now: Timestamp,
    /// Live output of jobs that ended before it.
    pub live: Timestamp,
    /// Jobs that ended before it.
    pub jobs: Timestamp,
    /// Reports of cheating that no validator has taken keep their jobs until then.
    pub undelivered: Timestamp,
    /// Entries of the audit log.
    pub audit: Timestamp,
    /// The use of models.
    pub usage: Timestamp,
    /// Keys that were revoked before it.
    pub keys: Timestamp,
    /// Validators that were seen last before it.
    pub validators: Timestamp,
}

// === impl FacilitatorRetention ===

impl FacilitatorRetention {
    /// Rules for `store`.
    pub const fn new(store: Store, config: FacilitatorRetentionConfig) -> Self {
        Self { store, config }
    }

    /// The times before which rows may go at `now`.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn cutoffs(&self, now: Timestamp, sizes: &[TableSize]) -> Result<RetentionCutoffs, StoreError> {
        let config = &self.config;
        let jobs = "SELECT ended_at FROM jobs WHERE ended_at > 0 ORDER BY ended_at DESC LIMIT 1 OFFSET $1";
        let audit = "SELECT at FROM audit ORDER BY at DESC LIMIT 1 OFFSET $1";
        let usage = "SELECT day * 86400000000 FROM model_usage ORDER BY day DESC LIMIT 1 OFFSET $1";
        let keys =
            "SELECT revoked_at FROM api_keys WHERE revoked_at > 0 ORDER BY revoked_at DESC LIMIT 1 OFFSET $1";
        let validators = "SELECT seen_at FROM validators ORDER BY seen_at DESC LIMIT 1 OFFSET $1";
        let of = async |keep, tables: &[&str], newest| {
            read_cutoff(&self.store.pool, keep, tables, newest, now, sizes).await
        };
        Ok(RetentionCutoffs {
            now,
            live: now.minus(LIVE_KEPT),
            jobs: of(config.jobs, &JOB_TABLES, jobs).await?,
            undelivered: config.jobs.oldest(now),
            audit: of(config.audit, &["audit"], audit).await?,
            usage: of(config.usage, &["model_usage"], usage).await?,
            keys: of(config.revoked_keys, &["api_keys"], keys).await?,
            validators: of(config.validators, &["validators"], validators).await?,
        })
    }
}

impl RetentionRules for FacilitatorRetention {
    async fn due(&self, now: Timestamp, sizes: &[TableSize]) -> Result<Vec<Deletion>, StoreError> {
        let cutoffs = self.cutoffs(now, sizes).await?;
        let mut due = Vec::new();
        for deletion in self.store.open_account_deletions().await? {
            due.extend(deletions_of(&deletion));
        }
        due.extend(cutoffs.deletions());
        Ok(due)
    }

    async fn swept(&self, now: Timestamp) -> Result<(), StoreError> {
        self.store.finish_account_deletions(now).await
    }
}

// === impl RetentionCutoffs ===

impl RetentionCutoffs {
    /// The deletions of everything before these times, live output before its jobs.
    pub fn deletions(&self) -> Vec<Deletion> {
        let mut all = self.live_output();
        all.push(Deletion::Tree {
            table: "jobs",
            find: "SELECT uuid AS id FROM jobs WHERE ended_at > 0 AND ended_at < $1 \
                   AND NOT EXISTS (SELECT 1 FROM logs WHERE logs.job = jobs.uuid) \
                   AND NOT EXISTS (SELECT 1 FROM cheat_reports AS report WHERE report.job = jobs.uuid \
                   AND report.delivered_at = 0 AND report.reported_at >= $2) ORDER BY ended_at, uuid LIMIT $3",
            values: micros([self.jobs, self.undelivered]),
            parts: JOB_PARTS,
        });
        all.extend(self.other_rows());
        all
    }

    fn live_output(&self) -> Vec<Deletion> {
        let of = |table, statement| Deletion::Rows {
            table,
            statement,
            values: micros([self.live]),
        };
        vec![
            of(
                "logs",
                "DELETE FROM logs WHERE (job, seq) IN (SELECT job, seq FROM logs WHERE EXISTS (SELECT 1 FROM jobs \
                 WHERE jobs.uuid = logs.job AND ended_at > 0 AND ended_at < $1 AND keeps_output = 0) LIMIT $2)",
            ),
            // The output of a failed job that has left no other stays as long as the job.
            Deletion::Rows {
                table: "logs",
                statement: "DELETE FROM logs WHERE (job, seq) IN (SELECT job, seq FROM logs WHERE EXISTS (SELECT 1 \
                            FROM jobs WHERE jobs.uuid = logs.job AND ended_at > 0 AND ended_at < $1) LIMIT $2)",
                values: micros([self.jobs]),
            },
            of(
                "queue_places",
                "DELETE FROM queue_places WHERE job IN (SELECT job FROM queue_places WHERE EXISTS (SELECT 1 FROM jobs \
                 WHERE jobs.uuid = queue_places.job AND ended_at > 0 AND ended_at < $1) LIMIT $2)",
            ),
            of(
                "progress",
                "DELETE FROM progress WHERE (job, stage) IN (SELECT job, stage FROM progress WHERE EXISTS \
                 (SELECT 1 FROM jobs WHERE jobs.uuid = progress.job AND ended_at > 0 AND ended_at < $1) LIMIT $2)",
            ),
        ]
    }

    fn other_rows(&self) -> Vec<Deletion> {
        let today = self.now.micros().div_euclid(DAY_MICROS);
        // The use of today counts towards limits.
        let usage_day = self
            .usage
            .micros()
            .saturating_add(DAY_MICROS - 1)
            .div_euclid(DAY_MICROS);
        let of = |table, statement, bound: i64| Deletion::Rows {
            table,
            statement,
            values: vec![bound.into()],
        };
        vec![
            AgedRows::new("miner_reports", "validator, miner", "told_at")
                .before(self.now.minus(MINER_REPORTS_KEPT).micros()),
            AgedRows::oldest_first("audit", "id", "at").before(self.audit.micros()),
            AgedRows::new("model_usage", "account, day, model", "day").before(usage_day.min(today)),
            // The day of a refund is the validator's claim, so the time of its notice counts.
            AgedRows::new("refunds", "validator, response", "told_at").before(self.usage.micros()),
            AgedRows::new("answer_reports", "job, account", "reported_at").before(self.usage.micros()),
            AgedRows::new("quotas", "account", "day").before(today),
            of(
                "api_keys",
                "DELETE FROM api_keys WHERE id IN \
                 (SELECT id FROM api_keys WHERE (revoked_at > 0 AND revoked_at < $1) \
                 OR (expires_at > 0 AND expires_at < $1) LIMIT $2)",
                self.keys.micros(),
            ),
            of(
                "validators",
                "DELETE FROM validators WHERE hotkey IN \
                 (SELECT hotkey FROM validators WHERE seen_at < $1 AND replica = '' LIMIT $2)",
                self.validators.micros(),
            ),
            AgedRows::new("used_nonces", "nonce", "expires_at").before(self.now.minus(CLOCK_SKEW).micros()),
            of(
                "web_links",
                "DELETE FROM web_links WHERE hash IN (SELECT hash FROM web_links WHERE expires_at <= $1 LIMIT $2)",
                self.now.micros(),
            ),
            of(
                "web_sessions",
                "DELETE FROM web_sessions WHERE hash IN \
                 (SELECT hash FROM web_sessions WHERE expires_at <= $1 LIMIT $2)",
                self.now.micros(),
            ),
            of(
                "account_deletions",
                "DELETE FROM account_deletions WHERE account IN \
                 (SELECT account FROM account_deletions WHERE finished_at > 0 AND finished_at < $1 LIMIT $2)",
                today.saturating_mul(DAY_MICROS),
            ),
        ]
    }
}

fn micros<const N: usize>(times: [Timestamp; N]) -> Vec<Value> {
    times.into_iter().map(|time| time.micros().into()).collect()
}
