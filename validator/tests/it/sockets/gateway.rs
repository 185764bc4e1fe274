//! The validator's gateway: its sessions are jobs of the validator's own.

use std::net::TcpListener;

use muster_gateway::Settings;
use muster_identity::sign_streaming_ready;
use muster_process::{Tasks, certificate};
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::miner::{InitialJobRequest, SealTerms, StreamingJobReady};
use muster_protocol::wire::muster::ListedImage;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{AttemptId, Digest, ImageId};
use muster_session_pool::Service;
use muster_validator::TimingConfig;
use serde_json::{Value, json};

use crate::sockets::support::miner::{Miner, Session};
use crate::sockets::support::{World, within};

fn service() -> Service {
    let entry = json!({
        "model": "tiny", "image": ImageId(Digest::of(b"image")), "class": "always_on.test", "output_price": 7,
        "input_tokens_per_s": 1_000, "output_tokens_per_s": 1,
        "args": ["serve"], "env": {"A": "b"}, "scheme": "text", "listen": {"port": 8000},
    });
    serde_json::from_value(entry).unwrap()
}

#[tokio::test]
async fn a_session_is_a_job_of_the_validators_own_of_which_no_facilitator_hears() {
    let mut miner = Miner::open("//Miner").await;
    let mut world = World::in_real_time(&[&miner]).await;
    // The miner takes up the first session only: the tries after it end by the validator's own time-outs.
    world.config.timing = TimingConfig {
        linger_s: 0,
        ..TimingConfig::default()
    };
    world.config.gateway = Settings {
        bind: Some(([127, 0, 0, 1], 0).into()),
        keys: [("me".to_owned(), Digest::of(b"key"))].into(),
        services: vec![service()],
        ..Settings::default()
    };
    world.start();
    world.facilitator.accept().await;
    let ToFacilitator::MusterGateway(notice) = world.facilitator.receive().await else {
        panic!("the gateway was to be announced first")
    };
    assert_eq!(
        (notice.models[0].id.as_str(), notice.models[0].output_price),
        ("tiny", 7)
    );
    muster_process::tls::install_provider();
    let ask = reqwest::Client::new()
        .post(format!("{}/v1/chat/completions", notice.url.unwrap()))
        .bearer_auth("key")
        .body(r#"{"model":"tiny"}"#)
        .send();
    let tasks = Tasks::new();
    let asking = tasks.spawn("a client", ask);

    // The miner gets an ordinary offer, with the terms of the attestation. Every connection to a miner, this one and
    // the one that publishes the whitelist, begins with the whitelist.
    let listed = [ListedImage {
        image: service().image,
        reference: None,
        class: service().class,
        model: "tiny".to_owned(),
        share: None,
    }];
    let (mut session, offer) = loop {
        let mut session = miner.accept().await;
        let ValidatorToMiner::MusterWhitelist(told) = session.receive().await else {
            panic!("a whitelist was due")
        };
        assert_eq!(told.images, listed);
        match session.next_message().await {
            Some(ValidatorToMiner::V0InitialJobRequest(offer)) => {
                session.take_up(&offer).await;
                break (session, offer);
            }
            Some(other) => panic!("an offer was due: {other:?}"),
            None => {}
        }
    };
    assert_eq!(
        offer.docker_image.as_deref(),
        Some(service().image.to_string().as_str())
    );
    let details = offer.streaming_details.unwrap();
    assert!(details.public_key.starts_with("-----BEGIN CERTIFICATE-----"));
    let terms = details.muster.unwrap();
    assert!(terms.job.is_some());
    assert_eq!(SealTerms { job: None, ..terms }, service().terms());
    let attempt: AttemptId = offer.job_uuid;
    session.accept_job(attempt).await;
    session.accepted_receipt().await;
    session.horde_failed(attempt).await;
    assert_eq!(session.paid().await, "0.000000");

    // No other miner can take the session; after the third try the client receives the reason.
    let answer = asking.join().await.unwrap().unwrap();
    assert_eq!(answer.status(), 503);
    let body: Value = answer.json().await.unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("no session could be started: "), "{message}");
    let state = world.state().await;
    assert_eq!(state["updates_waiting"], 0, "{state}");
    assert_eq!(state["jobs"].as_array().unwrap().len(), 3);
    let sessions = world.get("/v0/sessions").await;
    assert_eq!(sessions["models"][0]["waiting"], 0, "{sessions}");
    assert_eq!(sessions["gateway"]["models"][0]["id"], "tiny");
    tasks.shutdown();
}

/// The next offer to the miner, over a connection that brings the whitelist first.
async fn next_offer(miner: &mut Miner) -> (Session, InitialJobRequest) {
    loop {
        let mut session = miner.accept().await;
        while let Some(message) = session.next_message().await {
            if let ValidatorToMiner::V0InitialJobRequest(offer) = message {
                session.take_up(&offer).await;
                return (session, *offer);
            }
        }
    }
}

/// A session's server that the miner signs for, at a host and a port that it chooses.
fn ready_at(session: &Session, attempt: AttemptId, host: &str, port: u16) -> MinerToValidator {
    let server = certificate::make_self_signed(&["localhost".to_owned()]).unwrap();
    let signature = sign_streaming_ready(&session.keypair, attempt, host, port, &server.pem);
    MinerToValidator::V0StreamingJobReadyRequest(StreamingJobReady {
        job_uuid: attempt,
        executor_token: None,
        public_key: server.pem,
        ip: Some(host.to_owned()),
        port,
        miner_signature: Some(signature),
    })
}

#[tokio::test]
async fn a_session_inside_the_validators_network_is_not_dialled() {
    for host in ["127.0.0.1", "localhost", "::ffff:127.0.0.1"] {
        let inside = TcpListener::bind("127.0.0.1:0").unwrap();
        inside.set_nonblocking(true).unwrap();
        let port = inside.local_addr().unwrap().port();
        let mut miner = Miner::open("//Miner").await;
        let mut world = World::new(&[&miner]).await;
        // The miner itself may be dialled, and nothing else on this machine.
        world.config.dial.allow = vec![miner.server.address.to_string()];
        world.config.gateway = Settings {
            bind: Some(([127, 0, 0, 1], 0).into()),
            services: vec![service()],
            min_sessions: 1,
            max_sessions: 1,
            ..Settings::default()
        };
        world.start();
        world.facilitator.accept().await;
        let (mut session, offer) = next_offer(&mut miner).await;
        let attempt = offer.job_uuid;
        session.accept_job(attempt).await;
        session.accepted_receipt().await;
        session.executor_ready(attempt).await;
        session.job().await;
        session.volumes_ready(attempt).await;
        let ready = ready_at(&session, attempt, host, port);
        session.send(ready).await;
        // The session is given up at once, and its job is called off.
        within("the end of the session's job", session.cancelled(attempt)).await;
        let dialled = inside.accept();
        assert!(dialled.is_err(), "{host}: the validator dialled {dialled:?}");
    }
}
