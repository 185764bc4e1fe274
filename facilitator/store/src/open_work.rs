//! The open work of all facilitators that share a store, in numbers, for their metrics.

use muster_protocol::Timestamp;
use muster_store::{During as _, StoreError};
use sqlx::AssertSqlSafe;

use crate::Store;
use crate::queue_places::IS_WAITING;

/// The open work in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenWork {
    /// Jobs that have not ended.
    pub jobs: u64,
    /// Those of them that wait in a validator's queue, as their validators last reported.
    pub waiting_jobs: u64,
    /// Validators that have announced a gateway.
    pub gateways: u64,
    /// Browser sessions that have not expired.
    pub web_sessions: u64,
}

impl OpenWork {
    /// Sets the gauges of the facilitator.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    pub fn set_gauges(self) {
        let set = |name: &'static str, value: u64| metrics::gauge!(name).set(value as f64);
        set("muster_facilitator_jobs_open", self.jobs);
        set("muster_facilitator_jobs_waiting", self.waiting_jobs);
        set("muster_facilitator_gateways", self.gateways);
        set("muster_facilitator_web_sessions", self.web_sessions);
    }
}

// === impl Store ===

impl Store {
    /// Counts the open work at `now`.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn count_open_work(&self, now: Timestamp) -> Result<OpenWork, StoreError> {
        let waiting = format!(
            "SELECT COUNT(*) FROM queue_places JOIN jobs ON jobs.uuid = queue_places.job \
             WHERE jobs.ended_at = 0 AND {IS_WAITING}"
        );
        let (web_sessions,): (i64,) =
            sqlx::query_as("SELECT COUNT(*) FROM web_sessions WHERE expires_at > $1")
                .bind(now.micros())
                .fetch_one(&self.pool)
                .await
                .during("count sessions of browsers")?;
        let gateways = self.gateways().await?.len();
        Ok(OpenWork {
            jobs: self.count("SELECT COUNT(*) FROM jobs WHERE ended_at = 0").await?,
            waiting_jobs: self.count(&waiting).await?,
            gateways: u64::try_from(gateways).unwrap_or(u64::MAX),
            web_sessions: to_count(web_sessions),
        })
    }

    async fn count(&self, statement: &str) -> Result<u64, StoreError> {
        let (count,): (i64,) = sqlx::query_as(AssertSqlSafe(statement.to_owned()))
            .fetch_one(&self.pool)
            .await
            .during("count jobs")?;
        Ok(to_count(count))
    }
}

fn to_count(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}
