//! Months of use in a store whose size is bounded: jobs, chats, files and checkpoints every hour of every day, and the
//! janitor and the sweeps beside them. Rows go into every table, so each of them is shown to stay within its bound.

mod hourly;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use futures_util::stream;
use muster_facilitator_store::FacilitatorRetention;
use muster_facilitator_store::{FacilitatorRetentionConfig, TokenPair};
use muster_file_store::checkpoint_blocks::CheckpointService;
use muster_file_store::checkpoint_blocks::catalogue::{
    Announcement, AttemptBound, BlockBounds, BlockCatalogue, NewBlock,
};
use muster_file_store::upload_plan::WriteRequest;
use muster_file_store::{FileCatalogue, FileService, NewFile, ObjectStorage, Settings, UrlKey};
use muster_process::folders::measure_folder;
use muster_process::{Clock as _, SharedClock, TestClock};
use muster_protocol::job::KeptCheckpoint;
use muster_protocol::{AttemptId, Digest};
use muster_store::retention::sweep_once;
use muster_store::testing::soak::StoreSoak;
use muster_store::testing::sqlite;

use super::*;

const HOUR: std::time::Duration = std::time::Duration::from_secs(3_600);
/// The metrics that a job's program reports.
const METRICS: [&str; 2] = ["loss", "accuracy"];

#[tokio::test]
async fn days_of_jobs_chats_and_files_stay_within_their_bounds() {
    run(StoreSoak {
        days: 4,
        jobs_a_day: 24,
        kept_days: 1,
    })
    .await;
}

#[tokio::test]
#[ignore = "soak: a year at 1,000 jobs a day, half an hour to two hours"]
async fn a_year_of_jobs_chats_and_files_stays_within_its_bounds() {
    run(StoreSoak {
        days: 365,
        jobs_a_day: 1_000,
        kept_days: 30,
    })
    .await;
}

/// One job from its creation to its result, with output and metrics on the way.
async fn work(store: &Store, validator: ValidatorKey, n: i64, now: Timestamp) -> JobId {
    let job = job("User", n);
    create(store, validator, &job, now).await;
    for status in [JobStatus::Received, JobStatus::Accepted] {
        store
            .record(validator, &update(job.uuid, status), now)
            .await
            .unwrap();
    }
    let data = muster_protocol::wire::decode("\"cHJpbnRlZA==\"").unwrap();
    let log = LiveMessage::Log(Box::new(LiveLog {
        uuid: job.uuid,
        stream: LogStream::Stdout,
        offset: 0,
        data,
    }));
    let metric = |name: &str| (name.parse().unwrap(), 0.5_f64.try_into().unwrap());
    let report = ProgramReport {
        metrics: METRICS.into_iter().map(metric).collect(),
        ..ProgramReport::default()
    };
    let metrics = LiveMessage::Metrics(Box::new(LiveMetrics {
        uuid: job.uuid,
        at: now,
        report,
    }));
    let bounds = LiveConfig::default();
    store
        .store_live(&[(validator, log), (validator, metrics)], &bounds, now)
        .await
        .unwrap();
    let done = update(job.uuid, JobStatus::Completed);
    store.record(validator, &done, now).await.unwrap();
    store
        .use_nonce(&format!("nonce {n}"), now.plus(HOUR))
        .await
        .unwrap();
    let whose = account("User");
    let tokens = TokenPair {
        input: 10,
        output: 20,
    };
    store
        .reserve_usage(&whose, "tiny", tokens, Some(u64::MAX), now)
        .await
        .unwrap()
        .unwrap();
    job.uuid
}

/// Users' files and the blocks of jobs' checkpoints, in one folder, which have the times of the same settings.
struct Objects {
    storage: ObjectStorage,
    catalogue: BlockCatalogue,
    files: FileService,
    blocks: CheckpointService,
}

impl Objects {
    async fn open(test: &TestStore, folder: &Path, kept_days: u32, clock: SharedClock) -> Self {
        let address = format!("file:{}", folder.display());
        let storage = ObjectStorage::open(&address).await.unwrap();
        let settings = Settings {
            keep_hours: u64::from(kept_days) * 24,
            ..Settings::default()
        };
        let key = || UrlKey::new(*b"a secret of this test");
        let catalogue = BlockCatalogue::new(test.pool.clone());
        let tables = FileCatalogue::new(test.pool.clone());
        Self {
            storage: storage.clone(),
            catalogue: catalogue.clone(),
            files: FileService::new(
                tables,
                storage.clone(),
                key(),
                settings.clone(),
                Arc::clone(&clock),
            ),
            blocks: CheckpointService::new(catalogue, storage, key(), settings, clock),
        }
    }

    /// One file, and one checkpoint of the job.
    async fn store(&self, validator: ValidatorKey, job: JobId, hour: i64, now: Timestamp) {
        const BYTES: u64 = 8;
        let file = NewFile {
            name: "data.bin".to_owned(),
            size: Some(BYTES),
            ..NewFile::default()
        };
        let file = self.files.create("User", file).await.unwrap();
        let body = stream::iter([Ok::<_, Infallible>(hour.to_be_bytes().to_vec().into())]);
        self.files
            .write(&file, WriteRequest::Whole(Some(BYTES)), body)
            .await
            .unwrap();
        let block = Digest::of(&hour.to_be_bytes());
        let bounds = BlockBounds {
            account: u64::MAX >> 1,
            all: u64::MAX >> 1,
        };
        let new = NewBlock {
            job,
            block,
            account: "User",
            bytes: BYTES,
            attempt: Some(AttemptBound {
                attempt: 1,
                bytes: BYTES,
            }),
        };
        let announced = self.catalogue.announce(new, bounds, now).await.unwrap();
        assert_eq!(announced, Announcement::Write);
        let object = format!("blocks/{job}/{}", block.hex());
        let bytes = vec![hour.to_be_bytes().to_vec().into()];
        self.storage.put(&object, bytes).await.unwrap();
        assert!(self.catalogue.mark_durable(job, block).await.unwrap());
        let kept = KeptCheckpoint {
            ordinal: 1,
            attempt: AttemptId::first_of(job),
            manifest: block,
            name: "step-1".to_owned(),
            bytes: BYTES,
            epoch: None,
            step: None,
            metric: None,
            at: now,
        };
        self.blocks.record_kept(validator, job, &[kept], 0).await.unwrap();
    }

    async fn sweep(&self) {
        self.files.sweep().await.unwrap();
        self.blocks.sweep().await.unwrap();
    }
}

async fn run(soak: StoreSoak) {
    let test = sqlite(&MIGRATIONS).await.unwrap();
    let store = Store::over(test.pool.clone()).await.unwrap();
    let clock = TestClock::new(at(0));
    let folder = test.file().with_file_name("objects");
    let objects = Objects::open(&test, &folder, soak.kept_days, Arc::new(clock.clone())).await;
    store.token_secret([1; 32]).await.unwrap();
    let keep = soak.keep();
    let config = FacilitatorRetentionConfig {
        jobs: keep,
        audit: keep,
        usage: keep,
        revoked_keys: keep,
        validators: keep,
        ..FacilitatorRetentionConfig::default()
    };
    let rules = FacilitatorRetention::new(store.clone(), config);
    let validator = validator_key("Validator");
    let (mut made, mut full) = (0_i64, 0);
    for day in 0..soak.days {
        for hour in 0..24 {
            let due = i64::from(soak.jobs_a_day) * i64::from(day * 24 + hour + 1) / 24;
            let now = clock.now();
            let jobs = join_all((made..due).map(|n| work(&store, validator, n, now))).await;
            made = due;
            let number = i64::from(day * 24 + hour);
            hourly::write(&test.pool, number, now).await;
            store.record_alive(now).await.unwrap();
            objects.store(validator, *jobs.last().unwrap(), number, now).await;
            clock.advance(HOUR);
            sweep_once(&rules, &store.writer(), &[], StoreSoak::pace(), &clock)
                .await
                .unwrap();
        }
        objects.sweep().await;
        if day == soak.kept_days + 1 {
            full = test.file_bytes();
        }
    }
    let most = u64::from(soak.jobs_a_day) * u64::from(soak.kept_days + 1);
    let hourly = u64::from(soak.jobs_a_day) / 24 + 1;
    // One a day more for sweeps that come once a day, and one hour more for the grace of objects.
    let hours = 24 * (u64::from(soak.kept_days) + 1) + 1;
    let bound = |table: &str| match table {
        "jobs" | "audit" | "program_reports" => Some(most),
        "metric_series" | "metric_points" => Some(most * u64::try_from(METRICS.len()).unwrap()),
        "statuses" => Some(most * 4),
        "logs" | "progress" | "queue_places" => Some(hourly * 2),
        "used_nonces" => Some(hourly * 27),
        "model_usage" => Some(u64::from(soak.kept_days) + 2),
        "feedback" | "cheat_reports" | "job_checks" | "webhook_messages" | "job_checkpoints" => Some(hours),
        "answer_reports" | "refunds" | "api_keys" | "validators" => Some(hours),
        "files" | "file_segments" | "job_blocks" | "attempt_bytes" => Some(hours),
        "quotas" | "miner_reports" | "web_sessions" | "account_deletions" => Some(26),
        "web_links" | "stored_bytes" => Some(2),
        "block_bytes" | "replicas" | "secrets" | "webhook_accounts" => Some(1),
        _ => None,
    };
    soak.assert_bounds(&test, bound).await.unwrap();
    let left = measure_folder(&folder);
    assert!(left.files > 0 && left.files <= 2 * hours, "{left:?}");
    test.assert_file_within(full);
}
