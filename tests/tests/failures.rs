//! Failures in a running subnet, and the messages that its user gets.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::process::Command;
use std::time::Duration;

use muster_tests::{Output, RunningSubnet, run, wait_for};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(90);

/// An id is never pulled: that it is not there is known at once, wherever the test runs.
const NO_IMAGE: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The last entry of a job's history.
fn last(job: &Value) -> Value {
    job["status_history"]
        .as_array()
        .and_then(|history| history.last())
        .unwrap()
        .clone()
}

/// The details of one kind that came with the end of a job.
fn failure(job: &Value, kind: &str) -> Value {
    last(job)["metadata"][kind].clone()
}

fn job_of(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Containers of this subnet's attempts that the engine still knows.
fn containers(attempt: &str) -> String {
    let label = format!("label=muster.attempt={attempt}");
    run(Command::new("docker").args(["ps", "--all", "--quiet", "--filter", &label]))
        .unwrap()
        .stdout
}

#[test]
fn a_job_that_fails_names_the_stage_and_the_party() {
    let subnet = RunningSubnet::start().unwrap();
    let image = subnet.demo_image();

    // The program's own exit code becomes the command's.
    let exited = subnet
        .muster(&["job", "run", image, "--json", "--", "probe", "exit", "3"])
        .unwrap();
    assert_eq!(exited.code, Some(3), "{exited:?}");
    let details = failure(&job_of(&exited), "job_failure_details");
    assert_eq!(details["reason"], "nonzero_return_code");
    assert_eq!(details["stage"], "execution");
    assert_eq!(details["docker_process_exit_status"], 3);

    let slow = subnet
        .muster(&[
            "job",
            "run",
            image,
            "--json",
            "--timeout",
            "1",
            "--",
            "probe",
            "sleep",
            "60",
        ])
        .unwrap();
    let details = failure(&job_of(&slow), "job_failure_details");
    assert_eq!(
        (&details["reason"], &details["stage"]),
        (&json!("timeout"), &json!("execution"))
    );

    let absent = subnet.muster(&["job", "run", NO_IMAGE, "--json"]).unwrap();
    let details = failure(&job_of(&absent), "horde_failure_details");
    assert_eq!(details["reported_by"], "executor");
    assert_eq!(details["context"]["code"], "E0008");
    assert_eq!(details["context"]["stage"], "executor_startup");
    assert!(
        details["message"].as_str().unwrap().contains(NO_IMAGE),
        "{details}"
    );

    // A person is told the stage, the party and where to read on.
    let told = subnet
        .muster(&["job", "show", job_of(&exited)["uuid"].as_str().unwrap()])
        .unwrap();
    for part in [
        "stage execution",
        "exit code 3",
        "at fault: user",
        "muster explain E0009",
    ] {
        assert!(told.stderr.contains(part), "{part} is missing: {}", told.stderr);
    }

    // A class that nobody has: rejected, with the miner and the reason it was passed over or declined.
    let homeless = subnet
        .muster(&["job", "run", image, "--json", "--class", "always_on.llm.a6000"])
        .unwrap();
    assert_eq!(last(&job_of(&homeless))["status"], "rejected");

    for ended in [&exited, &slow, &absent] {
        assert_eq!(
            containers(job_of(ended)["uuid"].as_str().unwrap()),
            "",
            "a container was left behind"
        );
    }
}

#[test]
fn killing_the_miner_mid_job_ends_in_a_state_that_everyone_agrees_on() {
    let subnet = RunningSubnet::start().unwrap();
    let image = subnet.demo_image();
    let started = subnet
        .muster(&[
            "job",
            "run",
            image,
            "--detach",
            "--timeout",
            "60",
            "--",
            "probe",
            "sleep",
            "60",
        ])
        .unwrap();
    let id = started.stdout.trim().to_owned();
    subnet.wait_for_status(&id, "volumes_ready", PATIENCE).unwrap();

    subnet.kill("miner").unwrap();
    let user = subnet
        .wait_for_status(&id, "horde_failed", PATIENCE)
        .unwrap_or_else(|error| {
            panic!(
                "{error}\n== validator\n{}\n== miner\n{}",
                subnet.log("validator"),
                subnet.log("miner")
            )
        });
    let details = failure(&user, "horde_failure_details");
    assert_eq!(details["reason"], "executor_disconnected", "{details}");

    // The validator's own view.
    let state = subnet.validator_state().unwrap();
    let job = state["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .find(|job| job.to_string().contains(&id))
        .unwrap();
    assert!(job.to_string().contains("executor_disconnected"), "{job}");
    // Both sides hold the receipt that says that it is over and pays nothing.
    let unpaid = |receipt: &&Value| {
        receipt["payload"]["job_uuid"] == id.as_str() && receipt["payload"]["score_str"] == "0.000000"
    };
    assert!(
        state["receipts"]
            .as_array()
            .is_some_and(|receipts| receipts.iter().any(|receipt| unpaid(&receipt))),
        "{state}"
    );
    let pages = subnet.folder().join("data/receipts");
    let pages: String = std::fs::read_dir(pages)
        .unwrap()
        .map(|page| std::fs::read_to_string(page.unwrap().path()).unwrap())
        .collect();
    assert!(
        pages
            .lines()
            .any(|line| line.contains(&id) && line.contains(r#""score_str":"0.000000""#)),
        "{pages}"
    );
    assert_eq!(containers(&id), "", "the container outlived its miner");

    // The subnet works on.
    let next = subnet
        .muster(&["job", "run", image, "--json", "--", "probe", "exit", "0"])
        .unwrap();
    assert_eq!(next.code, Some(0), "{next:?}");
}

/// A role that is killed while a job runs comes back, and the job ends well.
fn a_job_survives_the_death_of(role: &str) {
    let subnet = RunningSubnet::start().unwrap();
    let image = subnet.demo_image();
    let started = subnet
        .muster(&["job", "run", image, "--detach", "--", "probe", "sleep", "4"])
        .unwrap();
    let id = started.stdout.trim().to_owned();
    subnet.wait_for_status(&id, "volumes_ready", PATIENCE).unwrap();
    let killed = subnet.pid(role).unwrap();
    subnet.kill(role).unwrap();
    wait_for("the role's next process", PATIENCE, || {
        Ok(subnet.pid(role).ok().filter(|pid| *pid != killed))
    })
    .unwrap();
    let job = wait_for("the end of the job", PATIENCE, || {
        // While the facilitator is away nobody answers.
        let job = subnet.job(&id).ok();
        Ok(job.filter(|job| {
            ["completed", "failed", "horde_failed"].contains(&last(job)["status"].as_str().unwrap())
        }))
    })
    .unwrap();
    assert_eq!(last(&job)["status"], "completed", "{job}\n{}", subnet.log(role));
    let receipts = last(&job)["metadata"]["muster"]["receipts"].to_string();
    assert!(receipts.contains("JobFinishedReceipt"), "{receipts}");
}

#[test]
fn a_job_survives_the_death_of_its_validator() {
    a_job_survives_the_death_of("validator");
}

#[test]
fn a_job_survives_the_death_of_its_facilitator() {
    a_job_survives_the_death_of("facilitator");
}

#[test]
fn roles_do_not_outlive_a_supervisor_that_is_killed() {
    let mut subnet = RunningSubnet::start().unwrap();
    let pids: Vec<_> = ["chain", "facilitator", "miner", "validator"]
        .map(|role| subnet.pid(role).unwrap())
        .into();
    subnet.kill_supervisor().unwrap();
    wait_for("the end of every role", PATIENCE, || {
        let left = pids
            .iter()
            .any(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists());
        Ok((!left).then_some(()))
    })
    .unwrap();
}

#[test]
fn an_operator_stops_it_with_one_signal() {
    let mut subnet = RunningSubnet::start().unwrap();
    let pids: Vec<_> = ["chain", "facilitator", "miner", "validator"]
        .map(|role| subnet.pid(role).unwrap())
        .into();
    assert_eq!(subnet.stop().unwrap(), Some(0));
    for pid in pids {
        assert!(
            !std::path::Path::new(&format!("/proc/{pid}")).exists(),
            "process {pid} is still there"
        );
    }
}
