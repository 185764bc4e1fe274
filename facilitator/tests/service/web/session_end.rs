//! The end of a session: its open event streams and the keys that it has made end with it. The rights to make keys and
//! to end sessions.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use muster_process::{SystemClock, TestClock};
use muster_protocol::JobId;
use muster_testbed::within;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::browser::Browser;
use super::sign_in::{key_of, sign_in};
use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for};
use crate::validator::Validator;

/// Makes a key on the page, and returns the answer's status and the key.
async fn make_key(browser: &mut Browser) -> (StatusCode, String) {
    let fields = [("name", "made"), ("right", "read"), ("right", "keys")];
    let answer = browser.submit("/keys", &fields).await;
    let page = answer.html();
    let key = page.elements.iter().find(|found| found.get("id") == "made-key");
    let key = key.map(|found| found.text.clone()).unwrap_or_default();
    (answer.status, key)
}

async fn holds(user: &User, key: &str) -> bool {
    let answer = user.with_token(key).get("/api/v1/jobs/").send().await.unwrap();
    answer.status() == StatusCode::OK
}

/// The event streams of a job's page and of the list, open and begun.
async fn open_streams(browser: &Browser, job: JobId) -> Vec<reqwest::Response> {
    let mut streams = Vec::new();
    for path in [format!("/jobs/events?uuid={job}"), format!("/jobs/{job}/events")] {
        let mut stream = browser.request(Method::GET, &path).send().await.unwrap();
        assert_eq!(stream.status(), StatusCode::OK, "{path}");
        let first = within("the first event", stream.chunk()).await.unwrap();
        assert!(first.is_some(), "{path}");
        streams.push(stream);
    }
    streams
}

/// Waits until the streams have ended.
async fn have_ended(streams: Vec<reqwest::Response>) {
    for stream in streams {
        let mut pieces = stream.bytes_stream();
        let ending = async { while let Some(Ok(_)) = pieces.next().await {} };
        within("the end of the stream", ending).await;
    }
}

#[tokio::test]
async fn an_open_event_stream_ends_with_its_session() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |config| {
        config.auth.web_session_s = 1_000;
    })
    .await;
    let _validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    let job = user.create(&body, facilitator.now_ns()).await.uuid;

    let mut first = Browser::signed_in(&facilitator, &user).await;
    let mut second = Browser::signed_in(&facilitator, &user).await;
    let streams = open_streams(&first, job).await;
    let others = open_streams(&second, job).await;
    assert_eq!(first.submit("/sign-out", &[]).await.leads_to(), "/sign-in");
    have_ended(streams).await;
    assert_eq!(
        second.submit("/sign-out/everywhere", &[]).await.leads_to(),
        "/sign-in"
    );
    have_ended(others).await;

    let (id, key) = key_of(&user, &["read"]).await;
    let mut of_key = Browser::open(&facilitator);
    assert_eq!(sign_in(&mut of_key, &key).await, StatusCode::SEE_OTHER);
    let streams = open_streams(&of_key, job).await;
    let revoked = user
        .send(Method::DELETE, &format!("/api/v1/keys/{id}/"), None)
        .await;
    assert_eq!(revoked.status(), StatusCode::NO_CONTENT);
    have_ended(streams).await;

    let last = Browser::signed_in(&facilitator, &user).await;
    let streams = open_streams(&last, job).await;
    clock.advance(Duration::from_secs(1_000));
    have_ended(streams).await;
}

#[tokio::test]
async fn a_browsers_keys_are_revoked_when_its_account_signs_out_everywhere() {
    let facilitator = Facilitator::start_with(Arc::new(SystemClock::new()), |config| {
        config.auth.web_session_s = 1_000;
    })
    .await;
    let user = User::login(&facilitator, "User").await;
    let mut stolen = Browser::signed_in(&facilitator, &user).await;
    let mut own = Browser::signed_in(&facilitator, &user).await;
    let (status, key) = make_key(&mut stolen).await;
    assert_eq!(status, StatusCode::OK);
    let (_, made_by_hotkey) = key_of(&user, &["read"]).await;
    // It makes a key of its own, which is to outlast it.
    let (_, grandchild) = key_of(&user.with_token(&key), &["read"]).await;
    for key in [&key, &grandchild, &made_by_hotkey] {
        assert!(holds(&user, key).await);
    }
    let listed = user.get("/api/v1/keys/").send().await.unwrap();
    let listed: serde_json::Value = listed.json().await.unwrap();
    let ends = |name: &str| {
        let keys = listed["results"].as_array().unwrap();
        // The oldest of this name: the newest come first.
        let found = keys.iter().rfind(|key| key["name"] == json!(name)).unwrap();
        found["expires_at"].as_str().unwrap().to_owned()
    };
    assert!(
        ends("made") < ends("browser"),
        "a browser's key ends with its session"
    );
    assert_eq!(
        own.submit("/sign-out/everywhere", &[]).await.leads_to(),
        "/sign-in"
    );
    assert!(!holds(&user, &key).await);
    assert!(!holds(&user, &grandchild).await);
    assert!(holds(&user, &made_by_hotkey).await);

    // A browser's own sign-out revokes its keys too.
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let (_, key) = make_key(&mut browser).await;
    assert!(holds(&user, &key).await);
    browser.submit("/sign-out", &[]).await;
    assert!(!holds(&user, &key).await);
}

#[tokio::test]
async fn a_browser_makes_keys_only_for_ten_minutes_after_its_hotkey_has_signed() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |_| {}).await;
    let user = User::login(&facilitator, "User").await;
    clock.advance(Duration::from_secs(60));
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    clock.advance(Duration::from_secs(539));
    assert_eq!(make_key(&mut browser).await.0, StatusCode::OK);
    clock.advance(Duration::from_secs(1));
    let fields = [("name", "late"), ("right", "read")];
    let refused = browser.submit("/keys", &fields).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.html().text().contains("muster login --web"));
    let page = browser.page("/keys").await;
    assert!(!page.all("form").any(|form| form.get("action") == "/keys"));
    // A link that an old token draws brings no new signature.
    let mut again = Browser::signed_in(&facilitator, &user).await;
    assert_eq!(again.submit("/keys", &fields).await.status, StatusCode::FORBIDDEN);
    let signed = User::login(&facilitator, "User").await;
    let mut fresh = Browser::signed_in(&facilitator, &signed).await;
    assert_eq!(make_key(&mut fresh).await.0, StatusCode::OK);
    // The others still revoke keys.
    let form = again.page("/keys").await;
    let revoke = form
        .all("form")
        .find(|form| form.get("action").ends_with("/revoke"));
    let action = revoke.unwrap().get("action").to_owned();
    assert_eq!(again.submit(&action, &[]).await.leads_to(), "/keys");
}

#[tokio::test]
async fn a_browser_that_a_key_has_signed_in_makes_no_keys() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let (_, key) = key_of(&user, &["read", "keys"]).await;
    let mut by_form = Browser::open(&facilitator);
    assert_eq!(sign_in(&mut by_form, &key).await, StatusCode::SEE_OTHER);
    let by_link = Browser::signed_in(&facilitator, &user.with_token(&key)).await;
    for mut browser in [by_form, by_link] {
        let refused = browser.submit("/keys", &[("name", "x"), ("right", "read")]).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN);
        assert!(refused.html().text().contains("muster keys new"));
    }
    // With the key itself a program makes keys as before.
    let (_, made) = key_of(&user.with_token(&key), &["read"]).await;
    assert!(holds(&user, &made).await);
}

#[tokio::test]
async fn a_key_that_only_chats_lists_no_browsers_and_ends_no_other_session() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let mut own = Browser::signed_in(&facilitator, &user).await;
    for (rights, lists, ends) in [
        (&["chat"][..], false, false),
        (&["read", "chat"], true, false),
        (&["keys", "read"], true, true),
    ] {
        let (_, key) = key_of(&user, rights).await;
        let mut browser = Browser::open(&facilitator);
        assert_eq!(sign_in(&mut browser, &key).await, StatusCode::SEE_OTHER);
        let page = browser.page("/keys").await;
        assert_eq!(page.text().contains("TestBrowser/1 <b>"), lists, "{rights:?}");
        let button = page
            .all("form")
            .any(|form| form.get("action") == "/sign-out/everywhere");
        assert_eq!(button, ends, "{rights:?}");
        let answer = browser.submit("/sign-out/everywhere", &[]).await;
        let expected = if ends {
            StatusCode::SEE_OTHER
        } else {
            StatusCode::FORBIDDEN
        };
        assert_eq!(answer.status, expected, "{rights:?}");
        let is_left = own.get("/").await.status == StatusCode::OK;
        assert_eq!(is_left, !ends, "{rights:?}");
    }
}
