//! The streams that a job prints, byte for byte, in the file store of the job's facilitator.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bollard::models::ContainerCreateBody;
use muster_executor::{Config, Invocation};
use muster_process::{SystemClock, Tasks};
use muster_protocol::Digest;
use muster_protocol::job::{OutputShortfall, PrintedStream, PrintedStreams, StoredStream};
use muster_testbed::until;
use serde_json::{Value, json};

use crate::checkpoints::block_store::BlockStore;
use crate::persistent::EnrolledExecutor;
use crate::reattaching::{held, take_back};
use crate::support::engine;
use crate::support::image;
use crate::support::lease::{Job, Lease, allow_test_images};
use crate::support::miner::{FakeMiner, Wire};
use crate::warm::{one_waits, warm_lease};

/// The bytes that `probe bytes` prints at a time.
fn awkward_bytes() -> Vec<u8> {
    let lines = [16_383, 16_384, 40_000].map(|length| [vec![b'x'; length - 1], vec![b'\n']].concat());
    let every: Vec<u8> = (0..=u8::MAX).collect();
    [lines.concat(), every].concat()
}

/// The bytes that `probe print` prints.
fn lines(bytes: usize) -> Vec<u8> {
    let line = [vec![b'x'; 79], vec![b'\n']].concat();
    [line.repeat(bytes / 80), b"end\n".to_vec()].concat()
}

/// The bytes of a stream in the store, by the list of its blocks.
fn stored(store: &BlockStore, stream: PrintedStream) -> Vec<u8> {
    let blocks = store.blocks.lock();
    let found = stream.stored.expect("it is in the store");
    let list = &blocks[&found.blocks];
    let named = (0..).map_while(|index| StoredStream::block(list, index));
    let bytes: Vec<u8> = named.flat_map(|block| blocks[&block].to_vec()).collect();
    assert_eq!(bytes.len() as u64, found.bytes);
    bytes
}

/// Runs a job whose output goes to the store at `url`. Returns its last message, and what it states about its output.
async fn run(lease: &Lease, job: &Job, url: &str) -> (Value, PrintedStreams) {
    let miner = FakeMiner::with_features("output").await;
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&lease.offer(job)).await;
    wire.until("V0ExecutorReadyRequest").await;
    let mut request = lease.request(job);
    request["muster"] = json!({"output": {"blocks": url}});
    wire.send(&request).await;
    let last = wire.last().await;
    executor.join().await.unwrap().unwrap();
    let completion = match last["message_type"].as_str() {
        Some("V0JobFinishedRequest") => &last["completion"],
        _ => &last["context"]["completion"],
    };
    let printed = serde_json::from_value(completion["printed"].clone());
    let printed = printed.unwrap_or_else(|error| panic!("{error}: {last:#}"));
    (last, printed)
}

fn lease() -> Lease {
    let mut lease = Lease::new();
    lease.config.transfer.allow = vec!["127.0.0.1".to_owned()];
    lease
}

/// A stream that is whole in the store, or in the text of the result.
fn whole(bytes: &[u8]) -> PrintedStream {
    PrintedStream {
        bytes: bytes.len() as u64,
        sha256: Some(Digest::of(bytes)),
        ..PrintedStream::default()
    }
}

#[tokio::test]
async fn binary_output_with_long_lines_is_stored_byte_for_byte_and_short_text_is_not_sent() {
    let engine = engine().await;
    image::load(&engine).await;
    let (tasks, store) = (Tasks::new(), BlockStore::default());
    let url = store.listen(&tasks).await;
    let bytes = awkward_bytes().repeat(2);
    let (_, printed) = run(&lease(), &Job::new(&["probe", "bytes", "0"]), &url).await;
    for stream in [printed.stdout, printed.stderr] {
        let stated = PrintedStream {
            stored: None,
            ..stream
        };
        assert_eq!(stated, whole(&bytes));
        assert!(stored(&store, stream) == bytes);
    }
    let puts = store.puts.load(Ordering::SeqCst);
    let (last, printed) = run(&lease(), &Job::new(&["probe", "exit", "3"]), &url).await;
    assert_eq!(last["docker_process_exit_status"], json!(3));
    assert_eq!(printed.stdout, whole(b"about to exit with 3\n"));
    assert_eq!(printed.stderr, whole(b"as I was told\n"));
    assert_eq!(store.puts.load(Ordering::SeqCst), puts, "the text has all of it");
}

#[tokio::test]
async fn output_of_several_blocks_is_sent_though_the_store_fails_now_and_then() {
    let engine = engine().await;
    image::load(&engine).await;
    let (tasks, store) = (Tasks::new(), BlockStore::default());
    let url = store.listen(&tasks).await;
    store.failures.store(2, Ordering::SeqCst);
    let (last, printed) = run(&lease(), &Job::new(&["probe", "print", "20000000"]), &url).await;
    let bytes = lines(20_000_000);
    assert!(stored(&store, printed.stdout) == bytes);
    let stated = PrintedStream {
        stored: None,
        ..printed.stdout
    };
    assert_eq!(stated, whole(&bytes));
    assert_eq!(printed.stderr, whole(b""));
    let text = last["docker_process_stdout"].as_str().unwrap();
    assert_eq!(text.chars().count(), 1_000_005, "the text is cut as before");
}

#[tokio::test]
async fn output_beyond_the_bound_is_stored_up_to_it_and_says_how_much_there_was() {
    let engine = engine().await;
    image::load(&engine).await;
    let (tasks, store) = (Tasks::new(), BlockStore::default());
    let url = store.listen(&tasks).await;
    let mut lease = lease();
    lease.config.limits.output_mib = 9;
    let (_, printed) = run(&lease, &Job::new(&["probe", "print", "20000000"]), &url).await;
    let bytes = lines(20_000_000);
    let kept = &bytes[..9 << 20];
    assert!(stored(&store, printed.stdout) == kept);
    let expected = PrintedStream {
        bytes: bytes.len() as u64,
        sha256: Some(Digest::of(kept)),
        kept: Some(9 << 20),
        shortfall: Some(OutputShortfall::Bound),
        stored: printed.stdout.stored,
    };
    assert_eq!(printed.stdout, expected);
}

#[tokio::test]
async fn output_without_a_store_is_counted_and_the_job_ends_well() {
    let engine = engine().await;
    image::load(&engine).await;
    // The port of a listener that has gone has none.
    let gone = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("http://{gone}/blocks/j?Expires=1&Signature=2");
    let job = Job::new(&["probe", "bytes", "0"]);
    let lease = lease();
    let mut short = lease.offer(&job);
    short["executor_timing"]["upload_time_limit"] = json!(3);
    let miner = FakeMiner::with_features("output").await;
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&short).await;
    wire.until("V0ExecutorReadyRequest").await;
    let mut request = lease.request(&job);
    request["muster"] = json!({"output": {"blocks": url}});
    wire.send(&request).await;
    let last = wire.last().await;
    executor.join().await.unwrap().unwrap();
    assert_eq!(last["message_type"], json!("V0JobFinishedRequest"), "{last:#}");
    let printed: PrintedStreams = serde_json::from_value(last["completion"]["printed"].clone()).unwrap();
    let expected = PrintedStream {
        shortfall: Some(OutputShortfall::Store),
        ..whole(&awkward_bytes().repeat(2))
    };
    assert_eq!((printed.stdout, printed.stderr), (expected, expected));
}

/// Set in the processes that the next tests start: the miner's address, the token, `work_dir`, the collector.
const PROCESS: [&str; 4] = [
    "MUSTER_TEST_MINER",
    "MUSTER_TEST_TOKEN",
    "MUSTER_TEST_WORK_DIR",
    "MUSTER_TEST_COLLECTOR",
];

/// Set in a process that collects output.
const COLLECTS: &str = "MUSTER_TEST_COLLECTS";

/// The name of this test: its program, started again, is also the executor that it kills, and the collectors.
const THIS: &str =
    "output::a_killed_executor_costs_no_byte_and_a_killed_collector_says_where_the_output_ends";

/// A program that collects output as `PROGRAM executor collect`, and a file with its process id.
fn collector(folder: &Path) -> (PathBuf, PathBuf) {
    let (program, pid) = (folder.join("collector"), folder.join("pid"));
    let this = std::env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\necho $$ > {}\nunset {}\n{COLLECTS}=1 exec {} --exact {THIS} --nocapture\n",
        pid.display(),
        PROCESS.join(" "),
        this.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    (program, pid)
}

/// Runs an executor in a process that the test kills.
async fn run_executor([miner_address, token, work_dir, collector]: [String; 4]) {
    let mut config = Config {
        work_dir: work_dir.into(),
        collector: Some(collector.into()),
        ..Config::default()
    };
    allow_test_images(&mut config);
    config.transfer.allow = vec!["127.0.0.1".to_owned()];
    let invocation = Invocation {
        miner_address,
        token: token.parse().unwrap(),
    };
    let clock = Arc::new(SystemClock::new());
    let _ = muster_executor::run(config, invocation, Tasks::new(), clock).await;
}

/// Waits until the copy of standard output below `work_dir` has this length.
async fn collected(work_dir: &Path, length: usize) {
    let logs = || {
        let folders = std::fs::read_dir(work_dir).ok()?.flatten();
        let mut files = folders.flat_map(|folder| ["d/logs", "logs"].map(|logs| folder.path().join(logs)));
        files.find_map(|logs| std::fs::metadata(logs.join("stdout.txt")).ok())
    };
    until("the first half of the output", async || {
        logs().filter(|file| file.len() == length as u64)
    })
    .await;
}

/// Sends a job with an order about its output.
async fn send_job(wire: &mut Wire, lease: &Lease, job: &Job, url: &str) {
    wire.send(&held(lease, 1)).await;
    wire.send(&lease.offer(job)).await;
    wire.expect_report("V0ExecutorReadyRequest").await;
    let mut request = lease.request(job);
    request["muster"] = json!({"output": {"blocks": url}});
    wire.send(&request).await;
    wire.expect_report("V0VolumesReadyRequest").await;
}

/// Reads to the result, has the executor know that it is stored, and returns what it states about the output.
async fn end_of(wire: &mut Wire, lease: &Lease) -> PrintedStreams {
    loop {
        let message = wire.recv().await.expect("the executor has left");
        if message["message_type"] == "V0JobFinishedRequest" {
            let stored = json!({"message_type": "MusterEndStored", "job_uuid": lease.token.attempt()});
            wire.send(&stored).await;
            wire.expect_end().await;
            let printed = &message["completion"]["printed"];
            return serde_json::from_value(printed.clone()).unwrap_or_else(|_| panic!("{message:#}"));
        }
    }
}

#[tokio::test]
async fn a_killed_executor_costs_no_byte_and_a_killed_collector_says_where_the_output_ends() {
    if std::env::var(COLLECTS).is_ok() {
        return muster_executor::collect().await.unwrap();
    }
    if let [Ok(miner), Ok(token), Ok(work_dir), Ok(collector)] = PROCESS.map(std::env::var) {
        return run_executor([miner, token, work_dir, collector]).await;
    }
    let engine = engine().await;
    image::load(&engine).await;
    let (tasks, store) = (Tasks::new(), BlockStore::default());
    let url = store.listen(&tasks).await;
    let (scripts, once) = (tempfile::tempdir().unwrap(), awkward_bytes());
    let (program, pid) = collector(scripts.path());
    let job = Job::new(&["probe", "bytes", "3"]);

    let (lease, miner) = (
        lease_with(&program),
        FakeMiner::with_features("output, reattach").await,
    );
    let values = [
        miner.address(),
        lease.token.to_string(),
        lease.config.work_dir.display().to_string(),
        program.display().to_string(),
    ];
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", THIS])
        .envs(PROCESS.into_iter().zip(values))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut wire = miner.accept().await;
    send_job(&mut wire, &lease, &job, &url).await;
    collected(&lease.config.work_dir, once.len()).await;
    process.kill().unwrap();
    process.wait().unwrap();
    drop(wire);
    let invocation = Invocation {
        miner_address: miner.address(),
        token: lease.token.clone(),
    };
    let clock = Arc::new(SystemClock::new());
    let running = muster_executor::run(lease.config.clone(), invocation, lease.tasks.clone(), clock);
    let executor = lease.tasks.spawn("executor", running);
    let mut wire = take_back(&miner, &lease, 1).await;
    let printed = end_of(&mut wire, &lease).await;
    executor.join().await.unwrap().unwrap();
    for stream in [printed.stdout, printed.stderr] {
        let stated = PrintedStream {
            stored: None,
            ..stream
        };
        assert_eq!(stated, whole(&once.repeat(2)));
        assert!(stored(&store, stream) == once.repeat(2));
    }
    lease.assert_clean(&engine).await;

    let (lease, miner) = (
        lease_with(&program),
        FakeMiner::with_features("output, reattach").await,
    );
    let (executor, mut wire) = lease.start(&miner).await;
    send_job(&mut wire, &lease, &job, &url).await;
    collected(&lease.config.work_dir, once.len()).await;
    let killed = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(killed),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    let printed = end_of(&mut wire, &lease).await;
    executor.join().await.unwrap().unwrap();
    assert!(
        stored(&store, printed.stdout) == once,
        "up to its end, and nothing behind it"
    );
    let expected = PrintedStream {
        bytes: 2 * once.len() as u64,
        sha256: Some(Digest::of(&once)),
        kept: Some(once.len() as u64),
        stored: printed.stdout.stored,
        shortfall: Some(OutputShortfall::Collector),
    };
    assert_eq!(printed.stdout, expected);
    lease.assert_clean(&engine).await;
}

fn lease_with(collector: &Path) -> Lease {
    let mut lease = lease();
    lease.config.collector = Some(collector.to_owned());
    lease
}

#[tokio::test]
async fn output_of_a_warm_container_is_collected_from_its_first_byte() {
    let engine = engine().await;
    image::load(&engine).await;
    let (tasks, store) = (Tasks::new(), BlockStore::default());
    let url = store.listen(&tasks).await;
    let scripts = tempfile::tempdir().unwrap();
    let (program, pid) = collector(scripts.path());
    let mut executor = warm_lease();
    executor.config.collector = Some(program);
    executor.config.transfer.allow = vec!["127.0.0.1".to_owned()];
    let mut enrolled = EnrolledExecutor::open(&executor, 1).await;
    let mut connection = enrolled.next_connection().await;
    let mut collectors = Vec::new();
    for _ in 0..2 {
        let (lease, job) = (Lease::new(), Job::new(&["probe", "bytes", "0"]));
        connection.send(&lease.offer(&job)).await;
        connection.until("V0ExecutorReadyRequest").await;
        let mut request = lease.request(&job);
        request["muster"] = json!({"output": {"blocks": url}});
        connection.send(&request).await;
        let messages = connection.until("MusterLeaseOver").await;
        let mut ends = messages.iter().filter(|message| !message["completion"].is_null());
        let end = ends.next().expect("the job has finished");
        let printed: PrintedStreams = serde_json::from_value(end["completion"]["printed"].clone()).unwrap();
        for stream in [printed.stdout, printed.stderr] {
            let stated = PrintedStream {
                stored: None,
                ..stream
            };
            assert_eq!(stated, whole(&awkward_bytes().repeat(2)));
            assert!(stored(&store, stream) == awkward_bytes().repeat(2));
        }
        one_waits(&engine, &executor.config.work_dir, "").await;
        collectors.push(std::fs::read_to_string(&pid).unwrap());
    }
    assert_ne!(
        collectors[0], collectors[1],
        "each container has a collector of its own"
    );
    enrolled.stop().await;
    executor.assert_clean(&engine).await;
}

#[tokio::test]
async fn a_container_without_an_executor_ends_at_its_limit_by_its_collector() {
    let engine = engine().await;
    image::load(&engine).await;
    let scripts = tempfile::tempdir().unwrap();
    let (program, _) = collector(scripts.path());
    // The limit of a warm container comes with its job, in a second line.
    for is_warm in [false, true] {
        let name = format!("muster-orphan-{}", uuid::Uuid::new_v4());
        let body = ContainerCreateBody {
            image: Some(image::NAME.to_owned()),
            cmd: Some(["probe", "sleep", "100000"].map(str::to_owned).to_vec()),
            network_disabled: Some(true),
            ..ContainerCreateBody::default()
        };
        engine.create(&name, body).await.unwrap();
        let mut collecting = Command::new(&program)
            .args(["executor", "collect"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut order = json!({"engine": "", "container": name, "logs": scripts.path(), "limit": 1_000});
        if !is_warm {
            order["longest_s"] = json!(1);
        }
        let mut orders = collecting.stdin.take().unwrap();
        writeln!(orders, "{order}").unwrap();
        let mut told = BufReader::new(collecting.stdout.take().unwrap());
        let mut line = String::new();
        while !line.ends_with("ready\n") {
            line.clear();
            assert_ne!(
                told.read_line(&mut line).unwrap(),
                0,
                "it ended before it was ready"
            );
        }
        if is_warm {
            writeln!(orders, "{}", json!({"longest_s": 1})).unwrap();
        }
        engine.start(&name).await.unwrap();
        // From here on there is no executor.
        drop(orders);
        let ended = muster_testbed::wait_for("the end of the collector", || collecting.try_wait());
        let exit = engine.inspect_exit(&name).await.unwrap();
        engine.remove(&name).await.unwrap();
        assert!(ended.unwrap().success());
        assert_ne!(exit.code, 0, "the program did not end by itself");
    }
}
