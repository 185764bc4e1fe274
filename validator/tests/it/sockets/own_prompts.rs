//! A validator asks its own prompts as its users ask.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use muster_protocol::Digest;
use parking_lot::Mutex;
use serde_json::Value;

use crate::sockets::audit_runs::{Audited, with_configured};
use crate::sockets::support::model::{model, reference};
use crate::sockets::support::within;

/// The words of every user.
const SECRET: &str = "my landlord's name";
/// Clients of the gateway: enough to be a crowd.
const CLIENTS: u64 = 8;

/// The honest model's program, and the chats that it was asked, in their order.
fn listening_model() -> (axum::Router, Arc<Mutex<Vec<Bytes>>>) {
    let heard: Arc<Mutex<Vec<Bytes>>> = Arc::default();
    let listening = Arc::clone(&heard);
    let listen = from_fn(move |request: Request, next: Next| {
        let listening = Arc::clone(&listening);
        async move {
            let (head, body) = request.into_parts();
            let body = to_bytes(body, 1 << 20).await.unwrap();
            if head.uri.path() == "/v1/chat/completions" {
                listening.lock().push(body.clone());
            }
            next.run(Request::from_parts(head, Body::from(body))).await
        }
    });
    (model(false, None).layer(listen), heard)
}

/// A request as Python's `requests` writes it, of a client that no built-in form is like.
fn unusual_chat(client: u64) -> String {
    format!(
        "{{\"temperature\": 0.9, \"messages\": [{{\"role\": \"system\", \"content\": \"Answer {SECRET} only.\"}}, {{\"role\": \
         \"user\", \"content\": \"{SECRET}, asked by {client}\"}}], \"max_tokens\": 77, \"model\": \"tiny\"}}"
    )
}

async fn ask_as(audited: &Audited, client: u64) {
    let request = reqwest::Client::new()
        .post(format!("{}/v1/chat/completions", audited.gateway()))
        .bearer_auth(format!("key {client}"))
        .body(unusual_chat(client));
    let answer = within("an answer", request.send()).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.bytes().await.unwrap();
}

/// The speakers and texts of a chat.
fn messages(body: &Bytes) -> Vec<(String, String)> {
    let asked: Value = serde_json::from_slice(body).unwrap();
    let text = |message: &Value, name: &str| message[name].as_str().unwrap().to_owned();
    let messages = asked["messages"].as_array().unwrap().iter();
    messages
        .map(|message| (text(message, "role"), text(message, "content")))
        .collect()
}

/// Prompts of each bucket: enough for later turns to be among them.
const OF_BUCKET: u64 = 255;

#[tokio::test]
async fn later_turns_of_own_prompts_go_on_with_what_the_miner_has_answered() {
    let (program, heard) = listening_model();
    let configure = |config: &mut muster_validator::Config| {
        config.audit.own_prompts = u32::try_from(OF_BUCKET).unwrap();
        config.gateway.requests = 1_024;
    };
    let story = async |audited: &mut Audited, _: &_| {
        audited.ask().await;
        audited.draw(0, 1).await;
        audited.answered(1 + OF_BUCKET).await;
        // This draw makes the texts of the first list's answers readable, after the second list was made.
        audited.draw(1, OF_BUCKET).await;
        audited.answered(1 + 2 * OF_BUCKET).await;
        audited.draw(2, OF_BUCKET).await;
        audited.answered(1 + 3 * OF_BUCKET).await;
        let heard = heard.lock();
        let chats: Vec<_> = heard.iter().map(messages).collect();
        let all = usize::try_from(OF_BUCKET).unwrap();
        let (first, second) = (&chats[1..=2 * all], &chats[2 * all + 1..]);
        let later = |chat: &&Vec<(String, String)>| chat.iter().any(|(role, _)| role == "assistant");
        assert_eq!(
            first.iter().filter(later).count(),
            0,
            "nothing was answered before"
        );
        let asked_first: Vec<&str> = first.iter().map(|chat| chat.last().unwrap().1.as_str()).collect();
        let second: Vec<_> = second.iter().filter(later).collect();
        assert!(
            second.len() >= 20,
            "a quarter of the usual forms: {}",
            second.len()
        );
        for chat in second {
            let [.., (_, question), (role, answer), (_, next)] = chat.as_slice() else {
                panic!("{chat:?}")
            };
            assert!(asked_first.contains(&question.as_str()), "{chat:?}");
            assert_eq!(role, "assistant");
            assert!(answer.starts_with("words"), "the miner has answered so: {chat:?}");
            assert_ne!(question, next);
        }
    };
    with_configured((program, reference()), None, false, configure, story).await;
}

#[tokio::test]
async fn own_prompts_have_the_form_of_users_requests_and_none_of_their_words() {
    let (program, heard) = listening_model();
    let configure = |config: &mut muster_validator::Config| {
        config.audit.own_prompts = 0;
        for client in 0..CLIENTS {
            let key = Digest::of(format!("key {client}").as_bytes());
            config.gateway.keys.insert(format!("client {client}"), key);
        }
    };
    with_configured(
        (program, reference()),
        None,
        true,
        configure,
        async |audited, _| {
            for client in 0..CLIENTS {
                ask_as(audited, client).await;
            }
            audited.answered(CLIENTS).await;
            audited.draw(0, CLIENTS).await;
            // The forms of a bucket are kept before the next one is closed.
            ask_as(audited, 0).await;
            audited.draw(1, 1).await;
            audited.world.kill();
            audited.world.config.audit.own_prompts = 4;
            audited.restart().await;
            // There is a session, so there is a model to ask.
            ask_as(audited, 0).await;
            let of_users = usize::try_from(CLIENTS + 2).unwrap();
            // The header of the third bucket commits to a list, and its draw block gives the pseudonyms.
            audited.world.chain.seal_to(75);
            audited
                .until_bucket(2, |bucket| bucket["header"].is_string())
                .await;
            audited.world.chain.seal_to(87);
            let asked = within("own prompts", async {
                loop {
                    if heard.lock().len() >= of_users + 4 {
                        return heard.lock().split_off(of_users);
                    }
                    crate::sockets::support::look_again().await;
                }
            })
            .await;
            for body in asked {
                let text = std::str::from_utf8(&body).unwrap();
                assert!(
                    text.starts_with("{\"temperature\": 0.9, \"messages\": [{\"role\": \"system\", "),
                    "{text}"
                );
                assert!(
                    text.ends_with(", \"max_tokens\": 77, \"model\": \"tiny\"}"),
                    "{text}"
                );
                assert!(!text.contains(SECRET) && !text.contains("asked by"), "{text}");
                let asked: Value = serde_json::from_str(text).unwrap();
                let roles: Vec<&str> = asked["messages"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|message| message["role"].as_str().unwrap())
                    .collect();
                assert_eq!(roles, ["system", "user"], "{text}");
            }
        },
    )
    .await;
}
