//! Users from outside: gateways that lead inside, stolen API keys, and hotkeys that come in behind the facilitator.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use axum::Router;
use muster_client::{Client, ClientError, Credential};
use muster_identity::{Keypair, answer_challenge, sign_facilitator_auth};
use muster_process::{SharedClock, SystemClock};
use muster_protocol::account_api::{CreateKey, KeyRight};
use muster_protocol::rest::{CreateJob, SetWebhook};
use muster_protocol::wire::facilitator::{FromFacilitator, ToFacilitator};
use muster_protocol::wire::muster::{ChallengeResponse, GatewayNotice, ServedModel};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{JobId, JobStatus};
use muster_testbed::wait_for;
use muster_tests::{Layout, Parts, Role};
use muster_websocket::{Limits, Socket};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

fn layout() -> Layout {
    Layout {
        executors: 1,
        ..Layout::default()
    }
}

fn clock() -> SharedClock {
    Arc::new(SystemClock::new())
}

pub(crate) fn base(parts: &Parts) -> String {
    format!("http://{}", parts.address(Role::Facilitator))
}

pub(crate) async fn client(base: &str, credential: Credential) -> Client {
    Client::connect(base, credential, clock()).await.unwrap()
}

/// A service of the operator's network that everybody on this machine may read, and the number of its requests.
async fn internal_service() -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let answer = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready("role credentials")
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router = Router::new().fallback(answer);
    muster_process::Tasks::new().spawn("internal", async move { axum::serve(listener, router).await });
    Ok((address, asked))
}

/// Connects to the facilitator as a permitted validator, with its key.
pub(crate) async fn connect_as_validator(facilitator: SocketAddr, keys: &Keypair) -> Result<Socket> {
    let url = format!("ws://{facilitator}/ws/v0/");
    let mut socket = muster_websocket::connect(&url, &Limits::facilitator()).await?;
    let greeting = ToFacilitator::V0AuthenticationRequest(sign_facilitator_auth(keys));
    socket.send(encode(&greeting)).await?;
    let frame = socket.recv().await?.context("no challenge")?;
    let FromFacilitator::Challenge(challenge) = decode(&frame)? else {
        anyhow::bail!("not a challenge: {frame}");
    };
    let signature = answer_challenge(keys, &challenge.nonce);
    let answer = ToFacilitator::MusterChallengeResponse(ChallengeResponse { signature });
    socket.send(encode(&answer)).await?;
    socket.recv().await?.context("no answer")?;
    Ok(socket)
}

/// Announces a gateway, and waits until the facilitator has read the message: the one after it is answered.
pub(crate) async fn announce(socket: &mut Socket, url: &str) -> Result<()> {
    let model = ServedModel {
        id: "tiny".to_owned(),
        input_price: 1,
        output_price: 1,
    };
    let notice = GatewayNotice {
        url: Some(url.to_owned()),
        models: vec![model],
    };
    socket
        .send(encode(&ToFacilitator::MusterGateway(Box::new(notice))))
        .await?;
    let again = ToFacilitator::V0AuthenticationRequest(sign_facilitator_auth(&Keypair::generate()));
    socket.send(encode(&again)).await?;
    socket.recv().await?.context("the facilitator closed")?;
    Ok(())
}

#[test]
fn a_validators_gateway_reads_nothing_inside_the_facilitators_network() {
    let mut parts = Parts::start(&layout()).unwrap();
    parts.kill(Role::Validator).unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let (inside, asked) = internal_service().await.unwrap();
        let user = client(&base(&parts), Credential::hotkey(parts.keys().user.clone())).await;
        let key = user.create_key(&named("thief")).await.unwrap().key.unwrap();
        let facilitator = parts.address(Role::Facilitator);
        let mut validator = connect_as_validator(facilitator, &parts.keys().validator)
            .await
            .unwrap();
        let http = reqwest::Client::new();
        for url in [
            format!("http://{inside}/latest/meta-data/#"),
            format!("http://{inside}"),
            format!("http://localhost:{}", inside.port()),
            format!("http://[::ffff:127.0.0.1]:{}", inside.port()),
        ] {
            announce(&mut validator, &url).await.unwrap();
            for (method, path) in [
                (reqwest::Method::GET, "/v1/proofs/00"),
                (reqwest::Method::POST, "/v1/chat/completions"),
            ] {
                let request = http
                    .request(method, format!("{}{path}", base(&parts)))
                    .bearer_auth(&key)
                    .json(&json!({"model": "tiny", "stream": true, "messages": []}));
                let answer = request.send().await.unwrap();
                let (status, body) = (answer.status(), answer.text().await.unwrap());
                assert!(
                    !status.is_success() && !body.contains("credentials"),
                    "{url}: {status} {body}"
                );
            }
        }
        assert_eq!(
            asked.load(Ordering::SeqCst),
            0,
            "nobody was asked: {}",
            parts.log(Role::Facilitator)
        );
    });
}

pub(crate) fn named(name: &str) -> CreateKey {
    CreateKey {
        name: name.to_owned(),
        ..CreateKey::default()
    }
}

fn is_forbidden<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> bool {
    match answer {
        Err(ClientError::Refused { status, .. }) => status == reqwest::StatusCode::FORBIDDEN,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_stolen_key_does_not_outlast_its_revocation() {
    let parts = Parts::start(&layout()).unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let base = base(&parts);
        let user = client(&base, Credential::hotkey(parts.keys().user.clone())).await;
        let stolen = user.create_key(&named("laptop")).await.unwrap();
        let thief = client(&base, Credential::key(stolen.key.clone().unwrap())).await;
        thief.jobs(1, 1).await.unwrap();
        // The thief settles in: another key, the end of the owner's keys, a copy of every result.
        assert!(is_forbidden(thief.create_key(&named("mine")).await));
        assert!(is_forbidden(thief.revoke_key(&stolen.id).await));
        let hook = SetWebhook {
            url: Some("https://thief.example/".to_owned()),
            new_secret: true,
        };
        assert!(is_forbidden(thief.set_webhook(&hook).await));
        // Also a key that may make keys leaves nothing behind.
        let maker = CreateKey {
            rights: Some(vec![KeyRight::Keys, KeyRight::Read]),
            ..named("maker")
        };
        let maker = user.create_key(&maker).await.unwrap();
        let by_maker = client(&base, Credential::key(maker.key.clone().unwrap())).await;
        let left = by_maker.create_key(&named("left behind")).await.unwrap();
        let left = client(&base, Credential::key(left.key.unwrap())).await;
        left.jobs(1, 1).await.unwrap();
        for key in [&stolen, &maker] {
            user.revoke_key(&key.id).await.unwrap();
        }
        for held in [&thief, &by_maker, &left] {
            let refused = held.jobs(1, 1).await.unwrap_err();
            assert!(matches!(refused, ClientError::Unauthorised { .. }), "{refused:?}");
        }
        assert!(user.keys().await.unwrap().is_empty());
    });
}

fn job(parts: &Parts) -> CreateJob {
    serde_json::from_value(json!({
        "target_validator_hotkey": parts.keys().validator.hotkey().to_string(),
        "executor_class": "always_on.test",
        "docker_image": "nowhere.example/none:1",
        "args": [],
        "download_time_limit": 1,
        "execution_time_limit": 1,
        "streaming_start_time_limit": 0,
        "upload_time_limit": 1,
    }))
    .unwrap()
}

/// Makes the validator take the jobs that its facilitator signs for accounts, one open job of each.
fn list_facilitator(parts: &mut Parts, runtime: &Runtime) -> Result<()> {
    let health: Value = runtime.block_on(async {
        let answer = reqwest::get(format!("{}/health", base(parts))).await?;
        anyhow::Ok(answer.json().await?)
    })?;
    let file = parts.config_file(Role::Validator);
    let mut config: toml::Table = toml::from_str(&std::fs::read_to_string(&file)?)?;
    let users = config
        .get_mut("users")
        .and_then(toml::Value::as_table_mut)
        .context("no users")?;
    let signer = health
        .get("hotkey")
        .and_then(Value::as_str)
        .context("no hotkey")?;
    users.insert("facilitators".to_owned(), vec![signer].into());
    let budget = toml::toml! { account_open_jobs = 1 };
    users.insert("budget".to_owned(), budget.into());
    std::fs::write(&file, toml::to_string(&config)?)?;
    parts.kill(Role::Validator)?;
    parts.begin(Role::Validator)
}

/// Submits a job without a signature once the validator can be chosen.
fn submit(runtime: &Runtime, client: &Client, job: &CreateJob) -> JobId {
    wait_for("the validator", || {
        anyhow::Ok(runtime.block_on(client.create(job)).ok().map(|view| view.uuid))
    })
    .unwrap()
}

/// The job's refusal by the validator; `None` if the validator took it.
fn refusal(runtime: &Runtime, client: &Client, job: JobId) -> Option<String> {
    wait_for("the validator's answer", || {
        let view = runtime.block_on(client.job(job))?;
        let answer = view
            .status_history
            .iter()
            .find(|entry| entry.status != JobStatus::Sent);
        anyhow::Ok(answer.map(|entry| {
            let details = entry.metadata.as_ref()?.job_rejection_details.as_ref()?;
            Some(details.message.clone())
        }))
    })
    .unwrap()
}

#[test]
fn a_hotkey_that_the_validator_does_not_list_comes_in_by_no_api_key() {
    let mut parts = Parts::start(&layout()).unwrap();
    let runtime = Runtime::new().unwrap();
    list_facilitator(&mut parts, &runtime).unwrap();
    let base = base(&parts);
    let by_key = |keys: Keypair| {
        runtime.block_on(async {
            let owner = client(&base, Credential::hotkey(keys)).await;
            let key = owner.create_key(&named("program")).await.unwrap().key.unwrap();
            client(&base, Credential::key(key)).await
        })
    };
    let job = job(&parts);
    let stranger = by_key(Keypair::generate());
    let refused = submit(&runtime, &stranger, &job);
    let message = refusal(&runtime, &stranger, refused).unwrap_or_default();
    assert!(
        message.contains("does not take jobs of the account"),
        "{message}\n{}",
        parts.logs()
    );
    let listed = by_key(parts.keys().user.clone());
    let taken = submit(&runtime, &listed, &job);
    assert_eq!(refusal(&runtime, &listed, taken), None, "{}", parts.logs());
}
