//! The store's rules, on every available database engine.

use muster_facilitator::config::LiveConfig;
use muster_facilitator::store::{
    Actor, AuditAction, CancellationOutcome, JobCreation, JobListing, JobQuota, JobSubmission, LiveMessage,
    QuotaExceeded, Store, StoredJobPage, UpdateOutcome,
};
use muster_facilitator_core::account::{Account, ApiKeySecret};
use muster_facilitator_core::connections::Trust;
use muster_facilitator_core::history::UpdateRejection;
use muster_facilitator_core::intake;
use muster_facilitator_core::page::JobFilter;
use muster_identity::{Verified, sign_job, verify_job};
use muster_process::store::testing::{TestStore, stores};
use muster_protocol::rest::CreateJob;
use muster_protocol::volume::{InlineVolume, Volume, VolumePart};
use muster_protocol::wire::executor::LogStream;
use muster_protocol::wire::facilitator::{JobRequest, JobStatusUpdate, StatusMetadata};
use muster_protocol::wire::muster::LiveLog;
use muster_protocol::{JobId, JobStatus, Timestamp, UserKey, ValidatorKey};

use crate::facilitator::{key, validator_key};
use crate::user::job_for;

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("./migrations");

async fn engines() -> Vec<(TestStore, Store)> {
    let mut engines = Vec::new();
    for test in stores(&MIGRATIONS).await.unwrap() {
        let store = Store::over(test.pool.clone()).await.unwrap();
        engines.push((test, store));
    }
    engines
}

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(1_769_000_000 + secs)
}

fn job(name: &str, timestamp_ns: i64) -> Verified<JobRequest> {
    signed(name, timestamp_ns, job_for(validator_key("Validator")))
}

/// A job of `//User` with an inline input of `bytes` bytes.
fn job_with(timestamp_ns: i64, bytes: usize) -> Verified<JobRequest> {
    let mut body = job_for(validator_key("Validator"));
    body["volumes"][0]["contents"] = serde_json::json!("A".repeat(bytes));
    signed("User", timestamp_ns, body)
}

fn signed(name: &str, timestamp_ns: i64, body: serde_json::Value) -> Verified<JobRequest> {
    let create: CreateJob = serde_json::from_value(body).unwrap();
    let signature = sign_job(&key(name), &create.signed_fields(), timestamp_ns);
    let uuid = JobId::from_uuid(uuid::Uuid::new_v4());
    verify_job(&intake::into_request(create, uuid, signature).1).unwrap()
}

fn update(uuid: JobId, status: JobStatus) -> JobStatusUpdate {
    JobStatusUpdate {
        uuid,
        status,
        metadata: None,
    }
}

#[tokio::test]
async fn a_secret_is_drawn_once_and_a_nonce_used_once() {
    for (test, store) in engines().await {
        assert_eq!(
            store.token_secret([1; 32]).await.unwrap(),
            [1; 32],
            "{}",
            test.engine
        );
        assert_eq!(store.token_secret([2; 32]).await.unwrap(), [1; 32]);
        assert!(store.use_nonce("a", at(300), at(0)).await.unwrap());
        assert!(!store.use_nonce("a", at(300), at(299)).await.unwrap());
        assert!(store.use_nonce("b", at(301), at(1)).await.unwrap());
        store.ping().await.unwrap();
    }
}

fn account(name: &str) -> Account {
    Account::Hotkey(UserKey(key(name).hotkey()))
}

/// The actor that submits a job of this user.
fn actor(job: &JobRequest) -> Actor {
    Actor::user(job.signature.signatory)
}

/// Stores a job without quotas.
async fn create(store: &Store, validator: ValidatorKey, job: &Verified<JobRequest>, now: Timestamp) -> JobId {
    match submit(store, validator, job, None, JobQuota::NONE, now).await {
        JobCreation::New => job.uuid,
        JobCreation::Existing(known) => known,
        JobCreation::QuotaExceeded(over) => panic!("{over:?}"),
    }
}

async fn submit(
    store: &Store,
    validator: ValidatorKey,
    request: &Verified<JobRequest>,
    idempotency: Option<&str>,
    quota: JobQuota,
    now: Timestamp,
) -> JobCreation {
    let submission = JobSubmission {
        actor: &actor(request),
        validator,
        request,
        idempotency,
        quota,
    };
    store.create(submission, now).await.unwrap()
}

#[tokio::test]
async fn signs_of_life_are_the_last_ones() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        assert_eq!(store.validator(validator).await.unwrap(), None);
        assert!(
            store
                .claim_validator(validator, Trust::Proven, true, at(0))
                .await
                .unwrap()
        );
        assert!(
            store
                .claim_validator(validator, Trust::Claimed, false, at(60))
                .await
                .unwrap()
        );
        let known = store.validator(validator).await.unwrap().unwrap();
        assert_eq!(
            (known.seen, known.trust, known.proven),
            (at(60), Trust::Claimed, Some(at(0)))
        );
        assert_eq!(store.validator(validator_key("Other")).await.unwrap(), None);
    }
}

#[tokio::test]
async fn one_facilitator_at_a_time_holds_a_validator() {
    for (test, a) in engines().await {
        let b = Store::open(&test.url).await.unwrap();
        let v = validator_key("Validator");
        a.record_alive(at(0)).await.unwrap();
        b.record_alive(at(0)).await.unwrap();
        assert!(a.claim_validator(v, Trust::Claimed, true, at(0)).await.unwrap());
        // A claimed connection to another replica takes nothing over from a live one, and may not report on jobs.
        let job = job("User", 1);
        create(&a, v, &job, at(0)).await;
        assert!(!b.claim_validator(v, Trust::Claimed, true, at(1)).await.unwrap());
        let received = update(job.uuid, JobStatus::Received);
        assert_eq!(
            b.record(v, &received, at(1)).await.unwrap(),
            UpdateOutcome::HeldElsewhere
        );
        assert!(b.is_held_elsewhere(v).await.unwrap() && !a.is_held_elsewhere(v).await.unwrap());
        // A proven connection takes over, at its first heartbeat only.
        assert!(b.claim_validator(v, Trust::Proven, true, at(2)).await.unwrap());
        assert!(!a.claim_validator(v, Trust::Claimed, false, at(3)).await.unwrap());
        assert_eq!(
            a.record(v, &received, at(3)).await.unwrap(),
            UpdateOutcome::HeldElsewhere
        );
        assert_eq!(
            b.record(v, &received, at(3)).await.unwrap(),
            UpdateOutcome::Recorded
        );
        assert!(a.claim_validator(v, Trust::Proven, true, at(4)).await.unwrap());
        assert!(!b.claim_validator(v, Trust::Proven, false, at(5)).await.unwrap());
        // A replica holds nothing after it has released, stopped recording that it is alive, or heard nothing for long.
        a.release(v).await.unwrap();
        assert!(b.claim_validator(v, Trust::Proven, false, at(6)).await.unwrap());
        a.record_alive(at(20)).await.unwrap();
        assert!(
            a.claim_validator(v, Trust::Claimed, false, at(20)).await.unwrap(),
            "{}",
            test.engine
        );
        b.record_alive(at(30)).await.unwrap();
        a.record_alive(at(110)).await.unwrap();
        b.record_alive(at(110)).await.unwrap();
        assert!(
            b.claim_validator(v, Trust::Claimed, false, at(111))
                .await
                .unwrap()
        );
        b.release_all().await.unwrap();
        assert!(!a.is_held_elsewhere(v).await.unwrap());
    }
}

#[tokio::test]
async fn a_signature_names_one_job_and_what_is_stored_comes_back_whole() {
    for (test, store) in engines().await {
        let validator = validator_key("Validator");
        let first = job("User", 1);
        assert_eq!(store.find_job_by_signature(&first.signature).await.unwrap(), None);
        assert_eq!(create(&store, validator, &first, at(0)).await, first.uuid);
        let mut again = first.clone().into_inner();
        again.uuid = JobId::from_uuid(uuid::Uuid::new_v4());
        let again = verify_job(&again).unwrap();
        assert_eq!(create(&store, validator, &again, at(1)).await, first.uuid);
        assert_eq!(store.job(again.uuid).await.unwrap(), None);

        // A second process reads the same.
        let other = Store::open(&test.url).await.unwrap();
        let stored = other.job(first.uuid).await.unwrap().unwrap();
        assert_eq!(stored.request, *first);
        assert_eq!(stored.request.env.keys().collect::<Vec<_>>(), ["B", "A"]);
        assert_eq!(stored.account, account("User"));
        assert_eq!(
            (stored.history.len(), stored.history.visible_status()),
            (1, JobStatus::Sent)
        );
    }
}

#[tokio::test]
async fn updates_are_taken_from_the_holder_in_order_only() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let job = job("User", 1);
        create(&store, validator, &job, at(0)).await;
        assert_eq!(store.unanswered_jobs(validator).await.unwrap(), [job.uuid]);
        let stranger = store
            .record(
                validator_key("Other"),
                &update(job.uuid, JobStatus::Received),
                at(1),
            )
            .await;
        assert_eq!(stranger.unwrap(), UpdateOutcome::NoSuchJob);
        assert_eq!(store.unanswered_jobs(validator).await.unwrap(), [job.uuid]);

        let record = async |status| {
            store
                .record(validator, &update(job.uuid, status), at(2))
                .await
                .unwrap()
        };
        assert_eq!(record(JobStatus::Accepted).await, UpdateOutcome::Recorded);
        assert!(store.unanswered_jobs(validator).await.unwrap().is_empty());
        let repeated = UpdateOutcome::Rejected(UpdateRejection::Repeated(JobStatus::Accepted));
        assert_eq!(record(JobStatus::Accepted).await, repeated);
        assert!(matches!(
            record(JobStatus::Received).await,
            UpdateOutcome::Rejected(UpdateRejection::Backwards { .. })
        ));
        // Unknown statuses are stored, up to the limit.
        for n in 0..100 {
            let mut odd = update(job.uuid, JobStatus::Unknown);
            odd.metadata = Some(muster_protocol::wire::decode(&format!("{{\"n\":\"\\u0000{n}\"}}")).unwrap());
            store.record(validator, &odd, at(3)).await.unwrap();
        }
        let stored = store.job(job.uuid).await.unwrap().unwrap();
        assert_eq!(
            (stored.history.len(), stored.history.visible_status()),
            (64, JobStatus::Accepted)
        );
    }
}

#[tokio::test]
async fn updates_that_race_leave_one_history() {
    for (test, store) in engines().await {
        let validator = validator_key("Validator");
        let job = job("User", 1);
        create(&store, validator, &job, at(0)).await;
        let other = Store::open(&test.url).await.unwrap();
        let received = update(job.uuid, JobStatus::Received);
        let (a, b, c) = tokio::join!(
            store.record(validator, &received, at(1)),
            other.record(validator, &received, at(1)),
            store.record(validator, &received, at(1)),
        );
        let taken = [a, b, c]
            .into_iter()
            .filter(|recorded| matches!(recorded, Ok(UpdateOutcome::Recorded)))
            .count();
        assert_eq!(taken, 1, "{}", test.engine);
        assert_eq!(store.job(job.uuid).await.unwrap().unwrap().history.len(), 2);
    }
}

#[tokio::test]
async fn lists_are_the_users_own_newest_first() {
    for (_test, store) in engines().await {
        let mut made = Vec::new();
        for n in 0..7 {
            let job = job("User", n);
            create(&store, validator_key("Validator"), &job, at(n)).await;
            made.push(job.uuid);
        }
        create(&store, validator_key("Validator"), &job("Other", 1), at(1)).await;
        made.reverse();
        let user = account("User");
        let page = listed(store.list_jobs(&user, &JobFilter::default(), 3, 3).await.unwrap());
        let uuids: Vec<_> = page.jobs.iter().map(|job| job.request.uuid).collect();
        assert_eq!((page.count, uuids.as_slice()), (7, &made[3..6]));
        assert!(page.jobs.iter().all(|job| job.history.len() == 1));
        assert!(
            listed(
                store
                    .list_jobs(&user, &JobFilter::default(), 3, u64::MAX)
                    .await
                    .unwrap()
            )
            .jobs
            .is_empty()
        );
    }
}

fn listed(listed: JobListing) -> StoredJobPage {
    match listed {
        JobListing::Page(page) => page,
        JobListing::TooLong => panic!("the page is too long"),
    }
}

#[tokio::test]
async fn a_page_leaves_inline_inputs_out_and_has_a_length() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let user = account("User");
        for (n, bytes) in [(0, 10), (1, 200_000)] {
            let job = job_with(n, bytes);
            create(&store, validator, &job, at(n)).await;
            let stored = store.job(job.uuid).await.unwrap().unwrap();
            assert_eq!(stored.request, *job, "the job's own page is whole");
        }
        let page = listed(
            store
                .list_jobs(&user, &JobFilter::default(), 10, 0)
                .await
                .unwrap(),
        );
        assert_eq!(page.jobs.len(), 2);
        for job in &page.jobs {
            let Some(Volume::MultiVolume(volume)) = &job.request.volume else {
                panic!("another volume: {:?}", job.request.volume)
            };
            let expected = InlineVolume {
                contents: String::new(),
                relative_path: Some("x".to_owned()),
            };
            assert_eq!(volume.volumes, [VolumePart::Inline(expected)]);
        }

        // Results count too: five of them are more than a page may hold.
        let result: StatusMetadata =
            muster_protocol::wire::decode(&format!("{{\"n\":\"{}\"}}", "x".repeat(13 << 20))).unwrap();
        for n in 2..7 {
            let job = job_with(n, 1);
            create(&store, validator, &job, at(n)).await;
            let mut done = update(job.uuid, JobStatus::Completed);
            done.metadata = Some(result.clone());
            assert_eq!(
                store.record(validator, &done, at(n)).await.unwrap(),
                UpdateOutcome::Recorded
            );
        }
        assert_eq!(
            store
                .list_jobs(&user, &JobFilter::default(), 10, 0)
                .await
                .unwrap(),
            JobListing::TooLong
        );
        assert_eq!(
            listed(store.list_jobs(&user, &JobFilter::default(), 4, 0).await.unwrap())
                .jobs
                .len(),
            4
        );
    }
}

#[tokio::test]
async fn a_filter_finds_the_accounts_own_jobs_only() {
    for (_test, store) in engines().await {
        let (mine, other) = (job("User", 1), job("Other", 1));
        for job in [&mine, &other, &job("User", 2)] {
            create(&store, validator_key("Validator"), job, at(1)).await;
        }
        let filter = JobFilter {
            uuids: vec![mine.uuid, other.uuid],
            labelled: false,
        };
        let page = listed(store.list_jobs(&account("User"), &filter, 10, 0).await.unwrap());
        assert_eq!((page.count, page.jobs[0].request.uuid), (1, mine.uuid));
        let labelled = JobFilter {
            labelled: true,
            ..JobFilter::default()
        };
        let none = listed(store.list_jobs(&account("User"), &labelled, 10, 0).await.unwrap());
        assert_eq!(none.count, 0);
    }
}

#[tokio::test]
async fn a_clients_own_name_for_a_request_names_one_job() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let (first, second, others) = (job("User", 1), job("User", 2), job("Other", 3));
        let named = async |job| submit(&store, validator, job, Some("a"), JobQuota::NONE, at(0)).await;
        assert_eq!(named(&first).await, JobCreation::New);
        assert_eq!(named(&second).await, JobCreation::Existing(first.uuid));
        assert_eq!(named(&others).await, JobCreation::New);
        assert_eq!(create(&store, validator, &second, at(0)).await, second.uuid);
    }
}

#[tokio::test]
async fn quotas_hold_against_requests_that_race() {
    const DAY: i64 = 86_400;
    for (test, store) in engines().await {
        let validator = validator_key("Validator");
        let quota = JobQuota { open: 3, daily: 5 };
        let jobs: Vec<_> = (0..8).map(|n| job("User", n)).collect();
        let race = jobs
            .iter()
            .map(|job| submit(&store, validator, job, None, quota, at(0)));
        let made = futures_util::future::join_all(race).await;
        let new = made.iter().filter(|made| **made == JobCreation::New).count();
        assert_eq!(new, 3, "{}: {made:?}", test.engine);
        assert!(made.iter().all(|made| matches!(
            made,
            JobCreation::New | JobCreation::QuotaExceeded(QuotaExceeded::Open)
        )));
        // A repeated request creates no job, so the quota does not matter.
        let known = jobs
            .iter()
            .zip(&made)
            .find(|(_, made)| **made == JobCreation::New)
            .unwrap()
            .0;
        assert_eq!(
            submit(&store, validator, known, None, quota, at(0)).await,
            JobCreation::Existing(known.uuid)
        );
        for (job, made) in jobs.iter().zip(&made) {
            if *made == JobCreation::New {
                store
                    .record(validator, &update(job.uuid, JobStatus::Failed), at(1))
                    .await
                    .unwrap();
            }
        }
        for n in [10, 11] {
            assert_eq!(
                submit(&store, validator, &job("User", n), None, quota, at(2)).await,
                JobCreation::New
            );
        }
        let over = submit(&store, validator, &job("User", 12), None, quota, at(2)).await;
        assert!(
            matches!(over, JobCreation::QuotaExceeded(QuotaExceeded::Daily { resets_in_s }) if resets_in_s > 0 && resets_in_s <= 86_400)
        );
        assert_eq!(
            submit(&store, validator, &job("Other", 12), None, quota, at(2)).await,
            JobCreation::New
        );
        assert_eq!(
            submit(&store, validator, &job("User", 12), None, quota, at(DAY)).await,
            JobCreation::New
        );
    }
}

#[tokio::test]
async fn a_job_is_cancelled_at_once_or_through_its_validator() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let (fresh, running, over) = (job("User", 1), job("User", 2), job("User", 3));
        for job in [&fresh, &running, &over] {
            create(&store, validator, job, at(0)).await;
        }
        let user = actor(&fresh);
        store
            .record(validator, &update(running.uuid, JobStatus::Accepted), at(1))
            .await
            .unwrap();
        store
            .record(validator, &update(over.uuid, JobStatus::Completed), at(1))
            .await
            .unwrap();
        assert_eq!(
            store.cancel(&user, fresh.uuid, at(2)).await.unwrap(),
            CancellationOutcome::Ended
        );
        assert_eq!(
            store.cancel(&user, running.uuid, at(2)).await.unwrap(),
            CancellationOutcome::Requested
        );
        assert_eq!(
            store.cancel(&user, running.uuid, at(3)).await.unwrap(),
            CancellationOutcome::Requested
        );
        let late = CancellationOutcome::TooLate(JobStatus::Completed);
        assert_eq!(store.cancel(&user, over.uuid, at(2)).await.unwrap(), late);
        assert!(store.unanswered_jobs(validator).await.unwrap().is_empty());
        assert_eq!(store.jobs_to_cancel(validator).await.unwrap(), [running.uuid]);
        assert!(
            store.is_cancelled(fresh.uuid).await.unwrap() && !store.is_cancelled(over.uuid).await.unwrap()
        );
        store
            .record(validator, &update(running.uuid, JobStatus::Failed), at(4))
            .await
            .unwrap();
        assert!(store.jobs_to_cancel(validator).await.unwrap().is_empty());
        let (count, log) = store.audit_log(Some(&user.account), 10, 0).await.unwrap();
        let cancelled: Vec<_> = log
            .iter()
            .filter(|entry| entry.action == "job.cancelled")
            .collect();
        assert_eq!(
            (count, cancelled.len()),
            (5, 2),
            "a repetition is not written again"
        );
        assert_eq!(cancelled[0].account, user.account.to_string());
    }
}

#[tokio::test]
async fn a_job_that_nobody_takes_ends() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let (old, taken, new) = (job("User", 1), job("User", 2), job("User", 3));
        for (job, when) in [(&old, 0), (&taken, 0), (&new, 50)] {
            create(&store, validator, job, at(when)).await;
        }
        store
            .record(validator, &update(taken.uuid, JobStatus::Received), at(1))
            .await
            .unwrap();
        assert_eq!(store.expire(at(40), at(100)).await.unwrap(), [old.uuid]);
        assert!(store.expire(at(40), at(101)).await.unwrap().is_empty());
        let history = store.job(old.uuid).await.unwrap().unwrap().history;
        assert_eq!(history.visible_status(), JobStatus::Rejected);
        assert_eq!(store.unanswered_jobs(validator).await.unwrap(), [new.uuid]);
    }
}

#[tokio::test]
async fn keys_open_their_account_until_they_are_revoked_and_are_stored_as_hashes() {
    for (test, store) in engines().await {
        let user = Actor::user(UserKey(key("User").hotkey()));
        let alice: Account = "alice".parse().unwrap();
        let (one, two) = (
            ApiKeySecret::from_bytes([1; 32]),
            ApiKeySecret::from_bytes([2; 32]),
        );
        let made = store
            .create_key(&user, &alice, "laptop", &one, at(0))
            .await
            .unwrap()
            .unwrap();
        store
            .create_key(&user, &user.account, "own", &two, at(1))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(made.key.as_deref(), Some(one.reveal().as_str()));
        let (account, id) = store.find_key_owner(&one).await.unwrap().unwrap();
        assert_eq!((&account, id.to_string()), (&alice, made.id.clone()));
        let listed = store.list_keys(&alice).await.unwrap();
        assert_eq!((listed.len(), listed[0].key.as_deref()), (1, None));
        let (hashes,): (String,) = sqlx::query_as("SELECT hash FROM api_keys WHERE name = 'laptop'")
            .fetch_one(&test.pool)
            .await
            .unwrap();
        assert_eq!(hashes, one.hash().hex());
        assert!(!one.reveal().contains(&hashes));

        assert!(
            !store
                .revoke_key(&user, Some(&user.account), id, at(2))
                .await
                .unwrap(),
            "another's"
        );
        assert!(store.revoke_key(&user, None, id, at(2)).await.unwrap());
        assert!(!store.revoke_key(&user, None, id, at(3)).await.unwrap());
        assert_eq!(store.find_key_owner(&one).await.unwrap(), None);
        assert!(store.list_keys(&alice).await.unwrap().is_empty());
        assert!(store.find_key_owner(&two).await.unwrap().is_some());
        store.audit(&user, AuditAction::Login, "", at(3)).await.unwrap();
        let (count, log) = store.audit_log(None, 2, 0).await.unwrap();
        let actions: Vec<_> = log.iter().map(|entry| entry.action.as_str()).collect();
        assert_eq!((count, actions), (4, vec!["login", "key.revoked"]));
    }
}

#[tokio::test]
async fn what_a_job_says_is_its_validators_word_and_bounded() {
    for (test, store) in engines().await {
        let (validator, bounds) = (
            validator_key("Validator"),
            LiveConfig {
                log_kib: 1,
                log_pieces: 5,
            },
        );
        let job = job("User", 1);
        create(&store, validator, &job, at(0)).await;
        let log = |offset: u64, bytes: usize| {
            let data = muster_protocol::wire::decode(&format!("{:?}", "AAAA".repeat(bytes / 3))).unwrap();
            LiveMessage::Log(Box::new(LiveLog {
                uuid: job.uuid,
                stream: LogStream::Stdout,
                offset,
                data,
            }))
        };
        let foreign = [(validator_key("Other"), log(0, 3))];
        store.store_live(&foreign, &bounds, at(1)).await.unwrap();
        assert!(store.log_pieces(job.uuid, 0).await.unwrap().is_empty());

        let messages: Vec<_> = (0..9).map(|n| (validator, log(n * 3, 3))).collect();
        store.store_live(&messages, &bounds, at(1)).await.unwrap();
        let pieces = store.log_pieces(job.uuid, 0).await.unwrap();
        let offsets: Vec<_> = pieces.iter().map(|piece| piece.offset).collect();
        assert_eq!(offsets, [12, 15, 18, 21, 24], "{}", test.engine);
        assert_eq!(
            (pieces[0].data.as_slice(), pieces[0].at),
            ([0; 3].as_slice(), at(1))
        );
        let later = store.log_pieces(job.uuid, pieces[3].seq).await.unwrap();
        assert_eq!(later, pieces[4..]);
        store
            .store_live(
                &[(validator, log(27, 600)), (validator, log(627, 600))],
                &bounds,
                at(2),
            )
            .await
            .unwrap();
        assert_eq!(
            store.log_pieces(job.uuid, 0).await.unwrap().len(),
            1,
            "1 KiB holds one of them"
        );

        store
            .record(validator, &update(job.uuid, JobStatus::Completed), at(3))
            .await
            .unwrap();
        store.delete_old_live(at(3000)).await.unwrap();
        assert_eq!(store.log_pieces(job.uuid, 0).await.unwrap().len(), 1);
        store.delete_old_live(at(3604)).await.unwrap();
        assert!(store.log_pieces(job.uuid, 0).await.unwrap().is_empty());
    }
}
