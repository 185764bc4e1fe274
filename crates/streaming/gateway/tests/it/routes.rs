//! The routes: admission, errors, models, proofs, and both versions of HTTP.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use muster_gateway_client::{
    ForwardError, ForwardLimits, ForwardReport, ForwardRequest, GatewayClient, GatewayTarget,
};
use muster_http::Origin;
use muster_http::addresses::AddressRules;
use muster_openai::TokenUsage;
use muster_process::{Clock as _, SystemClock};
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::{ClientKey, GatewayToken, seal};
use muster_testbed::patience;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::rig::{KEY, World, facilitator};
use crate::subnet::validator;

#[tokio::test]
async fn every_mistake_has_openais_shape() {
    let world = World::new(|settings| settings.max_body_kib = 1).await;
    let chat = "/v1/chat/completions";
    let large = format!(r#"{{"model":"tiny","x":"{}"}}"#, "x".repeat(2_000));
    let table = [
        (world.post(chat).body("{"), 400, "invalid_json"),
        (world.post(chat).body("{}"), 400, "invalid_value"),
        (
            world.post(chat).body(r#"{"model":"huge"}"#),
            404,
            "model_not_found",
        ),
        (world.post(chat).body(large), 413, "request_too_large"),
        (
            world.post(chat).body("{}").header("muster-client-nonce", "x"),
            400,
            "invalid_value",
        ),
        (
            world.post("/v1/images/generations").body("{}"),
            404,
            "unknown_url",
        ),
        (
            world.http.get(format!("{}{chat}", world.base)),
            405,
            "method_not_allowed",
        ),
        (
            world.http.post(format!("{}{chat}", world.base)).body("{}"),
            401,
            "invalid_api_key",
        ),
        (
            world
                .http
                .post(format!("{}{chat}", world.base))
                .bearer_auth("revoked")
                .body("{}"),
            401,
            "invalid_api_key",
        ),
        (
            world.http.get(format!("{}/v1/models", world.base)),
            401,
            "invalid_api_key",
        ),
        (
            world.http.get(format!("{}/v1/proofs/x", world.base)),
            401,
            "invalid_api_key",
        ),
    ];
    for (request, status, code) in table {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{code}");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["code"], code, "{body}");
        assert!(
            body["error"]["message"].is_string() && body["error"]["type"].is_string(),
            "{body}"
        );
    }
    let (status, body) = world.get("/v1/proofs/0000").await;
    assert_eq!((status, &body["error"]["code"]), (404, &"proof_not_found".into()));
}

#[tokio::test]
async fn wrong_keys_are_paced_at_every_route_and_right_ones_are_not() {
    let world = World::new(|settings| settings.failures_per_minute = 4).await;
    let ask = async |method: &str, path: &str, key: &str| {
        let url = format!("{}{path}", world.base);
        let request = world.http.request(method.parse().unwrap(), url).bearer_auth(key);
        request.send().await.unwrap()
    };
    let routes = [
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tiny"),
        ("GET", "/v1/proofs/00"),
    ];
    for (method, path) in routes {
        assert_eq!(ask(method, path, "guessed").await.status(), 401, "{path}");
    }
    for (method, path) in routes {
        let refused = ask(method, path, "guessed again").await;
        assert_eq!(refused.status(), 429, "{path}");
        assert!(refused.headers().contains_key("retry-after"), "{path}");
    }
    assert_eq!(ask("GET", "/v1/models", KEY).await.status(), 200);
}

#[tokio::test]
async fn models_are_listed_with_what_is_known_of_them() {
    let world = World::new(|settings| settings.services[0].model = "org/tiny".to_owned()).await;
    let (_, list) = world.get("/v1/models").await;
    assert_eq!(
        (&list["object"], &list["data"][0]["id"]),
        (&"list".into(), &"org/tiny".into())
    );
    for path in [
        "/v1/models/org/tiny",
        "/v1/models/org%2Ftiny",
        "/v1/models/org%2ftin%79",
    ] {
        let (_, one) = world.get(path).await;
        assert_eq!(
            (&one["object"], &one["muster"]["output_price"]),
            (&"model".into(), &2_000_000.into()),
            "{path}"
        );
    }
    for path in ["/v1/models/other", "/v1/models/org%252Ftiny", "/v1/models/%ff"] {
        let (status, body) = world.get(path).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (404, &"model_not_found".into()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let world = World::new(|settings| (settings.queue, settings.queue_of_one) = (1, 1)).await;
    world.subnet.open.send_replace(false);
    let first = world.tasks.spawn("asking", world.chat(1, false).send());
    let full = crate::rig::until("a full queue", || async {
        let look = world.gateway.list_models().await;
        (look[0].waiting == 1).then_some(())
    });
    full.await;
    let answer = world.chat(1, false).send().await.unwrap();
    assert_eq!(answer.status(), 429);
    let after: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(after >= 1);
    let body: Value = answer.json().await.unwrap();
    assert_eq!(
        (&body["error"]["code"], &body["error"]["type"]),
        (&"queue_full".into(), &"rate_limit_error".into())
    );
    world.subnet.open.send_replace(true);
    assert_eq!(first.join().await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_facilitators_clients_come_with_its_word_and_are_counted_on_the_way() {
    let world = World::new(|_| ()).await;
    let limits = ForwardLimits {
        rules: AddressRules::parse(&["127.0.0.1".to_owned()]).unwrap(),
        silence: patience(),
    };
    let origin = |url: &str| Origin::parse(url, &limits.rules).unwrap();
    let target = GatewayTarget {
        validator: ValidatorKey(validator().hotkey()),
        origin: origin(&world.base),
    };
    let nowhere = GatewayTarget {
        origin: origin("http://127.0.0.1:1025"),
        ..target.clone()
    };
    let client = GatewayClient::new(facilitator(), limits, std::sync::Arc::new(SystemClock::new()));
    let ask = |client: &[u8], method: &str, path: &str, body: Value| ForwardRequest {
        client: Digest::of(client),
        client_key: ClientKey::of_secret(b"facilitator", client),
        method: method.parse().unwrap(),
        path: path.to_owned(),
        headers: http::HeaderMap::new(),
        body: if body.is_null() {
            bytes::Bytes::new()
        } else {
            body.to_string().into()
        },
        head_limit: patience(),
    };
    let (tell, told) = oneshot::channel();
    let body = json!({"model": "tiny", "stream": true, "max_tokens": 2, "messages": []});
    let report = move |passed: ForwardReport| tell.send(passed).unwrap();
    let answer = client
        .forward(
            &target,
            ask(b"alice", "POST", "/v1/chat/completions", body),
            report,
        )
        .await
        .unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let text = http_body_util::BodyExt::collect(answer.into_body())
        .await
        .unwrap()
        .to_bytes();
    assert!(String::from_utf8_lossy(&text).contains("[DONE]"));
    let passed = told.await.unwrap();
    assert_eq!(passed.usage, TokenUsage { input: 5, output: 2 });
    assert_eq!(passed.bytes, text.len() as u64);
    // The proof is visible to its own client only.
    for (name, status) in [(&b"alice"[..], 200), (b"bob", 404)] {
        let path = format!("/v1/proofs/{id}");
        let answer = client
            .forward(&target, ask(name, "GET", &path, Value::Null), |_| ())
            .await
            .unwrap();
        assert_eq!(answer.status().as_u16(), status);
    }
    // A gateway that cannot be reached is reported as such.
    let refused = client
        .forward(&nowhere, ask(b"a", "GET", "/v1/models", Value::Null), |_| ())
        .await
        .unwrap_err();
    assert!(matches!(refused, ForwardError::Unreachable(_)), "{refused}");
    assert_eq!(refused.to_openai().status().as_u16(), 503);
}

#[tokio::test]
async fn an_expired_token_is_a_bad_key() {
    let world = World::new(|_| ()).await;
    let now = SystemClock::new().now();
    let token = |from: i64| {
        let at = |secs: i64| muster_protocol::Timestamp::from_secs(now.secs() + secs);
        let token = GatewayToken {
            facilitator: facilitator().hotkey(),
            audience: ValidatorKey(validator().hotkey()),
            client: Digest::of(b"client"),
            not_before: at(from),
            not_after: at(from).plus(Duration::from_secs(60)),
        };
        seal(&token, &facilitator()).to_text()
    };
    for (from, status) in [(-30, 200), (-100, 401), (100, 401)] {
        let request = world
            .http
            .get(format!("{}/v1/models", world.base))
            .bearer_auth(token(from));
        assert_eq!(request.send().await.unwrap().status().as_u16(), status, "{from}");
    }
}

#[tokio::test]
async fn http_2_is_spoken_on_the_same_port_and_the_proof_is_in_the_trailer_too() {
    let world = World::new(|_| ()).await;
    let stream = TcpStream::connect(world.gateway.address()).await.unwrap();
    let (mut sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    let own = connection;
    world.tasks.spawn("connection", async move { own.await.is_ok() });
    let body = json!({"model": "tiny", "stream": true, "max_tokens": 2, "messages": []}).to_string();
    let request = http::Request::post("http://gateway/v1/chat/completions")
        .header("authorization", format!("Bearer {KEY}"))
        .body(Full::new(bytes::Bytes::from(body)))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), response.version()),
        (200, http::Version::HTTP_2)
    );
    let collected = response.into_body().collect().await.unwrap();
    let trailer = collected.trailers().unwrap()["muster-proof"]
        .to_str()
        .unwrap()
        .to_owned();
    let body = String::from_utf8(collected.to_bytes().to_vec()).unwrap();
    assert!(
        body.contains("[DONE]") && body.contains(&format!("\n: muster-proof {trailer}\n")),
        "{body}"
    );
}

#[tokio::test]
async fn a_reader_that_reads_nothing_holds_up_nobody_else() {
    let world = World::new(|_| ()).await;
    let mut stalled = Vec::new();
    for _ in 0..3 {
        // Far more than all buffers on the way hold, and never read.
        stalled.push(world.chat(1_000_000, true).send().await.unwrap());
    }
    let answer = world.chat(3, true).send().await.unwrap();
    assert!(answer.text().await.unwrap().contains("[DONE]"));
    // The place of the answer that was read becomes free a moment after its last byte; the others stay taken.
    crate::rig::until("only theirs", || async {
        (world.gateway.list_models().await[0].serving == 3).then_some(())
    })
    .await;
    drop(stalled);
    crate::rig::until("their places", || async {
        (world.gateway.list_models().await[0].serving == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_engine_sets_no_cookie_and_moves_no_client() {
    let world = World::new(|_| ()).await;
    let ask = |stream: bool| json!({"model": "tiny", "stream": stream, "max_tokens": 1, "messages": []});
    for body in [ask(true), ask(false)] {
        let answer = world
            .post("/v1/chat/completions")
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        let headers = answer.headers();
        for name in ["set-cookie", "alt-svc", "location", "strict-transport-security"] {
            assert!(!headers.contains_key(name), "{name} of the engine passes");
        }
        assert_eq!(headers["cache-control"], "no-store");
        assert!(headers.contains_key("x-request-id") && headers.contains_key("content-type"));
    }
}
