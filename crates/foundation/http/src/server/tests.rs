//! Servers against clients that are slow, silent or many.

use std::convert::Infallible;
use std::sync::Arc;

use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::service::service_fn;
use muster_process::{TestClock, listen};
use muster_testbed::{until, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::*;

/// Limits that strike while a test waits for them. A test changes only the limit that it is about, because on a busy
/// machine an honest client may be later than these.
const SHORT: Duration = Duration::from_millis(200);
/// Limits that no test reaches: longer than it waits.
const LIMITS: ServerLimits = ServerLimits {
    connections: 2,
    per_address: 2,
    head: Duration::from_secs(600),
    body: Duration::from_secs(600),
    stall: Duration::from_secs(600),
    drain: Duration::from_secs(600),
};
const IMPATIENT: ServerLimits = ServerLimits {
    head: SHORT,
    drain: SHORT,
    ..LIMITS
};
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
/// A request after which the server hangs up.
const ONLY_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// A server that answers each request with its client's address.
struct TestServer {
    address: SocketAddr,
    stop: CancellationToken,
    serving: muster_process::task::Task<()>,
    /// Notified when a request arrives.
    arrived: Arc<Notify>,
    /// Answers wait for it where the server was started with `waits`.
    release: Arc<Notify>,
}

async fn start(waits: bool) -> TestServer {
    start_with(waits, LIMITS, &[]).await
}

async fn start_with(waits: bool, limits: ServerLimits, proxies: &[&str]) -> TestServer {
    let listener = listen::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let (arrived, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let signals = (Arc::clone(&arrived), Arc::clone(&release));
    let service = service_fn(move |request: Request<PacedBody<Incoming>>| {
        let (arrived, release) = signals.clone();
        async move {
            arrived.notify_one();
            if waits {
                release.notified().await;
            }
            let peer = request.extensions().get::<SocketAddr>().unwrap().to_string();
            let client = request.extensions().get::<ClientAddress>().unwrap().0;
            let answer = match request.into_body().collect().await {
                Ok(body) => format!("{client} {} {peer}", body.to_bytes().len()),
                Err(error) => error.to_string(),
            };
            Ok::<_, Infallible>(Response::new(answer))
        }
    });
    let (tasks, stop) = (Tasks::new(), CancellationToken::new());
    let proxies: Vec<_> = proxies.iter().map(|&proxy| proxy.to_owned()).collect();
    let server = Server {
        name: "test",
        limits,
        proxies: TrustedProxies::parse(&proxies).unwrap(),
        proxy_header: ProxyHeader::XForwardedFor,
        tls: None,
        tasks: tasks.clone(),
        clock: Arc::new(TestClock::default()),
        stop: stop.clone(),
    };
    let serving = serve(server, listener, with_peer(service, |peer| peer));
    TestServer {
        address,
        stop,
        serving: tasks.spawn("serve", serving),
        arrived,
        release,
    }
}

async fn read_to_end(mut stream: TcpStream) -> String {
    let mut text = String::new();
    let _ = within("the server hangs up", stream.read_to_string(&mut text)).await;
    text
}

#[tokio::test]
async fn a_request_is_answered_and_knows_its_client() {
    let server = start(false).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let own = stream.local_addr().unwrap();
    stream.write_all(ONLY_REQUEST).await.unwrap();
    let answer = read_to_end(stream).await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with(&own.to_string()),
        "{answer}"
    );
    server.stop.cancel();
    server.serving.join().await.unwrap();
}

#[tokio::test]
async fn a_connection_that_idles_after_its_answer_is_closed() {
    let server = start_with(false, IMPATIENT, &[]).await;
    // On a busy machine the request itself may be later than the limit; another connection is tried then.
    until("an answer on a connection that then idles", async || {
        let mut stream = TcpStream::connect(server.address).await.ok()?;
        stream.write_all(REQUEST).await.ok()?;
        let answer = read_to_end(stream).await;
        answer.starts_with("HTTP/1.1 200").then_some(())
    })
    .await;
}

#[tokio::test]
async fn clients_that_say_nothing_or_too_little_are_disconnected() {
    let server = start_with(false, IMPATIENT, &[]).await;
    for beginning in [&b""[..], b"P", b"PRI * HTTP/2", b"GET / HTTP/1.1\r\nHost: "] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // On a busy machine the server may have hung up before.
        let _ = stream.write_all(beginning).await;
        let answer = read_to_end(stream).await;
        assert!(!answer.contains("200"), "{answer}");
    }
}

#[tokio::test]
async fn no_more_connections_than_the_bound_are_open() {
    let server = start(true).await;
    let mut busy = Vec::new();
    for _ in 0..LIMITS.connections {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(ONLY_REQUEST).await.unwrap();
        server.arrived.notified().await;
        busy.push(stream);
    }
    let mut late = TcpStream::connect(server.address).await.unwrap();
    let _ = late.write_all(REQUEST).await;
    assert_eq!(read_to_end(late).await, "");
    server.release.notify_waiters();
    for stream in busy {
        assert!(read_to_end(stream).await.contains("200"));
    }
}

#[tokio::test]
async fn a_stop_lets_requests_finish_and_waits_for_no_others() {
    for finishes in [true, false] {
        let limits = ServerLimits {
            drain: if finishes { LIMITS.drain } else { SHORT },
            ..LIMITS
        };
        let server = start_with(true, limits, &[]).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        server.arrived.notified().await;
        server.stop.cancel();
        if finishes {
            server.release.notify_one();
        }
        within("the server's end", server.serving.join()).await.unwrap();
        assert_eq!(read_to_end(stream).await.contains("200"), finishes);
        assert!(TcpStream::connect(server.address).await.is_err());
    }
}

#[tokio::test]
async fn a_body_that_makes_no_progress_is_given_up_and_the_connection_ends() {
    let limits = ServerLimits {
        body: SHORT,
        ..LIMITS
    };
    let server = start_with(false, limits, &[]).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nxxx";
    stream.write_all(head).await.unwrap();
    let answer = read_to_end(stream).await;
    assert!(answer.contains("less than 1024 bytes"), "{answer}");
}

#[tokio::test]
async fn a_client_that_reads_nothing_does_not_hold_its_connection() {
    let listener = listen::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let gone = Arc::new(Notify::new());
    let held = Arc::clone(&gone);
    // More than the sockets of both sides hold.
    let service = service_fn(move |_: Request<PacedBody<Incoming>>| {
        let notice = NotifyOnDrop(Arc::clone(&held));
        async move {
            let frame = Frame::data(Bytes::from(vec![0; 64 * 1024 * 1024]));
            let body =
                http_body_util::StreamBody::new(futures_util::stream::iter([Ok::<_, Infallible>(frame)]));
            Ok::<_, Infallible>(Response::new(body.map_frame(move |frame| {
                let _ = &notice;
                frame
            })))
        }
    });
    let tasks = Tasks::new();
    let server = Server {
        name: "test",
        limits: ServerLimits {
            stall: SHORT,
            ..LIMITS
        },
        proxies: TrustedProxies::default(),
        proxy_header: ProxyHeader::XForwardedFor,
        tls: None,
        tasks: tasks.clone(),
        clock: Arc::new(TestClock::default()),
        stop: tasks.token(),
    };
    tasks.spawn("serve", serve(server, listener, move |_| service.clone()));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    within("the response is given up", gone.notified()).await;
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn an_http2_connection_without_requests_is_closed() {
    let server = start_with(false, IMPATIENT, &[]).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // The preface, empty settings, and no request ever.
    let _ = stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await;
    let mut received = Vec::new();
    let _ = within("the server hangs up", stream.read_to_end(&mut received)).await;
}

#[tokio::test]
async fn an_answer_may_take_longer_than_every_limit() {
    let limits = ServerLimits {
        head: SHORT,
        body: SHORT,
        stall: SHORT,
        ..LIMITS
    };
    let server = start_with(true, limits, &[]).await;
    // On a busy machine the request itself may be later than the limit; another connection is tried then.
    let mut stream = until("a request that arrives", async || {
        let mut stream = TcpStream::connect(server.address).await.ok()?;
        stream.write_all(REQUEST).await.ok()?;
        tokio::select! {
            () = server.arrived.notified() => Some(stream),
            _ = stream.readable() => None,
        }
    })
    .await;
    let nothing = timeout(SHORT * 4, stream.read(&mut [0])).await; // bounds: product's limits pass in real time
    assert!(nothing.is_err(), "the connection was closed under its request");
    server.release.notify_one();
    assert!(read_to_end(stream).await.contains("200"));
}

#[tokio::test]
async fn clients_behind_a_proxy_have_places_of_their_own() {
    let limits = ServerLimits {
        connections: 16,
        per_address: 1,
        ..LIMITS
    };
    let server = start_with(true, limits, &["127.0.0.1"]).await;
    let ask = async |client: &str| {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head =
            format!("GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    let first = ask("192.0.2.1").await;
    server.arrived.notified().await;
    // The same client once more, and another one that claims to be the first.
    let again = read_to_end(ask("192.0.2.1").await).await;
    assert!(again.starts_with("HTTP/1.1 429"), "{again}");
    let other = ask("192.0.2.1, 2001:db8::1").await;
    server.arrived.notified().await;
    server.release.notify_one();
    server.release.notify_one();
    assert!(read_to_end(first).await.contains("192.0.2.1 0"));
    assert!(read_to_end(other).await.contains("2001:db8::1 0"));
}
