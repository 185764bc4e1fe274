//! Checks the API against its OpenAPI document with schemathesis, an independent tool.

use std::path::PathBuf;
use std::sync::Arc;

use muster_process::SystemClock;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for, read_json};
use crate::validator::Validator;

/// The Python interpreter that has schemathesis.
const VARIABLE: &str = "MUSTER_TEST_SCHEMATHESIS_PYTHON";

/// The drawn requests of each kind for each call. The requests at the limits of what the document allows are not drawn:
/// every run sends all of them, 1,275 when this was written.
const EXAMPLES: &str = "2";
const EXAMPLES_OF_SOAK: &str = "40";

#[tokio::test]
async fn the_document_names_every_call() {
    let facilitator = Facilitator::start().await;
    let answer = reqwest::get(facilitator.url("/api/schema")).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/json");
    let document: Value = answer.json().await.unwrap();
    for (path, method) in [
        ("/auth/nonce", "get"),
        ("/auth/login", "post"),
        ("/api/v1/job-docker/", "post"),
        ("/api/v1/jobs/", "get"),
        ("/api/v1/jobs/{uuid}/", "get"),
        ("/api/v1/jobs/{uuid}/cancel/", "post"),
        ("/api/v1/jobs/{uuid}/events/", "get"),
        ("/api/v1/jobs/{uuid}/metrics/", "get"),
        ("/api/v1/jobs/{uuid}/feedback/", "get"),
        ("/api/v1/jobs/{uuid}/feedback/", "put"),
        ("/api/v1/cheated-job/", "post"),
        ("/api/v1/keys/", "get"),
        ("/api/v1/keys/", "post"),
        ("/api/v1/keys/{id}/", "delete"),
        ("/api/v1/audit/", "get"),
        ("/api/v1/subnet/", "get"),
        ("/api/v1/miners/{miner}/", "get"),
        ("/api/v1/webhook/", "get"),
        ("/api/v1/webhook/", "put"),
        ("/api/v1/webhook/", "delete"),
        ("/api/v1/files/", "get"),
        ("/api/v1/files/", "post"),
        ("/api/v1/files/{id}/", "get"),
        ("/api/v1/files/{id}/", "delete"),
    ] {
        assert!(document["paths"][path][method].is_object(), "{method} {path}");
    }
}

#[tokio::test]
async fn schemathesis_finds_nothing_that_the_document_does_not_say() {
    check_by_schemathesis(EXAMPLES).await;
}

#[tokio::test]
#[ignore = "soak: 40 drawn requests of each kind for each call, a minute of processor time"]
async fn schemathesis_finds_nothing_in_many_requests() {
    check_by_schemathesis(EXAMPLES_OF_SOAK).await;
}

async fn check_by_schemathesis(examples: &str) {
    let python = std::env::var_os(VARIABLE)
        .map(PathBuf::from)
        .expect("this test needs MUSTER_TEST_SCHEMATHESIS_PYTHON, which `cargo xtask test` sets");
    let facilitator = Facilitator::start_with(Arc::new(SystemClock::new()), |config| {
        config.limits.requests_per_minute = 0;
        config.limits.strangers_per_minute = 0;
        config.limits.failures_per_minute = 0;
        config.limits.open_jobs = 0;
    })
    .await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let key = user
        .send(Method::POST, "/api/v1/keys/", Some(&json!({"name": "tester"})))
        .await;
    let (_, key) = read_json(key).await;
    user.create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await;
    let folder = tempfile::tempdir().unwrap();
    let environment = python
        .ancestors()
        .nth(2)
        .expect("the folder of the interpreter's environment");
    let mut command = Command::new(&python);
    command
        .current_dir(folder.path())
        // Each request asks every variable whether it names a proxy.
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", folder.path())
        // The tables of Unicode take seconds of processor time to make; examples are not kept.
        .env("HYPOTHESIS_STORAGE_DIRECTORY", environment.join("hypothesis"))
        .args(["-m", "schemathesis.cli", "run"])
        .arg(facilitator.url("/api/schema"))
        .args(["--url", &facilitator.url("")])
        .args(["--header", &format!("Authorization: Bearer {}", key["key"].as_str().unwrap())])
        // An event stream does not end, and revoking a key could revoke the one that the tool uses.
        .args(["--exclude-path-regex", "/events/$"])
        .args(["--exclude-method", "DELETE"])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method,ignored_auth"])
        .args(["--phases", "examples,coverage,fuzzing"])
        .args(["--max-examples", examples, "--seed", "1", "--no-color"])
        .args(["--generation-database", "none"])
        .args(["--suppress-health-check", "all"])
        .kill_on_drop(true);
    let output = tokio::select! {
        output = command.output() => output.unwrap(),
        () = drain(&mut validator) => panic!("the facilitator left"),
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{printed}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(printed.contains("passed"), "{printed}");
}

/// Accepts the jobs that the tool submits, and does nothing with them.
async fn drain(validator: &mut Validator) {
    while validator.next().await.is_some() {}
}
