//! Chats of one account at once, against its tokens of a day.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use axum::routing::post;
use axum::{Json, Router};
use muster_client::Credential;
use muster_process::Tasks;
use muster_testbed::wait_for;
use muster_tests::{Layout, Parts, Role};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::outside_users::{announce, base, client, connect_as_validator, named};
use super::support::{reconfigure, set};

const TOKENS: i64 = 450;
/// The output that each chat asks for.
const OUTPUT: u64 = 100;

/// A gateway that answers nothing before the test releases it.
struct HeldGateway {
    url: String,
    heard: Arc<AtomicUsize>,
    released: watch::Sender<bool>,
}

impl HeldGateway {
    async fn open() -> Result<Self> {
        let (heard, released) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(false));
        let (counted, gate) = (Arc::clone(&heard), released.subscribe());
        let answer = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut gate = gate.clone();
            async move {
                // The sender lives as long as the test.
                let _ = gate.wait_for(|released| *released).await;
                let message = json!({"role": "assistant", "content": "hello"});
                Json(json!({
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
                }))
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let router = Router::new().route("/v1/chat/completions", post(answer));
        Tasks::new().spawn("gateway", async move { axum::serve(listener, router).await });
        Ok(Self { url, heard, released })
    }

    fn heard(&self) -> usize {
        self.heard.load(Ordering::SeqCst)
    }
}

fn ask(output: u64) -> Value {
    json!({"model": "tiny", "max_tokens": output, "messages": [{"role": "user", "content": "hi"}]})
}

#[test]
fn chats_at_once_get_no_more_tokens_than_their_account_has_and_a_kill_gives_none_back() {
    const CHATS: usize = 20;
    let layout = Layout {
        executors: 1,
        ..Layout::default()
    };
    let mut parts = Parts::start(&layout).unwrap();
    parts.kill(Role::Validator).unwrap();
    reconfigure(&mut parts, Role::Facilitator, |settings| {
        set(settings, "limits", "daily_tokens", TOKENS);
        set(settings, "gateways", "allow", vec!["127.0.0.0/8"]);
    })
    .unwrap();
    let runtime = Runtime::new().unwrap();
    let gateway = runtime.block_on(HeldGateway::open()).unwrap();
    let connect = |parts: &Parts| {
        runtime.block_on(async {
            let address = parts.address(Role::Facilitator);
            let mut validator = connect_as_validator(address, &parts.keys().validator).await?;
            announce(&mut validator, &gateway.url).await?;
            anyhow::Ok(validator)
        })
    };
    let _validator = connect(&parts).unwrap();
    let key = runtime.block_on(async {
        let user = client(&base(&parts), Credential::hotkey(parts.keys().user.clone())).await;
        user.create_key(&named("program")).await.unwrap().key.unwrap()
    });
    let url = format!("{}/v1/chat/completions", base(&parts));
    let chat = |output: u64| {
        let request = reqwest::Client::new()
            .post(&url)
            .bearer_auth(&key)
            .json(&ask(output));
        async move { Ok::<_, reqwest::Error>(request.send().await?.status().as_u16()) }
    };

    let refused = Arc::new(AtomicUsize::new(0));
    let tasks = Tasks::new();
    for _ in 0..CHATS {
        let (chat, refused) = (chat(OUTPUT), Arc::clone(&refused));
        let _guard = runtime.enter();
        drop(tasks.spawn("chat", async move {
            // The chats that were forwarded end with the facilitator.
            if chat.await.is_ok_and(|status| status == 429) {
                refused.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    wait_for("every chat at the gateway or refused", || {
        let settled = gateway.heard() + refused.load(Ordering::SeqCst) == CHATS;
        anyhow::Ok(settled.then_some(()))
    })
    .unwrap();
    // Each may use a hundred tokens of output, and less than fifty of input.
    assert_eq!(gateway.heard(), 3, "{}", parts.log(Role::Facilitator));

    // A facilitator that is killed in the middle has not forgotten what it forwarded.
    parts.kill(Role::Facilitator).unwrap();
    parts.begin(Role::Facilitator).unwrap();
    let _validator = connect(&parts).unwrap();
    assert_eq!(runtime.block_on(chat(OUTPUT)).unwrap(), 429);
    assert_eq!(gateway.heard(), 3);
    // A chat that fits into the rest is answered, and what it did not use is given back.
    gateway.released.send_replace(true);
    for _ in 0..3 {
        wait_for("the rest of the tokens", || {
            anyhow::Ok((runtime.block_on(chat(20))? == 200).then_some(()))
        })
        .unwrap();
    }
}
