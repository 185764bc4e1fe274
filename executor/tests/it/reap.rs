//! Executors that were killed: their containers and folders are removed, and no others.
//!
//! A killed executor leaves a folder whose lock nobody holds, and a running container whose label names the folder.
//! One test kills a real process: this test program, started again to run the executor in [`run_executor`].

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bollard::models::ContainerCreateBody;
use muster_executor::ReapSummary;
use muster_executor::job_sandbox::{LABEL_ATTEMPT, LABEL_EXECUTOR};
use muster_executor::workspace::Workspace;
use muster_executor::{Config, ContainerEngine, Invocation, reap};
use muster_process::{Clock as _, SystemClock, Tasks};
use muster_protocol::{AttemptId, Timestamp};
use uuid::Uuid;

use crate::support::lease::{Job, Lease, allow_test_images};
use crate::support::miner::FakeMiner;
use crate::support::{engine, image};

fn now() -> Timestamp {
    SystemClock::new().now()
}

/// A running container with the labels of the job in `folder`. Returns its name.
async fn container(engine: &ContainerEngine, folder: &Path) -> String {
    let name = format!("muster-reap-test-{}", Uuid::new_v4());
    let body = ContainerCreateBody {
        image: Some(image::NAME.to_owned()),
        cmd: Some(["probe", "sleep", "3600"].map(str::to_owned).to_vec()),
        network_disabled: Some(true),
        labels: Some(HashMap::from([
            (LABEL_EXECUTOR.to_owned(), folder.display().to_string()),
            (LABEL_ATTEMPT.to_owned(), Uuid::new_v4().to_string()),
        ])),
        ..ContainerCreateBody::default()
    };
    engine.create(&name, body).await.unwrap();
    engine.start(&name).await.unwrap();
    name
}

async fn runs(engine: &ContainerEngine, name: &str, folder: &Path) -> bool {
    let label = format!("{LABEL_EXECUTOR}={}", folder.display());
    engine
        .list_labelled(&label)
        .await
        .unwrap()
        .contains(&name.to_owned())
}

fn workspace(work_dir: &Path) -> Workspace {
    Workspace::new(work_dir, AttemptId::from_uuid(Uuid::new_v4()), None).unwrap()
}

#[tokio::test]
async fn reaping_removes_only_the_remains_of_dead_executors_of_its_work_dir() {
    let engine = engine().await;
    image::load(&engine).await;
    let (ours, others) = (Lease::new(), Lease::new());
    let alive = workspace(&ours.config.work_dir);
    let dead = workspace(&ours.config.work_dir);
    // The executor of another operator was killed too, and one folder was removed by hand.
    let foreign = workspace(&others.config.work_dir);
    let removed = workspace(&ours.config.work_dir);
    let folders = [&alive, &dead, &foreign, &removed].map(|workspace| workspace.folders().root.clone());
    let [of_alive, of_dead, of_foreign, of_removed] = &folders;
    let mut names = Vec::new();
    for folder in &folders {
        names.push(container(&engine, folder).await);
    }
    dead.abandon();
    foreign.abandon();
    removed.remove().unwrap();

    let (one, two) = tokio::join!(reap(&ours.config, now()), reap(&ours.config, now()));
    let (one, two) = (one.unwrap(), two.unwrap());
    let done = (one.folders + two.folders, one.containers + two.containers);
    assert_eq!((done, one.left + two.left), ((1, 1), 0));
    assert!(!of_dead.exists() && !runs(&engine, &names[1], of_dead).await);
    assert!(of_alive.exists() && runs(&engine, &names[0], of_alive).await);
    assert!(of_foreign.exists() && runs(&engine, &names[2], of_foreign).await);
    assert!(runs(&engine, &names[3], of_removed).await);
    assert_eq!(reap(&ours.config, now()).await.unwrap(), ReapSummary::default());

    for name in names {
        engine.remove(&name).await.unwrap();
    }
}

#[tokio::test]
async fn an_executor_begins_by_removing_what_a_killed_one_left() {
    let engine = engine().await;
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let dead = workspace(&lease.config.work_dir);
    let folder = dead.folders().root.clone();
    let name = container(&engine, &folder).await;
    dead.abandon();
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&lease.offer(&Job::new(&["words"]))).await;
    wire.expect("V0ExecutorReadyRequest").await;
    assert!(!folder.exists() && !runs(&engine, &name, &folder).await);
    wire.close().await;
    executor.join().await.unwrap().unwrap_err();
    lease.assert_clean(&engine).await;
}

/// Set in the process that the next test starts: the miner's address, the token, `work_dir`.
const PROCESS: [&str; 3] = ["MUSTER_TEST_MINER", "MUSTER_TEST_TOKEN", "MUSTER_TEST_WORK_DIR"];

/// Runs an executor in a process that the next test may kill.
async fn run_executor(miner_address: String, token: &str, work_dir: String) {
    let mut config = Config {
        work_dir: work_dir.into(),
        ..Config::default()
    };
    allow_test_images(&mut config);
    let invocation = Invocation {
        miner_address,
        token: token.parse().unwrap(),
    };
    let clock = Arc::new(SystemClock::new());
    let _ = muster_executor::run(config, invocation, Tasks::new(), clock).await;
}

#[tokio::test]
async fn a_killed_process_leaves_a_running_container_until_it_is_reaped() {
    if let [Ok(miner), Ok(token), Ok(work_dir)] = PROCESS.map(std::env::var) {
        // This is the process that the test kills.
        return run_executor(miner, &token, work_dir).await;
    }
    let engine = engine().await;
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let [address, token, work_dir] = PROCESS;
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "reap::a_killed_process_leaves_a_running_container_until_it_is_reaped",
        ])
        .env(address, miner.address())
        .env(token, lease.token.to_string())
        .env(work_dir, &lease.config.work_dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut wire = miner.accept().await;
    lease
        .to_running(&mut wire, &Job::new(&["probe", "sleep", "3600"]))
        .await;
    lease.container_appears(&engine).await;
    assert_eq!(
        reap(&lease.config, now()).await.unwrap(),
        ReapSummary::default(),
        "its process lives"
    );
    process.kill().unwrap();
    process.wait().unwrap();
    let done = reap(&lease.config, now()).await.unwrap();
    assert_eq!((done.folders, done.containers, done.left), (1, 1, 0));
    lease.assert_clean(&engine).await;
}
