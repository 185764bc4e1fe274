//! Every way in which a response can be altered on its way. Each is rejected for its own reason.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use muster_process::Tasks;
use muster_response_proof::headers::{CLIENT_NONCE, GATEWAY_NONCE};
use muster_response_proof::{Forgery, ProofLedger, RequestNonce};
use muster_sealed_client::{ProofError, SentRequest};
use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;

use crate::rig::{BOUNDS, EVENTS, Engine, Kind, ProvenAnswer, Rig, chunk};

async fn engine(tasks: &Tasks) -> Engine {
    Engine::new(tasks, |mut stream| async move {
        stream.write_all(EVENTS.as_bytes()).await.unwrap();
        stream.write_all(&chunk(b"data: 1\n\ndata: 2\n\n")).await.unwrap();
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    })
}

async fn told(rig: &Rig) -> ProvenAnswer {
    told_with(rig, "cd").await
}

/// An answer to a request whose nonce of the gateway's repeats this byte.
async fn told_with(rig: &Rig, byte: &str) -> ProvenAnswer {
    let request = Request::post("/v1/chat/completions")
        .header(CLIENT_NONCE, "ab".repeat(32))
        .header(GATEWAY_NONCE, byte.repeat(32));
    rig.ask(request, "{}").await
}

/// A response as an intermediary would pass it on.
struct AlteredAnswer {
    response: Response<Bytes>,
    asked: SentRequest,
}

impl AlteredAnswer {
    fn of(told: &ProvenAnswer) -> Self {
        let mut response = Response::new(told.body.clone());
        *response.status_mut() = told.head.status;
        *response.headers_mut() = told.head.headers.clone();
        Self {
            response,
            asked: told.asked.clone(),
        }
    }

    fn replace(&mut self, from: &str, to: &str) {
        let body = String::from_utf8(self.response.body().to_vec()).unwrap();
        assert!(body.contains(from), "{body}");
        *self.response.body_mut() = body.replace(from, to).into();
    }

    async fn verdict(self, rig: &Rig, ledger: &mut ProofLedger) -> Result<(), ProofError> {
        let (report, reported) = oneshot::channel();
        let passing = rig.checked(self.response.map(Full::new), report);
        passing.into_body().collect().await.unwrap();
        let checked = reported.await.unwrap();
        checked.check_proof(&self.asked, ledger, BOUNDS).map(|_| ())
    }
}

type Alter = fn(&mut AlteredAnswer);

#[tokio::test]
async fn every_alteration_is_rejected_for_its_own_reason() {
    let tasks = Tasks::new();
    let engine = engine(&tasks).await;
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let genuine = told(&rig).await;
    AlteredAnswer::of(&genuine)
        .verdict(&rig, &mut rig.ledger())
        .await
        .unwrap();
    let table: [(&str, Alter, Forgery); 13] = [
        (
            "a word exchanged",
            |handed| handed.replace("data: 2", "data: 3"),
            Forgery::Response("the body's digest"),
        ),
        (
            "an event left out",
            |handed| handed.replace("data: 1\n\n", ""),
            Forgery::Response("the length"),
        ),
        (
            "an event put in",
            |handed| handed.replace("data: 1\n\n", "data: 1\n\ndata: 1\n\n"),
            Forgery::Response("the length"),
        ),
        (
            "something after the proof",
            |handed| {
                let body = [handed.response.body().as_ref(), b"data: 3\n\n".as_slice()].concat();
                *handed.response.body_mut() = body.into();
            },
            Forgery::Response("the length"),
        ),
        (
            "another status",
            |handed| *handed.response.status_mut() = StatusCode::ACCEPTED,
            Forgery::Response("the status"),
        ),
        (
            "another client's nonce",
            |handed| handed.asked.client_nonce = Some(RequestNonce::from_bytes([1; 32])),
            Forgery::Nonce,
        ),
        (
            "another client",
            |handed| handed.asked.client = Some(muster_protocol::Digest::of(b"another client")),
            Forgery::Client,
        ),
        (
            "no nonce of the gateway's",
            |handed| handed.asked.gateway_nonce = None,
            Forgery::Nonce,
        ),
        (
            "another path",
            |handed| handed.asked.path = "/v1/completions".to_owned(),
            Forgery::Request("the path"),
        ),
        (
            "another method",
            |handed| handed.asked.method = "GET".to_owned(),
            Forgery::Request("the method"),
        ),
        (
            "another question",
            |handed| handed.asked.input = muster_protocol::Digest::of(b"[]"),
            Forgery::Request("the body's digest"),
        ),
        (
            "another time",
            |handed| handed.asked.at = handed.asked.at.plus(Duration::from_secs(3_600)),
            Forgery::Clock(Duration::ZERO),
        ),
        (
            "the proof itself",
            |handed| {
                let body = String::from_utf8(handed.response.body().to_vec()).unwrap();
                let at = body.find("muster-proof ").unwrap() + 200;
                let other = if body.as_bytes()[at] == b'A' { "B" } else { "A" };
                let altered = format!("{}{other}{}", &body[..at], &body[at + 1..]);
                *handed.response.body_mut() = altered.into();
            },
            Forgery::Signature,
        ),
    ];
    for (name, alter, expected) in table {
        let mut handed = AlteredAnswer::of(&genuine);
        alter(&mut handed);
        let refused = handed.verdict(&rig, &mut rig.ledger()).await.unwrap_err();
        match (&refused, &expected) {
            (ProofError::Forged(Forgery::Clock(off)), Forgery::Clock(_)) => {
                assert!(*off > Duration::from_secs(3_000), "{name}: {off:?}");
            }
            _ => assert_eq!(refused, ProofError::Forged(expected), "{name}"),
        }
    }
}

#[tokio::test]
async fn a_proof_that_is_missing_or_nonsense_is_said_to_be_so() {
    let tasks = Tasks::new();
    let engine = engine(&tasks).await;
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let genuine = told(&rig).await;
    let mut cut = AlteredAnswer::of(&genuine);
    *cut.response.body_mut() = Bytes::copy_from_slice(genuine.engines());
    assert_eq!(
        cut.verdict(&rig, &mut rig.ledger()).await,
        Err(ProofError::Absent)
    );
    let mut nonsense = AlteredAnswer::of(&genuine);
    *nonsense.response.body_mut() = [genuine.engines(), b"\n: muster-proof ???\n"].concat().into();
    let refused = nonsense.verdict(&rig, &mut rig.ledger()).await;
    assert!(matches!(refused, Err(ProofError::Unreadable(_))), "{refused:?}");
}

#[tokio::test]
async fn proofs_of_other_times_and_sessions_are_worth_nothing_here() {
    let tasks = Tasks::new();
    let engine = engine(&tasks).await;
    let rig = Rig::new(tasks.clone(), engine.address(), Kind::default()).await;
    let mut ledger = rig.ledger();
    let (first, second) = (told(&rig).await, told_with(&rig, "ce").await);
    // A replay: the proof of the first response for both.
    AlteredAnswer::of(&first)
        .verdict(&rig, &mut ledger)
        .await
        .unwrap();
    let replayed = AlteredAnswer::of(&first).verdict(&rig, &mut ledger).await;
    assert_eq!(replayed, Err(ProofError::Forged(Forgery::Replayed(0))));
    // A proof of another job, signed by the same key.
    let elsewhere = Rig::new(
        tasks.clone(),
        engine.address(),
        Kind {
            job: 9,
            ..Kind::default()
        },
    )
    .await;
    let foreign = told(&elsewhere).await;
    let crossed = AlteredAnswer::of(&foreign).verdict(&rig, &mut ledger).await;
    assert_eq!(crossed, Err(ProofError::Forged(Forgery::Attestation)));
    // A response after the validity that the miner attested.
    let expired = Rig::new(
        tasks,
        engine.address(),
        Kind {
            valid: -1,
            ..Kind::default()
        },
    )
    .await;
    let late = told(&expired).await.verdict(&mut expired.ledger()).unwrap_err();
    assert_eq!(late, ProofError::Forged(Forgery::Expired));
    // An unproven response is found at the close.
    let close = rig.client.close(0).await.unwrap().close;
    assert_eq!(
        ledger.close(&close, muster_identity::verify),
        Err(Forgery::Gap(1))
    );
    AlteredAnswer::of(&second)
        .verdict(&rig, &mut ledger)
        .await
        .unwrap();
    ledger.close(&close, muster_identity::verify).unwrap();
}

#[tokio::test]
async fn lines_of_ours_that_a_gateway_puts_in_are_no_part_of_what_was_signed() {
    let tasks = Tasks::new();
    let engine = engine(&tasks).await;
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let genuine = told(&rig).await;
    let mut handed = AlteredAnswer::of(&genuine);
    let waiting = b": muster-wait\n: muster-wait\n".as_slice();
    *handed.response.body_mut() = [waiting, &genuine.body].concat().into();
    handed.verdict(&rig, &mut rig.ledger()).await.unwrap();
}
