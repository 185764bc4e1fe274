//! OpenAI's interface: admission, the requests that gateways receive, and the count of usage.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use futures_util::{SinkExt as _, StreamExt as _};
use muster_process::SystemClock;
use muster_protocol::wire::checks::RefundNotice;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::muster::{GatewayNotice, ServedModel};
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_response_proof::{Envelope, GatewayToken, client_pseudonym};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::facilitator::{Facilitator, key, until, validator_key};
use crate::user::{User, read_json};
use crate::validator::Validator;

const ANSWER: &str = concat!(
    "data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\n",
    "data: [DONE]\n\n\n: muster-proof QUJD\n",
);

/// A scripted gateway that records its requests.
#[derive(Clone, Default)]
pub(crate) struct Gateway {
    heard: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
}

impl Gateway {
    pub(crate) async fn open() -> (Self, String) {
        let gateway = Self::default();
        let kept = Arc::clone(&gateway.heard);
        let chat = async move |headers: HeaderMap, body: Bytes| {
            kept.lock().unwrap().push((headers, body));
            let head = [
                ("content-type", "text/event-stream"),
                ("x-request-id", "a1"),
                ("connection", "close"),
            ];
            (head, ANSWER)
        };
        let proof = async || (StatusCode::NOT_FOUND, "{}");
        let router = Router::new()
            .route("/v1/chat/completions", post(chat))
            .route("/v1/proofs/{id}", get(proof));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        muster_process::Tasks::new().spawn("gateway", async move { axum::serve(listener, router).await });
        (gateway, url)
    }

    pub(crate) fn heard(&self) -> Vec<(HeaderMap, Bytes)> {
        self.heard.lock().unwrap().clone()
    }
}

pub(crate) fn notice(url: &str) -> ToFacilitator {
    ToFacilitator::MusterGateway(Box::new(GatewayNotice {
        url: Some(url.to_owned()),
        models: vec![ServedModel {
            id: "org/tiny".to_owned(),
            input_price: 1,
            output_price: 2,
        }],
    }))
}

pub(crate) async fn announced(user: &User) {
    until(async || {
        let list = read_json(user.get("/v1/models").send().await.unwrap()).await.1;
        (list["data"][0]["id"] == "org/tiny").then_some(())
    })
    .await;
}

fn ask() -> Value {
    json!({"model": "org/tiny", "stream": true, "messages": [{"role": "user", "content": "hi"}]})
}

#[tokio::test]
async fn a_request_goes_to_the_gateway_that_was_announced_and_is_counted() {
    let facilitator = Facilitator::start().await;
    let (gateway, url) = Gateway::open().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    assert_eq!(
        read_json(user.get("/v1/models").send().await.unwrap()).await.1["data"],
        json!([])
    );
    validator.send_message(&notice(&url)).await;
    announced(&user).await;
    for path in ["/v1/models/org/tiny", "/v1/models/org%2Ftiny"] {
        let one = read_json(user.get(path).send().await.unwrap()).await.1;
        assert_eq!(
            (&one["object"], &one["muster"]["output_price"]),
            (&json!("model"), &json!(2)),
            "{path}"
        );
    }

    let answer = user
        .send(Method::POST, "/v1/chat/completions", Some(&ask()))
        .await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["x-request-id"], "a1");
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    assert!(
        !answer.headers().contains_key("connection"),
        "headers of one hop stay there"
    );
    assert_eq!(answer.text().await.unwrap(), ANSWER, "not a byte differs");

    let heard = gateway.heard();
    let (headers, body) = &heard[0];
    assert_eq!(
        body.as_ref(),
        serde_json::to_vec(&ask()).unwrap(),
        "as the user sent it"
    );
    let bearer = headers["authorization"]
        .to_str()
        .unwrap()
        .trim_start_matches("Bearer ");
    let token = Envelope::<GatewayToken>::from_text(bearer).unwrap();
    let stated = token.statement().unwrap();
    assert!(muster_identity::verify(
        &stated.facilitator,
        token.signed_bytes(),
        token.signature()
    ));
    assert_eq!(stated.audience, ValidatorKey(key("Validator").hotkey()));
    let health = read_json(reqwest::get(facilitator.url("/health")).await.unwrap())
        .await
        .1;
    assert_eq!(health["hotkey"], json!(stated.facilitator));

    until(async || {
        let usage = read_json(user.get("/api/v1/usage/").send().await.unwrap())
            .await
            .1;
        let one = &usage["results"][0];
        let counted = (
            &one["model"],
            &one["requests"],
            &one["input_tokens"],
            &one["output_tokens"],
        );
        // The engine reports three tokens for five bytes of text, which are two at most.
        (counted == (&json!("org/tiny"), &json!(1), &json!(4), &json!(2))).then_some(())
    })
    .await;

    // The gateway's validator refunds the answer, and takes the refund back. Another client's is not the user's.
    let client = client_pseudonym(stated.facilitator.as_bytes(), stated.client.as_bytes());
    let refunded = async || {
        read_json(user.get("/api/v1/usage/").send().await.unwrap())
            .await
            .1["refunded"]
            .clone()
    };
    assert_eq!(refunded().await, json!([]));
    let refund = |client, bundle| {
        ToFacilitator::MusterRefund(Box::new(RefundNotice {
            response: "a1".to_owned(),
            client,
            model: "org/tiny".to_owned(),
            answered_at: Timestamp::from_secs(86_400),
            input_tokens: 4,
            output_tokens: 2,
            bundle,
        }))
    };
    let bundle = Digest::of(b"bundle");
    validator.send_message(&refund(client, Some(bundle))).await;
    let entry = json!([{"day": 1, "model": "org/tiny", "requests": 1, "input_tokens": 4, "output_tokens": 2,
        "bundle": bundle}]);
    until(async || (refunded().await == entry).then_some(())).await;
    let other = User::login(&facilitator, "Other").await;
    let others = read_json(other.get("/api/v1/usage/").send().await.unwrap())
        .await
        .1;
    assert_eq!(others["refunded"], json!([]));
    validator.send_message(&refund(client, None)).await;
    until(async || (refunded().await == json!([])).then_some(())).await;
}

#[tokio::test]
async fn every_refusal_has_openais_shape() {
    let facilitator = Facilitator::start_with(Arc::new(SystemClock::new()), |config| {
        config.limits.daily_tokens = 5_000
    })
    .await;
    let (gateway, url) = Gateway::open().await;
    let user = User::login(&facilitator, "User").await;
    let chat = "/v1/chat/completions";
    let code = async |answer: reqwest::Response| {
        let (status, body) = read_json(answer).await;
        assert!(body["error"]["message"].is_string(), "{body}");
        (status, body["error"]["code"].as_str().unwrap().to_owned())
    };
    let nobody = user.send(Method::POST, chat, Some(&ask())).await;
    assert!(nobody.headers().contains_key("retry-after"));
    assert_eq!(
        code(nobody).await,
        (503, "no_session".to_owned()),
        "no gateway yet"
    );
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    validator.send_message(&notice(&url)).await;
    announced(&user).await;
    let large = json!({"model": "org/tiny", "x": "x".repeat(17 * 1024 * 1024)});
    let other = validator_key("Other").to_string();
    let post = |body: &'static str| user.request(Method::POST, chat, None).body(body);
    let table = [
        (post("{"), 400, "invalid_json"),
        (post("{}"), 400, "invalid_value"),
        (post("\u{feff}{}"), 400, "invalid_value"),
        (
            post("{}").header("content-encoding", "gzip"),
            415,
            "unsupported_media_type",
        ),
        (
            post("model=org").header("content-type", "text/plain"),
            415,
            "unsupported_media_type",
        ),
        (post(r#"{"model":"huge"}"#), 404, "model_not_found"),
        (
            user.request(Method::POST, chat, Some(&large)),
            413,
            "request_too_large",
        ),
        (
            user.request(Method::POST, chat, Some(&ask()))
                .header("muster-validator", "x"),
            400,
            "invalid_value",
        ),
        (
            user.request(Method::POST, chat, Some(&ask()))
                .header("muster-validator", other),
            503,
            "no_session",
        ),
        (
            user.request(Method::POST, "/v1/audio/speech", Some(&ask())),
            404,
            "unknown_url",
        ),
        (user.get(chat), 405, "method_not_allowed"),
        (user.get("/v1/proofs/00"), 404, "proof_not_found"),
        (user.get("/v1/models/org%2Fother"), 404, "model_not_found"),
        (user.get("/v1/models/%ff"), 404, "model_not_found"),
        (user.get("/v1"), 404, "unknown_url"),
        (user.get("/v1/"), 404, "unknown_url"),
        (
            user.with_token("msk_0000")
                .request(Method::POST, chat, Some(&ask())),
            401,
            "invalid_api_key",
        ),
        (
            user.http.post(facilitator.url(chat)).body("{}"),
            401,
            "invalid_api_key",
        ),
    ];
    for (request, status, expected) in table {
        assert_eq!(
            code(request.send().await.unwrap()).await,
            (status, expected.to_owned())
        );
    }
    assert!(gateway.heard().is_empty(), "none of it went any further");
    // A request that might use more than is left is rejected before it is forwarded; one that might not is answered.
    let mut greedy = ask();
    greedy["max_tokens"] = json!(5_000);
    let over = user.send(Method::POST, chat, Some(&greedy)).await;
    assert_eq!(code(over).await, (429, "insufficient_quota".to_owned()));
    assert!(gateway.heard().is_empty(), "nothing of it was forwarded");
    let answer = user.send(Method::POST, chat, Some(&ask())).await;
    assert_eq!(answer.text().await.unwrap(), ANSWER);
}

#[tokio::test]
async fn a_revoked_key_opens_nothing_and_pages_of_any_origin_may_ask() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let made = read_json(
        user.send(Method::POST, "/api/v1/keys/", Some(&json!({"name": "k"})))
            .await,
    )
    .await
    .1;
    let holder = user.with_token(made["key"].as_str().unwrap());
    assert_eq!(holder.get("/v1/models").send().await.unwrap().status(), 200);
    let path = format!("/api/v1/keys/{}/", made["id"].as_str().unwrap());
    user.send(Method::DELETE, &path, None).await;
    let (status, body) = read_json(holder.get("/v1/models").send().await.unwrap()).await;
    assert_eq!(
        (status, &body["error"]["type"]),
        (401, &json!("authentication_error"))
    );
    assert!(
        body["error"]["message"].as_str().unwrap().contains("revoked"),
        "{body}"
    );
    let asked = user
        .http
        .request(Method::OPTIONS, facilitator.url("/v1/chat/completions"))
        .header("origin", "https://page.example")
        .header("access-control-request-method", "POST");
    let answer = asked.send().await.unwrap();
    assert_eq!(answer.status(), 204);
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    let allowed = answer.headers()["access-control-allow-headers"].to_str().unwrap();
    assert!(allowed.contains("authorization") && allowed.contains("content-type"));
    // Headers that our pages document or official clients send are allowed, and so is one of a later client.
    let wanted = "authorization,content-type,muster-audit-consent,muster-client-nonce,muster-validator,traceparent,\
                  idempotency-key,openai-organization,openai-project,openai-beta,x-stainless-retry-count,x-later";
    let asked = user
        .http
        .request(Method::OPTIONS, facilitator.url("/v1/proofs/00"))
        .header("origin", "https://page.example")
        .header("access-control-request-method", "GET")
        .header("access-control-request-headers", wanted);
    let answer = asked.send().await.unwrap();
    assert_eq!(answer.headers()["access-control-allow-headers"], wanted);
    let exposed = answer.headers()["access-control-expose-headers"]
        .to_str()
        .unwrap();
    for name in [
        "x-request-id",
        "muster-proof",
        "retry-after",
        "openai-processing-ms",
        "www-authenticate",
    ] {
        assert!(
            exposed.split(", ").any(|shown| shown == name),
            "{exposed} has no {name}"
        );
    }
}

#[tokio::test]
async fn a_mere_claim_to_be_a_validator_announces_nothing() {
    let facilitator = Facilitator::start().await;
    let (_, url) = Gateway::open().await;
    let user = User::login(&facilitator, "User").await;
    // ComputeHorde's greeting, which a third party may have captured.
    let (mut socket, _) = tokio_tungstenite::connect_async(facilitator.socket_url())
        .await
        .unwrap();
    let auth =
        ToFacilitator::V0AuthenticationRequest(muster_identity::sign_facilitator_auth(&key("Validator")));
    // The last frame is answered, so every earlier one has been handled.
    for message in [&auth, &notice(&url), &auth] {
        socket.send(Message::text(encode(message))).await.unwrap();
    }
    for _ in 0..2 {
        socket.next().await.unwrap().unwrap();
    }
    assert_eq!(
        read_json(user.get("/v1/models").send().await.unwrap()).await.1["data"],
        json!([])
    );
}
