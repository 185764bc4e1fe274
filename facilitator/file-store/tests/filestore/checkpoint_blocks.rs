//! Blocks of jobs on every database engine: who may read and write them, how much there may be, and what is swept.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use muster_checkpoints::{CheckpointManifest, ManifestEntry, manifest::FileBlocks};
use muster_file_store::checkpoint_blocks::catalogue::BlockCatalogue;
use muster_file_store::checkpoint_blocks::{BlockStoreError, CheckpointService, block_routes};
use muster_file_store::{FileCatalogue, FileError, FileService, NewFile, ObjectStorage, Settings, UrlKey};
use muster_process::SharedClock;
use muster_process::clock::TestClock;
use muster_protocol::job::{CheckpointTerms, KeptCheckpoint, ResumeSource, StoredStream};
use muster_protocol::{Digest, Hotkey, JobId, Timestamp, ValidatorKey};
use muster_store::testing::{TestStore, migrations_in, stores};
use sqlx::AssertSqlSafe;
use sqlx::migrate::Migrator;
use tower::ServiceExt as _;

static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| migrations_in("../store/migrations"));

pub(crate) const JOB: &str = "11111111-2222-4333-8444-555555555555";
pub(crate) const OTHER: &str = "11111111-2222-4333-8444-555555555556";
pub(crate) const BASE: &str = "http://f";

pub(crate) struct Bench {
    store: TestStore,
    settings: Settings,
    storage: ObjectStorage,
    _folder: tempfile::TempDir,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) service: Arc<CheckpointService>,
}

pub(crate) const USER: &str = "alice";

pub(crate) fn validator() -> ValidatorKey {
    ValidatorKey(Hotkey::from_bytes([2; 32]))
}

pub(crate) fn id(text: &str) -> JobId {
    text.parse().unwrap()
}

impl Bench {
    pub(crate) async fn all() -> Vec<Self> {
        Self::keeping(1).await
    }

    /// Benches that keep the blocks of ended jobs for this many hours.
    async fn keeping(keep_hours: u64) -> Vec<Self> {
        let mut benches = Vec::new();
        for store in stores(&MIGRATIONS).await.unwrap() {
            let folder = tempfile::tempdir().unwrap();
            let clock = Arc::new(TestClock::new(Timestamp::from_secs(1_769_000_000)));
            let url = format!("file:{}", folder.path().join("o").display());
            let storage = ObjectStorage::open(&url);
            let settings = Settings {
                quota_mib: 1,
                keep_hours,
                ..Settings::default()
            };
            let shared: SharedClock = Arc::<TestClock>::clone(&clock);
            let storage = storage.await.unwrap();
            let service = CheckpointService::new(
                BlockCatalogue::new(store.pool.clone()),
                storage.clone(),
                UrlKey::new(*b"0123456789abcdef0123456789abcdef"),
                settings.clone(),
                shared,
            );
            let bench = Self {
                store,
                settings,
                storage,
                _folder: folder,
                clock,
                service: Arc::new(service),
            };
            for job in [JOB, OTHER] {
                bench.add_job(job, USER).await;
            }
            benches.push(bench);
        }
        benches
    }

    pub(crate) async fn add_job(&self, job: &str, account: &str) {
        let statement = format!(
            "INSERT INTO jobs (uuid, user_key, validator, timestamp_ns, signature, request, created_at, account) \
             VALUES ('{job}', 'u', '{}', 1, '{job}', '', 1, '{account}')",
            validator(),
        );
        self.run(&statement).await;
    }

    pub(crate) async fn run(&self, statement: &str) {
        let statement = AssertSqlSafe(statement.to_owned());
        sqlx::query(statement).execute(&self.store.pool).await.unwrap();
    }

    pub(crate) fn pool(&self) -> sqlx::AnyPool {
        self.store.pool.clone()
    }

    /// The files that lie beside the blocks.
    fn files(&self) -> FileService {
        let shared: SharedClock = Arc::<TestClock>::clone(&self.clock);
        FileService::new(
            FileCatalogue::new(self.store.pool.clone()),
            self.storage.clone(),
            UrlKey::new(*b"0123456789abcdef0123456789abcdef"),
            self.settings.clone(),
            shared,
        )
    }

    pub(crate) async fn grant(&self, job: &str) -> String {
        let granted = self
            .service
            .grant(USER, id(job), &CheckpointTerms::default(), BASE)
            .await;
        granted.unwrap().blocks
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        url: &str,
        name: &str,
        body: Vec<u8>,
    ) -> (StatusCode, Bytes) {
        let (path, query) = url.strip_prefix(BASE).unwrap().split_once('?').unwrap();
        let request = Request::builder()
            .method(method)
            .uri(format!("{path}/{name}?{query}"))
            .header("content-type", "application/json")
            .body(Body::from(body))
            .unwrap();
        let answer = block_routes::router(Arc::clone(&self.service))
            .oneshot(request)
            .await
            .unwrap();
        let status = answer.status();
        (
            status,
            axum::body::to_bytes(answer.into_body(), 16 << 20).await.unwrap(),
        )
    }

    pub(crate) async fn put(&self, url: &str, content: &[u8]) -> StatusCode {
        let name = Digest::of(content).hex();
        self.ask(Method::PUT, url, &name, content.to_vec()).await.0
    }

    pub(crate) async fn get(&self, url: &str, content: &[u8]) -> StatusCode {
        let (status, read) = self
            .ask(Method::GET, url, &Digest::of(content).hex(), vec![])
            .await;
        assert!(status != StatusCode::OK || read == content);
        status
    }

    pub(crate) async fn missing(&self, url: &str, blocks: &[&[u8]]) -> Vec<Digest> {
        let blocks: Vec<Digest> = blocks.iter().map(|block| Digest::of(block)).collect();
        let body = serde_json::to_vec(&serde_json::json!({ "blocks": blocks })).unwrap();
        let (status, answer) = self.ask(Method::POST, url, "missing", body).await;
        assert_eq!(status, StatusCode::OK);
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        serde_json::from_value(answer.get("blocks").unwrap().clone()).unwrap()
    }

    /// The reason why a stream of this length is not opened that has this list of blocks.
    async fn refusal(&self, bytes: u64, list: &[u8]) -> Option<BlockStoreError> {
        let blocks = Digest::of(list);
        let opened = self
            .service
            .open_stream(id(JOB), StoredStream { bytes, blocks }, 0)
            .await;
        opened.err()
    }

    pub(crate) fn pass(&self, hours: u64) {
        self.clock.advance(Duration::from_secs(hours * 3_600));
    }
}

/// A checkpoint of one file with this content, and its manifest.
pub(crate) fn checkpoint(ordinal: u32, content: &[u8]) -> (KeptCheckpoint, Vec<u8>) {
    let manifest = CheckpointManifest::new(vec![ManifestEntry {
        path: "c".parse().unwrap(),
        mode: 0o644,
        file: Some(FileBlocks {
            size: content.len() as u64,
            blocks: vec![Digest::of(content)],
        }),
    }])
    .unwrap();
    let kept = KeptCheckpoint {
        ordinal,
        attempt: JOB.parse().unwrap(),
        manifest: manifest.digest(),
        name: "c".to_owned(),
        bytes: content.len() as u64,
        epoch: None,
        step: None,
        metric: None,
        at: Timestamp::from_secs(1),
    };
    (kept, manifest.to_bytes())
}

#[tokio::test]
async fn a_url_is_good_for_the_blocks_of_its_job_until_the_job_ends() {
    for bench in Bench::all().await {
        let url = bench.grant(JOB).await;
        assert_eq!(bench.missing(&url, &[b"one", b"two"]).await.len(), 2);
        assert_eq!(bench.put(&url, b"one").await, StatusCode::CREATED);
        assert_eq!(bench.missing(&url, &[b"one", b"two"]).await, [Digest::of(b"two")]);
        assert_eq!(bench.get(&url, b"one").await, StatusCode::OK);
        assert_eq!(bench.get(&url, b"two").await, StatusCode::NOT_FOUND);
        let (wrong, _) = bench
            .ask(Method::PUT, &url, &Digest::of(b"two").hex(), b"one".to_vec())
            .await;
        assert_eq!(wrong, StatusCode::UNPROCESSABLE_ENTITY);
        let forged = url.replace(JOB, OTHER);
        assert_eq!(
            bench.get(&forged, b"one").await,
            StatusCode::FORBIDDEN,
            "another job's blocks"
        );

        let view = bench.service.view(id(JOB), BASE).await.unwrap();
        assert_eq!(bench.get(&view.blocks, b"one").await, StatusCode::OK);
        assert_eq!(
            bench.put(&view.blocks, b"two").await,
            StatusCode::FORBIDDEN,
            "it only reads"
        );

        bench
            .run(&format!("UPDATE jobs SET ended_at = 5 WHERE uuid = '{JOB}'"))
            .await;
        assert_eq!(bench.put(&url, b"two").await, StatusCode::GONE);
        assert_eq!(bench.get(&view.blocks, b"one").await, StatusCode::OK);
        bench.pass(25);
        assert_eq!(
            bench.get(&view.blocks, b"one").await,
            StatusCode::FORBIDDEN,
            "it has expired"
        );
    }
}

#[tokio::test]
async fn blocks_count_towards_their_account() {
    for bench in Bench::all().await {
        let (one, other) = (bench.grant(JOB).await, bench.grant(OTHER).await);
        assert_eq!(bench.put(&one, &[1; 700_000]).await, StatusCode::CREATED);
        assert_eq!(bench.put(&one, &[1; 700_000]).await, StatusCode::CREATED, "again");
        assert_eq!(
            bench.put(&other, &[2; 700_000]).await,
            StatusCode::PAYLOAD_TOO_LARGE
        );
        assert_eq!(bench.put(&other, &[2; 300_000]).await, StatusCode::CREATED);
        let (too_long, _) = bench
            .ask(Method::PUT, &one, &"0".repeat(64), vec![0; (8 << 20) + 1])
            .await;
        assert_eq!(too_long, StatusCode::PAYLOAD_TOO_LARGE);
    }
}

#[tokio::test]
async fn unreferenced_checkpoint_blocks_go_and_those_of_a_lost_list_stay() {
    for bench in Bench::all().await {
        let url = bench.grant(JOB).await;
        let [first, second, third] = [b"first" as &[u8], b"second", b"third"];
        let mut lists = Vec::new();
        for (ordinal, content) in [(1, first), (2, second)] {
            let (kept, manifest) = checkpoint(ordinal, content);
            for block in [content, &manifest] {
                assert_eq!(bench.put(&url, block).await, StatusCode::CREATED);
            }
            lists.push(kept);
        }
        bench.pass(2);
        // The second alone is kept. The third is sent, and its list is lost.
        bench
            .service
            .record_kept(validator(), id(JOB), &lists[1..], 0)
            .await
            .unwrap();
        assert_eq!(bench.put(&url, third).await, StatusCode::CREATED);
        bench.pass(48);
        assert_eq!(
            bench.service.sweep().await.unwrap(),
            2,
            "the first and its manifest"
        );
        assert_eq!(bench.get(&url, first).await, StatusCode::NOT_FOUND);
        for kept in [second, third] {
            assert_eq!(bench.get(&url, kept).await, StatusCode::OK);
        }
        // Another validator's word counts nothing.
        let stranger = ValidatorKey(Hotkey::from_bytes([9; 32]));
        bench
            .service
            .record_kept(stranger, id(JOB), &[], 0)
            .await
            .unwrap();
        assert_eq!(
            bench.service.view(id(JOB), BASE).await.unwrap().checkpoints.len(),
            1
        );
        // They go with their job.
        let now = bench.clock.as_ref();
        let ended = muster_process::Clock::now(now).micros();
        bench
            .run(&format!(
                "UPDATE jobs SET ended_at = {ended} WHERE uuid = '{JOB}'"
            ))
            .await;
        assert_eq!(bench.service.sweep().await.unwrap(), 0);
        bench.pass(2);
        assert_eq!(bench.service.sweep().await.unwrap(), 3);
        let view = bench.service.view(id(JOB), BASE).await.unwrap();
        assert_eq!(view.checkpoints, [], "no checkpoint is shown without its blocks");
        let (lists,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM job_checkpoints")
            .fetch_one(&bench.store.pool)
            .await
            .unwrap();
        assert_eq!(lists, 0);
    }
}

#[tokio::test]
async fn output_of_an_ended_job_is_kept_as_long_as_the_job_however_late_its_last_list_comes() {
    for bench in Bench::keeping(48).await {
        let url = bench.service.grant_output(id(JOB), false, BASE).blocks;
        assert_eq!(bench.put(&url, b"printed").await, StatusCode::CREATED);
        let ended = muster_process::Clock::now(bench.clock.as_ref()).micros();
        bench
            .run(&format!(
                "UPDATE jobs SET ended_at = {ended} WHERE uuid = '{JOB}'"
            ))
            .await;
        bench.pass(3);
        let service = &bench.service;
        service.record_kept(validator(), id(JOB), &[], 1).await.unwrap();
        assert_eq!(service.sweep().await.unwrap(), 0);
        bench.pass(44);
        assert_eq!(service.sweep().await.unwrap(), 0);
        bench.pass(2);
        assert_eq!(service.sweep().await.unwrap(), 1);
    }
}

#[tokio::test]
async fn printed_stream_whose_length_does_not_fit_its_list_or_the_room_is_not_opened() {
    for bench in Bench::all().await {
        let url = bench.service.grant_output(id(JOB), false, BASE).blocks;
        let block = Digest::of(b"abc");
        assert_eq!(bench.put(&url, b"abc").await, StatusCode::CREATED);
        let once = block.as_bytes().to_vec();
        let thrice = once.repeat(3);
        for list in [&once, &thrice] {
            assert_eq!(bench.put(&url, list).await, StatusCode::CREATED);
        }
        assert!(bench.refusal(3, &once).await.is_none());
        // The account has one MiB: no honest stream is longer, though one block repeated makes a list of any length.
        let more_than_stored = 2 * StoredStream::BLOCK_BYTES + 1;
        for (bytes, list) in [(3, &thrice), (0, &once), (more_than_stored, &thrice)] {
            let refused = bench.refusal(bytes, list).await;
            assert!(
                matches!(refused, Some(BlockStoreError::FalseLength(stated)) if stated == bytes),
                "{refused:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_job_whose_manifest_is_missing_does_not_stop_the_sweep_of_others() {
    for bench in Bench::all().await {
        let (one, other) = (bench.grant(JOB).await, bench.grant(OTHER).await);
        for url in [&one, &other] {
            assert_eq!(bench.put(url, b"old").await, StatusCode::CREATED);
        }
        bench.pass(2);
        let (never_sent, _) = checkpoint(1, b"old");
        let (validator, service) = (validator(), &bench.service);
        service
            .record_kept(validator, id(JOB), &[never_sent], 0)
            .await
            .unwrap();
        service.record_kept(validator, id(OTHER), &[], 0).await.unwrap();
        assert_eq!(service.sweep().await.unwrap(), 1);
        assert_eq!(bench.get(&one, b"old").await, StatusCode::OK);
        assert_eq!(bench.get(&other, b"old").await, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn files_and_blocks_share_the_room_of_their_account() {
    for bench in Bench::all().await {
        let files = bench.files();
        let file = |bytes| NewFile {
            name: "x".to_owned(),
            size: Some(bytes),
            ..NewFile::default()
        };
        let url = bench.grant(JOB).await;
        assert_eq!(bench.put(&url, &[1; 700_000]).await, StatusCode::CREATED);
        let refused = files.create(USER, file(400_000)).await;
        assert!(matches!(refused, Err(FileError::Quota { .. })), "{refused:?}");
        let refused = files.create("bob", file(1_500_000)).await;
        assert!(matches!(refused, Err(FileError::Quota { .. })), "{refused:?}");
        files.create("bob", file(1_000_000)).await.unwrap();
        files.create(USER, file(300_000)).await.unwrap();
        assert_eq!(
            bench.put(&url, &[2; 100_000]).await,
            StatusCode::PAYLOAD_TOO_LARGE
        );
        // The room of swept blocks is free again.
        bench.pass(2);
        bench
            .run(&format!("UPDATE jobs SET ended_at = 5 WHERE uuid = '{JOB}'"))
            .await;
        assert_eq!(bench.service.sweep().await.unwrap(), 1);
        files.create(USER, file(700_000)).await.unwrap();
    }
}

#[tokio::test]
async fn a_block_that_is_being_dropped_cannot_be_written_until_it_is_gone() {
    for bench in Bench::all().await {
        let url = bench.grant(JOB).await;
        assert_eq!(bench.put(&url, b"one").await, StatusCode::CREATED);
        bench.pass(2);
        let block = Digest::of(b"one");
        let catalogue = BlockCatalogue::new(bench.store.pool.clone());
        let now = muster_process::Clock::now(bench.clock.as_ref());
        assert!(catalogue.withdraw(JOB, &block.hex(), now).await.unwrap());
        assert_eq!(bench.missing(&url, &[b"one"]).await, [block]);
        assert_eq!(
            bench.put(&url, b"one").await,
            StatusCode::SERVICE_UNAVAILABLE,
            "its object may be deleted at any moment"
        );
        assert!(!catalogue.mark_durable(id(JOB), block).await.unwrap());
        catalogue.forget(JOB, &block.hex()).await.unwrap();
        assert_eq!(bench.put(&url, b"one").await, StatusCode::CREATED);
        assert_eq!(bench.get(&url, b"one").await, StatusCode::OK);
    }
}

#[tokio::test]
async fn many_blocks_are_looked_for_at_once() {
    for bench in Bench::all().await {
        let url = bench.grant(JOB).await;
        let contents: Vec<Vec<u8>> = (0..300)
            .map(|number: u32| number.to_be_bytes().to_vec())
            .collect();
        let there = [0, 127, 128, 299];
        for number in there {
            assert_eq!(bench.put(&url, &contents[number]).await, StatusCode::CREATED);
        }
        let asked: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
        let expected: Vec<Digest> = contents
            .iter()
            .enumerate()
            .filter(|(number, _)| !there.contains(number))
            .map(|(_, content)| Digest::of(content))
            .collect();
        assert_eq!(bench.missing(&url, &asked).await, expected);
        assert_eq!(bench.missing(&url, &[]).await, []);
    }
}

#[tokio::test]
async fn a_block_that_arrives_too_slowly_is_given_up() {
    for bench in Bench::all().await {
        let url = bench.grant(JOB).await;
        let (path, query) = url.strip_prefix(BASE).unwrap().split_once('?').unwrap();
        let request = Request::builder()
            .method(Method::PUT)
            .uri(format!("{path}/{}?{query}", Digest::of(b"one").hex()))
            .body(Body::from_stream(futures_util::stream::pending::<
                std::io::Result<Bytes>,
            >()))
            .unwrap();
        let answer = block_routes::router(Arc::clone(&bench.service)).oneshot(request);
        let passing = async {
            bench.clock.wait_for_sleepers(1).await;
            bench.clock.advance(Duration::from_secs(240));
        };
        let (answer, ()) = tokio::join!(answer, passing);
        assert_eq!(answer.unwrap().status(), StatusCode::REQUEST_TIMEOUT);
    }
}

#[tokio::test]
async fn a_job_begins_from_a_checkpoint_of_its_own_account_only() {
    for bench in Bench::all().await {
        let ((kept, manifest), (gone, _)) = (checkpoint(3, b"content"), checkpoint(5, b"gone"));
        bench
            .service
            .record_kept(validator(), id(JOB), &[kept.clone(), gone], 0)
            .await
            .unwrap();
        let url = bench.grant(JOB).await;
        assert_eq!(bench.put(&url, &manifest).await, StatusCode::CREATED);
        let from = |ordinal| CheckpointTerms {
            resume_from: Some(ResumeSource {
                job: id(JOB),
                ordinal,
            }),
            ..CheckpointTerms::default()
        };
        let granted = bench
            .service
            .grant(USER, id(OTHER), &from(3), BASE)
            .await
            .unwrap();
        assert_eq!(granted.resume.unwrap().manifest, kept.manifest);
        for (account, ordinal) in [(USER, 4), (USER, 5), ("bob", 3)] {
            let refused = bench
                .service
                .grant(account, id(OTHER), &from(ordinal), BASE)
                .await;
            assert!(
                matches!(refused, Err(BlockStoreError::NoCheckpoint(..))),
                "{refused:?}"
            );
        }
    }
}
