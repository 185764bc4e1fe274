//! Logs: JSON lines are JSON, and the end of a job is one line at each role, with its ids. Every subnet of the suite,
//! and all roles that a test starts one by one, are searched for secrets in their logs when they end.

#![expect(clippy::unwrap_used, reason = "sections of a test fail as tests do")]

use std::process::{Command, Stdio};

use muster_testbed::wait_for;
use muster_tests::{RunningSubnet, muster};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

#[test]
fn json_logs_are_one_object_a_line_with_role_and_level() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("facilitator.toml");
    let (ready, log) = (folder.path().join("ready"), folder.path().join("log"));
    let text = format!(
        "bind = \"127.0.0.1:0\"\nready_file = {ready:?}\nstore = \"sqlite:{}\"\n[files]\nstore = \"file:{}\"\n[chain]\nurl = \"\"\n",
        folder.path().join("f.db").display(),
        folder.path().join("files").display(),
    );
    std::fs::write(&config, text).unwrap();
    let mut role = Command::new(muster().unwrap())
        .args([
            "facilitator",
            "--log-format",
            "json",
            "--metrics",
            "127.0.0.1:0",
            "--config",
        ])
        .arg(&config)
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    wait_for("the facilitator", || anyhow::Ok(ready.exists().then_some(()))).unwrap();
    kill(Pid::from_raw(i32::try_from(role.id()).unwrap()), Signal::SIGTERM).unwrap();
    let ended = role.wait().unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(ended.success(), "{ended}: {text}");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.len() >= 2, "{text}");
    for line in &lines {
        assert_eq!(line["role"], "facilitator", "{line}");
        assert!(
            line["level"].is_string() && line["timestamp"].is_string() && line["message"].is_string(),
            "{line}"
        );
    }
}

pub(crate) fn the_end_of_a_job_is_one_line_at_each_role_with_its_ids(subnet: &RunningSubnet) {
    let args = [
        "job",
        "run",
        subnet.demo_image(),
        "--detach",
        "--",
        "probe",
        "exit",
        "3",
    ];
    let started = subnet.muster(&args).unwrap();
    let job = started.stdout.trim().to_owned();
    subnet.wait_for_status(&job, "failed").unwrap();
    let line_of = |role: &str, parts: &[&str]| {
        wait_for(&format!("one line of the {role}"), || {
            let log = subnet.log(role);
            let lines: Vec<_> = log
                .lines()
                .filter(|line| parts.iter().all(|part| line.contains(part)))
                .map(str::to_owned)
                .collect();
            assert!(lines.len() <= 1, "{lines:?}");
            anyhow::Ok(lines.into_iter().next())
        })
        .unwrap()
    };
    let line = line_of("validator", &["job over", &job]);
    assert!(
        line.contains("fault=user") && line.contains(subnet.field("miner").unwrap()),
        "{line}"
    );
    let (_, attempt) = line.split_once("attempt=\"").unwrap();
    let attempt: String = attempt.chars().take_while(|c| *c != '"').collect();
    let line = line_of("miner", &["lease over", &attempt]);
    assert!(line.contains("end=\"failed\""), "{line}");
    line_of("facilitator", &["status=failed", &job]);
}
