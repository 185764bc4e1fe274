//! Volumes from honest servers: complete, in several parts, continued, cached, redirected.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_process::Coded;
use muster_protocol::ErrorCode;
use muster_protocol::job::Fault;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::server::{Server, Step, answer, file, head};
use crate::support::{Room, noise, zipped};

fn single(url: &str) -> serde_json::Value {
    json!({"volume_type": "single_file", "url": url, "relative_path": "data/model.bin"})
}

#[tokio::test]
async fn every_type_of_volume_in_one_as_python_writes_it() {
    let zip = zipped(&[("a.txt", b"A"), ("sub/b.txt", b"B")]);
    let inline = STANDARD.encode(zipped(&[("i.txt", b"I")]));
    let server = Server::start(move |request, _| match request.path.as_str() {
        "/a.zip?sig=1" => answer("200 OK", &[], &zip),
        "/f" => answer("200 OK", &[], b"F"),
        _ => answer("404 Not Found", &[], b""),
    })
    .await;
    // The order and the nulls of pydantic's model_dump_json.
    let frame = format!(
        r#"{{"volume_type":"multi_volume","volumes":[{{"volume_type":"inline","contents":"{inline}","relative_path":null}},{{"volume_type":"zip_url","contents":"{}","relative_path":"x/y"}},{{"volume_type":"single_file","url":"{}","relative_path":"x/y/a.txt"}}]}}"#,
        server.url("/a.zip?sig=1"),
        server.url("/f"),
    );
    let files = Room::new()
        .place(serde_json::from_str(&frame).unwrap())
        .await
        .unwrap();
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["i.txt", "x/y/a.txt", "x/y/sub/b.txt"]);
    assert_eq!(
        files["x/y/a.txt"], b"F",
        "a later volume replaces files of an earlier one"
    );
}

#[tokio::test]
async fn a_broken_connection_is_continued_where_it_broke() {
    let body = noise(300_000);
    let sent = body.clone();
    // The first three connections end after another 80 000 bytes.
    let server = Server::start(move |request, before| {
        let mut reply = file(request, "\"v1\"", &sent);
        if let (true, Some(Step::Bytes(bytes))) = (before < 3, reply.first_mut()) {
            bytes.truncate(80_000);
        }
        reply
    })
    .await;
    let files = Room::new().place(single(&server.url("/m"))).await.unwrap();
    assert!(files["data/model.bin"] == body);
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    assert_eq!(seen[0].header("range"), None);
    for request in &seen[1..] {
        assert!(request.header("range").unwrap().starts_with("bytes="));
        assert_eq!(request.header("if-range"), Some("\"v1\""));
    }
    assert_ne!(
        seen[1].header("range"),
        seen[2].header("range"),
        "no byte is fetched twice"
    );
}

#[tokio::test]
async fn a_file_that_changed_meanwhile_is_fetched_anew() {
    let (old, new) = (noise(100_000), vec![7; 90_000]);
    let expected = new.clone();
    let server = Server::start(move |request, before| {
        if before == 0 {
            let mut reply = file(request, "\"old\"", &old);
            if let Some(Step::Bytes(bytes)) = reply.first_mut() {
                bytes.truncate(50_000);
            }
            return reply;
        }
        file(request, "\"new\"", &new)
    })
    .await;
    let files = Room::new().place(single(&server.url("/m"))).await.unwrap();
    assert!(files["data/model.bin"] == expected);
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn without_a_strong_tag_nothing_is_pieced_together() {
    let body = noise(60_000);
    let sent = body.clone();
    let server = Server::start(move |_, before| {
        let mut reply = answer("200 OK", &[("ETag", "W/\"weak\"")], &sent);
        if let (0, Some(Step::Bytes(bytes))) = (before, reply.first_mut()) {
            bytes.truncate(30_000);
        }
        reply
    })
    .await;
    let files = Room::new().place(single(&server.url("/m"))).await.unwrap();
    assert!(files["data/model.bin"] == body);
    assert!(
        server
            .seen()
            .iter()
            .all(|request| request.header("range").is_none())
    );
}

#[tokio::test]
async fn passing_failures_are_tried_again_and_lasting_ones_are_not() {
    let server = Server::start(
        |request, before| match (request.path.split('?').next().unwrap(), before) {
            ("/passing", 0) => answer("503 Service Unavailable", &[("Retry-After", "0")], b""),
            ("/passing", 1) => answer("429 Too Many Requests", &[], b""),
            ("/passing", 2) => vec![],
            ("/passing", _) => answer("200 OK", &[], b"at last"),
            ("/down", _) => answer("500 Internal Server Error", &[], b""),
            _ => answer("403 Forbidden", &[], b""),
        },
    )
    .await;
    let room = Room::new();
    let files = room.place(single(&server.url("/passing"))).await.unwrap();
    assert_eq!(files["data/model.bin"], b"at last");
    assert_eq!(server.seen().len(), 4);

    let error = room
        .place(single(&server.url("/down?X-Amz-Signature=secret")))
        .await
        .unwrap_err();
    assert_eq!(
        (error.code(), error.fault()),
        (Some(ErrorCode::InputUnreachable), Fault::Network)
    );
    assert_eq!(server.seen().len(), 4 + 6, "one try and five more");
    let text = muster_process::error::Causes(&error).to_string();
    assert!(
        text.contains("500") && text.contains("6 tries") && !text.contains("secret"),
        "{text}"
    );

    let error = room.place(single(&server.url("/denied"))).await.unwrap_err();
    assert_eq!(
        (error.code(), error.fault()),
        (Some(ErrorCode::InputDenied), Fault::User)
    );
    assert_eq!(server.seen().len(), 4 + 6 + 1, "a refusal is final");
}

#[tokio::test]
async fn nobody_listening_is_the_networks() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/x", listener.local_addr().unwrap());
    drop(listener);
    let error = Room::new().place(single(&url)).await.unwrap_err();
    assert_eq!(
        (error.code(), error.fault()),
        (Some(ErrorCode::InputUnreachable), Fault::Network)
    );
}

#[tokio::test]
async fn unchanged_files_are_not_fetched_again() {
    let body = noise(200_000);
    let sent = body.clone();
    let server = Server::start(move |request, _| file(request, "\"v1\"", &sent)).await;
    let room = Room::new().keeping(64);
    for signature in ["a", "b", "c"] {
        // The URL is signed anew each time, as users do.
        let url = server.url(&format!("/m?X-Amz-Signature={signature}"));
        let files = room.place(single(&url)).await.unwrap();
        assert!(files["data/model.bin"] == body);
    }
    let tags: Vec<_> = server
        .seen()
        .iter()
        .map(|r| r.header("if-none-match").map(str::to_owned))
        .collect();
    assert_eq!(tags, [None, Some("\"v1\"".to_owned()), Some("\"v1\"".to_owned())]);
    // Damage to cached content is noticed.
    let blob = fs::read_dir(room.path("kept/blobs"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    fs::write(blob, b"damaged").unwrap();
    let files = room.place(single(&server.url("/m"))).await.unwrap();
    assert!(files["data/model.bin"] == body);
}

#[tokio::test]
async fn kept_content_is_not_given_to_whom_the_server_refuses() {
    let server = Server::start(|request, _| {
        if request.path.ends_with("Signature=good") {
            file(request, "\"v1\"", b"private")
        } else {
            answer("403 Forbidden", &[], b"")
        }
    })
    .await;
    let room = Room::new().keeping(64);
    room.place(single(&server.url("/m?Signature=good")))
        .await
        .unwrap();
    let error = room
        .place(single(&server.url("/m?Signature=bad")))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InputDenied));
}

#[tokio::test]
async fn executors_that_share_a_cache_do_not_disturb_one_another() {
    let body = noise(150_000);
    let sent = body.clone();
    let server = Server::start(move |request, _| file(request, "\"v1\"", &sent)).await;
    let room = Room::new().keeping(1);
    let url = server.url("/m");
    let all = (0..8).map(|_| room.place(single(&url)));
    let outcomes = futures_util::future::join_all(all).await;
    assert!(
        outcomes
            .into_iter()
            .all(|files| files.unwrap()["data/model.bin"] == body)
    );
    assert_eq!(fs::read_dir(room.path("kept/blobs")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(room.path("kept/incoming")).unwrap().count(), 0);
}

#[tokio::test]
async fn redirects_are_followed_within_bounds() {
    let server = Server::start(|request, _| match request.path.as_str() {
        "/a" => answer("302 Found", &[("Location", "b?x=1")], b""),
        "/b?x=1" => answer("307 Temporary Redirect", &[("Location", "/c")], b""),
        "/c" => answer("200 OK", &[], b"there"),
        "/loop" => answer("301 Moved Permanently", &[("Location", "/loop")], b""),
        _ => answer("302 Found", &[], b""),
    })
    .await;
    let room = Room::new();
    assert_eq!(
        room.place(single(&server.url("/a"))).await.unwrap()["data/model.bin"],
        b"there"
    );
    let error = room.place(single(&server.url("/loop"))).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InputDenied));
    assert_eq!(server.seen().len(), 3 + 11);
    room.place(single(&server.url("/nowhere"))).await.unwrap_err();
}

#[tokio::test]
async fn a_job_that_is_called_off_waits_for_nobody() {
    let server = Server::start(|_, _| {
        vec![
            Step::Bytes(head("200 OK", &[("Content-Length", "1000")])),
            Step::Hang,
        ]
    })
    .await;
    let called_off = CancellationToken::new();
    let room = Room::new();
    let placing = room.place_until(single(&server.url("/m")), &called_off);
    let (outcome, ()) = tokio::join!(placing, async {
        while server.seen().is_empty() {
            tokio::task::yield_now().await; // polls until the server was asked
        }
        called_off.cancel();
    });
    assert!(
        matches!(outcome, Err(muster_job_data::VolumeError::CalledOff)),
        "{outcome:?}"
    );
}
