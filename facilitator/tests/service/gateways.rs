//! Gateways of validators that cannot be trusted: their addresses, their answers, and their place in the order.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use muster_process::{SystemClock, TestClock};
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::muster::{GatewayNotice, ServedModel};
use reqwest::Method;
use serde_json::{Value, json};

use crate::facilitator::{Facilitator, until, validator_key};
use crate::user::{User, read_json};
use crate::validator::Validator;

const CHAT: &str = "/v1/chat/completions";

fn notice(url: &str, models: &[&str]) -> ToFacilitator {
    let model = |id: &&str| ServedModel {
        id: (*id).to_owned(),
        input_price: 1,
        output_price: 2,
    };
    ToFacilitator::MusterGateway(Box::new(GatewayNotice {
        url: Some(url.to_owned()),
        models: models.iter().map(model).collect(),
    }))
}

/// Serves these routes on this machine.
async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    muster_process::Tasks::new().spawn("gateway", async move { axum::serve(listener, router).await });
    url
}

/// A gateway whose every answer names it.
async fn named_gateway(name: &'static str) -> String {
    let answer = async move || {
        (
            [("content-type", "application/json")],
            format!("{{\"by\":\"{name}\"}}"),
        )
    };
    let proof = async || (StatusCode::UNAUTHORIZED, "{}");
    serve(
        Router::new()
            .route(CHAT, post(answer))
            .route("/v1/proofs/{id}", get(proof)),
    )
    .await
}

fn ask() -> Value {
    json!({"model": "tiny", "stream": true, "messages": []})
}

async fn models(user: &User) -> Vec<String> {
    let list = read_json(user.get("/v1/models").send().await.unwrap()).await.1;
    let ids = list["data"].as_array().unwrap().iter();
    ids.map(|model| model["id"].as_str().unwrap().to_owned())
        .collect()
}

async fn announce(validator: &mut Validator, url: &str, models: &[&str]) {
    validator.send_message(&notice(url, models)).await;
    validator.is_idle().await;
}

#[tokio::test]
async fn a_gateway_inside_the_operators_network_is_never_asked() {
    let inside = serve(Router::new().route("/secret", get(async || "the key of the kingdom"))).await;
    let clock = Arc::new(SystemClock::new());
    let facilitator =
        Facilitator::start_with(clock.clone(), |config| config.gateways.allow = Vec::new()).await;
    let user = User::login(&facilitator, "User").await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    for url in [
        format!("{inside}/secret#"),
        inside.clone(),
        "http://169.254.169.254/latest/meta-data/#".to_owned(),
        "http://localhost:1".to_owned(),
    ] {
        announce(&mut validator, &url, &["tiny"]).await;
        let proof = user.get("/v1/proofs/00").send().await.unwrap();
        let (status, body) = (proof.status(), proof.text().await.unwrap());
        assert!(
            !status.is_success() && !body.contains("kingdom"),
            "{url}: {status} {body}"
        );
        let answer = user.send(Method::POST, CHAT, Some(&ask())).await;
        assert_eq!(answer.status(), 503, "{url}");
    }
    // Also where the address is permitted, a notice names a server and no page of it.
    let facilitator = facilitator
        .restart_with(|config| config.gateways.allow = vec!["127.0.0.1".to_owned()])
        .await;
    let user = User::login(&facilitator, "User").await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    announce(&mut validator, &format!("{inside}/secret#"), &["tiny"]).await;
    let proof = user.get("/v1/proofs/00").send().await.unwrap();
    assert_eq!(proof.status(), 404);
    assert!(models(&user).await.is_empty());
    announce(&mut validator, &inside, &["tiny"]).await;
    assert_eq!(models(&user).await, ["tiny"]);
}

#[tokio::test]
async fn the_operators_list_chooses_the_gateway_and_not_the_last_heartbeat() {
    let facilitator = Facilitator::start_with(Arc::new(SystemClock::new()), |config| {
        config.gateways.validators = vec![validator_key("Other"), validator_key("Validator")];
    })
    .await;
    let (first, second) = (named_gateway("other").await, named_gateway("validator").await);
    let user = User::login(&facilitator, "User").await;
    let mut other = Validator::connect(&facilitator, "Other").await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    announce(&mut other, &first, &["tiny"]).await;
    announce(&mut validator, &second, &["tiny"]).await;
    for _ in 0..3 {
        // The other validator was the last to send, and announces itself again and again.
        announce(&mut validator, &second, &["tiny"]).await;
        let beat = muster_protocol::wire::facilitator::Heartbeat {};
        validator.send_message(&ToFacilitator::V0Heartbeat(beat)).await;
        validator.is_idle().await;
        let answer = user.send(Method::POST, CHAT, Some(&ask())).await;
        assert_eq!(read_json(answer).await.1["by"], "other");
    }
    // A list of one is no preference: the others are not asked at all.
    let facilitator = facilitator
        .restart_with(|config| config.gateways.validators = vec![validator_key("Other")])
        .await;
    let user = user.at(&facilitator);
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    announce(&mut validator, &second, &["tiny"]).await;
    let named = user
        .request(Method::POST, CHAT, Some(&ask()))
        .header("muster-validator", validator_key("Validator").to_string());
    assert_eq!(named.send().await.unwrap().status(), 503);
}

#[tokio::test]
async fn a_gateway_that_redirects_or_says_nothing_gives_way_to_the_next() {
    let silent = async || std::future::pending::<&'static str>().await;
    let redirecting = async || {
        (
            StatusCode::TEMPORARY_REDIRECT,
            [("location", "http://169.254.169.254/")],
        )
    };
    for hostile in [
        Router::new().route(CHAT, post(silent)),
        Router::new().route(CHAT, post(redirecting)),
    ] {
        let facilitator = Facilitator::start_with(Arc::new(SystemClock::new()), |config| {
            config.gateways.validators = vec![validator_key("Other"), validator_key("Validator")];
            config.gateways.head_s = 1;
        })
        .await;
        let user = User::login(&facilitator, "User").await;
        let mut other = Validator::connect(&facilitator, "Other").await;
        announce(&mut other, &serve(hostile).await, &["tiny"]).await;
        let mut validator = Validator::connect(&facilitator, "Validator").await;
        announce(&mut validator, &named_gateway("validator").await, &["tiny"]).await;
        // On a busy machine an honest gateway may be later than the second that a silent one is given.
        until(async || {
            let answer = user.send(Method::POST, CHAT, Some(&ask())).await;
            (read_json(answer).await.1["by"] == "validator").then_some(())
        })
        .await;
        let named = user
            .request(Method::POST, CHAT, Some(&ask()))
            .header("muster-validator", validator_key("Other").to_string());
        let alone = named.send().await.unwrap();
        assert_eq!(
            (alone.status().as_u16(), alone.headers().get("location")),
            (503, None)
        );
        // The proof of an answer is looked for at every gateway: neither refusals nor silence hide it.
        let proof = async || {
            (
                StatusCode::OK,
                [("content-type", "application/json")],
                "{\"id\":\"00\"}",
            )
        };
        let honest = serve(Router::new().route("/v1/proofs/{id}", get(proof))).await;
        announce(&mut other, &named_gateway("other").await, &["tiny"]).await;
        announce(&mut validator, &honest, &["tiny"]).await;
        let proof = until(async || {
            let proof = read_json(user.get("/v1/proofs/00").send().await.unwrap()).await;
            (proof.0 == 200).then_some(proof.1)
        });
        assert_eq!(proof.await, json!({"id": "00"}));
    }
}

#[tokio::test]
async fn a_gateway_speaks_in_no_other_name_than_its_answers() {
    let answer = async || {
        let headers = [
            ("content-type", "application/json"),
            ("set-cookie", "session=stolen"),
            ("alt-svc", "h3=\":443\""),
            ("strict-transport-security", "max-age=31536000"),
            ("location", "https://evil.example/"),
            ("cache-control", "public"),
            ("x-request-id", "a1"),
        ];
        (headers, "{}")
    };
    let url = serve(Router::new().route(CHAT, post(answer))).await;
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    announce(&mut validator, &url, &["tiny"]).await;
    let answer = user.send(Method::POST, CHAT, Some(&ask())).await;
    let headers = answer.headers();
    for name in ["set-cookie", "alt-svc", "strict-transport-security", "location"] {
        assert!(!headers.contains_key(name), "{name}");
    }
    assert_eq!(
        (&headers["cache-control"], &headers["x-request-id"]),
        (&"no-store".parse().unwrap(), &"a1".parse().unwrap())
    );
}

#[tokio::test]
async fn announcements_are_paced_and_the_last_one_counts_with_the_next_heartbeat() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |_| {}).await;
    let user = User::login(&facilitator, "User").await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let ids: Vec<_> = (0..500).map(|n| format!("model-{n}")).collect();
    for id in &ids {
        validator
            .send_message(&notice("http://127.0.0.1:1025", &[id]))
            .await;
    }
    validator.is_idle().await;
    assert_eq!(models(&user).await, ["model-19"]);
    let beat = muster_protocol::wire::facilitator::Heartbeat {};
    for (seconds, shown) in [(0, "model-19"), (3, "model-499")] {
        clock.advance(std::time::Duration::from_secs(seconds));
        validator.send_message(&ToFacilitator::V0Heartbeat(beat)).await;
        validator.is_idle().await;
        assert_eq!(models(&user).await, [shown]);
    }
}

#[tokio::test]
async fn a_list_of_models_is_bounded_when_it_comes() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let ids: Vec<_> = (0..2_000).map(|n| format!("model-{n}")).collect();
    let long = "x".repeat(100_000);
    let mut told: Vec<&str> = vec![&long];
    told.extend(ids.iter().map(String::as_str));
    announce(&mut validator, "http://127.0.0.1:1025", &told).await;
    let listed = models(&user).await;
    assert_eq!((listed.len(), listed[0].as_str()), (256, "model-0"));
    // A new announcement takes the place of the last one.
    announce(&mut validator, "http://127.0.0.1:1025", &["tiny"]).await;
    assert_eq!(models(&user).await, ["tiny"]);
    validator
        .send_message(&ToFacilitator::MusterGateway(Box::default()))
        .await;
    until(async || models(&user).await.is_empty().then_some(())).await;
}
