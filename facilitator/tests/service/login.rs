//! Nonces, logins and tokens.

use std::sync::Arc;
use std::time::Duration;

use muster_identity::sign_login;
use muster_process::TestClock;
use muster_protocol::UserKey;
use muster_protocol::account_api::{LoginNonce, LoginRequest};
use muster_protocol::login::LoginHost;
use muster_testbed::sign_as_other_programs_do;
use serde_json::{Value, json};

use crate::facilitator::{Facilitator, key};
use crate::user::{User, attempt, login_with, nonce, read_json};

fn error(reason: &str) -> Value {
    json!({"error": reason})
}

/// A signature over the nonce's bytes, as ComputeHorde's SDK sends it.
fn as_the_sdk_signs(name: &str, nonce: &str) -> String {
    hex::encode(sign_as_other_programs_do(&format!("//{name}"), nonce.as_bytes()))
}

#[tokio::test]
async fn a_login_that_was_signed_for_another_party_is_refused_where_the_operator_requires_it() {
    let clock = || Arc::new(muster_process::SystemClock::new());
    for required in [false, true] {
        let facilitator = Facilitator::start_with(clock(), |config| {
            config.public_url = Some("https://Facilitator.example".to_owned());
            config.auth.require_bound_login = required;
        })
        .await;
        let http = reqwest::Client::new();
        let answer = http.get(facilitator.url("/auth/nonce")).send().await.unwrap();
        let answer: LoginNonce = answer.json().await.unwrap();
        assert_eq!(answer.host.as_deref(), Some("facilitator.example"));
        let keys = key("User");
        for (host, status) in [
            (Some("facilitator.example"), 200),
            (Some("phisher.example"), 401),
            (None, if required { 400 } else { 200 }),
        ] {
            let nonce = nonce(&facilitator, &http).await.parse().unwrap();
            let host = host.and_then(|host| LoginHost::new(host, None));
            let signature = sign_login(&keys, &nonce, host.as_ref());
            let login = json!(LoginRequest::new(keys.hotkey(), signature, &nonce));
            let (got, answer) = read_json(login_with(&facilitator, &http, &login).await).await;
            assert_eq!(got, status, "{host:?}, {required}: {answer}");
            let reason = answer["error"].as_str().unwrap_or_default();
            assert_eq!(reason.contains("facilitator.example"), status == 400, "{answer}");
        }
        let raw = nonce(&facilitator, &http).await;
        let signature = as_the_sdk_signs("User", &raw);
        let body = json!({"hotkey": keys.hotkey(), "signature": signature, "nonce": raw});
        let got = login_with(&facilitator, &http, &body).await.status();
        assert_eq!(got, if required { 400 } else { 200 });
    }
    let unnamed = Facilitator::start().await;
    let answer = reqwest::get(unnamed.url("/auth/nonce")).await.unwrap();
    assert!(!answer.text().await.unwrap().contains("host"));
}

#[tokio::test]
async fn each_way_to_fail_has_its_own_answer() {
    let facilitator = Facilitator::start().await;
    let http = reqwest::Client::new();
    let keys = key("User");
    let nonce = nonce(&facilitator, &http).await;
    let good = as_the_sdk_signs("User", &nonce);
    let foreign = as_the_sdk_signs("Other", &nonce);
    let who = keys.hotkey().to_string();
    for (body, status, reason) in [
        (json!({}), 400, "Missing hotkey"),
        (json!({"hotkey": who}), 400, "Missing signature"),
        (json!({"hotkey": who, "signature": good}), 400, "Missing nonce"),
        (
            json!({"hotkey": who, "signature": good, "nonce": "x"}),
            400,
            "Invalid nonce",
        ),
        (
            json!({"hotkey": "5nobody", "signature": good, "nonce": nonce}),
            400,
            "Hotkey not allowed",
        ),
        (
            json!({"hotkey": who, "signature": foreign, "nonce": nonce}),
            401,
            "Invalid signature",
        ),
        (
            json!({"hotkey": who, "signature": "zz", "nonce": nonce}),
            401,
            "Invalid signature",
        ),
    ] {
        let answer = read_json(login_with(&facilitator, &http, &body).await).await;
        assert_eq!(answer, (status, error(reason)), "{body}");
    }
    for body in [json!([]), json!({"hotkey": 1}), json!("x")] {
        let (status, answer) = read_json(login_with(&facilitator, &http, &body).await).await;
        assert_eq!(status, 400);
        assert!(
            answer["error"].as_str().unwrap().starts_with("Invalid JSON"),
            "{answer}"
        );
    }
    // None of these requests has used up the nonce; the login does.
    let body = json!({"hotkey": who, "signature": good, "nonce": nonce});
    assert_eq!(login_with(&facilitator, &http, &body).await.status(), 200);
    let again = read_json(login_with(&facilitator, &http, &body).await).await;
    assert_eq!(again, (400, error("Nonce expired or not found")));
}

#[tokio::test]
async fn nonces_and_tokens_end() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |_| {}).await;
    let http = reqwest::Client::new();
    let keys = key("User");
    let nonce = nonce(&facilitator, &http).await;
    clock.advance(Duration::from_secs(300));
    let signature = as_the_sdk_signs("User", &nonce);
    let body = json!({"hotkey": keys.hotkey(), "signature": signature, "nonce": nonce});
    let late = read_json(login_with(&facilitator, &http, &body).await).await;
    assert_eq!(late, (400, error("Invalid nonce")));

    let user = User::login(&facilitator, "User").await;
    clock.advance(Duration::from_secs(3599));
    assert_eq!(user.get("/api/v1/jobs/").send().await.unwrap().status(), 200);
    clock.advance(Duration::from_secs(1));
    let over = read_json(user.get("/api/v1/jobs/").send().await.unwrap()).await;
    assert_eq!(over, (401, json!({"detail": "Token expired."})));
}

#[tokio::test]
async fn the_api_needs_a_token() {
    let facilitator = Facilitator::start().await;
    let http = reqwest::Client::new();
    let nothing = read_json(http.get(facilitator.url("/api/v1/jobs/")).send().await.unwrap()).await;
    assert_eq!(
        nothing,
        (
            401,
            json!({"detail": "Authentication credentials were not provided."})
        )
    );
    for header in ["x", "Bearer", "Bearer a.b.c", "Basic dTpw"] {
        let request = http
            .get(facilitator.url("/api/v1/jobs/"))
            .header("authorization", header);
        let answer = read_json(request.send().await.unwrap()).await;
        assert_eq!(answer, (401, json!({"detail": "Invalid token."})), "{header}");
    }
}

#[tokio::test]
async fn a_list_of_users_keeps_everyone_else_out() {
    let allowed = UserKey(key("User").hotkey());
    let facilitator = Facilitator::start_with(Arc::new(muster_process::SystemClock::new()), |config| {
        config.users = Some(vec![allowed]);
    })
    .await;
    User::login(&facilitator, "User").await;
    let http = reqwest::Client::new();
    let other = read_json(attempt(&facilitator, &http, &key("Other")).await).await;
    assert_eq!(other, (400, error("Hotkey not allowed")));
}

#[tokio::test]
async fn addresses_and_methods_that_do_not_exist_are_answered_in_json() {
    let facilitator = Facilitator::start().await;
    let http = reqwest::Client::new();
    for path in ["/nothing", "/api/v1/jobs", "/auth/nonce/", "/%ff", "/../etc"] {
        let answer = read_json(http.get(facilitator.url(path)).send().await.unwrap()).await;
        assert_eq!(answer, (404, json!({"detail": "Not found."})), "{path}");
    }
    let wrong = read_json(http.delete(facilitator.url("/auth/nonce")).send().await.unwrap()).await;
    assert_eq!(wrong, (405, json!({"detail": "Method \"DELETE\" not allowed."})));
    let health = read_json(http.get(facilitator.url("/health")).send().await.unwrap()).await;
    assert_eq!(
        (health.0, &health.1["status"], &health.1["validators"]),
        (200, &json!("ok"), &json!(0))
    );
}
