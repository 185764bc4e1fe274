//! An engine that dies and comes back, a full disk, another runtime: each on an engine of the test's own.

use std::collections::HashMap;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use bollard::models::ContainerCreateBody;
use futures_util::StreamExt;
use muster_containers::ContainerEngine;
use muster_containers::image_error::ImageError;
use muster_containers::image_folders::UNSEEN;
use muster_containers::images::ensure;
use muster_containers::pull_error::PullError;
use muster_containers::sandbox::{Bind, Gpus, ResourceLimits, Root, RunAs, Sandbox};
use muster_protocol::job::Fault;

use crate::support::dockerd::{Dockerd, FIRST_MAPPED};
use crate::support::registry::{Registry, publish};
use crate::support::{LABEL, clock, engine, host_files, image, require, settings, unwatched};

fn listening(image: &str) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(image.to_owned()),
        cmd: Some(["listen", "7000"].map(str::to_owned).to_vec()),
        network_disabled: Some(true),
        labels: Some(HashMap::from([(LABEL.to_owned(), String::new())])),
        ..ContainerCreateBody::default()
    }
}

/// Runs a container from creation to removal; returns its output.
async fn run(engine: &ContainerEngine, name: &str, body: ContainerCreateBody) -> String {
    engine.create(name, body).await.unwrap();
    let mut output = engine.attach(name).await.unwrap();
    engine.start(name).await.unwrap();
    let mut text = Vec::new();
    while let Some(Ok(piece)) = output.next().await {
        text.extend_from_slice(&piece.into_bytes());
    }
    engine.wait(name).await.unwrap();
    engine.remove(name).await.unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn an_engine_that_was_killed_is_used_again_when_it_is_back() {
    let mut dockerd = Dockerd::start(None).await.unwrap();
    let engine = dockerd.connect().await.unwrap();
    let probe = image::load_probe(&engine).await.unwrap().id.to_string();
    engine.create("job", listening(&probe)).await.unwrap();
    engine.start("job").await.unwrap();
    let (lost, ()) = tokio::join!(engine.wait("job"), async { dockerd.kill().unwrap() });
    let (lost, gone) = (lost.unwrap_err(), engine.ping().await.unwrap_err());
    assert!(
        lost.is_recoverable(),
        "the engine's end is not the job's: {lost:?}"
    );
    assert!(gone.is_recoverable(), "{gone:?}");
    dockerd.revive().await.unwrap();
    engine.ping().await.unwrap();
    // The engine ends containers of unknown state; their remains can be removed as usual.
    assert_eq!(engine.list_labelled(LABEL).await.unwrap(), ["job"]);
    engine.remove("job").await.unwrap();
    let mut body = listening(&probe);
    body.cmd = Some(vec!["list".into()]);
    assert!(run(&engine, "next", body).await.contains("host-loopback"));
    assert_eq!(engine.list_labelled(LABEL).await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_full_disk_is_named_and_survived() {
    let outside = engine().await;
    require("docker-registry");
    let dockerd = Dockerd::start(Some(40)).await.unwrap();
    let small_disk = dockerd.connect().await.unwrap();
    let mut registry = Registry::start(false).await.unwrap();
    let (tag, large) = image::unique(64 << 20).unwrap();
    outside.load(large.bytes.clone()).await.unwrap();
    let name = format!("{}/muster/large:1", registry.address());
    publish(&outside, large.id, &tag, &name, None).await.unwrap();

    registry.move_to(dockerd.pid()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    let error = ensure(&small_disk, &settings, &name, &unwatched(), &clock())
        .await
        .unwrap_err();
    assert!(
        matches!(error, ImageError::Pull(PullError::DiskFull { .. })),
        "{error:?}"
    );
    assert_eq!(error.fault(), Fault::Executor);
    let path = folder.path().join("large.tar");
    std::fs::write(&path, &large.bytes).unwrap();
    let error = small_disk.load_untagged(&path).await.unwrap_err();
    assert!(
        muster_process::error::Causes(&error)
            .to_string()
            .contains("no space left"),
        "{error:?}"
    );

    // The engine still works.
    small_disk.ping().await.unwrap();
    let (_, small) = image::unique(1 << 20).unwrap();
    small_disk.load(small.bytes.clone()).await.unwrap();
    assert_eq!(
        small_disk
            .find_image(&small.id.to_string())
            .await
            .unwrap()
            .unwrap()
            .id,
        small.id
    );
}

#[tokio::test]
async fn the_sandbox_runs_in_gvisor_too() {
    require("runsc");
    let dockerd = Dockerd::start(None).await.unwrap();
    let engine = dockerd.connect().await.unwrap();
    let archive = image::load_probe(&engine).await.unwrap();
    let image = engine.find_image(&archive.id.to_string()).await.unwrap().unwrap();
    for (probe, worked) in [("write-root", false), ("metadata", false), ("memory", true)] {
        let sandbox = Sandbox {
            image: &image,
            command: Some(["run", probe, "1"].map(str::to_owned).to_vec()),
            environment: vec![],
            binds: vec![],
            host_files: host_files(),
            labels: HashMap::from([(LABEL.to_owned(), String::new())]),
            image_folders: &UNSEEN,
            image_files: std::path::Path::new("/"),
            allowance: ResourceLimits {
                nano_cpus: 1_000_000_000,
                memory: 256 << 20,
                shm: 8 << 20,
                tmpfs: 8 << 20,
                pids: 100,
                disk: 8 << 20,
            },
            runtime: "runsc",
            gpus: Gpus::None,
            run_as: RunAs::Nobody,
            root: Root::ReadOnly,
        };
        let printed = run(&engine, "sealed", sandbox.container().unwrap()).await;
        assert!(
            printed.contains(&format!("\"worked\":{worked}")),
            "{probe}: {printed}"
        );
    }
}

#[tokio::test]
async fn a_jobs_root_is_nobody_on_an_engine_that_maps_users_and_owns_its_folders() {
    let dockerd = Dockerd::remapped().await.unwrap();
    let engine = dockerd.connect().await.unwrap();
    let archive = image::load_probe(&engine).await.unwrap();
    let image = engine.find_image(&archive.id.to_string()).await.unwrap().unwrap();
    // The folders as an executor makes them: closed to other users outside, writable for everybody inside.
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().join("output");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(work.path(), Permissions::from_mode(0o700)).unwrap();
    std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let bind = |target: &str| Bind {
        source: folder.clone(),
        target: target.to_owned(),
        writable: true,
    };
    let sandbox = |command: [&str; 2], target: &str| {
        let sandbox = Sandbox {
            image: &image,
            command: Some(command.map(str::to_owned).to_vec()),
            environment: vec![],
            binds: vec![bind(target)],
            host_files: host_files(),
            labels: HashMap::from([(LABEL.to_owned(), String::new())]),
            image_folders: &UNSEEN,
            image_files: std::path::Path::new("/"),
            allowance: ResourceLimits {
                nano_cpus: 1_000_000_000,
                memory: 256 << 20,
                shm: 8 << 20,
                tmpfs: 8 << 20,
                pids: 100,
                disk: 8 << 20,
            },
            runtime: "",
            gpus: Gpus::None,
            run_as: RunAs::Image,
            root: Root::ReadOnly,
        };
        sandbox.container().unwrap()
    };
    let listening = sandbox(["listen", "7000"], "/output");
    engine.create("mapped", listening).await.unwrap();
    engine.start("mapped").await.unwrap();
    let docker = bollard::Docker::connect_with_host(&dockerd.address()).unwrap();
    let docker = docker.negotiate_version().await.unwrap();
    let found = docker.inspect_container("mapped", None).await.unwrap();
    let pid = found.state.and_then(|state| state.pid).unwrap();
    let owner = std::fs::metadata(format!("/proc/{pid}")).unwrap().uid();
    engine.remove("mapped").await.unwrap();
    assert_eq!(owner, FIRST_MAPPED, "the container's root");
    // The folder is below one that only this machine's root may enter.
    let mut filling = sandbox(["run", "disk"], "/tmp");
    filling.cmd.as_mut().unwrap().push("1".into());
    let printed = run(&engine, "mapped", filling).await;
    assert!(printed.contains("\"worked\":true"), "{printed}");
    for probe in ["write-root", "mount", "unshare"] {
        let printed = run(&engine, "mapped", sandbox(["run", probe], "/output")).await;
        assert!(printed.contains("\"worked\":false"), "{probe}: {printed}");
    }
}
