//! Malicious servers and archives: each is refused in bounded time and memory, and leaves no files.

use std::time::Duration;

use muster_job_data::volumes::UnpackLimits;
use muster_job_data::{HttpError, Pace, VolumeError};
use muster_process::Coded;
use muster_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::server::{Server, Step, answer, head};
use crate::support::{PACE, Room, zipped};

fn single(url: &str) -> Value {
    json!({"volume_type": "single_file", "url": url, "relative_path": "f"})
}

fn small() -> Room {
    let mut room = Room::new();
    room.limits = UnpackLimits {
        bytes: 1 << 20,
        entries: 10,
    };
    room
}

#[tokio::test]
async fn an_endless_body_ends_at_the_limit() {
    let block = vec![7; 64 << 10];
    let server =
        Server::start(move |_, _| vec![Step::Bytes(head("200 OK", &[])), Step::Endless(block.clone())]).await;
    let error = small().place(single(&server.url("/"))).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::VolumeRefused), "{error:?}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_length_over_the_limit_is_refused_before_the_body() {
    let server = Server::start(|_, _| {
        vec![
            Step::Bytes(head("200 OK", &[("Content-Length", "99999999999")])),
            Step::Hang,
        ]
    })
    .await;
    let error = small().place(single(&server.url("/"))).await.unwrap_err();
    assert!(
        matches!(
            error,
            VolumeError::Fetch {
                source: HttpError::TooLarge { .. },
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_length_that_never_comes_is_given_up() {
    let server = Server::start(|_, _| {
        vec![Step::Bytes(
            [head("200 OK", &[("Content-Length", "1000")]), vec![1; 10]].concat(),
        )]
    })
    .await;
    let error = small().place(single(&server.url("/"))).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InputUnreachable), "{error:?}");
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test]
async fn slow_bodies_and_silent_servers_are_given_up() {
    let server = Server::start(|request, _| match request.path.as_str() {
        "/drip" => vec![Step::Bytes(head("200 OK", &[])), Step::Drip],
        _ => vec![Step::Hang],
    })
    .await;
    let mut room = small();
    room.pace = Pace {
        stall: Duration::from_millis(50),
        head: Duration::from_millis(50),
        ..PACE
    };
    for path in ["/drip", "/silent"] {
        let error = room.place(single(&server.url(path))).await.unwrap_err();
        assert_eq!(
            error.code(),
            Some(ErrorCode::InputUnreachable),
            "{path}: {error:?}"
        );
    }
}

#[tokio::test]
async fn packed_bodies_are_not_unpacked() {
    // A gzip stream that is never decoded.
    let server =
        Server::start(|_, _| answer("200 OK", &[("Content-Encoding", "gzip")], b"\x1f\x8b\x08")).await;
    let error = small().place(single(&server.url("/"))).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InputMismatch), "{error:?}");
    assert_eq!(server.seen()[0].header("accept-encoding"), Some("identity"));
}

#[tokio::test]
async fn wrong_parts_are_never_put_together() {
    let whole = vec![b'x'; 60_000];
    for range in [
        "bytes 0-59999/60000",
        "bytes 20001-59999/60000",
        "bytes 30000-59999/70000",
        "bytes */60000",
        "nonsense",
    ] {
        let whole = whole.clone();
        let server = Server::start(move |request, before| match (before, request.header("range")) {
            (0, _) => {
                let mut reply = answer("200 OK", &[("ETag", "\"v\"")], &whole);
                if let Some(Step::Bytes(bytes)) = reply.first_mut() {
                    bytes.truncate(30_000);
                }
                reply
            }
            (_, Some(_)) => answer(
                "206 Partial Content",
                &[("ETag", "\"v\""), ("Content-Range", range)],
                &[b'y'; 30_000],
            ),
            (_, None) => answer("200 OK", &[("ETag", "\"v\"")], &whole),
        })
        .await;
        let files = small().place(single(&server.url("/"))).await.unwrap();
        assert!(
            files["f"].iter().all(|byte| *byte == b'x') && files["f"].len() == 60_000,
            "{range}"
        );
        assert_eq!(server.seen().len(), 3, "{range}");
    }
}

#[tokio::test]
async fn a_part_with_more_than_the_whole_is_refused() {
    let server = Server::start(|request, _| match request.header("range") {
        None => {
            let mut reply = answer("200 OK", &[("ETag", "\"v\"")], &[b'x'; 1_000]);
            if let Some(Step::Bytes(bytes)) = reply.first_mut() {
                bytes.truncate(bytes.len() - 500);
            }
            reply
        }
        Some(_) => answer(
            "206 Partial Content",
            &[("Content-Range", "bytes 500-999/1000")],
            &[b'y'; 900],
        ),
    })
    .await;
    let error = small().place(single(&server.url("/"))).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InputMismatch), "{error:?}");
}

#[tokio::test]
async fn redirects_do_not_lead_inside() {
    for location in [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/",
        "http://10.0.0.1/",
        "http://[fd00:ec2::254]/",
        "http://0.0.0.0:1234/",
        "http://2852039166/",
        "//192.168.0.1/x",
        "file:///etc/passwd",
        "http://user:pass@127.0.0.1/",
        "http://127.0.0.1:22/",
    ] {
        let server = Server::start(move |_, _| answer("302 Found", &[("Location", location)], b"")).await;
        let error = small().place(single(&server.url("/"))).await.unwrap_err();
        assert_eq!(
            error.code(),
            Some(ErrorCode::AddressRefused),
            "{location}: {error:?}"
        );
    }
}

#[tokio::test]
async fn without_permission_this_machine_is_out_of_reach_by_address_and_by_name() {
    let server = Server::start(|_, _| answer("200 OK", &[], b"secret")).await;
    let mut room = small();
    room.settings.allow.clear();
    let port = server.address.port();
    for host in ["127.0.0.1", "localhost", "localhost.", "[::1]", "0", "0x7f.1"] {
        let error = room
            .place(single(&format!("http://{host}:{port}/")))
            .await
            .unwrap_err();
        let refused = [ErrorCode::AddressRefused, ErrorCode::InputUnreachable];
        assert!(
            error.code().is_some_and(|code| refused.contains(&code)),
            "{host}: {error:?}"
        );
    }
    assert!(server.seen().is_empty(), "somebody connected");
}

#[tokio::test]
async fn no_proxy_of_the_environment_is_asked() {
    // The proxy variables of this process are ignored: the server is reached directly.
    let server = Server::start(|_, _| answer("200 OK", &[], b"direct")).await;
    small().place(single(&server.url("/x"))).await.unwrap();
    assert_eq!(
        server.seen()[0].path,
        "/x",
        "a proxy would be asked for a whole URL"
    );
}

#[tokio::test]
async fn archives_from_the_network_are_judged_like_all_others() {
    let mut slip = zipped(&[("aa_bbbb", b"x")]);
    for at in 0..slip.len() - 7 {
        if &slip[at..at + 7] == b"aa_bbbb" {
            slip[at..at + 7].copy_from_slice(b"../bbbb");
        }
    }
    let bomb = zipped(&[("zeros", &vec![0; 4 << 20])]);
    let names: Vec<String> = (0..20).map(|number| format!("f{number}")).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    for hostile in [slip, bomb, zipped(&many), b"no archive".to_vec(), vec![]] {
        let server = Server::start(move |_, _| answer("200 OK", &[], &hostile)).await;
        let volume = json!({"volume_type": "zip_url", "contents": server.url("/"), "relative_path": null});
        let error = small().place(volume).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::VolumeRefused), "{error:?}");
    }
}

#[tokio::test]
async fn a_place_outside_is_refused_before_anything_is_fetched() {
    let server = Server::start(|_, _| answer("200 OK", &[], b"x")).await;
    for path in ["../x", "/etc/x", "a/../../x", "", ".", "a\\b", "a\u{0}b"] {
        let volume = json!({"volume_type": "single_file", "url": server.url("/"), "relative_path": path});
        let error = small().place(volume).await.unwrap_err();
        assert_eq!(
            error.code(),
            Some(ErrorCode::VolumeRefused),
            "{path:?}: {error:?}"
        );
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn headers_without_end_are_refused() {
    let server = Server::start(|_, _| {
        vec![
            Step::Bytes(b"HTTP/1.1 200 OK\r\nX: ".to_vec()),
            Step::Endless(vec![b'a'; 64 << 10]),
        ]
    })
    .await;
    let error = small().place(single(&server.url("/"))).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InputUnreachable), "{error:?}");
}
