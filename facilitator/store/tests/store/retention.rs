//! The janitor deletes ended jobs that have had their time, in small steps, and nothing else.

use std::collections::BTreeSet;

use muster_facilitator_store::FacilitatorRetentionConfig;
use muster_facilitator_store::{AccountDeletion, FacilitatorRetention, TokenPair};
use muster_identity::sign_request;
use muster_process::TestClock;
use muster_protocol::wire::checks::RefundNotice;
use muster_protocol::wire::facilitator::{CheatReport, CheatReportTag, JobCheatedTag};
use muster_protocol::{Digest, ValidatorKey};
use muster_store::retention::{Deleted, Keep, Pace, PaceSettings, sweep_once};
use muster_store::size::TableSize;

use super::*;

const DAY: i64 = 86_400;

fn pace() -> Pace {
    Pace {
        step_rows: 3,
        pause: std::time::Duration::ZERO,
        ..PaceSettings::default().pace()
    }
}

async fn sweep_with(
    store: &Store,
    config: FacilitatorRetentionConfig,
    sizes: &[TableSize],
    now: Timestamp,
) -> Deleted {
    let rules = FacilitatorRetention::new(store.clone(), config);
    sweep_once(&rules, &store.writer(), sizes, pace(), &TestClock::new(now))
        .await
        .unwrap()
}

/// One sweep with the default rules, `secs` after the tests' time 0.
pub(super) async fn sweep_at(store: &Store, secs: i64) -> Deleted {
    sweep_with(store, FacilitatorRetentionConfig::default(), &[], at(secs)).await
}

fn jobs_kept_for(days: u32, rows: u64) -> FacilitatorRetentionConfig {
    FacilitatorRetentionConfig {
        jobs: Keep { days, rows, mib: 64 },
        ..FacilitatorRetentionConfig::default()
    }
}

async fn report(store: &Store, job: &Verified<UserJobRequest>, now: Timestamp) {
    let report = CheatReport {
        signature: sign_request(&key("User"), &serde_json::json!({}), 1),
        r#type: JobCheatedTag,
        message_type: CheatReportTag,
        job_uuid: job.uuid.to_string(),
        trusted_job_uuid: job.uuid.to_string(),
        details: None,
    };
    let validator = validator_key("Validator");
    assert!(
        store
            .report_cheat(&actor(job), job.uuid, validator, &report, now)
            .await
            .unwrap()
    );
}

async fn ids(store: &Store) -> BTreeSet<String> {
    let rows: Vec<(String,)> = sqlx::query_as("SELECT uuid FROM jobs")
        .fetch_all(&store.pool())
        .await
        .unwrap();
    rows.into_iter().map(|(uuid,)| uuid).collect()
}

/// xorshift64*: a seed is a whole run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> i64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        i64::try_from((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound).unwrap()
    }
}

#[tokio::test]
async fn exactly_the_ended_jobs_that_have_had_their_time_go() {
    let validator = validator_key("Validator");
    for (test, store) in engines().await {
        let mut random = Random(7);
        let mut kept = BTreeSet::new();
        let now = 40 * DAY;
        for n in 0..60 {
            let job = job("User", n);
            create(&store, validator, &job, at(random.below(10))).await;
            let ended = (random.below(3) > 0).then(|| random.below(40) * DAY + 100);
            if let Some(ended) = ended {
                let done = update(job.uuid, JobStatus::Completed);
                store.record(validator, &done, at(ended)).await.unwrap();
            }
            let reported = (random.below(4) == 0).then(|| random.below(40) * DAY + 200);
            let delivered = random.below(2) == 0;
            if let Some(reported) = reported {
                report(&store, &job, at(reported)).await;
                if delivered {
                    store.mark_report_delivered(job.uuid, at(reported)).await.unwrap();
                }
            }
            let is_old = |time: i64| time < now - 30 * DAY;
            let undelivered = reported.is_some_and(|reported| !delivered && !is_old(reported));
            if ended.is_none_or(|ended| !is_old(ended)) || undelivered {
                kept.insert(job.uuid.to_string());
            }
        }
        let before = store.tally().commits;
        let deleted = sweep_with(&store, jobs_kept_for(30, 1_000), &[], at(now)).await;
        assert_eq!(ids(&store).await, kept, "{}", test.engine);
        let gone = 60 - u64::try_from(kept.len()).unwrap();
        assert!(gone > 6 && kept.len() > 6, "the case is empty: {gone}");
        assert_eq!(deleted.get("jobs"), Some(&gone));
        assert!(store.tally().commits - before >= gone / 3, "a step is bounded");
        assert_eq!(
            sweep_with(&store, jobs_kept_for(30, 1_000), &[], at(now))
                .await
                .get("jobs"),
            None
        );
    }
}

#[tokio::test]
async fn beyond_their_number_and_their_bytes_the_oldest_jobs_go_first() {
    let validator = validator_key("Validator");
    for (test, store) in engines().await {
        let mut jobs = Vec::new();
        for n in 0..9 {
            let job = job("User", n);
            create(&store, validator, &job, at(0)).await;
            let done = update(job.uuid, JobStatus::Completed);
            store.record(validator, &done, at(10 + n)).await.unwrap();
            jobs.push(job.uuid.to_string());
        }
        let open = job("User", 99);
        create(&store, validator, &open, at(0)).await;
        jobs.push(open.uuid.to_string());
        sweep_with(&store, jobs_kept_for(30, 6), &[], at(DAY)).await;
        assert_eq!(
            ids(&store).await,
            jobs[3..].iter().cloned().collect(),
            "{}",
            test.engine
        );
        // The tables take twice their bound: half of the rows may stay.
        let sizes = ["jobs", "statuses"].map(|table| TableSize {
            table: table.to_owned(),
            rows: 6,
            bytes: 64 << 20,
        });
        sweep_with(&store, jobs_kept_for(30, 6), &sizes, at(DAY)).await;
        assert_eq!(
            ids(&store).await,
            jobs[6..].iter().cloned().collect(),
            "{}",
            test.engine
        );
    }
}

#[tokio::test]
async fn a_deleted_account_starts_empty_and_others_keep_theirs() {
    let validator = validator_key("Validator");
    for (test, store) in engines().await {
        let mut mine = Vec::new();
        for n in 0..7 {
            let (own, other) = (job("User", n), job("Other", n));
            for job in [&own, &other] {
                create(&store, validator, job, at(0)).await;
            }
            let done = update(other.uuid, JobStatus::Completed);
            store.record(validator, &done, at(1)).await.unwrap();
            mine.push(own.uuid);
        }
        let user = Actor::user(UserKey(key("User").hotkey()));
        let secret = ApiKeySecret::from_bytes([1; 32]);
        let new = NewKey {
            account: &user.account,
            name: "laptop",
            secret: &secret,
            authority: &Authority::login(),
        };
        let made = store.create_key(&user, new, at(1)).await.unwrap();
        assert!(matches!(made, KeyCreation::Created(_)));
        store
            .reserve_usage(
                &user.account,
                "tiny",
                TokenPair { input: 1, output: 2 },
                None,
                at(1),
            )
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            store
                .delete_account(&user, &Digest::of(b"client"), at(2))
                .await
                .unwrap(),
            AccountDeletion::OpenJobs(7),
            "{}",
            test.engine
        );
        let client = Digest::of(b"client");
        for of in [client, Digest::of(b"of another account")] {
            let refund = RefundNotice {
                response: of.hex(),
                client: of,
                model: "tiny".to_owned(),
                answered_at: at(2),
                input_tokens: 1,
                output_tokens: 2,
                bundle: Some(Digest::of(b"bundle")),
            };
            let author = ValidatorKey(key("Validator").hotkey());
            store.record_refund(author, &refund, at(2)).await.unwrap();
        }
        for uuid in mine {
            store
                .record(validator, &update(uuid, JobStatus::Completed), at(3))
                .await
                .unwrap();
        }
        assert_eq!(
            store
                .delete_account(&user, &Digest::of(b"client"), at(4))
                .await
                .unwrap(),
            AccountDeletion::Begun
        );
        let owner = store.find_key_owner(&secret, at(4)).await.unwrap();
        assert!(owner.is_none(), "at once");
        assert!(store.list_refunds(&client, 9).await.unwrap().is_empty());
        let others = Digest::of(b"of another account");
        assert_eq!(store.list_refunds(&others, 9).await.unwrap().len(), 1);
        // The account begins anew before the rows are gone.
        let new = job("User", 50);
        create(&store, validator, &new, at(5)).await;
        sweep_at(&store, 6).await;
        let filter = JobFilter::default();
        let left = listed(store.list_jobs(&user.account, &filter, 10, 0).await.unwrap());
        let left: Vec<_> = left.jobs.iter().map(|job| job.request.uuid).collect();
        assert_eq!(left, [new.uuid], "{}", test.engine);
        let others = listed(store.list_jobs(&account("Other"), &filter, 10, 0).await.unwrap());
        assert_eq!(others.count, 7);
        assert_eq!(store.list_usage(&user.account, 10).await.unwrap(), []);
        let (count, audit) = store.audit_log(Some(&user.account), 10, 0).await.unwrap();
        let actions: Vec<_> = audit.iter().map(|entry| entry.action.as_str()).collect();
        assert_eq!((count, actions), (2, vec!["job.created", "account.deleted"]));
        assert_eq!(
            store.open_account_deletions().await.unwrap(),
            [],
            "it is finished"
        );

        store
            .record(validator, &update(new.uuid, JobStatus::Completed), at(7))
            .await
            .unwrap();
        assert_eq!(
            store
                .delete_account(&user, &Digest::of(b"client"), at(8))
                .await
                .unwrap(),
            AccountDeletion::DeletedToday
        );
        assert_eq!(
            store
                .delete_account(&user, &Digest::of(b"client"), at(2 * DAY))
                .await
                .unwrap(),
            AccountDeletion::Begun,
            "another day"
        );
    }
}

#[tokio::test]
async fn a_replica_whose_clock_is_ahead_does_not_let_a_nonce_be_used_twice() {
    const HOUR: i64 = 3_600;
    for (test, store) in engines().await {
        assert!(store.use_nonce("a", at(300)).await.unwrap());
        sweep_at(&store, 300 + 12 * HOUR).await;
        assert!(!store.use_nonce("a", at(300)).await.unwrap(), "{}", test.engine);
        sweep_at(&store, 300 + 25 * HOUR).await;
        assert!(
            store.use_nonce("a", at(300)).await.unwrap(),
            "{}: its row went",
            test.engine
        );
    }
}

#[tokio::test]
async fn a_key_that_has_ended_goes_after_its_window_and_no_key_that_opens_anything_goes() {
    let user = Actor::user(UserKey(key("User").hotkey()));
    let [brief, long] = [1, 2].map(|n| ApiKeySecret::from_bytes([n; 32]));
    for (test, store) in engines().await {
        for (secret, days) in [(&brief, 10), (&long, 3_650)] {
            let authority = Authority::login().grant(None, Some(days), at(0)).unwrap();
            let new = NewKey {
                account: &user.account,
                name: "laptop",
                secret,
                authority: &authority,
            };
            let made = store.create_key(&user, new, at(0)).await.unwrap();
            assert!(matches!(made, KeyCreation::Created(_)));
        }
        let rows = async || {
            let stored = "SELECT hash FROM api_keys ORDER BY expires_at";
            let rows: Vec<(String,)> = sqlx::query_as(stored).fetch_all(&test.pool).await.unwrap();
            rows.into_iter().map(|(hash,)| hash).collect::<Vec<_>>()
        };
        let (brief_hash, long_hash) = (brief.hash().hex(), long.hash().hex());
        // The window of revoked keys is 90 days, and a key that has ended has the same.
        sweep_at(&store, 100 * DAY - 1).await;
        assert_eq!(rows().await, [brief_hash, long_hash.clone()], "{}", test.engine);
        let deleted = sweep_at(&store, 101 * DAY).await;
        assert_eq!(
            (deleted.get("api_keys"), rows().await),
            (Some(&1), vec![long_hash])
        );
        let owner = store.find_key_owner(&long, at(101 * DAY)).await.unwrap();
        assert!(owner.is_some(), "{}", test.engine);
    }
}
