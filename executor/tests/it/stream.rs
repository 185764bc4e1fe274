//! Streaming jobs through the real engine: reached in a container with no network, attested, sealed, closed.

use std::sync::Arc;
use std::time::Duration;

use crate::support::lease::{Job, Lease};
use crate::support::miner::{FakeMiner, Wire};
use crate::support::{engine, image};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use muster_executor::Error;
use muster_identity::Keypair;
use muster_process::task::Task;
use muster_process::tls::TlsIdentity;
use muster_process::{SharedClock, SystemClock, certificate};
use muster_protocol::{Digest, MinerKey};
use muster_response_proof::{
    Attestation, ClockTolerance, Envelope, Limits, ProofLedger, ResponseProof, Sealable, SessionClose,
    StreamEnd, seal,
};
use muster_sealed_client::{CheckedBody, SealedClient, SealedPeer, SentRequest};
use serde_json::{Value, json};
use tokio::sync::oneshot;

const BOUNDS: ClockTolerance = ClockTolerance {
    skew: Duration::from_secs(2),
};

/// The id of a job, which differs from that of its attempt.
const JOB: &str = "77777777-2222-4333-8444-555555555555";

/// The miner whose key every lease's receipt names.
fn miner_key() -> Keypair {
    Keypair::from_uri("//Miner").unwrap()
}

/// The certificate of a client.
pub(crate) struct Client {
    pub(crate) identity: TlsIdentity,
    pub(crate) pem: String,
}

impl Client {
    pub(crate) fn new() -> Self {
        let made = certificate::make_self_signed(&["localhost".to_owned()]).unwrap();
        Self {
            identity: made.identity,
            pem: made.pem,
        }
    }
}

/// A job that serves on a socket, with a session's terms.
fn sealed(lease: &Lease, job: &Job, client: &Client, image: &str) -> Value {
    let mut offer = lease.offer(job);
    offer["streaming_details"] = json!({
        "public_key": client.pem,
        "executor_ip": "127.0.0.1",
        "muster": {
            "job": JOB,
            "model": "tiny",
            "image": image,
            "weights": Digest::of(b"weights"),
            "scheme": "text",
            "health": "/health",
            "socket": "engine.sock",
            "port": null,
            "input_price": 1_000,
            "output_price": 3_000,
        },
    });
    offer
}

fn socket_job(image: &str) -> Job {
    Job {
        image: image.to_owned(),
        ..Job::new(&["serve", "socket", "engine.sock"])
    }
}

/// The next message of this kind. Live updates are ignored.
async fn next(wire: &mut Wire, kind: &str) -> Value {
    loop {
        let message = wire
            .recv()
            .await
            .unwrap_or_else(|| panic!("closed before {kind}"));
        let found = message["message_type"].as_str().unwrap();
        if found == kind {
            return message;
        }
        let live = [
            "MusterJobLog",
            "MusterJobProgress",
            "V0MachineSpecsRequest",
            "MusterSessionProofs",
        ];
        assert!(live.contains(&found), "{message:#} where {kind} should come");
    }
}

/// Drives a lease until the executor asks the miner to attest its session.
async fn to_attesting(wire: &mut Wire, lease: &Lease, job: &Job, offer: &Value) -> Attestation {
    wire.send(offer).await;
    next(wire, "V0ExecutorReadyRequest").await;
    wire.send(&lease.request(job)).await;
    next(wire, "V0VolumesReadyRequest").await;
    let ask = next(wire, "MusterSealSession").await;
    let bytes = STANDARD.decode(ask["statement"].as_str().unwrap()).unwrap();
    Attestation::read(&bytes).unwrap()
}

/// A session that is being served.
struct Session {
    wire: Wire,
    executor: Task<Result<(), Error>>,
    client: SealedClient,
    ledger: ProofLedger,
    stated: Attestation,
    clock: SharedClock,
}

/// Lets the miner sign and the validator connect.
async fn serve(lease: &Lease, job: &Job, own: &Client, offer: &Value) -> Session {
    let miner = FakeMiner::muster().await;
    let (executor, mut wire) = lease.start(&miner).await;
    let stated = to_attesting(&mut wire, lease, job, offer).await;
    let envelope = seal(&stated, &miner_key());
    let answer = json!({
        "message_type": "MusterSessionSealed",
        "job_uuid": lease.token.attempt(),
        "attestation": envelope.to_text(),
        "refusal": null,
    });
    wire.send(&answer).await;
    let ready = next(&mut wire, "V0StreamingJobReadyRequest").await;
    let peer = SealedPeer {
        address: format!("127.0.0.1:{}", ready["port"]),
        certificate: certificate::digest_of_pem(ready["public_key"].as_str().unwrap()).unwrap(),
    };
    assert_eq!(stated.server_certificate, peer.certificate);
    assert_eq!(stated.address.as_str(), peer.address);
    let client = SealedClient::new(peer, &own.identity, &Limits::default(), &lease.tasks).unwrap();
    Session {
        wire,
        executor,
        client,
        ledger: ProofLedger::open(&envelope).unwrap(),
        stated,
        clock: Arc::new(SystemClock::new()),
    }
}

impl Session {
    /// Sends a request, and returns the body with the verdict on its proof.
    async fn ask(&mut self, path: &str, body: &str) -> (Bytes, ResponseProof) {
        let request = Request::post(path).body(Full::new(Bytes::copy_from_slice(body.as_bytes())));
        let asked = SentRequest {
            client: None,
            client_nonce: None,
            gateway_nonce: None,
            method: "POST".to_owned(),
            path: path.to_owned(),
            input: SentRequest::digest_body(self.stated.scheme, body.as_bytes()),
            at: self.clock.now(),
        };
        let response = self.client.send(request.unwrap()).await.unwrap();
        let (report, reported) = oneshot::channel();
        let clock = Arc::clone(&self.clock);
        let body = CheckedBody::wrap(response, self.stated.scheme, clock, move |checked| {
            let _ = report.send(checked);
        });
        let body = body.into_body().collect().await.unwrap().to_bytes();
        let checked = reported.await.unwrap();
        let (proof, _) = checked.check_proof(&asked, &mut self.ledger, BOUNDS).unwrap();
        (body, proof)
    }

    /// The executor's message after the session is over.
    async fn ends(mut self, lease: &Lease, engine: &muster_executor::ContainerEngine) -> SessionClose {
        let closed = next(&mut self.wire, "MusterSessionClosed").await;
        next(&mut self.wire, "V0ExecutionDoneRequest").await;
        next(&mut self.wire, "V0JobFinishedRequest").await;
        self.wire.expect_end().await;
        self.executor.join().await.unwrap().unwrap();
        lease.assert_clean(engine).await;
        let close = Envelope::<SessionClose>::from_text(closed["close"].as_str().unwrap()).unwrap();
        self.ledger.close(&close, muster_identity::verify).unwrap()
    }
}

#[tokio::test]
async fn a_session_over_a_socket_is_attested_sealed_and_closed_and_its_socket_leads_nowhere_else() {
    let engine = engine().await;
    let image = image::load(&engine).await.id.to_string();
    let (lease, own, job) = (Lease::new(), Client::new(), socket_job(&image));
    let mut session = serve(&lease, &job, &own, &sealed(&lease, &job, &own, &image)).await;
    let stated = session.stated.clone();
    assert_eq!(stated.miner, MinerKey(miner_key().hotkey()));
    assert_eq!(stated.image.to_string(), image);
    assert_eq!(stated.job.to_string(), JOB);
    assert_eq!((stated.price.input, stated.price.output), (1_000, 3_000));
    assert_eq!(stated.model, Some(Digest::of(b"weights")));
    assert_eq!(stated.client_certificate, own.identity.fingerprint());

    let question = r#"{"messages":[{"role":"user","content":"what is to muster?"}]}"#;
    let (body, proof) = session.ask("/v1/chat/completions", question).await;
    assert!(body.starts_with(b"data: {"), "{body:?}");
    assert_eq!((proof.end, proof.sequence), (StreamEnd::Completed, 0));
    // The text scheme hashes the text of an answer and not its framing.
    let words = Digest::of(b"A force is called up.");
    let expected = [&0_u32.to_be_bytes()[..], words.as_bytes()].concat();
    assert_eq!(proof.output, Digest::of(&expected));

    let (who, _) = session.ask("/who", "").await;
    assert!(
        who.starts_with(b"Uid:\t65532"),
        "a whitelisted image runs as nobody: {who:?}"
    );

    // The container replaces its socket by a link to the engine's own socket.
    assert!(std::fs::metadata("/var/run/docker.sock").is_ok());
    let (linked, _) = session.ask("/link", "/var/run/docker.sock").await;
    assert_eq!(linked, "linked");
    let (refused, proof) = session.ask("/version", "").await;
    assert_eq!((proof.status, proof.end), (502, StreamEnd::EngineFailed));
    assert!(
        !refused.windows(10).any(|window| window == b"ApiVersion"),
        "{refused:?}"
    );

    let close = session.client.close(0).await.unwrap().close;
    session.ledger.close(&close, muster_identity::verify).unwrap();
    let closed = session.ends(&lease, &engine).await;
    assert_eq!(closed, close.statement().unwrap(), "there is one signed close");
    assert_eq!(closed.responses, 4);
}

#[tokio::test]
async fn a_session_whose_time_is_over_or_that_nobody_asks_anything_closes_itself() {
    let engine = engine().await;
    let image = image::load(&engine).await.id.to_string();
    let own = Client::new();
    // The session's time is over: the answer under way ends and is signed.
    let lease = Lease::new();
    let job = Job {
        // The session is open before, even on a busy machine.
        execution_secs: 10,
        ..socket_job(&image)
    };
    let mut session = serve(&lease, &job, &own, &sealed(&lease, &job, &own, &image)).await;
    let (body, proof) = session.ask("/endless", "").await;
    assert!(body.starts_with(b"data: 1\n\n\n: muster-proof "), "{body:?}");
    assert_eq!(proof.end, StreamEnd::SessionClosed);
    assert_eq!(session.ends(&lease, &engine).await.responses, 1);
    // No request comes.
    let mut lease = Lease::new();
    lease.config.streaming.idle_s = 5;
    let job = socket_job(&image);
    let session = serve(&lease, &job, &own, &sealed(&lease, &job, &own, &image)).await;
    assert_eq!(session.ends(&lease, &engine).await.responses, 0);
}

#[tokio::test]
async fn a_job_that_never_answers_fails_by_name() {
    let engine = engine().await;
    let image = image::load(&engine).await.id.to_string();
    let (lease, own, miner) = (Lease::new(), Client::new(), FakeMiner::muster().await);
    let job = Job {
        image: image.clone(),
        ..Job::new(&["probe", "sleep", "3600"])
    };
    let mut offer = sealed(&lease, &job, &own, &image);
    // The program prints its line before, even on a busy machine.
    offer["executor_timing"]["streaming_start_time_limit"] = json!(5);
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&offer).await;
    next(&mut wire, "V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&job)).await;
    next(&mut wire, "V0VolumesReadyRequest").await;
    let failed = next(&mut wire, "V0JobFailedRequest").await;
    assert_eq!(
        (&failed["reason"], &failed["stage"], &failed["context"]["code"]),
        (&json!("timeout"), &json!("streaming_startup"), &json!("E0035"))
    );
    assert_eq!(failed["docker_process_stdout"], "sleeping for 3600 s\n");
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn a_session_that_its_miner_does_not_attest_never_serves() {
    let engine = engine().await;
    let image = image::load(&engine).await.id.to_string();
    let own = Client::new();
    let job = socket_job(&image);
    let forged = |lease: &Lease, stated: &Attestation, signer: &Keypair, change: bool| {
        let mut stated = stated.clone();
        if change {
            stated.price.output = 0;
        }
        json!({
            "message_type": "MusterSessionSealed",
            "job_uuid": lease.token.attempt(),
            "attestation": seal(&stated, signer).to_text(),
            "refusal": null,
        })
    };
    for (name, expected) in [
        ("refused", "the executor's clock is 9000 ms ahead of its miner's"),
        ("another's signature", "the signature is not its hotkey's"),
        ("another statement", "it signed something else"),
    ] {
        let (lease, miner) = (Lease::new(), FakeMiner::muster().await);
        let (executor, mut wire) = lease.start(&miner).await;
        let offer = sealed(&lease, &job, &own, &image);
        let stated = to_attesting(&mut wire, &lease, &job, &offer).await;
        let answer = match name {
            "refused" => json!({
                "message_type": "MusterSessionSealed",
                "job_uuid": lease.token.attempt(),
                "attestation": null,
                "refusal": expected,
            }),
            "another's signature" => forged(&lease, &stated, &Keypair::generate(), false),
            _ => forged(&lease, &stated, &miner_key(), true),
        };
        wire.send(&answer).await;
        let failed = next(&mut wire, "V0HordeFailedRequest").await;
        assert_eq!(
            (&failed["reason"], &failed["context"]["code"]),
            (&json!("streaming_failed"), &json!("E0034")),
            "{name}"
        );
        assert!(
            failed["message"].as_str().unwrap().contains(expected),
            "{failed:#}"
        );
        wire.expect_end().await;
        executor.join().await.unwrap().unwrap();
        lease.assert_clean(&engine).await;
    }
}

#[tokio::test]
async fn a_session_of_another_image_than_its_terms_name_never_serves() {
    let engine = engine().await;
    let image = image::load(&engine).await.id.to_string();
    let (lease, own, miner) = (Lease::new(), Client::new(), FakeMiner::muster().await);
    let job = socket_job(&image);
    let offer = sealed(&lease, &job, &own, &Digest::of(b"another").to_string());
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&offer).await;
    next(&mut wire, "V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&job)).await;
    next(&mut wire, "V0VolumesReadyRequest").await;
    let failed = next(&mut wire, "V0HordeFailedRequest").await;
    assert_eq!(
        (&failed["context"]["code"], &failed["context"]["fault"]),
        (&json!("E0034"), &json!("validator"))
    );
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}
