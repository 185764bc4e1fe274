//! The file store over a bucket of an independent S3 server (moto).

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use muster_file_store::ObjectStorage;
use muster_file_store::object_storage::BucketCredentials;
use muster_protocol::Digest;
use muster_store::testing::sqlite;
use muster_testbed::within;
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::support::{MIB, MIGRATIONS, Store, noise};

/// The server with a bucket, which reports the number of objects below a prefix.
const SCRIPT: &str = include_str!("../../../../tests/python/s3_bucket.py");

struct Bucket {
    child: Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    endpoint: String,
    _script: NamedTempFile,
}

impl Bucket {
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
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let endpoint = loop {
            let line = within("the start of the server", lines.next_line()).await;
            let line = line.unwrap().expect("the server ended");
            if line.starts_with("http://") {
                break line;
            }
        };
        Self {
            child,
            lines,
            endpoint,
            _script: script,
        }
    }

    async fn objects(&mut self) -> usize {
        use tokio::io::AsyncWriteExt as _;
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(b"users/\n").await.unwrap();
        let line = within("the number of objects", self.lines.next_line()).await;
        line.unwrap().unwrap().parse().unwrap()
    }

    fn address(&self) -> String {
        format!("s3://jobs/users?endpoint={}&region=us-east-1", self.endpoint)
    }
}

fn credentials() -> Option<BucketCredentials> {
    Some(BucketCredentials {
        id: "a".to_owned(),
        secret: "b".to_owned(),
    })
}

#[tokio::test]
async fn a_bucket_keeps_files_as_a_folder_does() {
    let mut bucket = Bucket::start().await;
    muster_process::tls::install_provider();
    let storage = ObjectStorage::open_as(&bucket.address(), credentials())
        .await
        .unwrap();
    let tables = sqlite(&MIGRATIONS).await.unwrap();
    let store = Store::over(tables, storage, tempfile::tempdir().unwrap()).await;
    let content = noise(18 * MIB);
    let file = store.announce(18 * MIB, Some(Digest::of(&content))).await;
    let first = store
        .part(&file, &content[..10 << 20], 0, &(18 * MIB).to_string())
        .await;
    assert_eq!(first.status(), 202);
    assert_eq!(store.offset(&file).await, 10 * MIB);
    let rest = &content[10 << 20..];
    let last = store.part(&file, rest, 10 * MIB, &(18 * MIB).to_string()).await;
    assert_eq!(last.status(), 201);
    assert!(store.content(&file).await == content);
    let part = store.get(&file, &[("range", "bytes=8388600-8388619")]).await;
    assert_eq!(part.bytes().await.unwrap(), content[8_388_600..8_388_620]);
    assert_eq!(bucket.objects().await, 3);
    store.service.remove("alice", file.id).await.unwrap();
    store.clock.advance(Duration::from_secs(3_601));
    assert_eq!(store.service.sweep().await.unwrap(), (0, 3));
    assert_eq!(bucket.objects().await, 0);
}

#[tokio::test]
async fn a_bucket_that_is_not_there_is_said_at_the_start() {
    let bucket = Bucket::start().await;
    muster_process::tls::install_provider();
    let address = bucket.address().replace("jobs", "nobodys");
    let error = ObjectStorage::open_as(&address, credentials()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("nobodys") && text.contains("be written to"),
        "{text}"
    );
}
