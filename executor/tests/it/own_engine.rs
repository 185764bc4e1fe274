//! An executor that starts an engine of its own, as it does inside a pod.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use muster_executor::{Config, ContainerEngine, OwnEngine, OwnEngineError, OwnEngineOptions};
use muster_process::{SharedClock, SystemClock, Tasks};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;

use crate::support::lease::{Job, Lease};
use crate::support::miner::FakeMiner;
use crate::support::{image, is_running, require, until};

/// The places of an engine in a folder of a test, and a program that starts dockerd there: in a network of its own,
/// since an engine without a bridge removes the machine's, and with the storage that works everywhere.
struct Places {
    folder: TempDir,
}

impl Places {
    fn new() -> Self {
        for program in ["dockerd", "unshare", "ip"] {
            require(program);
        }
        let places = Self {
            folder: tempfile::Builder::new().prefix("muster-own-").tempdir().unwrap(),
        };
        let root = places.folder.path().display();
        places.write_program(&format!(
            "echo {{}} > {root}/daemon.json; exec unshare --net sh -c 'ip link set lo up; exec dockerd \"$@\"' dockerd \
             --config-file {root}/daemon.json --data-root {root}/data --storage-driver vfs \
             --containerd-namespace own --containerd-plugins-namespace own-plugins \"$@\""
        ));
        places
    }

    fn write_program(&self, script: &str) {
        let program = self.options().program;
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn options(&self) -> OwnEngineOptions {
        let at = |name: &str| self.folder.path().join(name);
        OwnEngineOptions {
            program: at("dockerd"),
            socket: at("docker.sock"),
            state: at("state"),
        }
    }

    async fn start(&self, config: &mut Config, tasks: &Tasks) -> Result<OwnEngine, OwnEngineError> {
        let clock: SharedClock = Arc::new(SystemClock::default());
        OwnEngine::start(self.options(), config, tasks, &clock).await
    }

    /// The process id of the engine.
    fn pid(&self) -> Option<i32> {
        let pid = std::fs::read_to_string(self.options().state.join("docker.pid")).ok()?;
        pid.trim().parse().ok()
    }

    fn is_there(path: PathBuf) -> bool {
        std::os::unix::net::UnixStream::connect(path).is_ok()
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        // A killed engine leaves the mount of its folder, which would end with a pod.
        let data = self.folder.path().join("data");
        while umount2(&data, MntFlags::MNT_DETACH).is_ok() {}
    }
}

#[tokio::test]
async fn an_engine_of_its_own_starts_again_under_a_job_and_ends_with_the_executor() {
    let (places, tasks) = (Places::new(), Tasks::new());
    let mut lease = Lease::new();
    let own = places.start(&mut lease.config, &tasks).await.unwrap();
    let second = places.start(&mut Config::default(), &tasks).await;
    assert!(
        matches!(second, Err(OwnEngineError::Taken(_))),
        "it would take the first one's socket"
    );
    let engine = ContainerEngine::connect(&lease.config.engine).await.unwrap();
    let archive = tokio::task::spawn_blocking(|| image::archive(image::NAME, vec![]))
        .await
        .unwrap();
    engine.load(archive.bytes.clone()).await.unwrap();

    let miner = FakeMiner::start().await;
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job {
        image: archive.id.to_string(),
        ..Job::new(&["probe", "sleep", "8"])
    };
    lease.to_running(&mut wire, &job).await;
    lease.container_appears(&engine).await;
    let label = format!("muster.attempt={}", lease.token.attempt());
    until("the job runs", || async {
        let names = engine.list_labelled(&label).await.unwrap();
        is_running(&lease.config.engine, names.first()).await
    })
    .await;
    let killed = places.pid().unwrap();
    kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    until("another engine", || async {
        places.pid().is_some_and(|pid| pid != killed)
    })
    .await;
    let last = wire.last().await;
    assert_eq!(last["message_type"], json!("V0JobFinishedRequest"), "{last:#}");
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
    own.stop().await;
    assert!(!Places::is_there(places.options().socket), "the engine has ended");
}

#[tokio::test]
async fn an_engine_of_its_own_that_cannot_be_had_is_a_plain_error() {
    let (places, tasks) = (Places::new(), Tasks::new());
    let mut elsewhere = Config {
        engine: "tcp://10.0.0.1:2375".to_owned(),
        ..Config::default()
    };
    let error = places
        .start(&mut elsewhere, &tasks)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("tcp://10.0.0.1:2375") && error.contains("leave it empty"),
        "{error}"
    );

    places.write_program("exit 3");
    let error = places.start(&mut Config::default(), &tasks).await.err().unwrap();
    assert!(
        matches!(error, OwnEngineError::Ended(status) if status.code() == Some(3)),
        "{error}"
    );

    std::fs::remove_file(places.options().program).unwrap();
    let error = places
        .start(&mut Config::default(), &tasks)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("docker.io"), "{error}");

    // Told to stop while an engine starts that never answers.
    places.write_program("exec sleep 600");
    tasks.shutdown();
    let error = places.start(&mut Config::default(), &tasks).await.err().unwrap();
    assert!(matches!(error, OwnEngineError::Stopped), "{error}");
}
