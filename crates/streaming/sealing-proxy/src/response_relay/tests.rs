//! A relayed body: its pace, its ends and what is signed of it.

use std::sync::Arc;

use http_body_util::BodyExt;
use muster_identity::Keypair;
use muster_openai::BodyKind;
use muster_process::clock::TokioClock;
use muster_protocol::{AttemptId, Digest, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::comment::proof_of;
use muster_response_proof::{Attestation, Envelope, HashScheme, Price, ResponseProof, SessionId, Text, seal};
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

use super::*;
use crate::proof_signer::{ProofSigner, RequestFacts};

const START: i64 = 1_769_000_000;

/// An engine's body that a test sends piece by piece.
struct Scripted(mpsc::Receiver<Result<Bytes, ()>>);

impl Body for Scripted {
    type Data = Bytes;
    type Error = ();

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ()>>> {
        self.get_mut()
            .0
            .poll_recv(cx)
            .map(|said| said.map(|said| said.map(Frame::data)))
    }
}

fn signer() -> Arc<ProofSigner> {
    let key = Keypair::generate();
    let text = |text: &str| Text::new(text).unwrap();
    let attestation = Attestation {
        session: SessionId(Uuid::from_u128(1)),
        session_key: key.hotkey(),
        job: JobId::from_uuid(Uuid::from_u128(2)),
        attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
        miner: MinerKey(key.hotkey()),
        audience: ValidatorKey(key.hotkey()),
        server_certificate: Digest::of(b"s"),
        client_certificate: Digest::of(b"c"),
        executor: text("e"),
        address: text("h:1"),
        image: ImageId(Digest::of(b"i")),
        model: None,
        scheme: HashScheme::RawHttp,
        price: Price::default(),
        not_before: Timestamp::from_secs(START),
        not_after: Timestamp::from_secs(START + 1_000_000),
    };
    let envelope = seal(&attestation, &key);
    let clock = Arc::new(TokioClock::new(Timestamp::from_secs(START)));
    ProofSigner::new(key, envelope, clock).unwrap()
}

fn begin(signer: &Arc<ProofSigner>) -> PendingResponse {
    let request = RequestFacts {
        method: Text::new("POST").unwrap(),
        path: Text::new("/").unwrap(),
        client: None,
        client_nonce: None,
        gateway_nonce: None,
        from: Timestamp::from_secs(START),
    };
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let mut response = PendingResponse::begin(signer, request, Digest::of(b""), permit);
    response.set_head(200, None, BodyKind::Events);
    response
}

const TERMS: RelayTerms = RelayTerms {
    events: true,
    hides_usage: false,
    budget: 1_000_000,
    silence: Duration::from_secs(60),
};

fn proofs(signer: &ProofSigner) -> Vec<ResponseProof> {
    let kept = signer.proofs(0, 100).proofs;
    let read = |(_, text): &(u64, Arc<str>)| Envelope::from_text(text).unwrap().statement().unwrap();
    kept.iter().map(read).collect()
}

fn rig(terms: RelayTerms) -> (Arc<ProofSigner>, mpsc::Sender<Result<Bytes, ()>>, Relay<Scripted>) {
    let signer = signer();
    let (engine, body) = mpsc::channel(8);
    let relay = Relay::new(Scripted(body), begin(&signer), terms);
    (signer, engine, relay)
}

async fn data(relay: &mut Relay<Scripted>) -> Bytes {
    relay.frame().await.unwrap().unwrap().into_data().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_byte_a_second_is_passed_a_byte_a_second_and_is_not_silence() {
    let (signer, engine, mut relay) = rig(TERMS);
    let started = Instant::now();
    let saying = async move {
        for _ in 0..3_600 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            engine.send(Ok(Bytes::from_static(b"x"))).await.unwrap();
        }
    };
    let hearing = async {
        for second in 1..=3_600 {
            assert_eq!(data(&mut relay).await, "x");
            assert_eq!(started.elapsed(), Duration::from_secs(second));
        }
    };
    tokio::join!(saying, hearing);
    assert!(relay.ready.capacity() <= 4, "nothing piles up");
    let last = relay.collect().await.unwrap();
    assert!(last.trailers().unwrap().contains_key(PROOF));
    let signed = proofs(&signer);
    assert_eq!(signed.len(), 1);
    assert_eq!(
        (signed[0].end, signed[0].output_bytes),
        (StreamEnd::Completed, 3_600)
    );
    assert_eq!(signed[0].first_byte, Some(Timestamp::from_secs(START + 1)));
    assert_eq!(signed[0].to, Timestamp::from_secs(START + 3_600));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_falls_silent_is_given_up_at_the_bound() {
    let (signer, engine, mut relay) = rig(TERMS);
    engine.send(Ok(Bytes::from_static(b"data: 1\n\n"))).await.unwrap();
    assert_eq!(data(&mut relay).await, "data: 1\n\n");
    tokio::time::advance(Duration::from_secs(59)).await;
    engine.send(Ok(Bytes::from_static(b": must"))).await.unwrap();
    let started = Instant::now();
    assert_eq!(data(&mut relay).await, ": must", "the held bytes come at the end");
    assert_eq!(started.elapsed(), Duration::from_secs(60));
    let line = data(&mut relay).await;
    let text = proof_of(line.strip_prefix(b"\n: muster-".as_slice()).unwrap()).unwrap();
    let trailers = relay.frame().await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers[PROOF], text);
    assert!(relay.frame().await.is_none());
    assert_eq!(proofs(&signer)[0].end, StreamEnd::EngineSilent);
    assert_eq!(proofs(&signer)[0].output, Digest::of(b"data: 1\n\n: must"));
    assert!(engine.is_closed(), "the engine works for nobody");
}

#[tokio::test(start_paused = true)]
async fn every_other_end_is_signed_once_as_what_it_was() {
    let said = || Ok(Bytes::from_static(b"data: 12\n\n"));
    // Broken by the engine.
    let (signer, engine, relay) = rig(TERMS);
    engine.send(said()).await.unwrap();
    engine.send(Err(())).await.unwrap();
    relay.collect().await.unwrap();
    assert_eq!(
        proofs(&signer).iter().map(|proof| proof.end).collect::<Vec<_>>(),
        [StreamEnd::EngineFailed]
    );
    // The client has gone.
    let (signer, engine, mut relay) = rig(TERMS);
    engine.send(said()).await.unwrap();
    data(&mut relay).await;
    drop(relay);
    let signed = proofs(&signer);
    assert_eq!((signed.len(), signed[0].end), (1, StreamEnd::ClientGone));
    assert_eq!(signed[0].output, Digest::of(b"data: 12\n\n"));
    assert_eq!(signer.under_way(), 0);
    // The body is too large.
    let (signer, engine, relay) = rig(RelayTerms { budget: 15, ..TERMS });
    engine.send(said()).await.unwrap();
    engine.send(said()).await.unwrap();
    let sent = relay.collect().await.unwrap().to_bytes();
    assert!(
        sent.starts_with(b"data: 12\n\ndata:\n: muster-proof "),
        "{sent:?}"
    );
    let signed = proofs(&signer);
    assert_eq!(
        (signed.len(), signed[0].end, signed[0].output_bytes),
        (1, StreamEnd::Oversize, 15)
    );
    // The session is closed meanwhile.
    let (signer, engine, mut relay) = rig(TERMS);
    engine.send(said()).await.unwrap();
    data(&mut relay).await;
    signer.begin_close();
    relay.collect().await.unwrap();
    signer.wait_drained().await;
    let signed = proofs(&signer);
    assert_eq!((signed.len(), signed[0].end), (1, StreamEnd::SessionClosed));
    let close = signer.close().statement().unwrap();
    assert_eq!(close.responses, 1);
    assert_eq!(
        signer.close(),
        signer.closed().unwrap(),
        "there is one closing statement"
    );
    drop(begin(&signer));
    assert_eq!(proofs(&signer).len(), 1, "nothing is signed after it");
}
