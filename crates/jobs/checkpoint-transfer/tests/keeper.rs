//! Checkpoints are taken out of folders that change and misbehave, sent to a store that fails, and laid out again.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use muster_checkpoint_transfer::source::MAX_OPEN_FILES;
use muster_checkpoint_transfer::{
    BlockClient, BlockError, CheckpointKeeper, KeeperHandle, KeeperSetup, LastLook, ReportedPlace,
    RestoreError, RestoreReader, restore,
};
use muster_checkpoints::{BLOCK_BYTES, TreeLimits};
use muster_process::{SystemClock, Tasks};
use muster_protocol::Digest;
use muster_protocol::job::MetricValue;
use muster_protocol::wire::checkpoints::CheckpointNotice;
use muster_testbed::{until, within};
use parking_lot::Mutex;
use tokio::sync::mpsc;

#[path = "support/block_store.rs"]
mod block_store;

use block_store::BlockStore;

const ATTEMPT: &str = "11111111-2222-4333-8444-555555555555";

/// A program's report, as a test writes it.
#[derive(Default)]
struct Report(Mutex<BTreeMap<String, u32>>);

impl Report {
    fn name(&self, child: &str) {
        *self.0.lock().entry(child.to_owned()).or_default() += 1;
    }
}

impl ReportedPlace for Report {
    fn times_named(&self, child: &str) -> u32 {
        self.0.lock().get(child).copied().unwrap_or_default()
    }

    fn place_of(&self, _child: &str) -> (Option<u64>, Option<u64>, Option<MetricValue>) {
        (Some(1), Some(20), None)
    }
}

struct Bench {
    folder: tempfile::TempDir,
    _scratch: tempfile::TempDir,
    store: BlockStore,
    client: BlockClient,
    report: Arc<Report>,
    notices: mpsc::UnboundedReceiver<CheckpointNotice>,
    reasons: Arc<Mutex<Vec<String>>>,
    handle: KeeperHandle,
    running: futures_util::future::BoxFuture<'static, ()>,
    _tasks: Tasks,
}

async fn bench(limits: TreeLimits, reserve: u64, prepare: impl FnOnce(&Path)) -> Bench {
    // A file system in memory shares no blocks, so the files are read where the program has them.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    prepare(folder.path());
    let tasks = Tasks::new();
    let store = BlockStore::default();
    let client = store.serve(&tasks).await;
    let report = Arc::new(Report::default());
    let (sender, notices) = mpsc::unbounded_channel();
    let reasons: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&reasons);
    let (handle, pending) = CheckpointKeeper::prepare();
    let mut keeper = pending.start(KeeperSetup {
        attempt: ATTEMPT.parse().unwrap(),
        folder: folder.path().to_owned(),
        scratch: scratch.path().to_owned(),
        reserve,
        limits,
        store: client.clone(),
        place: Arc::<Report>::clone(&report),
        announce: Arc::new(move |notice| {
            let _ = sender.send(notice);
            std::future::ready(()).boxed()
        }),
        explain: Arc::new(move |reason| told.lock().push(reason)),
        clock: Arc::new(SystemClock::default()),
    });
    keeper.skip("old").await;
    let task = tasks.spawn("keeper", keeper.run());
    let running = async move { task.join().await.unwrap() }.boxed();
    Bench {
        folder,
        _scratch: scratch,
        store,
        client,
        report,
        notices,
        reasons,
        handle,
        running,
        _tasks: tasks,
    }
}

impl Bench {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The next notice, which is answered.
    async fn next(&mut self) -> CheckpointNotice {
        let notice = within("a notice", self.notices.recv()).await.unwrap();
        self.handle.note_kept(notice.number);
        notice
    }

    async fn reason(&self) -> String {
        until("a reason", async || self.reasons.lock().first().cloned()).await
    }

    /// Waits until the given number of blocks has come as far as the store's gate.
    async fn arrived(&self, blocks: u32) {
        let came = async || (self.store.arrived.load(Ordering::SeqCst) >= blocks).then_some(());
        until("blocks at the gate", came).await;
    }
}

#[tokio::test]
async fn a_named_checkpoint_is_sent_block_by_block_and_laid_out_again_as_it_was() {
    let mut bench = bench(TreeLimits::default(), 0, |folder| {
        fs::write(folder.join("old"), "it was there before").unwrap();
    })
    .await;
    let large: Vec<u8> = (0..BLOCK_BYTES + 7)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    fs::create_dir_all(bench.at("step-20/empty")).unwrap();
    fs::write(bench.at("step-20/weights"), &large).unwrap();
    fs::write(bench.at("step-20/none"), "").unwrap();
    bench.report.name("step-20");
    let notice = bench.next().await;
    assert_eq!(
        (notice.name.as_str(), notice.number, notice.bytes),
        ("step-20", 1, large.len() as u64)
    );
    assert_eq!((notice.epoch, notice.step), (Some(1), Some(20)));
    assert_eq!(
        bench.store.puts.load(Ordering::SeqCst),
        3,
        "two blocks and the manifest"
    );

    // The next checkpoint shares its first block.
    let mut changed = large.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::create_dir(bench.at("step-40")).unwrap();
    fs::write(bench.at("step-40/weights"), &changed).unwrap();
    bench.report.name("step-40");
    let second = bench.next().await;
    assert_eq!(second.number, 2);
    assert_eq!(
        bench.store.puts.load(Ordering::SeqCst),
        5,
        "one block and the manifest"
    );

    let target = tempfile::tempdir().unwrap();
    let laid = restore(
        &bench.client,
        notice.manifest,
        RestoreReader::Job,
        target.path(),
        TreeLimits::default(),
        0,
    )
    .await;
    assert_eq!(laid.unwrap().name, "step-20");
    assert_eq!(fs::read(target.path().join("step-20/weights")).unwrap(), large);
    assert!(target.path().join("step-20/empty").is_dir());
    assert_eq!(fs::read(target.path().join("step-20/none")).unwrap(), b"");
    bench.handle.end(LastLook::Nothing);
    bench.running.await;
}

#[tokio::test]
async fn a_store_that_is_down_for_a_while_costs_nothing_and_one_that_stays_down_costs_one_checkpoint() {
    let mut bench = bench(TreeLimits::default(), 0, |_| {}).await;
    bench.store.failures.store(4, Ordering::SeqCst);
    fs::write(bench.at("a"), "first").unwrap();
    bench.report.name("a");
    assert_eq!(bench.next().await.name, "a");
    bench.store.failures.store(u32::MAX, Ordering::SeqCst);
    fs::write(bench.at("b"), "second").unwrap();
    bench.report.name("b");
    let reason = bench.reason().await;
    assert!(
        reason.starts_with("checkpoint b was not kept: the file store refused with 503"),
        "{reason}"
    );
    bench.store.failures.store(0, Ordering::SeqCst);
    fs::write(bench.at("c"), "third").unwrap();
    bench.report.name("c");
    let third = bench.next().await;
    assert_eq!((third.name.as_str(), third.number), ("c", 2));
}

#[tokio::test]
async fn a_hostile_folder_ends_nothing_and_its_good_checkpoints_are_kept() {
    let limits = TreeLimits {
        entries: 50,
        bytes: 1 << 20,
    };
    let mut bench = bench(limits, 0, |_| {}).await;
    std::os::unix::fs::symlink("/etc", bench.at("link")).unwrap();
    fs::create_dir(bench.at("many")).unwrap();
    for number in 0..100 {
        fs::write(bench.at(&format!("many/{number}")), "1").unwrap();
    }
    fs::File::create(bench.at("sparse"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    for child in ["link", "many", "sparse"] {
        bench.report.name(child);
    }
    fs::write(bench.at("good"), "weights").unwrap();
    bench.report.name("good");
    assert_eq!(bench.next().await.name, "good");
    let mut reasons = bench.reasons.lock().clone();
    reasons.sort();
    assert_eq!(
        reasons,
        [
            "checkpoint link was not kept: link is a link, a device, a socket or a pipe",
            "checkpoint many was not kept: the checkpoint has more than 50 files and folders",
            "checkpoint sparse was not kept: the checkpoint's files have more than 1048576 bytes together",
        ]
    );
}

#[tokio::test]
async fn a_full_disk_stops_the_copies_first() {
    let mut bench = bench(TreeLimits::default(), u64::MAX, |_| {}).await;
    fs::create_dir(bench.at("a")).unwrap();
    for number in 0..=MAX_OPEN_FILES {
        fs::write(bench.at(&format!("a/{number}")), "weights").unwrap();
    }
    bench.report.name("a");
    let reason = bench.reason().await;
    assert!(reason.contains("has no room for a copy of 7 bytes"), "{reason}");
    assert!(bench.at("a").exists());
    // One of few files needs no copy.
    fs::write(bench.at("b"), "weights").unwrap();
    bench.report.name("b");
    assert_eq!(bench.next().await.name, "b");
}

#[tokio::test]
async fn after_the_end_everything_is_taken_only_if_the_program_says_that_it_has_saved() {
    for (last, expected) in [
        (LastLook::Everything, Some("unnamed")),
        (LastLook::Named, Some("named")),
        (LastLook::Nothing, None),
    ] {
        let mut bench = bench(TreeLimits::default(), 0, |_| {}).await;
        fs::write(bench.at("named"), "older").unwrap();
        bench.report.name("named");
        // The clock of file times is coarse.
        let changed = |child: &str| {
            let facts = fs::metadata(bench.at(child)).unwrap();
            (facts.ctime(), facts.ctime_nsec())
        };
        fs::write(bench.at("unnamed"), "newer").unwrap();
        while changed("unnamed") == changed("named") {
            fs::write(bench.at("unnamed"), "newer").unwrap();
        }
        bench.handle.end(last);
        let taken = match expected {
            Some(_) => Some(bench.next().await.name),
            None => None,
        };
        assert_eq!(taken.as_deref(), expected);
        bench.running.await;
        assert!(bench.notices.try_recv().is_err());
    }
}

#[tokio::test]
async fn a_checkpoint_that_was_told_of_but_not_stored_when_the_program_ended_is_told_of_again() {
    let mut bench = bench(TreeLimits::default(), 0, |_| {}).await;
    fs::write(bench.at("a"), "weights").unwrap();
    bench.report.name("a");
    let unanswered = bench.notices.recv().await.unwrap();
    bench.handle.end(LastLook::Everything);
    let again = bench.next().await;
    assert_eq!(
        (again.manifest, again.number),
        (unanswered.manifest, unanswered.number + 1)
    );
    bench.running.await;
}

#[tokio::test]
async fn a_checkpoint_that_the_store_refused_is_tried_once_more_at_the_end() {
    let mut bench = bench(TreeLimits::default(), 0, |_| {}).await;
    bench.store.failures.store(u32::MAX, Ordering::SeqCst);
    fs::write(bench.at("a"), "weights").unwrap();
    bench.report.name("a");
    bench.reason().await;
    bench.store.failures.store(0, Ordering::SeqCst);
    bench.handle.end(LastLook::Named);
    assert_eq!(bench.next().await.name, "a");
    bench.running.await;
}

#[tokio::test]
async fn a_block_that_was_spoilt_on_its_way_is_fetched_again() {
    let bench = bench(TreeLimits::default(), 0, |_| {}).await;
    let block = Digest::of(b"weights");
    bench
        .client
        .put(block, Bytes::from_static(b"weights"))
        .await
        .unwrap();
    bench.store.spoilt.store(2, Ordering::SeqCst);
    assert_eq!(bench.client.get(block, 100).await.unwrap(), "weights");
    bench.store.spoilt.store(3, Ordering::SeqCst);
    let refused = bench.client.get(block, 100).await;
    assert!(matches!(refused, Err(BlockError::OtherContent(_))), "{refused:?}");
}

#[tokio::test]
async fn a_store_that_moved_is_reached_at_its_new_address() {
    let tasks = Tasks::new();
    let store = BlockStore::default();
    muster_process::tls::install_provider();
    let base: url::Url = store.listen(&tasks).await.parse().unwrap();
    let named = {
        let mut named = base.clone();
        named.set_host(Some("store.invalid")).unwrap();
        named
    };
    let port = base.port().unwrap();
    let pinned = move |port: u16| {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        reqwest::Client::builder()
            .resolve("store.invalid", address)
            .build()
            .unwrap()
    };
    // Nothing listens at the first address.
    let gone = std::net::TcpListener::bind("127.0.0.2:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let first = reqwest::Client::builder()
        .resolve("store.invalid", gone)
        .build()
        .unwrap();
    let client = BlockClient::new(first, named, Arc::new(SystemClock::default()))
        .unwrap()
        .with_pauses(muster_process::Backoff {
            base: Duration::from_millis(1),
            max: Duration::from_millis(2),
        })
        .with_renewal(Arc::new(move || std::future::ready(Some(pinned(port))).boxed()));
    let block = Digest::of(b"weights");
    client.put(block, Bytes::from_static(b"weights")).await.unwrap();
    assert_eq!(store.puts.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_users_copy_can_be_written_by_the_user_alone_and_has_the_told_name() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut bench = bench(TreeLimits::default(), 0, |_| {}).await;
    fs::create_dir(bench.at("c")).unwrap();
    fs::write(bench.at("c/w"), "weights").unwrap();
    fs::set_permissions(bench.at("c/w"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(bench.at("c"), fs::Permissions::from_mode(0o777)).unwrap();
    bench.report.name("c");
    let notice = bench.next().await;
    let modes = async |reader| {
        let (target, limits) = (tempfile::tempdir().unwrap(), TreeLimits::default());
        restore(&bench.client, notice.manifest, reader, target.path(), limits, 0).await?;
        let mode = |path: &str| fs::metadata(target.path().join(path)).unwrap().mode() & 0o777;
        Ok::<_, RestoreError>((mode("c"), mode("c/w")))
    };
    assert_eq!(modes(RestoreReader::User("c")).await.unwrap(), (0o755, 0o644));
    assert_eq!(modes(RestoreReader::Job).await.unwrap(), (0o777, 0o666));
    let other = modes(RestoreReader::User("d")).await;
    assert!(matches!(other, Err(RestoreError::OtherName { .. })), "{other:?}");
}

#[tokio::test]
async fn a_checkpoint_is_told_of_again_until_it_is_answered() {
    let mut bench = bench(TreeLimits::default(), 0, |_| {}).await;
    fs::write(bench.at("a"), "weights").unwrap();
    bench.report.name("a");
    let first = bench.notices.recv().await.unwrap();
    let again = within("the notice again", bench.notices.recv()).await;
    assert_eq!(again.unwrap(), first);
    bench.handle.note_kept(first.number);
}

/// A program that writes twenty files with the number of their version, reports it, and trains for a time that is now
/// shorter, now longer than a look needs. The long times grow, so that a look on a slow machine finds one of them.
const REWRITING: &str = "version=0; while :; do version=$((version + 1)); text=$version; \
     for i in 1 2 3 4 5 6 7 8 9 10 11 12; do text=$text.$text; done; \
     for file in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do printf %s $text > f$file; done; \
     echo named; rest=$((version % 4 * (6 + version))); sleep $((rest / 10)).$((rest % 10)); done";

/// A process that is killed with its owner, so that a test that fails does not wait for it.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program rewrites its one checkpoint in place, again and again, and names it each time it is whole. Every file of
/// a version holds the version's number, so a manifest that mixes two versions shows it. Each keeper reads the files in
/// place until the program has written to one meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_manifest_mixes_two_versions_of_a_checkpoint() {
    for _ in 0..4 {
        take_versions(2).await;
    }
}

/// Takes the given number of versions of a checkpoint that a program rewrites.
async fn take_versions(versions: usize) {
    let mut bench = bench(TreeLimits::default(), 0, |_| {}).await;
    let (folder, report) = (bench.at("last"), Arc::clone(&bench.report));
    fs::create_dir(&folder).unwrap();
    // A process of its own, as every program is: the keeper sees which files it has open.
    let program = Command::new("sh")
        .arg("-c")
        .arg(REWRITING)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut program = Killed(program);
    let lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
    let naming = tokio::task::spawn_blocking(move || {
        for _ in lines.map_while(Result::ok) {
            report.name("last");
        }
    });
    let mut seen = Vec::new();
    for _ in 0..versions {
        let notice = bench.next().await;
        let first = bench.store.content(&notice, "last/f0");
        for file in 1..20 {
            let other = bench.store.content(&notice, &format!("last/f{file}"));
            assert_eq!(other, first, "file {file} is of another version");
        }
        seen.push(first);
    }
    drop(program);
    naming.await.unwrap();
    seen.dedup();
    assert_eq!(seen.len(), versions);
}

#[tokio::test]
async fn a_checkpoint_that_its_program_removes_while_it_is_sent_is_kept() {
    let mut bench = bench(TreeLimits::default(), 0, |_| {}).await;
    let gate = Arc::clone(&bench.store.gate).write_owned().await;
    fs::write(bench.at("step-1"), "weights").unwrap();
    bench.report.name("step-1");
    bench.arrived(1).await;
    fs::remove_file(bench.at("step-1")).unwrap();
    drop(gate);
    let notice = bench.next().await;
    assert_eq!(bench.store.content(&notice, "step-1"), b"weights");
}

#[tokio::test]
async fn a_program_that_writes_into_a_checkpoint_while_it_is_sent_gets_copies_from_then_on() {
    let mut bench = bench(TreeLimits::default(), 0, |_| {}).await;
    let gate = Arc::clone(&bench.store.gate).write_owned().await;
    fs::write(bench.at("last"), "version 1").unwrap();
    bench.report.name("last");
    bench.arrived(1).await;
    fs::write(bench.at("last"), "version 2").unwrap();
    drop(gate);
    let second = bench.next().await;
    assert_eq!(bench.store.content(&second, "last"), b"version 2");

    let gate = Arc::clone(&bench.store.gate).write_owned().await;
    let before = bench.store.arrived.load(Ordering::SeqCst);
    fs::write(bench.at("last"), "version 3").unwrap();
    bench.report.name("last");
    bench.arrived(before + 1).await;
    fs::write(bench.at("last"), "version 4").unwrap();
    drop(gate);
    let third = bench.next().await;
    assert_eq!(bench.store.content(&third, "last"), b"version 3");
}

#[tokio::test]
async fn resume_data_that_does_not_match_its_manifest_is_found_out() {
    let mut bench = bench(TreeLimits::default(), 0, |_| {}).await;
    fs::write(bench.at("a"), "weights").unwrap();
    bench.report.name("a");
    let notice = bench.next().await;
    let lay_out = async |manifest| {
        let target = tempfile::tempdir().unwrap();
        let limits = TreeLimits::default();
        restore(
            &bench.client,
            manifest,
            RestoreReader::Job,
            target.path(),
            limits,
            0,
        )
        .await
    };
    let block = Digest::of(b"weights");
    bench
        .store
        .blocks
        .lock()
        .insert(block, Bytes::from_static(b"WEIGHTS"));
    let error = lay_out(notice.manifest).await.unwrap_err();
    assert!(error.is_damaged_data(), "{error}");
    bench
        .store
        .blocks
        .lock()
        .insert(block, Bytes::from_static(b"weights and more"));
    lay_out(notice.manifest).await.unwrap_err();
    bench.store.blocks.lock().remove(&block);
    let error = lay_out(notice.manifest).await.unwrap_err();
    assert!(
        error.is_damaged_data(),
        "no other machine gets it either: {error}"
    );
    let forged = Bytes::from_static(b"no manifest");
    let digest = Digest::of(&forged);
    bench.store.blocks.lock().insert(digest, forged);
    assert!(lay_out(digest).await.unwrap_err().is_damaged_data());
    let full = tempfile::tempdir().unwrap();
    let no_room = restore(
        &bench.client,
        notice.manifest,
        RestoreReader::Job,
        full.path(),
        TreeLimits::default(),
        u64::MAX,
    )
    .await;
    assert!(!no_room.unwrap_err().is_damaged_data());
}
