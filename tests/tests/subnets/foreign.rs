//! Programs that nobody here wrote, against a running subnet.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "sections of a test fail as tests do"
)]

use std::path::Path;

use muster_testbed::{patience, wait_for};
use muster_tests::{RunningSubnet, program_from_env, python, sdk_interpreters};
use serde_json::Value;

pub(crate) fn the_python_sdk_runs_a_job_and_the_official_client_reads_its_weight(subnet: &RunningSubnet) {
    let bittensor = program_from_env("MUSTER_TEST_BITTENSOR_PYTHON").unwrap();
    for sdk in sdk_interpreters().unwrap() {
        run_job(subnet, &sdk);
    }

    let url = format!("ws://{}", subnet.field("chain").unwrap());
    let read = wait_for("our weight through bittensor", || {
        let args = [
            url.as_str(),
            "1",
            subnet.field("validator")?,
            subnet.field("miner")?,
        ];
        let read = python(&bittensor, "bittensor_reads_weight.py", &args)?;
        anyhow::Ok((read.code == Some(0)).then_some(read.stdout))
    })
    .unwrap();
    let weight: Value = serde_json::from_str(read.lines().last().unwrap()).unwrap();
    assert_eq!(weight["weight"], 65535, "{weight}");
}

fn run_job(subnet: &RunningSubnet, sdk: &Path) {
    let input = tempfile::tempdir().unwrap();
    std::fs::write(input.path().join("text.txt"), "muster muster a force").unwrap();

    let facilitator = format!("http://{}", subnet.field("facilitator").unwrap());
    let wallets = subnet.folder().join("wallets");
    let image = subnet.demo_image();
    let ran = python(
        sdk,
        "sdk_run_job.py",
        &[
            &facilitator,
            subnet.field("validator").unwrap(),
            wallets.to_str().unwrap(),
            "user",
            "default",
            image,
            input.path().to_str().unwrap(),
            "--timeout",
            &patience().as_secs().to_string(),
        ],
    )
    .unwrap();
    assert_eq!(
        ran.code,
        Some(0),
        "{}\n{}\n{}",
        ran.stdout,
        ran.stderr,
        subnet.log("validator")
    );
    let job: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(job["status"], "completed");
    assert!(
        job["artifacts"]
            .as_object()
            .unwrap()
            .contains_key("/artifacts/words.json"),
        "{job}"
    );
}

pub(crate) fn the_python_sdk_streams_from_a_job_that_it_reaches_directly(subnet: &RunningSubnet) {
    for sdk in sdk_interpreters().unwrap() {
        stream_from_job(subnet, &sdk);
    }
}

fn stream_from_job(subnet: &RunningSubnet, sdk: &Path) {
    let facilitator = format!("http://{}", subnet.field("facilitator").unwrap());
    let wallets = subnet.folder().join("wallets");
    let ran = python(
        sdk,
        "sdk_streams.py",
        &[
            &facilitator,
            subnet.field("validator").unwrap(),
            wallets.to_str().unwrap(),
            "user",
            "default",
            subnet.demo_image(),
            "--",
            "serve",
            "port",
            "8000",
        ],
    )
    .unwrap();
    let logs = || format!("{}\n{}", subnet.log("validator"), subnet.log("miner"));
    assert_eq!(ran.code, Some(0), "{}\n{}\n{}", ran.stdout, ran.stderr, logs());
    let job: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&job["status"], &job["health"]),
        (&"completed".into(), &200.into()),
        "{job}"
    );
    assert_eq!(job["stranger_refused"], true);
    let lines: Vec<&str> = job["lines"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(lines.contains(&"data: [DONE]"), "{job}");
    assert!(
        lines.iter().any(|line| line.starts_with(": muster-proof ")),
        "{job}"
    );
    let history: Vec<&str> = job["history"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(history.contains(&"streaming_ready"), "{job}");
}
