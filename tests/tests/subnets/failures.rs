//! Failures in a running subnet, and the messages that its user gets.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use muster_protocol::Timestamp;
use muster_testbed::{patience, wait_for};
use muster_tests::{Output, RunningSubnet, run};
use muster_webhooks::message::WebhookSecret;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

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

pub(crate) fn a_job_that_fails_names_the_stage_and_the_party(subnet: &RunningSubnet) {
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

    kept_results_of_a_failed_job(subnet, image);

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
    assert_eq!(slow.code, Some(124), "its time limit ended it: {slow:?}");
    let details = failure(&job_of(&slow), "job_failure_details");
    assert_eq!(
        (&details["reason"], &details["stage"]),
        (&json!("timeout"), &json!("execution"))
    );

    let absent = subnet.muster(&["job", "run", NO_IMAGE, "--json"]).unwrap();
    assert_eq!(absent.code, Some(125), "no program ended: {absent:?}");
    let details = failure(&job_of(&absent), "horde_failure_details");
    assert_eq!(details["reported_by"], "executor");
    assert_eq!(details["context"]["code"], "E0008");
    assert_eq!(details["context"]["stage"], "executor_startup");
    assert!(
        details["message"].as_str().unwrap().contains(NO_IMAGE),
        "{details}"
    );

    // A person is shown the stage, the party and where to read on.
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
    assert_eq!(homeless.code, Some(125), "{homeless:?}");
    assert_eq!(last(&job_of(&homeless))["status"], "rejected");

    for ended in [&exited, &slow, &absent] {
        assert_eq!(
            containers(job_of(ended)["uuid"].as_str().unwrap()),
            "",
            "a container was left behind"
        );
    }
}

/// Takes one message and answers it; returns its head and its body.
fn receive_message(receiver: &TcpListener) -> (String, String) {
    let (mut socket, _) = receiver.accept().unwrap();
    socket.set_read_timeout(Some(patience())).unwrap();
    let mut text = String::new();
    loop {
        let mut piece = [0; 4_096];
        let read = socket.read(&mut piece).unwrap();
        assert!(read > 0, "the message ends early: {text}");
        text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.unwrap().parse::<usize>().unwrap() {
            let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
            socket.write_all(answer).unwrap();
            return (head.to_owned(), body.to_owned());
        }
    }
}

/// Checks a message with the secret that the command has shown.
fn check_message((head, body): &(String, String), said: &str, id: &str) {
    let secret = said.split_whitespace().find(|word| word.starts_with("whsec_"));
    let secret: WebhookSecret = secret
        .unwrap_or_else(|| panic!("no secret: {said}"))
        .parse()
        .unwrap();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let sent = Timestamp::from_secs(header("webhook-timestamp: ").parse().unwrap());
    let signature = secret.sign(header("webhook-id: "), sent, body);
    assert_eq!(header("webhook-signature: "), signature);
    let message: Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        (
            &message["data"]["job"],
            &message["data"]["status"],
            &message["data"]["exit_code"]
        ),
        (&json!(id), &json!("failed"), &json!(4))
    );
}

/// A failed job's output and files are shown and fetched, its image is named, and its webhook is notified.
fn kept_results_of_a_failed_job(subnet: &RunningSubnet, image: &str) {
    let here = tempfile::tempdir().unwrap();
    // Another subnet on this engine may build the image anew meanwhile: the job ran the one before or the one after it.
    let id_of_image = || {
        run(Command::new("docker").args(["inspect", "--format", "{{.Id}}", image]))
            .unwrap()
            .stdout
    };
    let before = id_of_image();
    let at_once = here.path().join("at-once");
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/ended", receiver.local_addr().unwrap());
    let told = std::thread::spawn(move || receive_message(&receiver));
    let failed = subnet
        .muster(&[
            "job",
            "run",
            image,
            "--json",
            "--webhook",
            &url,
            "--save",
            at_once.to_str().unwrap(),
            "--output",
            "left.txt",
            "--output",
            "never.txt",
            "--",
            "probe",
            "leave",
            "4",
        ])
        .unwrap();
    assert_eq!(failed.code, Some(4), "{failed:?}");
    let job = job_of(&failed);
    let id = job["uuid"].as_str().unwrap();
    assert_eq!(job["stdout"], "about to exit with 4\n");
    assert!(job["artifacts"]["/artifacts/partial.txt"].is_string(), "{job}");
    check_message(&told.join().unwrap(), &failed.stderr, id);
    let delivered = format!("webhook  delivered to {url}, 1 attempt");
    let shown = wait_for("the delivered webhook", || {
        let shown = subnet.muster(&["job", "show", id])?;
        anyhow::Ok(Some(shown).filter(|shown| shown.stdout.contains(&delivered)))
    })
    .unwrap();
    let ids = [before, id_of_image()];
    assert!(
        ids.iter().any(|id| shown.stdout.contains(id.trim())),
        "{ids:?}: {shown:?}"
    );
    for part in ["about to exit with 4", "artifact /artifacts/partial.txt"] {
        assert!(shown.stdout.contains(part), "{part} is missing: {shown:?}");
    }
    let fetched = subnet
        .muster(&["job", "get", id, "--save", here.path().to_str().unwrap()])
        .unwrap();
    assert_eq!(fetched.code, Some(0), "{fetched:?}");
    assert!(
        fetched.stderr.contains("output never.txt was not delivered"),
        "{fetched:?}"
    );
    for (name, content) in [
        ("left.txt", "half an output"),
        ("partial.txt", "half an artifact"),
    ] {
        for folder in [here.path(), &at_once] {
            let kept = std::fs::read_to_string(folder.join(name)).unwrap();
            assert_eq!(kept, content);
        }
    }
}

pub(crate) fn roles_do_not_outlive_a_supervisor_that_is_killed(subnet: &mut RunningSubnet) {
    let pids: Vec<_> = ["chain", "facilitator", "miner", "validator"]
        .map(|role| subnet.pid(role).unwrap())
        .into();
    subnet.kill_supervisor().unwrap();
    wait_for("the end of every role", || {
        let left = pids
            .iter()
            .any(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists());
        anyhow::Ok((!left).then_some(()))
    })
    .unwrap();
}

pub(crate) fn an_operator_stops_it_with_one_signal(subnet: &mut RunningSubnet) {
    // The job goes with the subnet. Its executor would wait for a miner that never comes back.
    let id = super::users::a_long_job_runs(subnet);
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
    let log = subnet.log("validator");
    assert!(
        !log.contains("stopping without waiting longer"),
        "a validator has nothing to wait for: {log}"
    );
    let up = std::fs::read_to_string(subnet.folder().join("up.log")).unwrap();
    let told = "with the subnet; nobody is at fault";
    assert!(up.contains(told) && !up.contains("E0013"), "{id}: {up}");
}

pub(crate) fn a_second_subnet_in_the_folder_leaves_the_first_as_it_is(subnet: &RunningSubnet) {
    let file = subnet.folder().join("subnet.json");
    let before = std::fs::read(&file).unwrap();
    let second = subnet.muster(&["up"]).unwrap();
    assert_eq!(second.code, Some(1), "{second:?}");
    let up = std::fs::read_to_string(subnet.folder().join("run/up.lock")).unwrap();
    for word in [
        "E0050",
        subnet.field("facilitator").unwrap(),
        &format!("process {up}"),
    ] {
        assert!(second.stderr.contains(word), "{word} is missing: {second:?}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let listed = subnet.muster(&["job", "ls"]).unwrap();
    assert_eq!(listed.code, Some(0), "the first one goes on: {listed:?}");
}

pub(crate) fn a_second_signal_ends_a_subnet_at_once(subnet: &mut RunningSubnet) {
    // A stopped process cannot end by itself.
    let held = Pid::from_raw(subnet.pid("validator").unwrap());
    kill(held, Signal::SIGSTOP).unwrap();
    let up = Pid::from_raw(subnet.supervisor_pid().unwrap());
    kill(up, Signal::SIGINT).unwrap();
    let log = subnet.folder().join("up.log");
    let hurried = "the roles that still run are killed";
    wait_for("the end of a subnet that is hurried", || {
        kill(up, Signal::SIGINT)?;
        let said = std::fs::read_to_string(&log)?;
        anyhow::Ok(said.contains(hurried).then_some(()))
    })
    .unwrap();
    assert_eq!(subnet.stop().unwrap(), Some(0));
    assert!(!std::path::Path::new(&format!("/proc/{held}")).exists());
}
