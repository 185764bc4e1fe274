//! The store's rules, on every available database engine.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

#[cfg(test)]
mod accounts;
#[cfg(test)]
mod jobs;
#[cfg(test)]
mod lists;
#[cfg(test)]
mod live;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod tokens;
#[cfg(test)]
mod validators;
#[cfg(test)]
mod web_sessions;
#[cfg(test)]
mod webhooks;

use muster_facilitator_core::connections::Trust;
use muster_facilitator_core::credentials::{Account, ApiKeySecret, Credential, KeyId};
use muster_facilitator_core::granted_rights::Authority;
use muster_facilitator_core::history::UpdateRejection;
use muster_facilitator_core::list_page::JobFilter;
use muster_facilitator_core::request_bodies;
use muster_facilitator_store::{
    Actor, AuditAction, CancellationOutcome, JobCreation, JobListing, JobQuota, JobSubmission, KeyCreation,
    LiveConfig, LiveMessage, NewKey, QuotaExceeded, Store, StoredJobPage, UpdateOutcome,
};
use muster_identity::{Keypair, Verified, sign_job, verify_job};
use muster_protocol::account_api::{ApiKey, KeyRight};
use muster_protocol::job::ProgramReport;
use muster_protocol::rest::CreateJob;
use muster_protocol::volume::{InlineVolume, Volume, VolumePart};
use muster_protocol::wire::executor::LogStream;
use muster_protocol::wire::facilitator::{JobStatusUpdate, StatusMetadata, UserJobRequest};
use muster_protocol::wire::muster::{LiveLog, LiveMetrics};
use muster_protocol::{JobId, JobStatus, Timestamp, UserKey, ValidatorKey};
use muster_store::testing::{TestStore, migrations_in, stores};
use std::sync::LazyLock;

static MIGRATIONS: LazyLock<sqlx::migrate::Migrator> = LazyLock::new(|| migrations_in("migrations"));

async fn engines() -> Vec<(TestStore, Store)> {
    let mut engines = Vec::new();
    for test in stores(&MIGRATIONS).await.unwrap() {
        let store = Store::over(test.pool.clone()).await.unwrap();
        engines.push((test, store));
    }
    engines
}

fn key(name: &str) -> Keypair {
    Keypair::from_uri(&format!("//{name}")).unwrap()
}

fn validator_key(name: &str) -> ValidatorKey {
    ValidatorKey(key(name).hotkey())
}

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(1_769_000_000 + secs)
}

fn job(name: &str, timestamp_ns: i64) -> Verified<UserJobRequest> {
    signed(name, timestamp_ns, job_for(validator_key("Validator")))
}

/// A job of `//User` with an inline input of `bytes` bytes.
fn job_with(timestamp_ns: i64, bytes: usize) -> Verified<UserJobRequest> {
    let mut body = job_for(validator_key("Validator"));
    body["volumes"][0]["contents"] = serde_json::json!("A".repeat(bytes));
    signed("User", timestamp_ns, body)
}

/// The body of a job with an inline input, a folder of artifacts, and variables whose order is not that of their names.
fn job_for(validator: ValidatorKey) -> serde_json::Value {
    serde_json::json!({
        "target_validator_hotkey": validator,
        "executor_class": "always_on.test",
        "docker_image": "alpine:latest",
        "job_namespace": "SN1.0",
        "args": ["true"],
        "env": {"B": "1", "A": "2"},
        "use_gpu": false,
        "artifacts_dir": "/artifacts",
        "download_time_limit": 5,
        "execution_time_limit": 10,
        "streaming_start_time_limit": 5,
        "upload_time_limit": 5,
        "volumes": [{"volume_type": "inline", "contents": "UEsFBg==", "relative_path": "x"}],
    })
}

fn signed(name: &str, timestamp_ns: i64, body: serde_json::Value) -> Verified<UserJobRequest> {
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
        assert!(store.use_nonce("a", at(300)).await.unwrap());
        assert!(!store.use_nonce("a", at(300)).await.unwrap());
        assert!(store.use_nonce("b", at(301)).await.unwrap());
        store.ping().await.unwrap();
    }
}

fn account(name: &str) -> Account {
    Account::Hotkey(UserKey(key(name).hotkey()))
}

/// The actor that submits a job of this user.
fn actor(job: &UserJobRequest) -> Actor {
    Actor::user(job.signature.signatory)
}

/// Stores a job without quotas.
async fn create(
    store: &Store,
    validator: ValidatorKey,
    job: &Verified<UserJobRequest>,
    now: Timestamp,
) -> JobId {
    match submit(store, validator, job, None, JobQuota::NONE, now).await {
        JobCreation::New => job.uuid,
        JobCreation::Existing(known) => known,
        JobCreation::QuotaExceeded(over) => panic!("{over:?}"),
    }
}

async fn submit(
    store: &Store,
    validator: ValidatorKey,
    request: &Verified<UserJobRequest>,
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
        webhook: None,
        tag: "",
    };
    store.create(submission, now).await.unwrap()
}

fn listed(listed: JobListing) -> StoredJobPage {
    match listed {
        JobListing::Page(page) => page,
        JobListing::TooLong => panic!("the page is too long"),
    }
}
