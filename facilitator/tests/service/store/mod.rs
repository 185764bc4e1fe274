//! The store's rules, on every available database engine.

mod accounts;
mod jobs;
mod lists;
mod live;
mod validators;

use muster_facilitator::config::LiveConfig;
use muster_facilitator::store::{
    Actor, AuditAction, CancellationOutcome, JobCreation, JobListing, JobQuota, JobSubmission, LiveMessage,
    QuotaExceeded, Store, StoredJobPage, UpdateOutcome,
};
use muster_facilitator_core::account::{Account, ApiKeySecret};
use muster_facilitator_core::connections::Trust;
use muster_facilitator_core::history::UpdateRejection;
use muster_facilitator_core::list_page::JobFilter;
use muster_facilitator_core::request_bodies;
use muster_identity::{Verified, sign_job, verify_job};
use muster_protocol::rest::CreateJob;
use muster_protocol::volume::{InlineVolume, Volume, VolumePart};
use muster_protocol::wire::executor::LogStream;
use muster_protocol::wire::facilitator::{JobRequest, JobStatusUpdate, StatusMetadata};
use muster_protocol::wire::muster::LiveLog;
use muster_protocol::{JobId, JobStatus, Timestamp, UserKey, ValidatorKey};
use muster_store::testing::{TestStore, migrations_in, stores};
use std::sync::LazyLock;

use crate::facilitator::{key, validator_key};
use crate::user::job_for;

static MIGRATIONS: LazyLock<sqlx::migrate::Migrator> = LazyLock::new(|| migrations_in("migrations"));

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
    verify_job(&request_bodies::into_request(create, uuid, signature).1).unwrap()
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

fn listed(listed: JobListing) -> StoredJobPage {
    match listed {
        JobListing::Page(page) => page,
        JobListing::TooLong => panic!("the page is too long"),
    }
}
