//! Tests the program over HTTP: honest conversations pass, everything else is rejected with a reason.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce, ExecutorName};
use muster_hardware_proof::challenge_message::{MessageKind, ProofSpec, encode_message};
use muster_hardware_proof::conversation::{
    ChallengeRejection, ValidatorAction, ValidatorConversation, ValidatorInput,
};
use muster_hardware_proof::matmul::{MatmulShape, MatmulSpec};
use muster_hardware_proof::memory_walk::{WalkShape, WalkSpec};
use muster_hardware_proof::prover::CpuProver;
use muster_hardware_proof::spec::NumberFormat;
use muster_hardware_proof::{InstructionSet, Limits, ProofVerdict};
use muster_image_grader::{GraderRejection, GraderReply, GraderService, challenge_limits, serve};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;

const LIMITS: Limits = Limits {
    fill_us: 60_000_000,
    commit_us: 60_000_000,
    open_us: 60_000_000,
    allowance_us: 150_000,
};

fn identity(nonce: u8) -> ChallengeIdentity {
    ChallengeIdentity {
        batch: BatchId([1; 16]),
        executor: ExecutorName([2; 32]),
        nonce: ChallengeNonce([nonce; 32]),
    }
}

fn chain(nonce: u8, log2_n: u8) -> ProofSpec {
    let shape = MatmulShape {
        numbers: NumberFormat::Int8,
        log2_n,
        rounds: 4,
        entries: 64,
    };
    ProofSpec::Matmul(MatmulSpec::new(identity(nonce), shape, None).unwrap())
}

fn walk(nonce: u8, blocks: u64) -> ProofSpec {
    let shape = WalkShape {
        blocks,
        work: 16,
        log2_walks: 4,
        log2_leaves: 1,
        draws: 64,
    };
    ProofSpec::Walk(WalkSpec::new(identity(nonce), shape).unwrap())
}

fn grader() -> Arc<GraderService<CpuProver>> {
    let prover = CpuProver::new(InstructionSet::best(), NonZeroUsize::MIN);
    Arc::new(GraderService::new(
        prover,
        challenge_limits::prover_limits(512 << 20),
    ))
}

/// A client's connection and the task that drives it.
struct Client {
    requests: SendRequest<Full<Bytes>>,
    _going: JoinSet<()>,
}

impl Client {
    async fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> Self {
        let (requests, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        let mut going = JoinSet::new();
        going.spawn(async move {
            let _ = connection.await;
        });
        Self {
            requests,
            _going: going,
        }
    }

    async fn ask(&mut self, method: Method, path: &str, body: Vec<u8>) -> (StatusCode, Bytes) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "grader")
            .body(Full::from(body))
            .unwrap();
        let response = self.requests.send_request(request).await.unwrap();
        let status = response.status();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    }

    /// Runs a whole conversation over HTTP.
    async fn converse(&mut self, spec: ProofSpec) -> ProofVerdict {
        let mut validator = ValidatorConversation::new(spec, LIMITS);
        let mut message = validator.challenge().to_vec();
        let mut now_us = 0;
        validator.apply(ValidatorInput::Started, now_us);
        loop {
            let (status, answer) = self.ask(Method::POST, "/v1/grade", message).await;
            assert_eq!(status, StatusCode::OK, "{answer:?}");
            now_us += 200_000;
            match validator.apply(ValidatorInput::Message(&answer), now_us) {
                Some(ValidatorAction::NeedRandomness) => {
                    let Some(ValidatorAction::Send(next)) =
                        validator.apply(ValidatorInput::Randomness([9; 32]), now_us)
                    else {
                        unreachable!("randomness is asked for to send something")
                    };
                    message = next;
                }
                Some(ValidatorAction::End) => break,
                Some(ValidatorAction::Send(_)) | None => {
                    unreachable!("after a message comes randomness or the end")
                }
            }
        }
        let verdict = validator.into_evidence().judge(InstructionSet::best());
        let told = encode_message(
            MessageKind::Verdict,
            &spec.challenge_id(),
            &[&verdict.code().to_le_bytes(), &[0, 0]],
        );
        let (status, _) = self.ask(Method::POST, "/v1/grade", told).await;
        assert_eq!(status, StatusCode::NO_CONTENT);
        verdict
    }
}

async fn on_port() -> (Client, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(async move { serve::serve_port(listener, grader()).await.unwrap() });
    let client = Client::over(TcpStream::connect(address).await.unwrap()).await;
    (client, serving)
}

#[tokio::test]
async fn an_honest_prover_passes_over_either_way_in() {
    let (mut client, _serving) = on_port().await;
    let (status, body) = client.ask(Method::GET, "/health", vec![]).await;
    assert_eq!((status, &body[..]), (StatusCode::OK, &br#"{"status":"ok"}"#[..]));
    assert!(matches!(
        client.converse(chain(1, 8)).await,
        ProofVerdict::Passed(_)
    ));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    // A file that an earlier process left.
    std::fs::write(&path, "").unwrap();
    let mut serving = JoinSet::new();
    let served = path.clone();
    serving.spawn(async move { serve::serve_socket(&served, grader()).await.unwrap() });
    let stream = loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => break stream,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let mut client = Client::over(stream).await;
    // One conversation after another on one prover.
    assert!(matches!(
        client.converse(walk(2, 1024)).await,
        ProofVerdict::Passed(_)
    ));
    assert!(matches!(
        client.converse(chain(3, 9)).await,
        ProofVerdict::Passed(_)
    ));
}

#[tokio::test]
async fn messages_out_of_turn_are_refused_by_name() {
    let (mut client, mut serving) = on_port().await;
    let spec = chain(1, 8);
    let challenge = encode_message(MessageKind::Challenge, &spec.challenge_id(), &[&spec.to_bytes()]);
    let seed = encode_message(MessageKind::Seed, &spec.challenge_id(), &[&[0; 32]]);
    let large = walk(1, 1 << 20);
    let large = encode_message(
        MessageKind::Challenge,
        &large.challenge_id(),
        &[&large.to_bytes()],
    );
    for (message, status, reason) in [
        (vec![], StatusCode::BAD_REQUEST, "cannot be read"),
        (vec![0xFF; 100], StatusCode::BAD_REQUEST, "cannot be read"),
        (
            challenge[..100].to_vec(),
            StatusCode::BAD_REQUEST,
            "cannot be read",
        ),
        (seed, StatusCode::BAD_REQUEST, "out of turn"),
        (large, StatusCode::BAD_REQUEST, "limits: memory"),
        (
            vec![1; 5_000],
            StatusCode::PAYLOAD_TOO_LARGE,
            "at most 4096 bytes",
        ),
    ] {
        let (got, body) = client.ask(Method::POST, "/v1/grade", message).await;
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert_eq!(got, status, "{body}");
        assert!(body.contains(reason), "{body}");
        if got == StatusCode::PAYLOAD_TOO_LARGE {
            // The rest of the body was not read, so the connection cannot be used again.
            serving.abort_all();
            (client, serving) = on_port().await;
        }
    }
    let (status, _) = client.ask(Method::GET, "/v1/grade", vec![]).await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    let (status, _) = client.ask(Method::GET, "/", vec![]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // An honest challenge still passes afterwards.
    assert!(matches!(client.converse(spec).await, ProofVerdict::Passed(_)));
}

#[test]
fn work_that_nobody_waits_for_ends_and_the_next_challenge_is_taken() {
    let grader = grader();
    let spec = chain(1, 8);
    let challenge = encode_message(MessageKind::Challenge, &spec.challenge_id(), &[&spec.to_bytes()]);
    let called_off = grader.handle_message(&challenge, &AtomicBool::new(true));
    assert!(
        matches!(called_off, Err(GraderRejection::Prover(_))),
        "{called_off:?}"
    );
    let (first, again) = (AtomicBool::new(false), AtomicBool::new(false));
    assert!(matches!(
        grader.handle_message(&challenge, &first),
        Ok(GraderReply::Message(_))
    ));
    // A challenge begins a new conversation, in which messages of the old one are rejected.
    let other = chain(2, 8);
    let another = encode_message(
        MessageKind::Challenge,
        &other.challenge_id(),
        &[&other.to_bytes()],
    );
    assert!(matches!(
        grader.handle_message(&another, &again),
        Ok(GraderReply::Message(_))
    ));
    let draw = encode_message(MessageKind::Draw, &spec.challenge_id(), &[&[0; 64]]);
    let refused = grader.handle_message(&draw, &again);
    assert!(
        matches!(
            refused,
            Err(GraderRejection::Conversation(ChallengeRejection::OtherChallenge))
        ),
        "{refused:?}"
    );
}
