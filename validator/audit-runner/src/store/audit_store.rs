//! The tables of spot checks in the validator's database. The validator's migrations create them; the log of answers is
//! the gateway's.

use muster_store::{StoreError, Writer};
use sqlx::AnyPool;

pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// Reads and writes the tables. Clones share the connections.
#[derive(Clone, Debug)]
pub struct AuditStore {
    pub(super) pool: AnyPool,
    pub(super) writer: Writer,
}

impl AuditStore {
    /// Uses the validator's database, which must be migrated: `pool` reads, and `writer` writes.
    pub const fn new(pool: AnyPool, writer: Writer) -> Self {
        Self { pool, writer }
    }
}

#[cfg(test)]
mod tests {
    use muster_audit::own_prompts::RequestForm;
    use muster_audit::{Canary, CanaryList, NoncePeriod, OpenedText, UnusableReason};
    use muster_protocol::{Digest, MinerKey, Timestamp};
    use muster_response_proof::BucketNumber;
    use muster_store::testing::stores;
    use muster_validator_store::{MIGRATIONS, Store};

    use super::*;
    use crate::appeals::appeal_end::AppealEnd;
    use crate::audits::run_record::RunState;
    use crate::evidence::outcome::ReferenceOutcome;
    use crate::store::notices::NoticeSubject;
    use crate::testing::{key, list_head, run, self_test, stored_appeal};

    #[tokio::test]
    async fn a_superseded_process_writes_nothing_about_spot_checks() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = Store::with_pool(test.pool.clone()).await.unwrap();
            let audits = AuditStore::new(store.pool(), store.writer());
            let now = Timestamp::from_secs(9);
            audits.put_written("tiny", "written before", now).await.unwrap();
            let later = Store::open(&test.url).await.unwrap();
            let (digest, miner, appeal) = (Digest::of(b"one"), MinerKey(key(1)), stored_appeal(now, None));
            let form = RequestForm::read(br#"{"model":"tiny","prompt":"x"}"#, false).unwrap();
            let text = OpenedText {
                prompt: vec![1],
                output: vec![2],
                request: None,
                response: None,
            };
            let list = CanaryList::new(vec![Canary {
                salt: [1; 32],
                request: b"asked".to_vec(),
            }]);
            let (audit, self_test) = (run("1", 2, RunState::Judged, None), self_test("tiny", 1, None));
            let unusable = ReferenceOutcome::Unusable(UnusableReason::NotAudited);
            let verdicts = [(miner, digest, now)];
            let refused = [
                audits.put_opened_text("a", &text, now).await,
                audits.insert_appeal(&appeal, "signed").await,
                audits.end_appeal(&appeal, AppealEnd::Lifted, None, now).await,
                audits.put_nonce_period(NoncePeriod(1), &digest, now).await,
                audits.make_header_notices(now).await,
                audits.make_outcome_notices(now).await,
                audits.put_verdict_notices(&verdicts, now).await,
                audits.note_delivered(&miner, NoticeSubject::Header(1), now).await,
                audits.put_outcome("a", 0, &unusable, now).await,
                audits.reveal_scores(["a".to_owned()].iter(), now).await,
                audits.reveal_scored(&miner, "tiny", now, now).await,
                audits
                    .insert_lists(BucketNumber(1), &[(&list_head(&list), &list)], now)
                    .await,
                audits.note_sent(&digest, 0, now).await,
                audits.note_answer(&digest, 0, "a").await,
                audits.put_form("a", "tiny", &digest, &form, now).await,
                audits.put_written("tiny", "written", now).await,
                audits.take_written("tiny", 1).await.map(drop),
                audits.insert_run(&audit).await,
                audits.update_run(&audit).await,
                audits.insert_self_test(&self_test).await,
                audits.update_self_test(&self_test, None).await,
                audits.end_orphaned_self_tests(now).await,
            ];
            for (place, refused) in refused.into_iter().enumerate() {
                let is_superseded = matches!(refused, Err(StoreError::Superseded));
                assert!(is_superseded, "{}: {place}: {refused:?}", test.engine);
            }
            let owners = AuditStore::new(later.pool(), later.writer());
            assert_eq!(owners.take_written("tiny", 9).await.unwrap(), ["written before"]);
            later.close().await;
        }
    }
}
