//! ComputeHorde's own code, release 0.0.27, at both ends of our miner and our executor.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_identity::{Keypair, countersign, offer_receipt, verify_receipt};
use muster_process::{Clock as _, SystemClock};
use muster_protocol::receipt::{FinishedReceipt, FinishedTag, MAX_BLOCK_NUMBERS};
use muster_protocol::rest::CreateJob;
use muster_protocol::{AttemptId, JobStatus, MinerKey, Receipt, ReceiptPayload, ValidatorKey};
use muster_testbed::wait_for;
use muster_tests::{
    IMAGES_OF_TESTS, Layout, Parts, Role, User, muster, program_from_env, python, run, shell_image,
};
use serde_json::{Value, json};

const PYTHON: &str = "MUSTER_TEST_COMPUTE_HORDE_PYTHON";

/// Its last line.
fn report(stdout: &str) -> Value {
    serde_json::from_str(stdout.lines().last().unwrap_or_default()).unwrap()
}

/// One job through our own validator, so that its receipts stand on the miner's page too.
fn run_one_of_ours(parts: &Parts, image: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let job: CreateJob = serde_json::from_value(json!({
        "target_validator_hotkey": parts.keys().validator.hotkey().to_string(),
        "executor_class": "always_on.test",
        "docker_image": image,
        "args": ["-c", "echo ours"],
        "artifacts_dir": "/artifacts",
        "download_time_limit": 20,
        "execution_time_limit": 20,
        "streaming_start_time_limit": 0,
        "upload_time_limit": 20,
    }))
    .unwrap();
    let address = parts.address(Role::Facilitator);
    let user = runtime
        .block_on(User::login(address, parts.keys().user.clone()))
        .unwrap();
    let id = runtime
        .block_on(user.submit(&job, SystemClock::default().now()))
        .unwrap();
    wait_for("our own job", || {
        let history = runtime.block_on(user.history(id))?;
        let over = history
            .iter()
            .any(|status| status == JobStatus::Completed.as_str());
        anyhow::Ok(over.then_some(()))
    })
    .unwrap();
}

/// A finished receipt that names as many blocks as one may, with both signatures.
fn with_most_blocks(parts: &Parts) -> String {
    let (validator, miner) = (&parts.keys().validator, &parts.keys().miner);
    let now = SystemClock::default().now();
    let receipt = ReceiptPayload::Finished(FinishedReceipt {
        job_uuid: AttemptId::from_uuid(uuid::Uuid::new_v4()),
        miner_hotkey: MinerKey(miner.hotkey()),
        validator_hotkey: ValidatorKey(validator.hotkey()),
        timestamp: now,
        receipt_type: FinishedTag,
        time_started: now,
        time_took_us: 1,
        score_str: FinishedReceipt::score_text(1),
        block_numbers: (5_000_000..).take(MAX_BLOCK_NUMBERS).collect(),
    });
    let receipt = countersign(miner, offer_receipt(validator, receipt).unwrap()).unwrap();
    serde_json::to_string(&*receipt).unwrap()
}

/// Every line of the miner's pages.
fn pages(parts: &Parts) -> String {
    let mut text = String::new();
    for page in std::fs::read_dir(parts.folder().join("miner-receipts")).unwrap() {
        let path = page.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    text
}

#[test]
fn its_validator_code_runs_organic_jobs_here_and_both_verify_the_receipts_of_the_other() {
    let interpreter = program_from_env(PYTHON).unwrap();
    let validator = Keypair::from_uri("//Validator").unwrap();
    let layout = Layout {
        executors: 2,
        validators: vec![validator.hotkey().to_string()],
        ..Layout::default()
    };
    let parts = Parts::start(&layout).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let image = runtime.block_on(shell_image("")).unwrap();
    let (address, miner) = (
        parts.address(Role::Miner),
        parts.keys().miner.hotkey().to_string(),
    );
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let ran = python(
        &interpreter,
        "organic_miner_client.py",
        &["//Validator", &miner, &host, &port, image],
    )
    .unwrap();
    assert_eq!(
        ran.code,
        Some(0),
        "{}\n{}\n{}",
        ran.stdout,
        ran.stderr,
        parts.log(Role::Miner)
    );
    let report = report(&ran.stdout);

    let succeeded = &report["succeeded"];
    assert_eq!(succeeded["stdout"], "mark", "{report:#}");
    assert_eq!(
        succeeded["artifacts"],
        json!({"/artifacts/left.txt": STANDARD.encode("left\n")})
    );
    assert_eq!(succeeded["errors"], json!([]));
    assert_eq!(succeeded["manifest"], json!({"always_on.test": 2}));
    let stages = [
        "V0ExecutorManifestRequest",
        "V0AcceptJobRequest",
        "V0ExecutorReadyRequest",
        "V0VolumesReadyRequest",
        "V0ExecutionDoneRequest",
        "V0MachineSpecsRequest",
        "V0JobFinishedRequest",
    ];
    assert_eq!(succeeded["stages"], json!(stages), "and nothing of ours");
    let failed = &report["failed"];
    assert_eq!(
        (
            &failed["reason"],
            &failed["stage"],
            &failed["exit"],
            &failed["stderr"]
        ),
        (
            &json!("nonzero_return_code"),
            &json!("execution"),
            &json!(3),
            &json!("sorry\n")
        )
    );
    assert_eq!(
        report["declined"],
        json!({"reason": "no_miner_for_job", "receipts": 0})
    );
    assert_eq!(report["main_hotkey"], miner.as_str());

    // Its transfer read our pages: all three receipts of both jobs, none twice, and verified every signature.
    assert_eq!(
        report["transfer"],
        json!({"receipts": 6, "again": 0, "errors": []})
    );
    let now = SystemClock::default().now();
    let receipts: Vec<Receipt> = serde_json::from_value(report["receipts"].clone()).unwrap();
    assert_eq!(receipts.len(), 6);
    for receipt in receipts {
        verify_receipt(receipt, now).unwrap();
    }
    // And the receipts of our own validator, once it knows the stakes of two epochs and names blocks.
    wait_for("two cycles", || {
        let state = parts.validator_state()?;
        let cycles = state["cycles"].as_array().map_or(0, Vec::len);
        anyhow::Ok((cycles >= 3).then_some(()))
    })
    .unwrap();
    run_one_of_ours(&parts, image);
    let page = parts.folder().join("page.jsonl");
    let text = wait_for("nine receipts", || {
        let text = pages(&parts);
        anyhow::Ok((text.lines().count() >= 9).then_some(text))
    })
    .unwrap();
    let named = text.lines().filter(|line| {
        let receipt: Receipt = serde_json::from_str(line).unwrap();
        match receipt.payload {
            ReceiptPayload::Finished(finished) => !finished.block_numbers.is_empty(),
            ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) => false,
        }
    });
    assert_eq!(named.count(), 2, "ComputeHorde's own paid one, and ours: {text}");
    let largest = with_most_blocks(&parts);
    std::fs::write(&page, format!("{text}{largest}\n")).unwrap();
    let verified = python(&interpreter, "verify_receipts.py", &[page.to_str().unwrap()]).unwrap();
    assert_eq!(
        (verified.code, verified.stdout.trim()),
        (Some(0), "10"),
        "{}",
        verified.stderr
    );
}

#[test]
fn our_executor_does_what_a_python_miner_says() {
    let interpreter = program_from_env(PYTHON).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let image = runtime.block_on(shell_image("")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("executor.toml");
    std::fs::write(
        &config,
        format!(
            "work_dir = {:?}\nstop_grace_s = 1\n{IMAGES_OF_TESTS}",
            folder.path().join("work")
        ),
    )
    .unwrap();
    let (job, lease) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
    let token = format!("{job}-{lease}");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/python_miner.py");
    let mut miner = Command::new(interpreter)
        .arg(script)
        .args([&token, image])
        .env("HOME", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(miner.stdout.take().unwrap());
    let mut port = String::new();
    said.read_line(&mut port).unwrap();
    let address = format!("ws://127.0.0.1:{}", port.trim());
    let executor = run(Command::new(muster().unwrap())
        .args([
            "executor",
            "--miner-address",
            &address,
            "--token",
            &token,
            "--config",
        ])
        .arg(&config))
    .unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(miner.wait().unwrap().success(), "{rest}");
    assert_eq!(executor.code, Some(0), "{executor:?}");

    let report = report(&rest);
    assert_eq!(report["path"], format!("/v0.1/executor_interface/{token}"));
    let frames = report["frames"].as_array().unwrap();
    let kinds: Vec<_> = frames
        .iter()
        .map(|frame| frame["message_type"].as_str().unwrap())
        .collect();
    let order = [
        "V0ExecutorReadyRequest",
        "V0VolumesReadyRequest",
        "V0ExecutionDoneRequest",
        "V0MachineSpecsRequest",
        "V0JobFinishedRequest",
    ];
    assert_eq!(kinds, order, "{report:#}");
    let result = frames.last().unwrap();
    assert_eq!(result["docker_process_stdout"], "driven\n");
    assert_eq!(
        result["artifacts"],
        json!({"/artifacts/kept.txt": STANDARD.encode("kept\n")})
    );
}
