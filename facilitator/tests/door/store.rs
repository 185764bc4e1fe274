//! The store's rules, on every engine that is at hand.

use muster_facilitator::store::{Listed, Page, Recorded, Store};
use muster_identity::{Verified, sign_job, verify_job};
use muster_kit::store::testing::{TestStore, stores};
use muster_porter::intake;
use muster_porter::jobs::UpdateRefused;
use muster_protocol::rest::CreateJob;
use muster_protocol::volume::{InlineVolume, Volume, VolumePart};
use muster_protocol::wire::facilitator::{JobRequest, JobStatusUpdate, StatusMetadata};
use muster_protocol::{JobId, JobStatus, Timestamp, UserKey};

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

/// A job of `//User` with an inline input of so many bytes.
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

#[tokio::test]
async fn signs_of_life_are_the_last_ones() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        assert_eq!(store.last_seen(validator).await.unwrap(), None);
        store.saw(validator, at(0)).await.unwrap();
        store.saw(validator, at(60)).await.unwrap();
        assert_eq!(store.last_seen(validator).await.unwrap(), Some(at(60)));
        assert_eq!(store.last_seen(validator_key("Other")).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_signature_names_one_job_and_what_is_stored_comes_back_whole() {
    for (test, store) in engines().await {
        let validator = validator_key("Validator");
        let first = job("User", 1);
        assert_eq!(store.job_of(&first.signature).await.unwrap(), None);
        assert_eq!(store.create(validator, &first, at(0)).await.unwrap(), first.uuid);
        let mut again = first.clone().into_inner();
        again.uuid = JobId::from_uuid(uuid::Uuid::new_v4());
        let again = verify_job(&again).unwrap();
        assert_eq!(store.create(validator, &again, at(1)).await.unwrap(), first.uuid);
        assert_eq!(store.job(again.uuid).await.unwrap(), None);

        // A second process sees the same.
        let other = Store::open(&test.url).await.unwrap();
        let stored = other.job(first.uuid).await.unwrap().unwrap();
        assert_eq!(stored.request, *first);
        assert_eq!(stored.request.env.keys().collect::<Vec<_>>(), ["B", "A"]);
        assert_eq!(stored.user, UserKey(key("User").hotkey()));
        assert_eq!(
            (stored.history.len(), stored.history.shown()),
            (1, JobStatus::Sent)
        );
    }
}

#[tokio::test]
async fn updates_are_taken_from_the_holder_in_order_only() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let job = job("User", 1);
        store.create(validator, &job, at(0)).await.unwrap();
        assert_eq!(store.unanswered(validator).await.unwrap(), [job.uuid]);
        let stranger = store
            .record(
                validator_key("Other"),
                &update(job.uuid, JobStatus::Received),
                at(1),
            )
            .await;
        assert_eq!(stranger.unwrap(), Recorded::NoSuchJob);
        assert_eq!(store.unanswered(validator).await.unwrap(), [job.uuid]);

        let record = async |status| {
            store
                .record(validator, &update(job.uuid, status), at(2))
                .await
                .unwrap()
        };
        assert_eq!(record(JobStatus::Accepted).await, Recorded::Yes);
        assert!(store.unanswered(validator).await.unwrap().is_empty());
        let repeated = Recorded::Refused(UpdateRefused::Repeated(JobStatus::Accepted));
        assert_eq!(record(JobStatus::Accepted).await, repeated);
        assert!(matches!(
            record(JobStatus::Received).await,
            Recorded::Refused(UpdateRefused::Backwards { .. })
        ));
        // Unknown statuses are kept, but not without end.
        for n in 0..100 {
            let mut odd = update(job.uuid, JobStatus::Unknown);
            odd.metadata = Some(muster_protocol::wire::decode(&format!("{{\"n\":\"\\u0000{n}\"}}")).unwrap());
            store.record(validator, &odd, at(3)).await.unwrap();
        }
        let stored = store.job(job.uuid).await.unwrap().unwrap();
        assert_eq!(
            (stored.history.len(), stored.history.shown()),
            (64, JobStatus::Accepted)
        );
    }
}

#[tokio::test]
async fn updates_that_race_leave_one_history() {
    for (test, store) in engines().await {
        let validator = validator_key("Validator");
        let job = job("User", 1);
        store.create(validator, &job, at(0)).await.unwrap();
        let other = Store::open(&test.url).await.unwrap();
        let received = update(job.uuid, JobStatus::Received);
        let (a, b, c) = tokio::join!(
            store.record(validator, &received, at(1)),
            other.record(validator, &received, at(1)),
            store.record(validator, &received, at(1)),
        );
        let taken = [a, b, c]
            .into_iter()
            .filter(|recorded| matches!(recorded, Ok(Recorded::Yes)))
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
            store
                .create(validator_key("Validator"), &job, at(n))
                .await
                .unwrap();
            made.push(job.uuid);
        }
        store
            .create(validator_key("Validator"), &job("Other", 1), at(1))
            .await
            .unwrap();
        made.reverse();
        let user = UserKey(key("User").hotkey());
        let page = listed(store.jobs_of(user, 3, 3).await.unwrap());
        let uuids: Vec<_> = page.jobs.iter().map(|job| job.request.uuid).collect();
        assert_eq!((page.count, uuids.as_slice()), (7, &made[3..6]));
        assert!(page.jobs.iter().all(|job| job.history.len() == 1));
        assert!(
            listed(store.jobs_of(user, 3, u64::MAX).await.unwrap())
                .jobs
                .is_empty()
        );
    }
}

fn listed(listed: Listed) -> Page {
    match listed {
        Listed::Page(page) => page,
        Listed::TooLong => panic!("the page is too long"),
    }
}

#[tokio::test]
async fn a_page_leaves_inline_inputs_out_and_has_a_length() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let user = UserKey(key("User").hotkey());
        for (n, bytes) in [(0, 10), (1, 200_000)] {
            let job = job_with(n, bytes);
            store.create(validator, &job, at(n)).await.unwrap();
            let stored = store.job(job.uuid).await.unwrap().unwrap();
            assert_eq!(stored.request, *job, "the job's own page is whole");
        }
        let page = listed(store.jobs_of(user, 10, 0).await.unwrap());
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

        // Results count as well: five of them are more than a page may hold.
        let result: StatusMetadata =
            muster_protocol::wire::decode(&format!("{{\"n\":\"{}\"}}", "x".repeat(13 << 20))).unwrap();
        for n in 2..7 {
            let job = job_with(n, 1);
            store.create(validator, &job, at(n)).await.unwrap();
            let mut done = update(job.uuid, JobStatus::Completed);
            done.metadata = Some(result.clone());
            assert_eq!(
                store.record(validator, &done, at(n)).await.unwrap(),
                Recorded::Yes
            );
        }
        assert_eq!(store.jobs_of(user, 10, 0).await.unwrap(), Listed::TooLong);
        assert_eq!(listed(store.jobs_of(user, 4, 0).await.unwrap()).jobs.len(), 4);
    }
}
