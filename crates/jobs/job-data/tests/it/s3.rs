//! S3 as an independent server (moto) implements it: presigned PUT and POST, and a volume of the uploaded files.

use std::io::Write;
use std::process::Stdio;

use muster_testbed::within;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::{Room, noise};

/// Starts the server, creates a bucket, and signs requests: a line of JSON in, a line out.
const SCRIPT: &str = r#"
import json, sys, boto3
from botocore.config import Config
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
s3 = boto3.client("s3", endpoint_url=f"http://{host}:{port}", aws_access_key_id="a", aws_secret_access_key="b",
                  region_name="us-east-1", config=Config(signature_version="s3v4", s3={"addressing_style": "path"}))
s3.create_bucket(Bucket="jobs")
print("ready", flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    key = ask.get("key")
    if ask["do"] == "put":
        answer = s3.generate_presigned_url("put_object", {"Bucket": "jobs", "Key": key, "ContentType": "text/x-muster"})
    elif ask["do"] == "zip":
        answer = s3.generate_presigned_url("put_object", {"Bucket": "jobs", "Key": key})
    elif ask["do"] == "post":
        answer = s3.generate_presigned_post("jobs", key, Fields={"x-amz-meta-who": "muster"}, Conditions=[{"x-amz-meta-who": "muster"}])
    elif ask["do"] == "get":
        answer = s3.generate_presigned_url("get_object", {"Bucket": "jobs", "Key": key})
    elif ask["do"] == "head":
        head = s3.head_object(Bucket="jobs", Key=key)
        answer = {"len": head["ContentLength"], "type": head["ContentType"], "meta": head["Metadata"]}
    print(json.dumps(answer), flush=True)
"#;

struct S3 {
    child: Child,
    answers: Lines<BufReader<ChildStdout>>,
    _script: NamedTempFile,
}

impl S3 {
    async fn start() -> Self {
        let python = std::env::var("MUSTER_TEST_MOTO_PYTHON")
            .expect("this test needs MUSTER_TEST_MOTO_PYTHON, which `cargo xtask test` sets");
        let mut script = NamedTempFile::new().unwrap();
        script.write_all(SCRIPT.as_bytes()).unwrap();
        let mut child = Command::new(python)
            .arg(script.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
        loop {
            let line = within("the start of the server", answers.next_line())
                .await
                .unwrap();
            if line.expect("the server ended") == "ready" {
                break;
            }
        }
        Self {
            child,
            answers,
            _script: script,
        }
    }

    async fn ask(&mut self, ask: Value) -> Value {
        use tokio::io::AsyncWriteExt;
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(format!("{ask}\n").as_bytes()).await.unwrap();
        stdin.flush().await.unwrap();
        let line = within("an answer of the server", self.answers.next_line())
            .await
            .unwrap();
        serde_json::from_str(&line.expect("the server ended")).unwrap()
    }
}

#[tokio::test]
async fn presigned_uploads_arrive_and_come_back_as_volumes() {
    let mut s3 = S3::start().await;
    let content = noise(3_000_000);
    let put = s3.ask(json!({"do": "put", "key": "out/put.bin"})).await;
    let post = s3.ask(json!({"do": "post", "key": "out/post.bin"})).await;
    let zip = s3.ask(json!({"do": "zip", "key": "out/system.zip"})).await;
    let upload = json!({"output_upload_type": "multi_upload",
        "uploads": [
            {"output_upload_type": "single_file_put", "url": put, "relative_path": "a.bin", "signed_headers": {"Content-Type": "text/x-muster"}},
            {"output_upload_type": "single_file_post", "url": post["url"], "form_fields": post["fields"], "relative_path": "b.bin", "signed_headers": null},
        ],
        "system_output": {"output_upload_type": "zip_and_http_put", "url": zip}});
    let room = Room::new().keeping(64);
    let outputs = [
        ("a.bin", content.as_slice()),
        ("b.bin", b"posted"),
        ("stdout.txt", b"said"),
    ];
    let uploaded = room.upload(upload, &outputs).await.unwrap();
    let keys: Vec<_> = uploaded.results.keys().map(String::as_str).collect();
    assert_eq!(keys, ["a.bin", "b.bin", "system_output"]);
    let result: Value = serde_json::from_str(&uploaded.results["a.bin"]).unwrap();
    assert!(
        result["headers"]["etag"].as_str().unwrap().starts_with('"'),
        "{result}"
    );

    let head = s3.ask(json!({"do": "head", "key": "out/put.bin"})).await;
    assert_eq!(
        (&head["len"], &head["type"]),
        (&json!(content.len()), &json!("text/x-muster"))
    );
    let head = s3.ask(json!({"do": "head", "key": "out/post.bin"})).await;
    assert_eq!(
        (&head["len"], &head["meta"]["who"]),
        (&json!(6), &json!("muster"))
    );

    for _ in 0..2 {
        // The URL is signed anew; the second time the cached input is used.
        let file = s3.ask(json!({"do": "get", "key": "out/put.bin"})).await;
        let zip = s3.ask(json!({"do": "get", "key": "out/system.zip"})).await;
        let volume = json!({"volume_type": "multi_volume", "volumes": [
            {"volume_type": "single_file", "url": file, "relative_path": "in/a.bin"},
            {"volume_type": "zip_url", "contents": zip, "relative_path": "system"},
        ]});
        let placed = room.place(volume).await.unwrap();
        assert!(placed["in/a.bin"] == content);
        assert_eq!(placed["system/stdout.txt"], b"said");
        assert_eq!(placed.len(), 2);
    }
}
