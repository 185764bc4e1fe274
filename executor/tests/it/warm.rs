//! Warm containers: each serves one job of its shape, and all are removed with their executor.

use std::path::Path;

use muster_executor::{ContainerEngine, ImageContent, ImageFile};
use serde_json::{Value, json};

use crate::persistent::{EnrolledExecutor, ExecutorConnection};
use crate::support::lease::{Job, Lease};
use crate::support::{build_static, engine, image, until};

/// An executor that keeps one container warm.
pub(crate) fn warm_lease() -> Lease {
    let mut lease = Lease::new();
    lease.config.persistent.warm.holder = build_static("muster-hold", "muster-hold").unwrap();
    lease
}

/// The names of the warm containers whose folders are in this one.
async fn waiting(engine: &ContainerEngine, work_dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for folder in std::fs::read_dir(work_dir).unwrap() {
        let label = format!("muster.executor={}", folder.unwrap().path().display());
        names.extend(engine.list_labelled(&label).await.unwrap());
    }
    names.retain(|name| name.starts_with("muster-warm-"));
    names
}

pub(crate) async fn one_waits(engine: &ContainerEngine, work_dir: &Path, but: &str) -> String {
    let found = std::cell::RefCell::new(String::new());
    until("a container waits", || async {
        let names = waiting(engine, work_dir).await;
        let fresh = names.iter().find(|name| *name != but).cloned();
        *found.borrow_mut() = fresh.clone().unwrap_or_default();
        match fresh {
            Some(name) => runs(&name).await,
            None => false,
        }
    })
    .await;
    found.into_inner()
}

/// Lets a job begin whose program prints nothing yet.
async fn runs(name: &str) -> bool {
    let docker = bollard::Docker::connect_with_defaults().unwrap();
    let found = docker.inspect_container(name, None).await;
    found.is_ok_and(|found| found.state.and_then(|state| state.running) == Some(true))
}

/// Leases one job and returns its last report.
async fn run_leased(connection: &mut ExecutorConnection, job: &Job, artifacts: &Value) -> Value {
    let lease = Lease::new();
    let job = Job {
        artifacts_dir: artifacts.clone(),
        ..job.clone()
    };
    connection.lease_job(&lease, &job).await;
    let messages = connection.until("MusterLeaseOver").await;
    let ends = [
        "V0JobFinishedRequest",
        "V0JobFailedRequest",
        "V0HordeFailedRequest",
    ];
    let last = messages
        .into_iter()
        .find(|message| ends.contains(&message["message_type"].as_str().unwrap()));
    last.unwrap()
}

#[tokio::test]
async fn the_next_job_like_the_last_runs_in_a_container_that_waited_and_nobody_gets_it_again() {
    let engine = engine().await;
    image::load(&engine).await;
    let lease = warm_lease();
    let work_dir = lease.config.work_dir.clone();
    let mut enrolled = EnrolledExecutor::open(&lease, 1).await;
    let mut connection = enrolled.next_connection().await;
    let none = Value::Null;
    let seen = |message: &Value| -> Value {
        serde_json::from_str(message["docker_process_stdout"].as_str().unwrap()).unwrap()
    };
    let surroundings = Job::new(&["probe", "surroundings"]);

    let cold = run_leased(&mut connection, &surroundings, &none).await;
    let first = one_waits(&engine, &work_dir, "").await;
    // The job runs in a container of its own, and a warm one waits meanwhile.
    let warm = run_leased(&mut connection, &surroundings, &none).await;
    assert_eq!(
        seen(&cold),
        seen(&warm),
        "nothing inside differs: user, capabilities, mounts that may be written, network, variables"
    );
    let second = one_waits(&engine, &work_dir, &first).await;
    assert!(!runs(&first).await, "it went with its job");

    // Another program in the same image has the same shape.
    let failed = run_leased(&mut connection, &Job::new(&["probe", "exit", "3"]), &none).await;
    assert_eq!(failed["docker_process_exit_status"], 3, "{failed:#}");
    assert_eq!(failed["docker_process_stderr"], "as I was told\n");
    let third = one_waits(&engine, &work_dir, &second).await;
    assert!(!runs(&second).await);

    // A job with other folders does not get this container, and the one made for the next such job replaces it.
    let words = run_leased(&mut connection, &Job::new(&["words"]), &json!("/artifacts")).await;
    assert_eq!(words["message_type"], "V0JobFinishedRequest", "{words:#}");
    let fourth = one_waits(&engine, &work_dir, &third).await;
    assert!(!runs(&third).await, "one at most");
    assert_eq!(waiting(&engine, &work_dir).await, [fourth.as_str()]);
    let words = run_leased(&mut connection, &Job::new(&["words"]), &json!("/artifacts")).await;
    assert!(
        words["artifacts"]["/artifacts/words.json"].is_string(),
        "{words:#}"
    );
    let fifth = one_waits(&engine, &work_dir, &fourth).await;

    // A warm container that is gone when its job comes does no harm.
    engine.remove(&fifth).await.unwrap();
    let words = run_leased(&mut connection, &Job::new(&["words"]), &json!("/artifacts")).await;
    assert_eq!(words["message_type"], "V0JobFinishedRequest", "{words:#}");

    one_waits(&engine, &work_dir, &fifth).await;
    enrolled.stop().await;
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named_as_ever() {
    let engine = engine().await;
    let mark = uuid::Uuid::new_v4();
    let content = ImageContent {
        tag: format!("muster/executor-no-program:{mark}"),
        entrypoint: vec!["/no/such/program".into()],
        files: vec![ImageFile {
            path: "/x".into(),
            mode: 0o644,
            contents: mark.as_bytes().to_vec(),
        }],
        ..ImageContent::default()
    };
    let archive = muster_executor::ImageArchive::new(&content).unwrap();
    engine.load(archive.bytes).await.unwrap();
    let lease = warm_lease();
    let mut enrolled = EnrolledExecutor::open(&lease, 1).await;
    let mut connection = enrolled.next_connection().await;
    let job = Job {
        image: content.tag.clone(),
        ..Job::new(&[])
    };
    for warm in [false, true] {
        if warm {
            one_waits(&engine, &lease.config.work_dir, "").await;
        }
        let failed = run_leased(&mut connection, &job, &Value::Null).await;
        assert_eq!(failed["docker_process_exit_status"], 127, "{failed:#}");
        assert_eq!(failed["docker_process_stderr"], "", "{failed:#}");
        let message = failed["message"].as_str().unwrap().to_lowercase();
        assert!(
            message.contains("could not be started") && message.contains("no such file"),
            "{failed:#}"
        );
    }
    enrolled.stop().await;
    lease.assert_clean(&engine).await;
    image::forget(&content.tag).await;
}
