//! The seed that the engine is sent, and the ids of tokens that the proof binds.

use http::Request;
use http::header::TRAILER;
use muster_process::Tasks;
use muster_protocol::Digest;
use muster_response_proof::headers::{CLIENT_NONCE, GATEWAY_NONCE, PROOF, SEED};
use muster_response_proof::{RequestNonce, TokenFacts, answer_seed};
use tokio::io::AsyncWriteExt;

use crate::rig::{EVENTS, Engine, Kind, ProvenAnswer, Rig, chunk};

const ASKING: &str = r#"{"prompt":"x","return_token_ids":true}"#;
const DOCUMENT: &str = r#"{"choices":[{"text":"ab","prompt_token_ids":[5,6],"token_ids":[7,8]}]}"#;

fn post() -> http::request::Builder {
    Request::post("/v1/completions").header("content-type", "application/json")
}

fn document(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// A session whose engine always sends these bytes.
async fn session(answer: Vec<u8>) -> (Rig, Engine) {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, move |mut stream| {
        let answer = answer.clone();
        async move { stream.write_all(&answer).await.unwrap() }
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    (rig, engine)
}

fn tokens(rig: &Rig, answer: &ProvenAnswer) -> Option<TokenFacts> {
    answer.proven(&mut rig.ledger()).tokens
}

fn facts() -> TokenFacts {
    TokenFacts {
        prompt: Digest::of(&[0, 0, 0, 5, 0, 0, 0, 6]),
        prompt_count: 2,
        output: Digest::of(&[0, 0, 0, 7, 0, 0, 0, 8]),
        output_count: 2,
    }
}

/// The value of the header with the engine's seed, in the engine's last request.
fn sent_seed(engine: &Engine) -> Option<String> {
    let heard = engine.heard();
    let head = heard.last().unwrap().split_once("\r\n\r\n").unwrap().0.to_owned();
    let prefix = format!("{SEED}: ");
    head.lines()
        .find_map(|line| line.strip_prefix(&prefix))
        .map(str::to_owned)
}

#[tokio::test]
async fn the_engine_is_told_the_seed_that_follows_from_both_nonces_and_the_request() {
    let (rig, engine) = session(document(DOCUMENT).into_bytes()).await;
    let (client, gateway) = ("ab".repeat(32), "cd".repeat(32));
    let nonces = || {
        (
            RequestNonce::from_hex(&client).unwrap(),
            RequestNonce::from_hex(&gateway).unwrap(),
        )
    };
    let request = post()
        .header(CLIENT_NONCE, &client)
        .header(GATEWAY_NONCE, &gateway);
    rig.ask(request, ASKING).await;
    let seed = answer_seed(Some(&nonces().0), &Digest::of(ASKING.as_bytes()), &nonces().1);
    assert_eq!(sent_seed(&engine), Some(RequestNonce::from_bytes(seed).hex()));
    let other = RequestNonce::from_bytes([9; 32]);
    rig.ask(post().header(GATEWAY_NONCE, other.hex()), "{}").await;
    let seed = answer_seed(None, &Digest::of(b"{}"), &other);
    assert_eq!(sent_seed(&engine), Some(RequestNonce::from_bytes(seed).hex()));
}

#[tokio::test]
async fn a_session_takes_each_nonce_of_the_gateway_once_and_signs_nothing_for_another_request_with_it() {
    let (rig, engine) = session(document(DOCUMENT).into_bytes()).await;
    let request = || post().header(GATEWAY_NONCE, "cd".repeat(32));
    rig.ask(request(), ASKING).await;
    for body in [ASKING, "{}"] {
        let refused = rig.ask(request(), body).await;
        assert_eq!(refused.head.status, 409);
        assert!(!refused.head.headers.contains_key(PROOF) && !refused.head.headers.contains_key(TRAILER));
    }
    assert_eq!(engine.heard().len(), 1, "the engine is asked once");
    let other = post().header(GATEWAY_NONCE, "ef".repeat(32));
    rig.ask(other, ASKING).await;
    assert_eq!(engine.heard().len(), 2);
}

#[tokio::test]
async fn without_the_gateways_nonce_there_is_no_seed_and_a_clients_own_header_is_not_passed_on() {
    let (rig, engine) = session(document(DOCUMENT).into_bytes()).await;
    let request = post()
        .header(CLIENT_NONCE, "ab".repeat(32))
        .header(SEED, "ef".repeat(32));
    rig.ask(request, "{}").await;
    assert_eq!(sent_seed(&engine), None);
}

#[tokio::test]
async fn the_proof_binds_the_ids_that_the_engine_states_if_the_request_asks_for_them() {
    let (rig, _engine) = session(document(DOCUMENT).into_bytes()).await;
    assert_eq!(tokens(&rig, &rig.ask(post(), ASKING).await), Some(facts()));
    let (rig, _engine) = session(document(DOCUMENT).into_bytes()).await;
    assert_eq!(tokens(&rig, &rig.ask(post(), "{}").await), None);
    let partial = r#"{"choices":[{"text":"ab","token_ids":[7,8]}]}"#;
    let (rig, _engine) = session(document(partial).into_bytes()).await;
    assert_eq!(tokens(&rig, &rig.ask(post(), ASKING).await), None);
}

#[tokio::test]
async fn the_ids_of_a_stream_are_bound_at_its_end() {
    let events = [
        "data: {\"choices\":[{\"text\":\"a\",\"prompt_token_ids\":[5,6],\"token_ids\":[7]}]}\n\n",
        ": muster-proof forged\n",
        "data: {\"choices\":[{\"text\":\"b\",\"token_ids\":[8]}]}\n\n",
        "data: [DONE]\n\n",
    ];
    let mut answer = EVENTS.as_bytes().to_vec();
    for event in events {
        answer.extend(chunk(event.as_bytes()));
    }
    answer.extend(b"0\r\n\r\n");
    let (rig, _engine) = session(answer).await;
    let request = post().header(GATEWAY_NONCE, "cd".repeat(32));
    assert_eq!(tokens(&rig, &rig.ask(request, ASKING).await), Some(facts()));
}
