//! Fixtures of unit tests: an offer, its job, a machine, and an engine that a test answers for.

use muster_containers::ContainerEngine;
use muster_process::Tasks;
use muster_protocol::wire::miner::{InitialJobRequest, JobRequest};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use crate::config::MachineSize;

const ATTEMPT: &str = "11111111-2222-4333-8444-555555555555";
const KEY: &str = "5CA3onFpA75kRSgNkF6twsDeumSA5NhLhxQWSdraSEL8vScn";
pub(crate) const MACHINE: MachineSize = MachineSize {
    cpus: 16,
    memory: 100 << 30,
};

/// An offer of this class, with further fields.
pub(crate) fn offer(class: &str, extra: &str) -> InitialJobRequest {
    let text = format!(
        r#"{{"job_uuid":"{ATTEMPT}","executor_class":"{class}",
        "job_started_receipt_payload":{{"job_uuid":"{ATTEMPT}","miner_hotkey":"{KEY}","validator_hotkey":"{KEY}",
          "timestamp":"2026-01-21T12:34:56Z","receipt_type":"JobStartedReceipt",
          "executor_class":"{class}","is_organic":true,"ttl":7}},
        "job_started_receipt_signature":"0x{}","timeout_seconds":60{extra}}}"#,
        "00".repeat(64)
    );
    serde_json::from_str(&text).unwrap()
}

/// A job of this class that wants GPUs and the image `x`.
pub(crate) fn job(class: &str) -> JobRequest {
    let text = format!(
        r#"{{"job_uuid":"{ATTEMPT}","executor_class":"{class}","docker_image":"x",
        "docker_run_options_preset":"nvidia_all","docker_run_cmd":[]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// A connection to an engine that answers each request by `answer`, from its first line. A request without an answer
/// is cut off. The engine lives as long as `tasks`.
pub(crate) async fn engine(
    tasks: &Tasks,
    answer: impl FnMut(&str) -> Option<Vec<u8>> + Send + 'static,
) -> ContainerEngine {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    drop(tasks.spawn("engine", serve(listener, answer)));
    ContainerEngine::connect(&address).await.unwrap()
}

async fn serve(listener: TcpListener, mut answer: impl FnMut(&str) -> Option<Vec<u8>>) {
    while let Ok((socket, _)) = listener.accept().await {
        let mut lines = BufReader::new(socket).lines();
        let request = lines.next_line().await.unwrap().unwrap_or_default();
        while lines
            .next_line()
            .await
            .unwrap()
            .is_some_and(|line| !line.is_empty())
        {}
        let answered = match request.contains("/version") {
            true => Some(br#"{"Version":"20.10.24","ApiVersion":"1.41"}"#.to_vec()),
            false => answer(&request),
        };
        let Some(body) = answered else { continue };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let mut socket = lines.into_inner();
        socket
            .write_all(&[head.as_bytes(), &body].concat())
            .await
            .unwrap();
        socket.shutdown().await.unwrap();
    }
}
