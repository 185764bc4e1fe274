//! Files: announcing, uploading by URL, listing, access of other accounts, and deleting.

use muster_protocol::Digest;
use muster_protocol::rest::{FilePage, FileView};
use serde_json::{Value, json};

use crate::facilitator::Facilitator;
use crate::user::{User, read_json};

const FILES: &str = "/api/v1/files/";

async fn announce(facilitator: &Facilitator, user: &User, body: &Value) -> (u16, Value) {
    let request = user
        .http
        .post(facilitator.url(FILES))
        .bearer_auth(&user.token)
        .json(body);
    read_json(request.send().await.unwrap()).await
}

async fn announced(facilitator: &Facilitator, user: &User, body: &Value) -> FileView {
    let (status, body) = announce(facilitator, user, body).await;
    assert_eq!(status, 201, "{body}");
    serde_json::from_value(body).unwrap()
}

#[tokio::test]
async fn a_file_is_announced_uploaded_shown_and_deleted_by_its_owner_only() {
    let facilitator = Facilitator::start().await;
    let alice = User::login(&facilitator, "Alice").await;
    let bob = User::login(&facilitator, "Bob").await;
    let sha256 = Digest::of(b"content").hex();
    let file = announced(
        &facilitator,
        &alice,
        &json!({"name": "a.txt", "size": 7, "sha256": sha256}),
    )
    .await;
    assert!(!file.complete && file.received == 0 && file.size == Some(7));
    // A signed URL needs no token.
    let stranger = reqwest::Client::new();
    let put = stranger
        .put(&file.upload_url)
        .body("content")
        .send()
        .await
        .unwrap();
    assert_eq!(put.status(), 201);
    let got = stranger.get(&file.download_url).send().await.unwrap();
    assert_eq!(got.bytes().await.unwrap(), "content");

    let path = format!("{FILES}{}/", file.id);
    let shown: FileView = alice.get(&path).send().await.unwrap().json().await.unwrap();
    assert!(shown.complete && shown.received == 7 && shown.sha256 == Some(sha256));
    assert_eq!(bob.get(&path).send().await.unwrap().status(), 404);
    let delete = |user: &User| user.http.delete(facilitator.url(&path)).bearer_auth(&user.token);
    assert_eq!(delete(&bob).send().await.unwrap().status(), 404);
    assert_eq!(delete(&alice).send().await.unwrap().status(), 204);
    assert_eq!(alice.get(&path).send().await.unwrap().status(), 404);
    assert_eq!(
        stranger.get(&file.download_url).send().await.unwrap().status(),
        404
    );
}

#[tokio::test]
async fn a_list_has_pages_and_urls_outlive_a_restart() {
    let facilitator = Facilitator::start().await;
    let alice = User::login(&facilitator, "Alice").await;
    for number in 0..12 {
        announced(&facilitator, &alice, &json!({"name": format!("{number}")})).await;
    }
    let page = async |user: &User, query: &str| -> FilePage {
        let answer = user.get(&format!("{FILES}{query}")).send().await.unwrap();
        answer.json().await.unwrap()
    };
    let first = page(&alice, "").await;
    assert_eq!((first.count, first.results.len()), (12, 10));
    assert!(first.next.is_some() && first.previous.is_none());
    assert_eq!(page(&alice, "?page=2").await.results.len(), 2);
    assert_eq!(
        alice
            .get(&format!("{FILES}?page=3"))
            .send()
            .await
            .unwrap()
            .status(),
        404
    );
    let bob = User::login(&facilitator, "Bob").await;
    assert_eq!(page(&bob, "").await.count, 0);

    let (_, path) = first.results[0].upload_url.split_once("/files/").unwrap();
    let path = format!("/files/{path}");
    let facilitator = facilitator.restart().await;
    let put = reqwest::Client::new()
        .put(facilitator.url(&path))
        .body("x")
        .send()
        .await
        .unwrap();
    assert_eq!(put.status(), 201, "the secret of the URLs is kept");
}

#[tokio::test]
async fn a_file_that_is_too_large_or_misnamed_is_refused_with_a_reason() {
    let facilitator = Facilitator::start_with(
        std::sync::Arc::new(muster_process::SystemClock::new()),
        |config| {
            config.files.max_file_mib = 1;
            config.files.quota_mib = 2;
        },
    )
    .await;
    let alice = User::login(&facilitator, "Alice").await;
    for (body, status) in [
        (json!({}), 400),
        (json!([]), 400),
        (json!({"name": ""}), 400),
        (json!({"name": "a\u{0}"}), 400),
        (json!({"name": "a", "size": -1}), 400),
        (json!({"name": "a", "sha256": "zz"}), 400),
        (json!({"name": "a", "size": 1_048_577}), 413),
    ] {
        let (found, answer) = announce(&facilitator, &alice, &body).await;
        assert_eq!(found, status, "{body}: {answer}");
        assert!(
            answer["detail"].as_str().is_some_and(|detail| !detail.is_empty()),
            "{answer}"
        );
    }
    for _ in 0..2 {
        announced(&facilitator, &alice, &json!({"name": "a", "size": 1_048_576})).await;
    }
    let (full, answer) = announce(&facilitator, &alice, &json!({"name": "a", "size": 1})).await;
    assert_eq!(full, 413, "{answer}");
    let nobody = reqwest::get(facilitator.url(FILES)).await.unwrap();
    assert_eq!(nobody.status(), 401);
}
