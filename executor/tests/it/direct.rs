//! Streaming jobs that answer their user directly, without a sealed session: as ComputeHorde's SDK uses them.

use std::process::Stdio;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use muster_process::certificate;
use muster_response_proof::Limits;
use muster_sealed_client::{SealedClient, SealedPeer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::stream::Client;
use crate::support::lease::{Job, Lease};
use crate::support::miner::FakeMiner;
use crate::support::{engine, image};

#[tokio::test]
async fn direct_job_on_its_loopback_port_serves_its_user_with_any_miner() {
    let engine = engine().await;
    let image = image::load(&engine).await.id.to_string();
    let (lease, own, miner) = (Lease::new(), Client::new(), FakeMiner::start().await);
    let job = Job {
        image,
        ..Job::new(&["serve", "port", "8000"])
    };
    let mut offer = lease.offer(&job);
    offer["streaming_details"] = json!({"public_key": own.pem, "executor_ip": "127.0.0.1"});
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&offer).await;
    wire.expect("V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&job)).await;
    wire.expect("V0VolumesReadyRequest").await;
    let ready = wire.expect("V0StreamingJobReadyRequest").await;
    let peer = SealedPeer {
        address: format!("127.0.0.1:{}", ready["port"]),
        certificate: certificate::digest_of_pem(ready["public_key"].as_str().unwrap()).unwrap(),
    };
    // A client with another certificate is rejected.
    let (limits, stranger) = (Limits::default(), Client::new());
    let get = |path: &str| Request::get(path).body(Full::<Bytes>::default()).unwrap();
    let other = SealedClient::new(peer.clone(), &stranger.identity, &limits, &lease.tasks).unwrap();
    assert!(other.send(get("/health")).await.is_err());
    let client = SealedClient::new(peer, &own.identity, &limits, &lease.tasks).unwrap();
    let health = client.send(get("/health")).await.unwrap();
    assert_eq!(health.status(), 200);
    let chat = client.send(get("/v1/chat/completions")).await.unwrap();
    let body = chat.into_body().collect().await.unwrap().to_bytes();
    assert!(body.windows(6).any(|window| window == b"[DONE]"), "{body:?}");
    let goodbye = client.send(get("/terminate")).await.unwrap();
    goodbye.into_body().collect().await.unwrap();
    wire.expect("V0ExecutionDoneRequest").await;
    wire.expect("V0MachineSpecsRequest").await;
    wire.expect("V0JobFinishedRequest").await;
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn computehordes_sdk_talks_to_a_direct_job_with_the_certificate_it_makes() {
    for variable in ["MUSTER_TEST_SDK_PYTHON", "MUSTER_TEST_SDK19_PYTHON"] {
        let python = std::env::var_os(variable)
            .unwrap_or_else(|| panic!("this test needs {variable}, which `cargo xtask test` sets"));
        talk_to_direct_job(&python).await;
    }
}

async fn talk_to_direct_job(python: &std::ffi::OsStr) {
    let engine = engine().await;
    let image = image::load(&engine).await.id.to_string();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/python/sdk_talks_to_job.py");
    let mut user = tokio::process::Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(user.stdout.take().unwrap()).lines();
    let first: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();

    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let job = Job {
        image,
        ..Job::new(&["serve", "port", "8000"])
    };
    let mut offer = lease.offer(&job);
    offer["streaming_details"] = json!({"public_key": first["certificate"], "executor_ip": "127.0.0.1"});
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&offer).await;
    wire.expect("V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&job)).await;
    wire.expect("V0VolumesReadyRequest").await;
    let ready = wire.expect("V0StreamingJobReadyRequest").await;
    let url = format!("https://127.0.0.1:{}", ready["port"]);
    let line = format!("{}\n", json!({"url": url, "certificate": ready["public_key"]}));
    let mut input = user.stdin.take().unwrap();
    input.write_all(line.as_bytes()).await.unwrap();
    let report = lines
        .next_line()
        .await
        .unwrap()
        .expect("the SDK's user failed; see above");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (&report["health"], &report["end"], &report["stranger_refused"]),
        (&json!(200), &json!(200), &json!(true)),
        "{report}"
    );
    let lines: Vec<&str> = report["lines"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(lines.contains(&"data: [DONE]"), "{report}");
    wire.expect("V0ExecutionDoneRequest").await;
    wire.expect("V0MachineSpecsRequest").await;
    wire.expect("V0JobFinishedRequest").await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}
