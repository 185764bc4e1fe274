//! The official ComputeHorde SDK against us, with a scripted validator behind.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_identity::verify_job;
use muster_identity::wallet::{self, ColdkeyStorage, WalletPath};
use muster_protocol::JobStatus;
use muster_protocol::volume::VolumePart;
use muster_protocol::wire::facilitator::{MinerResponse, StatusMetadata};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::facilitator::{Facilitator, validator_key};
use crate::validator::Validator;

/// A Python that has compute-horde-sdk.
const VARIABLE: &str = "MUSTER_TEST_SDK_PYTHON";

#[tokio::test]
async fn the_official_sdk_runs_a_job_until_it_is_complete() {
    let Ok(python) = std::env::var(VARIABLE) else {
        eprintln!("skipped: the official SDK, since {VARIABLE} names no Python that has it");
        return;
    };
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
    for unset in [false, true] {
        let mut command = Command::new(&python);
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

/// Takes one job, checks it, and completes it.
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
