//! Signing in and out: one-time links, API keys, and the bounds of sessions.

use std::sync::Arc;
use std::time::Duration;

use muster_process::TestClock;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::browser::Browser;
use crate::facilitator::Facilitator;
use crate::user::{User, read_json};

pub(super) async fn key_of(user: &User, rights: &[&str]) -> (String, String) {
    let wanted = json!({"name": "browser", "rights": rights});
    let made = read_json(user.send(Method::POST, "/api/v1/keys/", Some(&wanted)).await)
        .await
        .1;
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    (text("id"), text("key"))
}

/// Signs in with a key, and returns the status.
pub(super) async fn sign_in(browser: &mut Browser, key: &str) -> StatusCode {
    let form = browser.page("/sign-in").await;
    let token = form.field("form_token").to_owned();
    let fields = [("form_token", token.as_str()), ("key", key), ("next", "/keys")];
    browser.post("/sign-in", &fields).await.status
}

#[tokio::test]
async fn a_link_signs_a_browser_in_once_and_for_a_minute() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |_| {}).await;
    let user = User::login(&facilitator, "User").await;
    let mut browser = Browser::open(&facilitator);
    let link = browser.link_of(&user).await;
    // To look at a link does not use it.
    let shown = browser.page(&link).await;
    assert!(shown.text().contains(&user.keys.hotkey().to_string()));
    assert_eq!(browser.use_link(&link).await.leads_to(), "/");
    let overview = browser.page("/").await;
    assert_eq!(overview.one("h1").text, "Overview");
    assert!(!browser.cookies.contains_key("muster_visit"), "the visit is over");

    let mut second = Browser::open(&facilitator);
    assert_eq!(second.get(&link).await.status, StatusCode::GONE);
    let form = second.page("/sign-in").await;
    let (token, secret) = (
        form.field("form_token").to_owned(),
        link.rsplit_once('=').unwrap().1,
    );
    let fields = [("form_token", token.as_str()), ("link", secret)];
    assert_eq!(
        second.post("/sign-in/link", &fields).await.status,
        StatusCode::GONE
    );
    assert!(!second.cookies.contains_key("muster_session"));

    let late = second.link_of(&user).await;
    clock.advance(Duration::from_secs(60));
    assert_eq!(second.get(&late).await.status, StatusCode::GONE);
    for bad in ["/sign-in/link", "/sign-in/link?token=", "/sign-in/link?token=zz"] {
        assert_eq!(second.get(bad).await.status, StatusCode::GONE, "{bad}");
    }
}

#[tokio::test]
async fn a_sessions_cookie_is_no_bearer_token_and_draws_no_link() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let session = browser.cookies["muster_session"].clone();
    // A session is no bearer token.
    let answer = user
        .with_token(&session)
        .send(Method::POST, "/api/v1/web-links/", None)
        .await;
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    assert!(browser.page("/keys").await.text().contains("TestBrowser/1 <b>"));
}

#[tokio::test]
async fn a_key_signs_in_with_its_rights_and_signs_out_when_it_is_revoked() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let (id, key) = key_of(&user, &["read"]).await;
    let mut browser = Browser::open(&facilitator);
    let guess = format!("msk_{}", "0".repeat(64));
    for wrong in ["", "hello", "msk_", guess.as_str(), user.token.as_str()] {
        assert_eq!(
            sign_in(&mut browser, wrong).await,
            StatusCode::UNAUTHORIZED,
            "{wrong}"
        );
    }
    assert_eq!(sign_in(&mut browser, &key).await, StatusCode::SEE_OTHER);
    let keys = browser.page("/keys").await;
    assert!(keys.text().contains(&id) && !keys.text().contains(&key));
    // The key may read and nothing else.
    let refused = browser.submit("/keys", &[("name", "x"), ("right", "read")]).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.html().text().contains("lacks the right `keys`"));
    let refused = browser.submit("/jobs/spec", &[("spec", "{}")]).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);

    let revoked = user
        .send(Method::DELETE, &format!("/api/v1/keys/{id}/"), None)
        .await;
    assert_eq!(revoked.status(), StatusCode::NO_CONTENT);
    assert_eq!(
        browser.get("/jobs?page=2").await.leads_to(),
        "/sign-in?next=%2Fjobs%3Fpage%3D2"
    );
}

#[tokio::test]
async fn wrong_keys_of_one_address_are_paced_at_the_form_too() {
    let facilitator = Facilitator::start_with(Arc::new(TestClock::default()), |config| {
        config.limits.failures_per_minute = 3;
    })
    .await;
    let mut browser = Browser::open(&facilitator);
    for at in 0..4 {
        let form = browser.page("/sign-in").await;
        let token = form.field("form_token").to_owned();
        let key = format!("msk_{}", format!("{at}").repeat(64));
        let fields = [("form_token", token.as_str()), ("key", key.as_str())];
        let answer = browser.post("/sign-in", &fields).await;
        let said = answer.html().text().contains("throttled");
        assert_eq!(said, at == 3, "{at}: {answer:?}");
    }
}

#[tokio::test]
async fn sessions_are_bounded_in_age_and_number_and_end_when_asked() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |config| {
        config.auth.web_session_s = 100;
    })
    .await;
    let user = User::login(&facilitator, "User").await;
    let mut first = Browser::signed_in(&facilitator, &user).await;
    clock.advance(Duration::from_secs(99));
    assert_eq!(first.get("/").await.status, StatusCode::OK);
    clock.advance(Duration::from_secs(1));
    assert_eq!(first.get("/").await.leads_to(), "/sign-in");

    let mut browsers = Vec::new();
    for _ in 0..17 {
        clock.advance(Duration::from_millis(1));
        browsers.push(Browser::signed_in(&facilitator, &user).await);
    }
    assert_eq!(
        browsers[0].get("/").await.leads_to(),
        "/sign-in",
        "the oldest made room"
    );
    assert_eq!(browsers[1].get("/").await.status, StatusCode::OK);

    // A copy of the cookie is worth nothing after the sign-out.
    let copy = browsers[1].cookies.clone();
    assert_eq!(browsers[1].submit("/sign-out", &[]).await.leads_to(), "/sign-in");
    assert!(!browsers[1].cookies.contains_key("muster_session"));
    browsers[1].cookies = copy;
    assert_eq!(browsers[1].get("/").await.leads_to(), "/sign-in");

    assert_eq!(browsers[2].get("/").await.status, StatusCode::OK);
    assert_eq!(
        browsers[16].submit("/sign-out/everywhere", &[]).await.leads_to(),
        "/sign-in"
    );
    assert_eq!(browsers[2].get("/").await.leads_to(), "/sign-in");
}

#[tokio::test]
async fn behind_tls_cookies_travel_over_tls_only() {
    let facilitator = Facilitator::start_with(Arc::new(TestClock::default()), |config| {
        config.public_url = Some("https://facilitator.example".to_owned());
    })
    .await;
    let answer = reqwest::get(facilitator.url("/sign-in")).await.unwrap();
    let set = answer.headers()["set-cookie"].to_str().unwrap();
    assert!(
        set.starts_with("__Host-muster_visit=") && set.ends_with("; Secure"),
        "{set}"
    );
}

#[tokio::test]
async fn a_page_of_another_site_leads_to_a_page_and_not_to_the_sign_in() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let session = browser.cookies.remove("muster_session").unwrap();
    // The browser keeps a strict cookie back when a link of another site is followed.
    let from_elsewhere = |browser: &Browser| {
        let request = browser.request(Method::GET, "/jobs");
        request
            .header("sec-fetch-site", "cross-site")
            .header("sec-fetch-dest", "document")
    };
    let request = from_elsewhere(&browser);
    let again = browser.send(request).await.html();
    assert_eq!(
        again
            .all("meta")
            .find(|meta| meta.get("http-equiv") == "refresh")
            .unwrap()
            .get("content"),
        "0"
    );
    browser.cookies.insert("muster_session".to_owned(), session);
    let here = browser
        .request(Method::GET, "/jobs")
        .header("sec-fetch-site", "same-origin");
    assert_eq!(browser.send(here).await.status, StatusCode::OK);
}
