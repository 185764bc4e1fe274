//! Engines that die under a job and come back, and a full disk. The tests start engines of their own.

use muster_executor::{ImageArchive, ImageFile};
use serde_json::json;

use crate::support::dockerd::Dockerd;
use crate::support::lease::{Job, Lease};
use crate::support::miner::FakeMiner;
use crate::support::registry::{Registry, publish};
use crate::support::{engine, image, is_running, require, until};

fn job(archive: &ImageArchive, args: &[&str]) -> Job {
    Job {
        image: archive.id.to_string(),
        ..Job::new(args)
    }
}

async fn archive() -> ImageArchive {
    tokio::task::spawn_blocking(|| image::archive(image::NAME, vec![]))
        .await
        .unwrap()
}

#[tokio::test]
async fn an_engine_that_is_away_for_a_moment_is_waited_for() {
    let mut dockerd = Dockerd::start(None).await.unwrap();
    let engine = dockerd.connect().await.unwrap();
    let archive = archive().await;
    engine.load(archive.bytes.clone()).await.unwrap();
    let miner = FakeMiner::start().await;

    // The engine is away when the offer comes: the executor tries again after 1, 2, 4, 8 and 16 seconds.
    dockerd.kill().unwrap();
    let mut lease = Lease::new();
    lease.config.engine = dockerd.address();
    let (executor, mut wire) = lease.start(&miner).await;
    let short = job(&archive, &["probe", "print", "0"]);
    wire.send(&lease.offer(&short)).await;
    dockerd.revive().await.unwrap();
    wire.expect("V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&short)).await;
    assert_eq!(wire.last().await["message_type"], "V0JobFinishedRequest");
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;

    // The engine dies with a running job: the failure names it, nothing of the job is left, and the next job runs.
    let mut lease = Lease::new();
    lease.config.engine = dockerd.address();
    let (executor, mut wire) = lease.start(&miner).await;
    lease
        .to_running(&mut wire, &job(&archive, &["probe", "sleep", "3600"]))
        .await;
    lease.container_appears(&engine).await;
    let label = format!("muster.attempt={}", lease.token.attempt());
    until("the job runs", || async {
        let names = engine.list_labelled(&label).await.unwrap();
        is_running(&dockerd.address(), names.first()).await
    })
    .await;
    dockerd.kill().unwrap();
    dockerd.revive().await.unwrap();
    let failed = wire.last().await;
    assert_eq!(
        (&failed["message_type"], &failed["context"]["fault"]),
        (&json!("V0HordeFailedRequest"), &json!("executor")),
        "{failed:#}"
    );
    // The engine died while the job ran, or before it answered the request to start it.
    assert!(
        failed["message"].as_str().unwrap().contains("docker engine"),
        "{failed:#}"
    );
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;

    let mut lease = Lease::new();
    lease.config.engine = dockerd.address();
    let (executor, mut wire) = lease.start(&miner).await;
    lease.to_running(&mut wire, &short).await;
    assert_eq!(wire.last().await["message_type"], "V0JobFinishedRequest");
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn an_image_that_the_disk_has_no_room_for_is_named_and_the_next_job_runs() {
    let outside = engine().await;
    require("docker-registry");
    let dockerd = Dockerd::start(Some(48)).await.unwrap();
    let small_disk = dockerd.connect().await.unwrap();
    let mut registry = Registry::start(false).await.unwrap();
    let tag = format!("muster/executor-disk-test:{}", uuid::Uuid::new_v4());
    let contents = (0..1 << 22)
        .flat_map(|_| uuid::Uuid::new_v4().into_bytes())
        .collect();
    let filler = ImageFile {
        path: "/filler".into(),
        mode: 0o644,
        contents,
    };
    let local = tag.clone();
    let large = tokio::task::spawn_blocking(move || image::archive(&local, vec![filler]))
        .await
        .unwrap();
    outside.load(large.bytes.clone()).await.unwrap();
    let name = format!("{}/muster/large:1", registry.address());
    publish(&outside, large.id, &tag, &name, None).await.unwrap();
    registry.move_to(dockerd.pid()).unwrap();

    let miner = FakeMiner::start().await;
    let mut lease = Lease::new();
    lease.config.engine = dockerd.address();
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job {
        image: name.clone(),
        ..Job::new(&["probe", "print", "0"])
    };
    wire.send(&lease.offer(&job)).await;
    let failed = wire.last().await;
    assert_eq!(
        (&failed["message_type"], &failed["context"]["fault"]),
        (&json!("V0HordeFailedRequest"), &json!("executor")),
        "{failed:#}"
    );
    assert!(
        failed["message"].as_str().unwrap().contains("no room"),
        "{failed:#}"
    );
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&small_disk).await;

    // A job that fits still runs.
    let archive = archive().await;
    small_disk.load(archive.bytes).await.unwrap();
    let mut lease = Lease::new();
    lease.config.engine = dockerd.address();
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job {
        image: archive.id.to_string(),
        ..job
    };
    lease.to_running(&mut wire, &job).await;
    assert_eq!(wire.last().await["message_type"], "V0JobFinishedRequest");
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&small_disk).await;
}
