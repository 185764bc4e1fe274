//! A miner sees nothing that two requests of one client have in common, and nothing by which an own prompt differs from
//! them.

use std::collections::BTreeSet;

use muster_gateway::logged_session::OwnQuestion;
use muster_gateway::store::LoggedAnswer;
use muster_process::{Clock as _, SystemClock};
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::headers::CLIENT_KEY;
use muster_response_proof::{
    BucketNumber, ClientKey, Envelope, GatewayToken, ReportedAnswer, RequestNonce, ResponseProof, seal,
};
use muster_testbed::patience;
use serde_json::{Value, json};

use crate::rig::{World, facilitator};
use crate::subnet::validator;

/// A chat of a facilitator's client, as the facilitator forwards it: with the client's key, unless it is of an earlier
/// release.
async fn ask_as(world: &World, key: Option<ClientKey>, nonce: Option<RequestNonce>) -> Value {
    let now = SystemClock::new().now();
    let token = GatewayToken {
        facilitator: facilitator().hotkey(),
        audience: ValidatorKey(validator().hotkey()),
        client: Digest::of(b"alice"),
        not_before: now,
        not_after: now.plus(patience().min(muster_response_proof::MAX_LIFETIME)),
    };
    let bearer = seal(&token, &facilitator()).to_text();
    let body = json!({"model": "tiny", "max_tokens": 2, "messages": []}).to_string();
    let credentials = |request: reqwest::RequestBuilder| {
        let request = request.bearer_auth(&bearer);
        match key {
            Some(key) => request.header(CLIENT_KEY, key.hex()),
            None => request,
        }
    };
    let mut request = credentials(world.http.post(format!("{}/v1/chat/completions", world.base))).body(body);
    if let Some(nonce) = nonce {
        request = request.header("muster-client-nonce", nonce.hex());
    }
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    answer.bytes().await.unwrap();
    let url = format!("{}/v1/proofs/{id}", world.base);
    crate::rig::until("the proof", || async {
        let shown = credentials(world.http.get(&url)).send().await.unwrap();
        match shown.status().as_u16() {
            200 => Some(shown.json().await.unwrap()),
            _ => None,
        }
    })
    .await
}

fn proof_of(view: &Value) -> ResponseProof {
    let text = view["proof"].as_str().unwrap();
    Envelope::from_text(text).unwrap().statement().unwrap()
}

/// Whether a client that holds this key shows that an answer is its own.
fn is_opened(view: &Value, key: &ClientKey) -> Option<bool> {
    let reported = ReportedAnswer {
        proof: view["proof"].as_str().unwrap().to_owned(),
        pseudonym_nonce: view["pseudonym_nonce"].as_str().map(str::to_owned),
        words: None,
    };
    reported.is_of(&proof_of(view), key)
}

#[tokio::test]
async fn requests_of_a_client_share_nothing_and_the_client_opens_each_of_them() {
    let world = World::new(|_| ()).await;
    let key = ClientKey::from_bytes([7; 32]);
    let named = RequestNonce::from_bytes([9; 32]);
    let views = [
        ask_as(&world, Some(key), None).await,
        ask_as(&world, Some(key), None).await,
        ask_as(&world, Some(key), Some(named)).await,
    ];
    let clients: BTreeSet<String> = views
        .iter()
        .map(|view| proof_of(view).client.unwrap().hex())
        .collect();
    assert_eq!(clients.len(), 3, "one pseudonym for each request");
    for view in &views {
        assert_eq!(is_opened(view, &key), Some(true), "{view}");
        assert_eq!(is_opened(view, &ClientKey::from_bytes([8; 32])), Some(false));
    }
    assert_eq!(
        proof_of(&views[0]).client_nonce,
        None,
        "the drawn nonce is not shown to the session"
    );
    assert_eq!(
        views[2]["pseudonym_nonce"],
        Value::Null,
        "the client has its own nonce"
    );
}

#[tokio::test]
async fn a_client_of_an_earlier_facilitator_keeps_the_pseudonym_that_its_facilitator_knows() {
    let world = World::new(|_| ()).await;
    let (first, second) = (ask_as(&world, None, None).await, ask_as(&world, None, None).await);
    let stable = muster_response_proof::client_pseudonym(
        facilitator().hotkey().as_bytes(),
        Digest::of(b"alice").as_bytes(),
    );
    for view in [&first, &second] {
        assert_eq!(proof_of(view).client, Some(stable));
        assert_eq!(view["pseudonym_nonce"], Value::Null);
    }
    // Once its facilitator gives keys, the proofs of before are found all the same.
    let keyed = ask_as(&world, Some(ClientKey::from_bytes([7; 32])), None).await;
    assert_ne!(proof_of(&keyed).client, Some(stable));
    let (row, _) = world
        .store()
        .find_response(first["id"].as_str().unwrap())
        .await
        .unwrap()
        .unwrap();
    let (later, _) = world
        .store()
        .find_response(keyed["id"].as_str().unwrap())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((row.client, later.client), (stable, stable));
}

#[tokio::test]
async fn leaves_hide_clients_open_to_one_label_a_day_and_look_alike_for_own_prompts() {
    let world = World::new(|_| ()).await;
    let (alice, bob) = (ClientKey::from_bytes([7; 32]), ClientKey::from_bytes([8; 32]));
    for key in [alice, alice, bob] {
        ask_as(&world, Some(key), None).await;
    }
    let body = json!({"model": "tiny", "max_tokens": 2, "messages": []}).to_string();
    for own in [b"first", b"other"] {
        let question = OwnQuestion {
            is_chat: true,
            body: body.clone().into(),
            client: Digest::of(own),
            client_nonce: None,
            gateway_nonce: RequestNonce::from_bytes(*Digest::of(own).as_bytes()),
        };
        world
            .gateway
            .ask(world.live_session().await, question)
            .await
            .unwrap();
    }
    let log = world.gateway.answer_log();
    let logged = log.fill(BucketNumber(700)).await.unwrap();
    assert_eq!(logged.len(), 5);
    let leaf = |answer: &LoggedAnswer| answer.leaf().unwrap().stratum;
    let opening = |answer: &LoggedAnswer| answer.client_opening().unwrap();
    let mut seen: BTreeSet<Digest> = logged.iter().map(leaf).collect();
    for answer in &logged {
        let proof = Envelope::<ResponseProof>::from_text(&answer.proof).unwrap();
        seen.insert(proof.statement().unwrap().client.unwrap());
        assert_eq!(opening(answer).commitment(), leaf(answer));
    }
    assert_eq!(
        seen.len(),
        10,
        "no leaf and no pseudonym has anything of another answer"
    );
    let labels: BTreeSet<Digest> = logged.iter().map(|answer| opening(answer).label).collect();
    assert_eq!(labels.len(), 4, "the two answers to alice have one");
    assert_eq!(opening(&logged[0]).label, opening(&logged[1]).label);
    let other_day = LoggedAnswer {
        bucket: BucketNumber(700 + 288),
        ..logged[0].clone()
    };
    assert_ne!(opening(&other_day).label, opening(&logged[0]).label);
    // The leaf of an answer that an earlier release kept names what the session saw.
    let earlier = LoggedAnswer {
        client_key: None,
        ..logged[0].clone()
    };
    assert_eq!((earlier.client_opening(), leaf(&earlier)), (None, earlier.client));
}
