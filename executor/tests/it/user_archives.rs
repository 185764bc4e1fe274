//! A job's image from its user's archive: fetched, checked, loaded and run; an archive that differs from what was
//! promised is its user's fault.

use muster_executor::{ImageArchive, ImageFile};
use muster_protocol::Digest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::lease::{Job, Lease};
use crate::support::{engine, image};

/// Serves these bytes to every request. Returns the address.
async fn serve(lease: &Lease, bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    lease.tasks.spawn("archive", async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = socket.read(&mut request).await;
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                bytes.len()
            );
            let _ = socket.write_all(head.as_bytes()).await;
            let _ = socket.write_all(&bytes).await;
        }
    });
    address
}

async fn own_image() -> ImageArchive {
    let mark = uuid::Uuid::new_v4();
    let file = ImageFile {
        path: "/mark".into(),
        mode: 0o644,
        contents: mark.into_bytes().to_vec(),
    };
    tokio::task::spawn_blocking(move || image::archive(&format!("muster/own:{mark}"), vec![file]))
        .await
        .unwrap()
}

/// Runs a job of an image whose archive is promised as `sha256` and served as `bytes`.
async fn run_job(archive: &ImageArchive, bytes: Vec<u8>, sha256: Digest) -> Vec<Value> {
    let mut lease = Lease::new();
    let length = bytes.len();
    let address = serve(&lease, bytes).await;
    lease.config.transfer.allow = vec![address.clone()];
    let job = Job {
        image: archive.id.to_string(),
        ..Job::new(&["probe", "print", "0"])
    };
    let mut offer = lease.offer(&job);
    offer["muster"] = json!({"image_archive": {
        "url": format!("http://{address}/image.tar?Signature=secret"), "sha256": sha256, "length": length,
    }});
    lease.run_offered(&offer, &job).await
}

fn find<'a>(messages: &'a [Value], kind: &str) -> &'a Value {
    let found = messages.iter().find(|message| message["message_type"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {messages:#?}"))
}

#[tokio::test]
async fn an_image_comes_from_its_users_archive_and_runs() {
    let engine = engine().await;
    let archive = own_image().await;
    let messages = run_job(&archive, archive.bytes.clone(), Digest::of(&archive.bytes)).await;
    let finished = find(&messages, "V0JobFinishedRequest");
    assert_eq!(finished["image"]["id"], json!(archive.id));
    assert_eq!(engine.list_tags(archive.id).await.unwrap(), Vec::<String>::new());
    engine.remove_tag(&archive.id.to_string()).await.unwrap();
}

#[tokio::test]
async fn another_archive_than_was_promised_is_the_users_fault() {
    let engine = engine().await;
    let (archive, other) = (own_image().await, own_image().await);
    let cases = [
        (archive.bytes.clone(), Digest::of(b"other"), "expected content"),
        (other.bytes.clone(), Digest::of(&other.bytes), "instead of"),
        (b"no tar".to_vec(), Digest::of(b"no tar"), "docker save"),
    ];
    for (bytes, sha256, words) in cases {
        let messages = run_job(&archive, bytes, sha256).await;
        let failed = find(&messages, "V0HordeFailedRequest");
        let message = failed["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        assert!(!message.contains("secret"), "{message}");
        assert_eq!(
            (&failed["context"]["fault"], &failed["context"]["code"]),
            (&json!("user"), &json!("E0008"))
        );
        for id in [archive.id, other.id] {
            assert_eq!(engine.find_image(&id.to_string()).await.unwrap(), None);
        }
    }
}
