//! The official ComputeHorde SDK against the facilitator, with a scripted validator.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_identity::verify_job;
use muster_identity::wallet::{self, ColdkeyStorage, WalletPath};
use muster_protocol::upload::{FileUpload, OutputUpload};
use muster_protocol::volume::VolumePart;
use muster_protocol::wire::facilitator::{
    CheatReport, FromFacilitator, MinerResponse, StatusMetadata, UserJobRequest,
};
use muster_protocol::{JobId, JobStatus};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::facilitator::{Facilitator, validator_key};
use crate::validator::Validator;

/// The Python interpreter that has compute-horde-sdk 0.0.18, and the one that has 0.0.19.
const VARIABLES: [&str; 2] = ["MUSTER_TEST_SDK_PYTHON", "MUSTER_TEST_SDK19_PYTHON"];

fn python(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("this test needs {variable}, which `cargo xtask test` sets"))
}

#[tokio::test]
async fn the_official_sdk_runs_a_job_until_it_is_complete() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let folder = tempfile::tempdir().unwrap();
    let path = WalletPath {
        root: folder.path().join("wallets"),
        name: "user".to_owned(),
        hotkey: "default".to_owned(),
    };
    wallet::create(&path, ColdkeyStorage::PhraseOnly).unwrap();
    let input = folder.path().join("input");
    std::fs::create_dir(&input).unwrap();
    std::fs::write(input.join("a.txt"), "hello").unwrap();

    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/python/sdk_run_job.py");
    // Each version in one of the two forms.
    for (variable, unset) in VARIABLES.into_iter().zip([false, true]) {
        let mut command = Command::new(python(variable));
        command
            .arg(&script)
            .arg(facilitator.url("/"))
            .arg(validator_key("Validator").to_string())
            .arg(&path.root)
            .args(["user", "default", "alpine:latest"])
            .arg(&input)
            .args(["--env", "B=1", "--env", "A=ż"])
            .args(if unset {
                ["--artifacts-dir", ""]
            } else {
                ["--artifacts-dir", "/artifacts"]
            })
            .args(["--", "sh", "-c", "echo ż"])
            .kill_on_drop(true);
        let (output, ()) = tokio::join!(command.output(), answer(&mut validator, unset));
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["status"], "completed");
        assert_eq!(report["stdout"], "ż\n");
        assert_eq!(report["artifacts"], json!({"/artifacts/x": "aGk="}));
        assert_eq!(
            report["history"],
            json!(["sent", "received", "accepted", "completed"])
        );
    }
}

/// Receives one job, checks it, and completes it.
async fn answer(validator: &mut Validator, unset: bool) {
    let job = validator.job().await;
    assert!(verify_job(&job).is_ok());
    assert_eq!(job.env.keys().collect::<Vec<_>>(), ["B", "A"]);
    assert_eq!(job.artifacts_dir.as_deref(), (!unset).then_some("/artifacts"));
    let parts = job.volume.clone().unwrap().into_parts();
    assert!(
        matches!(&parts[0], VolumePart::Inline(volume)
            if volume.relative_path.as_deref() == Some("input")
                && STANDARD.decode(&volume.contents).unwrap().starts_with(b"PK")),
        "{parts:?}"
    );
    let result = StatusMetadata {
        miner_response: Some(MinerResponse {
            docker_process_stdout: "ż\n".to_owned(),
            artifacts: Some(
                [("/artifacts/x".to_owned(), "aGk=".to_owned())]
                    .into_iter()
                    .collect(),
            ),
            ..MinerResponse::default()
        }),
        ..StatusMetadata::default()
    };
    validator.report(job.uuid, JobStatus::Received).await.unwrap();
    validator.report(job.uuid, JobStatus::Accepted).await.unwrap();
    validator
        .report_with(job.uuid, JobStatus::Completed, Some(result))
        .await
        .unwrap();
}

/// The messages that the scripted validator received from the SDK's calls.
#[derive(Default)]
struct Seen {
    jobs: Vec<UserJobRequest>,
    reports: Vec<CheatReport>,
}

#[tokio::test]
async fn every_public_method_of_the_official_sdk() {
    for variable in VARIABLES {
        call_every_method(&python(variable)).await;
    }
}

async fn call_every_method(python: &str) {
    let facilitator = Facilitator::start_with(
        std::sync::Arc::new(muster_process::SystemClock::new()),
        |config| {
            config.auth.token_lifetime_s = 3;
        },
    )
    .await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/python/sdk_every_method.py");
    let mut command = Command::new(python);
    command
        .arg(&script)
        .arg(facilitator.url("/"))
        .arg(validator_key("Validator").to_string())
        .arg("//User")
        .kill_on_drop(true);
    let mut seen = Seen::default();
    let output = tokio::select! {
        output = command.output() => output.unwrap(),
        () = serve(&mut validator, &mut seen) => panic!("the facilitator left"),
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report["seen"],
        json!(["sent", "received", "accepted", "completed"])
    );
    assert_eq!(report["streaming"], json!(["1.2.3.4", 6006, "PEM"]));
    assert_eq!(report["error"], "ComputeHordeHordeFailure");
    assert_eq!(report["listed"], 28);
    assert!(
        report["again"].as_str().unwrap().contains("already exists"),
        "{report}"
    );

    let full = &seen.jobs[0];
    assert!(seen.jobs.iter().all(|job| verify_job(job).is_ok()));
    assert_eq!(
        (full.on_trusted_miner, full.artifacts_dir.as_deref()),
        (true, None)
    );
    assert!(!seen.jobs[1].on_trusted_miner && seen.jobs[1].streaming_details.is_some());
    let kinds: Vec<_> = full.volume.clone().unwrap().into_parts();
    assert!(
        matches!(
            kinds.as_slice(),
            [
                VolumePart::Inline(_),
                VolumePart::HuggingfaceVolume(_),
                VolumePart::SingleFile(_)
            ]
        ),
        "{kinds:?}"
    );
    let Some(OutputUpload::MultiUpload(uploads)) = &full.output_upload else {
        panic!("{:?}", full.output_upload)
    };
    let [FileUpload::SingleFilePut(put), FileUpload::SingleFilePost(post)] = uploads.uploads.as_slice()
    else {
        panic!("{uploads:?}")
    };
    let order = |map: &Option<indexmap::IndexMap<String, String>>| -> Vec<String> {
        map.iter().flat_map(|map| map.keys().cloned()).collect()
    };
    assert_eq!(
        (order(&put.signed_headers), order(&post.form_fields)),
        (vec!["B".into(), "A".into()], vec!["z".into(), "a".into()])
    );
    assert_eq!(seen.reports.len(), 2);
    assert!(
        seen.reports
            .iter()
            .all(|report| muster_identity::verify_cheat_report(report).is_ok())
    );
    assert_eq!(seen.reports[1].details, None);
}

/// Reports for each job the statuses that its first argument names.
async fn serve(validator: &mut Validator, seen: &mut Seen) {
    while let Some(message) = validator.next().await {
        match message {
            FromFacilitator::Job(job) => {
                let (uuid, what) = (job.uuid, job.args[0].clone());
                seen.jobs.push(*job);
                act(validator, uuid, &what).await;
            }
            FromFacilitator::Cheated(report) => seen.reports.push(*report),
            other @ (FromFacilitator::Challenge(_)
            | FromFacilitator::Cancel(_)
            | FromFacilitator::Response(_)) => {
                panic!("{other:?}")
            }
        }
    }
}

async fn act(validator: &mut Validator, uuid: JobId, what: &str) {
    let end = match what {
        "complete" => json!({"miner_response": {
            "docker_process_stdout": "ż\n", "docker_process_stderr": "", "artifacts": {"/artifacts/x": "aGk="},
            "upload_results": {"put.bin": "{\"headers\": {}, \"body\": \"\"}"},
        }}),
        "fail" => json!({"horde_failure_details": {
            "reported_by": "validator", "reason": "miner_connection_failed", "message": "gone", "context": null,
        }}),
        "stream" => json!({"streaming_details": {
            "streaming_server_cert": "PEM", "streaming_server_address": "1.2.3.4", "streaming_server_port": 6006,
        }}),
        "hold" => return,
        other => panic!("{other}"),
    };
    let status = match what {
        "complete" => JobStatus::Completed,
        "fail" => JobStatus::HordeFailed,
        _ => JobStatus::StreamingReady,
    };
    validator.report(uuid, JobStatus::Received).await.unwrap();
    validator.report(uuid, JobStatus::Accepted).await.unwrap();
    let metadata = serde_json::from_value(end).unwrap();
    validator.report_with(uuid, status, Some(metadata)).await.unwrap();
}
