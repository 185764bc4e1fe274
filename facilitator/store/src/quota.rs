//! Quotas of jobs: how many an account may have open, and how many it may create a day.

use muster_protocol::Timestamp;
use muster_store::{During as _, StoreError};
use sqlx::AnyConnection;

/// The quotas of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobQuota {
    /// Jobs that have not ended; 0 for no limit.
    pub open: u32,
    /// Jobs a day, UTC; 0 for no limit.
    pub daily: u32,
}

/// The quota that a new job would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaExceeded {
    /// The account has too many open jobs.
    Open,
    /// The account has created too many jobs today.
    Daily {
        /// Seconds until midnight, UTC.
        resets_in_s: u64,
    },
}

const DAY_MICROS: i64 = 86_400_000_000;

impl JobQuota {
    /// The quotas of an account without limits.
    pub const NONE: Self = Self { open: 0, daily: 0 };
}

/// Counts one more job of `account`, or returns the exceeded quota. The caller must not commit the transaction then.
///
/// The first statement locks the account's row, so that of two concurrent requests only one gets the last place.
pub(super) async fn count_job(
    connection: &mut AnyConnection,
    account: &str,
    quota: JobQuota,
    now: Timestamp,
) -> Result<Result<(), QuotaExceeded>, StoreError> {
    if quota == JobQuota::NONE {
        return Ok(Ok(()));
    }
    let (day, into_day) = (now.micros() / DAY_MICROS, now.micros() % DAY_MICROS);
    let most = if quota.daily == 0 {
        i64::MAX
    } else {
        i64::from(quota.daily)
    };
    let statement = "INSERT INTO quotas (account, day, jobs) VALUES ($1, $2, 1) ON CONFLICT (account) DO UPDATE \
                     SET jobs = CASE WHEN quotas.day = excluded.day THEN quotas.jobs + 1 ELSE 1 END, \
                     tokens = CASE WHEN quotas.day = excluded.day THEN quotas.tokens ELSE 0 END, day = excluded.day \
                     WHERE quotas.day <> excluded.day OR quotas.jobs < $3";
    let done = sqlx::query(statement)
        .bind(account)
        .bind(day)
        .bind(most)
        .execute(&mut *connection)
        .await
        .during("count a job")?;
    if done.rows_affected() == 0 {
        let resets_in_s = u64::try_from((DAY_MICROS - into_day) / 1_000_000).unwrap_or_default();
        return Ok(Err(QuotaExceeded::Daily {
            resets_in_s: resets_in_s.max(1),
        }));
    }
    if quota.open > 0 {
        // The new job is already among them.
        let statement = "SELECT COUNT(*) FROM (SELECT 1 AS one FROM jobs WHERE account = $1 AND ended_at = 0 LIMIT $2) AS open";
        let (open,): (i64,) = sqlx::query_as(statement)
            .bind(account)
            .bind(i64::from(quota.open).saturating_add(1))
            .fetch_one(connection)
            .await
            .during("count open jobs")?;
        if open > i64::from(quota.open) {
            return Ok(Err(QuotaExceeded::Open));
        }
    }
    Ok(Ok(()))
}
