//! The output of a job, byte for byte: blocks that its executor wrote, and the text of a short result.

use muster_protocol::job::{CompletionReport, PrintedStream, PrintedStreams, StoredStream};
use muster_protocol::wire::facilitator::{MinerResponse, StatusMetadata};
use muster_protocol::wire::muster::StatusExtension;
use muster_protocol::{Digest, JobStatus};

use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for};
use crate::validator::Validator;

/// Bytes of more than one block, of which most are no text.
fn bytes() -> Vec<u8> {
    let length = usize::try_from(StoredStream::BLOCK_BYTES).unwrap() + 1_000;
    (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

async fn put(url: &str, content: Vec<u8>) -> (u16, Digest) {
    let digest = Digest::of(&content);
    let (path, query) = url.split_once('?').unwrap();
    let url = format!("{path}/{}?{query}", digest.hex());
    let answer = reqwest::Client::new()
        .put(url)
        .body(content)
        .send()
        .await
        .unwrap();
    (answer.status().as_u16(), digest)
}

#[tokio::test]
async fn printed_bytes_are_served_from_any_offset_to_their_owner_once_the_job_has_ended() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let (user, other) = (
        User::login(&facilitator, "User").await,
        User::login(&facilitator, "Other").await,
    );
    let view = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await;
    let delivered = validator.job().await;
    let grant = delivered.muster.unwrap().output.unwrap();
    let bytes = bytes();
    let mut list = Vec::new();
    for block in bytes.chunks(usize::try_from(StoredStream::BLOCK_BYTES).unwrap()) {
        let (status, digest) = put(&grant.blocks, block.to_vec()).await;
        assert_eq!(status, 201);
        list.extend_from_slice(digest.as_bytes());
    }
    let (status, blocks) = put(&grant.blocks, list).await;
    assert_eq!(status, 201);
    let path =
        |stream: &str, offset: u64| format!("/api/v1/jobs/{}/output/{stream}/?offset={offset}", view.uuid);
    let early = user.get(&path("stdout", 0)).send().await.unwrap();
    assert_eq!(early.status(), 404, "the job has not ended");

    let length = bytes.len() as u64;
    let printed = PrintedStreams {
        stdout: PrintedStream {
            bytes: length,
            sha256: Some(Digest::of(&bytes)),
            stored: Some(StoredStream {
                bytes: length,
                blocks,
            }),
            ..PrintedStream::default()
        },
        stderr: PrintedStream {
            bytes: 3,
            sha256: Some(Digest::of(b"err")),
            ..PrintedStream::default()
        },
    };
    let metadata = StatusMetadata {
        miner_response: Some(MinerResponse {
            docker_process_stdout: "cut".to_owned(),
            docker_process_stderr: "err\nmuster: a note\n".to_owned(),
            ..MinerResponse::default()
        }),
        muster: Some(StatusExtension {
            completion: Some(Box::new(CompletionReport {
                printed: Some(printed.clone()),
                ..CompletionReport::default()
            })),
            ..StatusExtension::default()
        }),
        ..StatusMetadata::default()
    };
    validator
        .report_with(view.uuid, JobStatus::Completed, Some(metadata))
        .await
        .unwrap();
    let block = StoredStream::BLOCK_BYTES;
    for offset in [0, 1, block - 1, block, block + 1, length - 1, length, length + 9] {
        let answer = user.get(&path("stdout", offset)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{offset}");
        let got = answer.bytes().await.unwrap();
        let start = usize::try_from(offset.min(length)).unwrap();
        assert!(got == bytes[start..], "{offset}");
    }
    let answer = user.get(&path("stderr", 1)).send().await.unwrap();
    assert_eq!(
        answer.bytes().await.unwrap(),
        "rr",
        "out of the text, without the note"
    );
    for (caller, path) in [(&other, path("stdout", 0)), (&user, path("stdin", 0))] {
        assert_eq!(caller.get(&path).send().await.unwrap().status(), 404, "{path}");
    }
    let (status, _) = put(&grant.blocks, b"late".to_vec()).await;
    assert_eq!(status, 410, "the URL ends with the job");
}
