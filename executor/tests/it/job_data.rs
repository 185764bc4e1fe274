//! Inputs that are fetched, outputs that are uploaded, and those that an executor rejects.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::lease::{Job, Lease, inline_volume};
use crate::support::miner::{FakeMiner, Wire};
use crate::support::{engine, image};

#[tokio::test]
async fn a_volume_that_leaves_its_folder_is_refused_as_its_users_fault() {
    let engine = engine().await;
    image::load(&engine).await;
    let miner = FakeMiner::start().await;
    for (volume, word, code) in [
        (inline_volume(&[("../../evil", "x")]), "../../evil", "E0015"),
        (
            json!({"volume_type": "zip_url", "contents": "http://127.0.0.1/x.zip", "relative_path": null}),
            "not on the public Internet",
            "E0021",
        ),
    ] {
        let lease = Lease::new();
        let (executor, mut wire) = lease.start(&miner).await;
        let job = Job {
            volume,
            ..Job::new(&["words"])
        };
        wire.send(&lease.offer(&job)).await;
        wire.expect("V0ExecutorReadyRequest").await;
        wire.send(&lease.request(&job)).await;
        assert_refused(&mut wire, word, code).await;
        executor.join().await.unwrap().unwrap();
        lease.assert_clean(&engine).await;
    }
}

async fn assert_refused(wire: &mut Wire, word: &str, code: &str) {
    let failed = wire.expect("V0JobFailedRequest").await;
    assert_eq!(
        (&failed["reason"], &failed["stage"]),
        (&json!("download_failed"), &json!("volume_download"))
    );
    assert_eq!(
        (&failed["context"]["code"], &failed["context"]["fault"]),
        (&json!(code), &json!("user"))
    );
    assert!(failed["message"].as_str().unwrap().contains(word), "{failed:#}");
    wire.expect_end().await;
}

#[tokio::test]
async fn an_upload_inside_is_refused_before_the_job_costs_anything() {
    let engine = engine().await;
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job::new(&["words"]);
    wire.send(&lease.offer(&job)).await;
    wire.expect("V0ExecutorReadyRequest").await;
    let mut request = lease.request(&job);
    request["output_upload"] = json!({"output_upload_type": "zip_and_http_put", "url": "http://127.0.0.1/x"});
    wire.send(&request).await;
    let failed = wire.expect("V0JobFailedRequest").await;
    assert_eq!(
        (&failed["reason"], &failed["stage"]),
        (&json!("upload_failed"), &json!("result_upload"))
    );
    assert_eq!(failed["context"]["code"], "E0021");
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn inputs_are_fetched_and_outputs_are_uploaded() {
    let engine = engine().await;
    image::load(&engine).await;
    let (mut lease, miner) = (Lease::new(), FakeMiner::start().await);
    lease.config.transfer.allow = vec!["127.0.0.1".to_owned()];
    lease.config.transfer.cache_mib = 0;
    let store = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = |path: &str| format!("http://{}{path}", store.local_addr().unwrap());
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job {
        volume: json!({"volume_type": "single_file", "url": url("/in"), "relative_path": "a.txt"}),
        artifacts_dir: json!("/artifacts"),
        ..Job::new(&["words"])
    };
    let mut request = lease.request(&job);
    request["output_upload"] = json!({"output_upload_type": "zip_and_http_put", "url": url("/out")});
    wire.send(&lease.offer(&job)).await;
    wire.expect("V0ExecutorReadyRequest").await;
    wire.send(&request).await;
    let head = answer_request(
        &store,
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nto be",
    )
    .await
    .0;
    assert!(head.starts_with("GET /in "), "{head}");
    wire.expect("V0VolumesReadyRequest").await;
    wire.expect("V0ExecutionDoneRequest").await;
    let (head, sent) = answer_request(
        &store,
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone",
    )
    .await;
    assert!(head.starts_with("PUT /out "), "{head}");
    assert!(sent >= 22, "the shortest archive has 22 bytes, not {sent}");
    wire.expect("V0MachineSpecsRequest").await;
    let finished = wire.expect("V0JobFinishedRequest").await;
    assert!(
        finished["docker_process_stdout"]
            .as_str()
            .unwrap()
            .starts_with("2 words"),
        "{finished:#}"
    );
    let answer: Value =
        serde_json::from_str(finished["upload_results"]["output.zip"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&answer["body"], &answer["headers"]["content-length"]),
        (&json!("done"), &json!("4"))
    );
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

/// Answers one request, and returns its head and the length of its body.
async fn answer_request(store: &TcpListener, answer: &str) -> (String, usize) {
    let (mut stream, _) = store.accept().await.unwrap();
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let len = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let len: usize = len.map_or(0, |len| len.parse().unwrap());
            if bytes.len() - end - 4 >= len {
                stream.write_all(answer.as_bytes()).await.unwrap();
                return (head, bytes.len() - end - 4);
            }
        }
        assert_ne!(
            stream.read_buf(&mut bytes).await.unwrap(),
            0,
            "closed in the middle"
        );
    }
}
