//! Which receipts and which parts of validators' logs the miner may forget, and when. Leases go with the memory of the
//! lease table, greetings when they expire.

use std::time::Duration;

use muster_audit_check::store::KEPT;
use muster_protocol::Timestamp;
use muster_protocol::receipt::{SERVED_SECS, page_of};
use muster_store::StoreError;
use muster_store::retention::{AgedRows, Deletion, Keep, RetentionRules, read_cutoff};
use muster_store::size::TableSize;
use sqlx::AnyPool;

/// The least time for which receipts stay, in seconds. Validators read pages for [`SERVED_SECS`], and an epoch that was
/// open when the last of them read a receipt may be scored again for another day.
pub const RECEIPTS_NEEDED_SECS: i64 = SERVED_SECS + 24 * 3600;

/// The most days for which a validator that has greeted this miner is remembered, and the most that
/// `shares.rivals_days` may be.
pub const GREETED_DAYS: u64 = 90;

/// The rules of the miner's store.
#[derive(Clone, Debug)]
pub struct MinerRetention {
    pub(super) pool: AnyPool,
    pub(super) receipts: Keep,
}

/// The oldest page whose receipts stay at `now`. `cutoff` is the time before which they may go by their age and number.
/// Receipts that a validator may still need stay whatever their number.
pub fn oldest_kept_page(now: Timestamp, cutoff: Timestamp) -> i64 {
    let needed = now.minus(Duration::from_secs(RECEIPTS_NEEDED_SECS.unsigned_abs()));
    page_of(cutoff.min(needed))
}

impl RetentionRules for MinerRetention {
    async fn due(&self, now: Timestamp, sizes: &[TableSize]) -> Result<Vec<Deletion>, StoreError> {
        // The time at which a page of 300 seconds begins, in microseconds.
        let newest = "SELECT page * 300000000 FROM receipts ORDER BY page DESC LIMIT 1 OFFSET $1";
        let cutoff = read_cutoff(&self.pool, self.receipts, &["receipts"], newest, now, sizes).await?;
        // The receipts of a lease that is remembered stay: its validator may ask for them again.
        let receipts = "DELETE FROM receipts WHERE seq IN (SELECT seq FROM receipts WHERE page < $1 \
                        AND NOT EXISTS (SELECT 1 FROM leases WHERE leases.attempt = receipts.attempt) \
                        ORDER BY page, seq LIMIT $2)";
        let greetings = "DELETE FROM greetings WHERE signature IN \
                         (SELECT signature FROM greetings WHERE expires <= $1 LIMIT $2)";
        let audits = now.minus(KEPT).micros();
        let greeted = now.minus(Duration::from_secs(GREETED_DAYS * 24 * 3_600)).micros();
        Ok(vec![
            Deletion::Rows {
                table: "audit_leaves",
                statement: "DELETE FROM audit_leaves WHERE (validator, bucket, position) IN \
                            (SELECT l.validator, l.bucket, l.position FROM audit_leaves l JOIN audit_headers h \
                            ON h.validator = l.validator AND h.bucket = l.bucket WHERE h.received_at < $1 LIMIT $2)",
                values: vec![audits.into()],
            },
            // The newest header of a validator is the one that the next one names.
            Deletion::Rows {
                table: "audit_headers",
                statement: "DELETE FROM audit_headers WHERE (validator, bucket) IN \
                            (SELECT h.validator, h.bucket FROM audit_headers h WHERE h.received_at < $1 \
                            AND EXISTS (SELECT 1 FROM audit_headers n WHERE n.validator = h.validator AND n.bucket > h.bucket) \
                            AND NOT EXISTS (SELECT 1 FROM audit_leaves l WHERE l.validator = h.validator AND l.bucket = h.bucket) \
                            LIMIT $2)",
                values: vec![audits.into()],
            },
            AgedRows::new("session_proofs", "session, sequence", "ended_at").before(audits),
            Deletion::Rows {
                table: "receipts",
                statement: receipts,
                values: vec![oldest_kept_page(now, cutoff).into()],
            },
            Deletion::Rows {
                table: "greetings",
                statement: greetings,
                values: vec![now.micros().into()],
            },
            AgedRows::new("greeted_validators", "validator", "greeted_at").before(greeted),
        ])
    }
}

#[cfg(test)]
mod tests {
    use muster_process::TestClock;
    use muster_protocol::receipt::PAGE_SECS;
    use muster_protocol::{AttemptId, ValidatorKey};
    use muster_store::retention::{Deleted, Pace, PaceSettings, cutoff, sweep_once};
    use muster_store::testing::stores;
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::lease_table::{LeaseStatus, LeaseWrite};
    use crate::store::{MIGRATIONS, Store};
    use crate::testing::{miner_pair, offer, validator_pair};

    const DAY: i64 = 24 * 3600;

    #[tokio::test]
    async fn receipts_go_by_age_and_number_but_not_while_their_lease_is_remembered() {
        let start = Timestamp::from_secs(1_767_225_600);
        let attempt = |n: i64| AttemptId::from_uuid(Uuid::from_u128(n.unsigned_abs().into()));
        let validator = ValidatorKey(validator_pair().hotkey());
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = Store::on(test.pool.clone());
            // One receipt a day; that of day 0 belongs to a lease that is still open.
            for day in 0..40 {
                let at = Timestamp::from_secs(start.secs() + day * DAY);
                let receipt = crate::validator_session::complete_started_receipt(
                    &miner_pair(),
                    &offer(attempt(day)),
                    validator,
                    start,
                )
                .unwrap();
                let mut writes = vec![LeaseWrite::Receipt(Box::new(receipt))];
                if day <= 1 {
                    writes.push(LeaseWrite::Opened {
                        attempt: attempt(day),
                        validator,
                        at,
                    });
                }
                if day == 1 {
                    writes.push(LeaseWrite::Ended {
                        attempt: attempt(1),
                        status: LeaseStatus::Settled,
                        history: vec![],
                        at,
                    });
                }
                store.commit(&writes, page_of(at)).await.unwrap();
            }
            let now = Timestamp::from_secs(start.secs() + 39 * DAY + 1);
            let left = async |days, rows| {
                let (rules, writer) = store.retention(Keep { days, rows, mib: 64 }).unwrap();
                let pace = Pace {
                    step_rows: 4,
                    pause: Duration::ZERO,
                    ..PaceSettings::default().pace()
                };
                let clock = TestClock::new(now);
                let deleted = sweep_once(&rules, &writer, &[], pace, &clock).await.unwrap();
                (deleted, store.lines_since(0).await.unwrap().len())
            };
            let gone = |rows| Deleted::from([("receipts", rows)]);
            assert_eq!(left(90, 1_000).await, (Deleted::new(), 40), "{}", test.engine);
            // Those of the days 9 to 39 stay, and the two of remembered leases.
            assert_eq!(left(30, 1_000).await, (gone(7), 33), "{}", test.engine);
            let forget = LeaseWrite::Forgotten(vec![attempt(1)]);
            store.commit(&[forget], 0).await.unwrap();
            assert_eq!(left(30, 1_000).await, (gone(1), 32), "{}", test.engine);
            // The newest twenty, the page in which the next one lies, and that of the open lease.
            assert_eq!(left(30, 20).await.1, 22, "{}", test.engine);
            assert_eq!(
                left(30, 1).await.1,
                5,
                "the last three days stay whatever their number"
            );
        }
    }

    proptest! {
        #[test]
        fn no_receipt_goes_that_a_validator_may_need(
            now in 10_000_000i64..2_000_000_000, days in 1u32..200, beyond in proptest::option::of(0i64..2_000_000_000),
            written in 0i64..2_000_000_000,
        ) {
            let (now, written) = (Timestamp::from_secs(now), Timestamp::from_secs(written));
            let keep = Keep { days, rows: 1, mib: 1 };
            let oldest = oldest_kept_page(now, cutoff(now, keep, beyond.map(Timestamp::from_secs)));
            if now.secs() - written.secs() <= RECEIPTS_NEEDED_SECS {
                prop_assert!(page_of(written) >= oldest, "a needed receipt goes");
            }
            let old = now.secs() - written.secs() > i64::from(days) * 86_400 + PAGE_SECS;
            if old && now.secs() - written.secs() > RECEIPTS_NEEDED_SECS + PAGE_SECS {
                prop_assert!(page_of(written) < oldest, "an old receipt stays");
            }
        }
    }
}
