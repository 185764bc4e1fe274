//! The clients and the parts of a request that the endpoint accepts.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::uri::PathAndQuery;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use muster_process::tls::{TlsIdentity, client};
use muster_process::{Tasks, certificate};
use muster_protocol::Digest;
use muster_response_proof::StreamEnd;
use muster_response_proof::headers::PROOF;
use muster_response_proof::well_known::GRADE_PATH;
use muster_sealed_client::{ClientError, SealedClient, SealedPeer};
use muster_sealing_proxy::{GraderBackend, Limits, Upstream};
use muster_testbed::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::rig::{BOUNDS, EVENTS, Engine, Kind, Rig, chunk, until};

fn hello(tasks: &Tasks) -> Engine {
    Engine::new(tasks, |mut stream| async move {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-type: text/plain\r\nconnection: keep-alive, x-hop\r\n\
                      keep-alive: timeout=5\r\nx-hop: 1\r\nx-stays: 1\r\n\r\nhello";
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
}

/// A TLS connection to the endpoint.
pub(crate) async fn tls(
    rig: &Rig,
    identity: &TlsIdentity,
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut config = client(identity, rig.server).unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let tcp = TcpStream::connect(rig.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

/// Sends bytes and reads until the endpoint closes the connection.
async fn say(rig: &Rig, bytes: &[u8]) -> String {
    let mut tls = tls(rig, &rig.identity, &[]).await.unwrap();
    tls.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // A connection that is closed without a TLS alert counts as well.
    let _ = within("the end of the connection", tls.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn only_the_one_certificate_gets_in_and_only_the_one_answers() {
    let tasks = Tasks::new();
    let engine = hello(&tasks);
    let rig = Rig::new(tasks.clone(), engine.address(), Kind::default()).await;
    assert_eq!(rig.ask(Request::get("/"), "").await.body, "hello");
    // A client with another valid certificate.
    let other = certificate::make_self_signed(&["client".to_owned()])
        .unwrap()
        .identity;
    let limits = Limits::default();
    let stranger = SealedClient::new(rig.client.peer().clone(), &other, &limits, &tasks).unwrap();
    let refused = stranger
        .send(Request::get("/").body(Full::default()).unwrap())
        .await;
    assert!(refused.is_err());
    // A client that closes without a request.
    let mut nobody = tls(&rig, &rig.identity, &[]).await.unwrap();
    nobody.shutdown().await.unwrap();
    // A server with another certificate.
    let peer = SealedPeer {
        certificate: Digest::of(b"another"),
        ..rig.client.peer().clone()
    };
    let misled = SealedClient::new(peer, &rig.identity, &limits, &tasks).unwrap();
    let refused = misled
        .send(Request::get("/").body(Full::default()).unwrap())
        .await;
    assert!(matches!(refused, Err(ClientError::Connect(_))), "{refused:?}");
    assert_eq!(engine.heard().len(), 1);
}

#[tokio::test]
async fn http_2_streams_side_by_side_and_proves_each() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(EVENTS.as_bytes()).await.unwrap();
        for _ in 0..10 {
            stream.write_all(&chunk(b"data: 1\n\n")).await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    });
    let rig = Rig::new(tasks.clone(), engine.address(), Kind::default()).await;
    let tls = tls(&rig, &rig.identity, &[b"h2"]).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tls))
        .await
        .unwrap();
    tasks.spawn("h2", connection);
    let mut ledger = rig.ledger();
    let asking = (0..20).map(|number| {
        let (mut sender, rig) = (sender.clone(), &rig);
        async move {
            let request = Request::post(format!("https://localhost/v1/x?n={number}"));
            let request = request.body(Full::new(Bytes::from("{}"))).unwrap();
            let mut asked = rig.asked(&request, b"{}");
            asked.path = format!("/v1/x?n={number}");
            let response = sender.send_request(request).await.unwrap();
            let (report, reported) = tokio::sync::oneshot::channel();
            let collected = rig.checked(response, report).into_body().collect().await.unwrap();
            assert!(collected.trailers().unwrap().contains_key(PROOF));
            (reported.await.unwrap(), asked)
        }
    });
    let answers = futures_util::future::join_all(asking).await;
    for (checked, asked) in answers {
        let (proof, _) = checked.check_proof(&asked, &mut ledger, BOUNDS).unwrap();
        assert_eq!((proof.end, proof.output_bytes), (StreamEnd::Completed, 90));
    }
    assert!(ledger.missing().is_empty());
}

#[tokio::test]
async fn a_stream_of_many_that_its_client_takes_nothing_of_loses_its_place() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(EVENTS.as_bytes()).await.unwrap();
        let event = chunk(&[b'x'; 4_096]);
        while stream.write_all(&event).await.is_ok() {}
    });
    let kind = Kind {
        limits: Limits {
            // The connection itself is kept only if it answers within this time, even on a busy machine.
            stall: Duration::from_secs(3),
            ..Limits::default()
        },
        ..Kind::default()
    };
    let rig = Rig::new(tasks.clone(), engine.address(), kind).await;
    let tls = tls(&rig, &rig.identity, &[b"h2"]).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let connecting = builder
        .initial_stream_window_size(1_000)
        .handshake(TokioIo::new(tls));
    let (mut sender, connection) = connecting.await.unwrap();
    tasks.spawn("h2", connection);
    let request = Request::get("https://localhost/").body(Full::<Bytes>::default());
    let unread = sender.send_request(request.unwrap()).await.unwrap();
    // The response waits for its client.
    until("a proof", || (!rig.signed().is_empty()).then_some(())).await;
    until("its place is free", || {
        (rig.proxy.signer().under_way() == 0).then_some(())
    })
    .await;
    assert_eq!(rig.ends(), [StreamEnd::ClientGone]);
    assert!(!sender.is_closed(), "the connection has others");
    drop(unread);
}

#[tokio::test]
async fn a_request_with_two_lengths_reaches_nobody() {
    let tasks = Tasks::new();
    let engine = hello(&tasks);
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: x\r\n\r\n";
    for lengths in [
        "content-length: 5\r\ncontent-length: 41\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding: xchunked\r\n",
        "content-length: +5\r\n",
        "content-length: 5, 41\r\n",
    ] {
        let said = say(
            &rig,
            format!("POST / HTTP/1.1\r\nhost: x\r\n{lengths}\r\n{hidden}").as_bytes(),
        )
        .await;
        assert!(said.starts_with("HTTP/1.1 400 "), "{lengths}: {said}");
        assert_eq!(said.matches("HTTP/1.1 ").count(), 1, "{lengths}: {said}");
    }
    assert_eq!(engine.heard(), Vec::<String>::new());
    // A transfer coding overrides a length: the body ends where the coding ends it, and the connection is closed. The
    // hidden request is not read.
    for lengths in [
        "content-length: 41\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 41\r\n",
    ] {
        let said = say(
            &rig,
            format!("POST /one HTTP/1.1\r\nhost: x\r\n{lengths}\r\n{hidden}").as_bytes(),
        )
        .await;
        assert_eq!(said.matches("HTTP/1.1 ").count(), 1, "{lengths}: {said}");
    }
    for heard in engine.heard() {
        assert!(
            heard.starts_with("POST /one ")
                && !heard.contains("transfer-encoding")
                && !heard.contains("hidden"),
            "{heard}"
        );
    }
}

#[tokio::test]
async fn headers_of_a_hop_and_of_ours_do_not_pass() {
    let tasks = Tasks::new();
    let engine = hello(&tasks);
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let told = rig
        .ask(
            Request::post("/x")
                .header("connection", "x-mine")
                .header("x-mine", "1")
                .header("keep-alive", "1")
                .header("proxy-authorization", "Basic x")
                .header("muster-client", "ab".repeat(32))
                .header("muster-other", "1")
                .header("accept-encoding", "gzip")
                .header("x-theirs", "1"),
            "{}",
        )
        .await;
    let heard = engine.heard().remove(0);
    for absent in [
        "x-mine",
        "keep-alive",
        "proxy-",
        "muster-",
        "accept-encoding",
        "te:",
        "transfer-",
    ] {
        assert!(!heard.contains(absent), "{absent}: {heard}");
    }
    assert!(
        heard.contains("x-theirs: 1\r\n") && heard.contains("host: localhost\r\n"),
        "{heard}"
    );
    assert!(
        heard.contains("content-length: 2\r\n") && heard.ends_with("\r\n\r\n{}"),
        "{heard}"
    );
    let headers = &told.head.headers;
    assert!(headers.contains_key("x-stays") && !headers.contains_key("x-hop"));
    assert!(!headers.contains_key("keep-alive"));
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_and_while_it_comes() {
    let tasks = Tasks::new();
    let engine = hello(&tasks);
    let kind = Kind {
        limits: Limits {
            request: 10,
            ..Limits::default()
        },
        ..Kind::default()
    };
    let rig = Rig::new(tasks, engine.address(), kind).await;
    let said = say(&rig, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n").await;
    assert!(
        said.starts_with("HTTP/1.1 413 ") && said.contains("connection: close"),
        "{said}"
    );
    let chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n6\r\n123456\r\n6\r\n123456\r\n0\r\n\r\n";
    let said = say(&rig, chunked).await;
    assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
    assert!(said.contains("invalid_request_error"), "{said}");
    assert!(engine.heard().is_empty());
    assert!(rig.signed().is_empty(), "nothing was asked, nothing is signed");
}

#[tokio::test]
async fn a_request_too_many_is_told_to_come_back_and_a_connection_too_many_is_hung_up_on() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(EVENTS.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    });
    let kind = Kind {
        limits: Limits {
            in_flight: 1,
            connections: 2,
            ..Limits::default()
        },
        ..Kind::default()
    };
    let rig = Rig::new(tasks, engine.address(), kind).await;
    let first = rig
        .client
        .send(Request::get("/").body(Full::default()).unwrap())
        .await
        .unwrap();
    let refused = rig.ask(Request::get("/"), "").await;
    assert_eq!(refused.head.status, 503);
    assert_eq!(refused.head.headers["retry-after"], "1");
    // Both connections are taken, by the stream and by the one that waits for the next request.
    let hung_up = async {
        loop {
            let mut third = TcpStream::connect(rig.address).await.unwrap();
            let read = timeout(Duration::from_millis(200), third.read(&mut [0; 1])).await; // bounds: one look
            if let Ok(Ok(0) | Err(_)) = read {
                return;
            }
        }
    };
    within("a connection is turned away", hung_up).await;
    drop(first);
    until("the stream's place is free", || {
        (rig.proxy.signer().under_way() == 0).then_some(())
    })
    .await;
}

/// A grader beside an engine, which was started `ups` times.
struct TestGrader {
    upstream: Option<Upstream>,
    ups: AtomicUsize,
}

impl GraderBackend for TestGrader {
    fn start(&self) -> BoxFuture<'_, Result<Upstream, String>> {
        self.ups.fetch_add(1, Ordering::Relaxed);
        Box::pin(ready(
            self.upstream.clone().ok_or_else(|| "it is not there".to_owned()),
        ))
    }

    fn path_for(&self, method: &Method) -> PathAndQuery {
        PathAndQuery::from_static(if method == Method::GET { "/how" } else { "/what" })
    }
}

#[tokio::test]
async fn a_grader_beside_the_engine_is_reached_by_one_path_and_its_responses_are_signed() {
    let tasks = Tasks::new();
    let engine = hello(&tasks);
    let other = Engine::new(&tasks, |mut stream| async move {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nbeside";
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    let limits = Limits::default();
    let upstream = Upstream::new(other.address(), &limits, &tasks);
    let beside = Arc::new(TestGrader {
        upstream: Some(upstream),
        ups: AtomicUsize::new(0),
    });
    let rig = Rig::with(
        tasks.clone(),
        engine.address(),
        Some(beside.clone()),
        Kind::default(),
    )
    .await;
    let mut ledger = rig.ledger();
    for (number, (request, body, line)) in [
        (Request::get(GRADE_PATH), "", "GET /how HTTP/1.1"),
        (Request::post(GRADE_PATH), "question", "POST /what HTTP/1.1"),
    ]
    .into_iter()
    .enumerate()
    {
        let told = rig.ask(request, body).await;
        assert_eq!((told.head.status.as_u16(), &told.body[..]), (200, &b"beside"[..]));
        // The requested path is signed.
        let proof = told.proven(&mut ledger);
        assert_eq!((proof.path.as_str(), proof.sequence), (GRADE_PATH, number as u64));
        assert!(other.heard()[number].starts_with(line), "{:?}", other.heard());
    }
    assert!(engine.heard().is_empty(), "the engine was not asked");
    assert_eq!(beside.ups.load(Ordering::Relaxed), 2);
    // Other paths go to the engine.
    let told = rig.ask(Request::get("/v1/grade"), "").await;
    assert_eq!((&told.body[..], other.heard().len()), (&b"hello"[..], 2));
}

#[tokio::test]
async fn bodies_of_users_take_no_room_from_the_grader() {
    let tasks = Tasks::new();
    let (engine, other) = (hello(&tasks), hello(&tasks));
    let upstream = Upstream::new(other.address(), &Limits::default(), &tasks);
    let beside = Arc::new(TestGrader {
        upstream: Some(upstream),
        ups: AtomicUsize::new(0),
    });
    let kind = Kind {
        limits: Limits {
            requests: 4,
            ..Limits::default()
        },
        ..Kind::default()
    };
    let rig = Rig::with(tasks.clone(), engine.address(), Some(beside), kind).await;
    let sent = rig
        .client
        .send(Request::post("/v1/x").body(Full::from("12345")).unwrap());
    assert_eq!(
        sent.await.unwrap().status().as_u16(),
        503,
        "users' bodies have no room"
    );
    assert!(engine.heard().is_empty());
    let told = rig.ask(Request::post(GRADE_PATH), "question").await;
    assert_eq!(told.head.status.as_u16(), 200);
}

#[tokio::test]
async fn without_a_grader_the_path_is_unknown_and_a_grader_that_does_not_start_is_signed_as_failed() {
    let tasks = Tasks::new();
    let engine = hello(&tasks);
    let rig = Rig::new(tasks.clone(), engine.address(), Kind::default()).await;
    let told = rig
        .client
        .send(Request::post(GRADE_PATH).body(Full::default()).unwrap())
        .await
        .unwrap();
    assert_eq!(
        (told.status().as_u16(), told.headers().contains_key(PROOF)),
        (404, false)
    );

    let absent = Arc::new(TestGrader {
        upstream: None,
        ups: AtomicUsize::new(0),
    });
    let rig = Rig::with(tasks.clone(), engine.address(), Some(absent), Kind::default()).await;
    let told = rig.ask(Request::post(GRADE_PATH), "question").await;
    let proof = told.proven(&mut rig.ledger());
    assert_eq!(
        (told.head.status.as_u16(), proof.end),
        (502, StreamEnd::EngineFailed)
    );
    assert!(engine.heard().is_empty());
}
