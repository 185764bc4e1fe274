//! The nonces that sessions sign: random before the validator has a key, and a function of the key afterwards.

use muster_response_proof::{Envelope, NonceInput, RequestNonce, ResponseProof};

use crate::failed_requests::FirstRequest;
use crate::rig::World;
use crate::subnet::JobFate;

const KEY: [u8; 32] = [7; 32];

/// The id of an answer and the proof that its session signed.
async fn ask(world: &World, words: usize, client_nonce: Option<&str>) -> (String, ResponseProof) {
    let mut request = world.chat(words, true);
    if let Some(nonce) = client_nonce {
        request = request.header("muster-client-nonce", nonce);
    }
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    answer.bytes().await.unwrap();
    let view = world.proof(&id).await;
    assert_eq!(view["verdict"], "proven");
    let envelope = Envelope::<ResponseProof>::from_text(view["proof"].as_str().unwrap()).unwrap();
    let proof = envelope.statement().unwrap();
    assert_eq!(view["nonce"], proof.gateway_nonce.unwrap().hex());
    (id, proof)
}

fn derived(proof: &ResponseProof, ordinal: u64) -> Option<RequestNonce> {
    Some(RequestNonce::derive(
        &KEY,
        &NonceInput {
            attestation: &proof.attestation,
            client: &proof.client.unwrap(),
            client_nonce: proof.client_nonce.as_ref(),
            request: &proof.input,
            ordinal,
        },
    ))
}

#[tokio::test]
async fn the_key_gives_every_nonce_and_equal_requests_have_pseudonyms_of_their_own() {
    let world = World::new(|_| ()).await;
    let (early, random) = ask(&world, 3, None).await;
    assert!((0..9).all(|ordinal| derived(&random, ordinal) != random.gateway_nonce));
    world.gateway.answer_log().use_nonce_key(Some(KEY));
    let (first, proof) = ask(&world, 3, None).await;
    assert_eq!(proof.gateway_nonce, derived(&proof, 0));
    let (second, again) = ask(&world, 3, None).await;
    assert_eq!(
        (again.input, again.gateway_nonce),
        (proof.input, derived(&again, 0))
    );
    assert_ne!(
        (again.client, again.gateway_nonce),
        (proof.client, proof.gateway_nonce)
    );
    let (third, other) = ask(&world, 4, None).await;
    assert_eq!(other.gateway_nonce, derived(&other, 0), "another request");
    let (fourth, own) = ask(&world, 3, Some(&"ab".repeat(32))).await;
    assert_eq!(own.gateway_nonce, derived(&own, 0), "the client's nonce");
    let ids: std::collections::BTreeSet<String> = [early, first, second, third, fourth].into();
    assert_eq!(ids.len(), 5);
    // A retry on another session has the session's own nonce.
    world.subnet.kill_all();
    let (_, moved) = ask(&world, 3, None).await;
    assert_ne!(moved.attestation, proof.attestation);
    assert_eq!(moved.gateway_nonce, derived(&moved, 0));
    world.gateway.answer_log().use_nonce_key(None);
    let (_, later) = ask(&world, 3, None).await;
    assert_ne!(later.gateway_nonce, derived(&later, 0), "without a key");
}

#[tokio::test]
async fn only_a_request_that_the_session_cannot_sign_gives_its_nonce_back() {
    for (first, ordinal) in [
        (FirstRequest::Refused, 0),
        // Its proof has the first nonce, and no second one may have it.
        (FirstRequest::SignedAndBrokenOff, 1),
    ] {
        let world = World::new(|_| ()).await;
        *world.subnet.fates.lock().unwrap() = vec![JobFate::FailsFirst(first)];
        world.gateway.answer_log().use_nonce_key(Some(KEY));
        let (_, proof) = ask(&world, 3, None).await;
        assert_eq!(proof.gateway_nonce, derived(&proof, ordinal), "{first:?}");
        let (_, next) = ask(&world, 3, None).await;
        assert_eq!(next.attestation, proof.attestation, "{first:?}");
        assert_eq!(next.gateway_nonce, derived(&next, 0), "{first:?}");
    }
}
