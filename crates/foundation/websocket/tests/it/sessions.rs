//! Greetings, typed sessions, and connections that are kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{LIMITS, Server, within};
use muster_process::backoff::Backoff;
use muster_process::clock::{SharedClock, SystemClock, TokioClock};
use muster_protocol::Timestamp;
use muster_websocket::reconnect::{AfterConnection, Reconnecting};
use muster_websocket::{CloseCode, ConnectError, Greeting, Peer, SessionError, SocketError};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A peer that counts.
#[derive(Debug, PartialEq)]
struct Counter(&'static str);

impl Peer for Counter {
    type In = u32;
    type Out = u32;
    type Malformed = std::num::ParseIntError;

    fn decode(frame: &str) -> Result<u32, Self::Malformed> {
        frame.parse()
    }

    fn encode(message: &u32) -> String {
        message.to_string()
    }
}

/// A peer whose frames mean themselves.
struct Echo;

impl Peer for Echo {
    type In = String;
    type Out = String;
    type Malformed = std::convert::Infallible;

    fn decode(frame: &str) -> Result<String, Self::Malformed> {
        Ok(frame.to_owned())
    }

    fn encode(message: &String) -> String {
        message.clone()
    }
}

#[tokio::test]
async fn an_accepted_greeting_exchanges_messages() {
    let mut server = Server::start(LIMITS).await;
    let (mut client, ours) = server.with_client(&LIMITS).await;
    client.send("hello".to_owned()).await.unwrap();

    let mut greeting = Greeting::new(ours);
    assert!(greeting.is_muster());
    assert_eq!(
        within(greeting.receive()).await.unwrap().as_deref(),
        Some("hello")
    );
    let mut session = greeting.accept(Counter("me"));
    assert_eq!(session.peer(), &Counter("me"));

    session.send(&7).await.unwrap();
    assert_eq!(within(client.recv()).await.unwrap().as_deref(), Some("7"));
    client.send("eight".to_owned()).await.unwrap();
    client.send("9".to_owned()).await.unwrap();
    let error = within(session.recv()).await.unwrap_err();
    assert!(matches!(error, SessionError::Malformed(_)) && !error.is_fatal());
    assert_eq!(within(session.recv()).await.unwrap(), Some(9));

    let (mut receiver, sender) = session.split();
    sender.clone().close(CloseCode::Normal, "done").await;
    assert_eq!(within(client.recv()).await.unwrap(), None);
    assert_eq!(within(receiver.recv()).await.unwrap(), None);
    assert!(matches!(sender.send(&1).await, Err(SocketError::Lost(_))));
}

#[tokio::test]
async fn a_peer_that_is_not_recognised_is_not_listened_to_for_long() {
    let mut server = Server::start(LIMITS).await;
    let (mut client, ours) = server.with_client(&LIMITS).await;
    let mut greeting = Greeting::new(ours);
    let (sent, error) = tokio::join!(client.send("x".repeat(1024 * 1024)), within(greeting.receive()));
    assert!(matches!(error, Err(SocketError::BeforeGreeting)), "{error:?}");
    drop((sent, greeting));

    // A message behind the greeting waits until the greeting is accepted, at any size.
    let (mut client, ours) = server.with_client(&LIMITS).await;
    let mut greeting = Greeting::new(ours);
    let large = "7".repeat(1024 * 1024);
    let exchange = async {
        assert_eq!(greeting.receive().await.unwrap().as_deref(), Some("hello"));
        greeting.accept(Echo).recv().await.unwrap()
    };
    let said = async {
        client.send("hello".to_owned()).await.unwrap();
        client.send(large.clone()).await.unwrap();
    };
    let (heard, ()) = tokio::join!(within(exchange), said);
    assert_eq!(heard, Some(large));
}

#[tokio::test]
async fn a_refused_greeting_says_why_and_closes() {
    let mut server = Server::start(LIMITS).await;
    let (mut client, ours) = server.with_client(&LIMITS).await;
    let refusing = server.tasks.spawn(
        "refuse",
        Greeting::new(ours).refuse(Some("401".to_owned()), CloseCode::Policy),
    );
    assert_eq!(within(client.recv()).await.unwrap().as_deref(), Some("401"));
    assert_eq!(within(client.recv()).await.unwrap(), None);
    assert_eq!(client.closed().map(|closed| closed.code), Some(CloseCode::Policy));
    within(refusing.join()).await.unwrap();
}

fn keeping(clock: SharedClock, stop: &CancellationToken) -> Reconnecting {
    Reconnecting {
        name: "test peer",
        backoff: Backoff {
            base: Duration::from_millis(20),
            max: Duration::from_millis(200),
        },
        clock,
        stop: stop.clone(),
    }
}

#[tokio::test]
async fn a_connection_is_made_again_after_the_server_was_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("ws://{address}/ws");
    let mut server = Server::on(listener, LIMITS);

    let stop = CancellationToken::new();
    let tasks = muster_process::Tasks::new();
    let served = Arc::new(AtomicU32::new(0));
    let kept = {
        let (keeping, served) = (keeping(Arc::new(SystemClock::new()), &stop), Arc::clone(&served));
        tasks.spawn("client", async move {
            let dial = || muster_websocket::connect(&url, &LIMITS);
            let serve = |mut socket: muster_websocket::Socket| {
                let served = Arc::clone(&served);
                async move {
                    served.fetch_add(1, Ordering::SeqCst);
                    while let Ok(Some(_)) = socket.recv().await {}
                    AfterConnection::Again
                }
            };
            keeping.run(dial, serve, |_: &ConnectError| false).await
        })
    };

    // The server closes, then is gone, then is back on the same port.
    within(server.socket().await.close(CloseCode::GoingAway, "restarting")).await;
    let second = server.socket().await;
    drop(second);
    server.tasks.shutdown();
    server.tasks.wait(muster_testbed::patience()).await.unwrap();
    drop(server);
    let listener = within(async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    let mut server = Server::on(listener.await, LIMITS);
    let third = server.socket().await;
    assert!(served.load(Ordering::SeqCst) >= 2);

    stop.cancel();
    within(third.close(CloseCode::Normal, "")).await;
    assert!(within(kept.join()).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_wait_grows_and_only_a_good_connection_shortens_it() {
    let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::from_secs(0)));
    let stop = CancellationToken::new();
    let (tries, begun) = (AtomicU32::new(0), clock.now());
    let dial = || {
        let n = tries.fetch_add(1, Ordering::SeqCst);
        let clock = Arc::clone(&clock);
        // The sixth try is accepted and lives for a second, the eighth is dropped at once, the tenth does its work and
        // is dropped, the eleventh stops.
        async move {
            if [5, 7, 9, 10].contains(&n) {
                Ok(n)
            } else {
                Err(format!("try {n} at {:?}", clock.now()))
            }
        }
    };
    let serve = |n| {
        let clock = Arc::clone(&clock);
        async move {
            match n {
                5 => clock.sleep(Duration::from_secs(1)).await,
                7 => {}
                9 => return AfterConnection::AgainSoon,
                _ => return AfterConnection::Stop,
            }
            AfterConnection::Again
        }
    };
    keeping(Arc::clone(&clock), &stop)
        .run(dial, serve, |_| false)
        .await
        .unwrap();
    // Waits after tries 0 to 9, at most 20 40 80 160 200 | 20 40 80 160 | 20 ms, at least half, and the second of life.
    let took = clock.now().since(begun).as_millis();
    assert!((1400..=1800).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_breaks_every_five_seconds_is_mended_quickly_each_time() {
    let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::from_secs(0)));
    let stop = CancellationToken::new();
    let (tries, begun) = (AtomicU32::new(0), clock.now());
    let dial = || {
        let n = tries.fetch_add(1, Ordering::SeqCst);
        // Each try that succeeds comes after one that fails.
        async move { if n % 2 == 1 { Ok(n) } else { Err("cut") } }
    };
    let serve = |n| {
        let clock = Arc::clone(&clock);
        async move {
            if n > 20 {
                return AfterConnection::Stop;
            }
            clock.sleep(Duration::from_secs(5)).await;
            AfterConnection::Again
        }
    };
    let keeping = Reconnecting {
        backoff: Backoff::PEERS,
        ..keeping(Arc::clone(&clock), &stop)
    };
    keeping.run(dial, serve, |_: &&str| false).await.unwrap();
    // Ten connections of five seconds; each break costs at most half a second, and a second after the failed try.
    let away = clock.now().since(begun).saturating_sub(Duration::from_secs(50));
    assert!(away <= Duration::from_millis(17_000), "{away:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fatal_error_and_a_stop_end_it() {
    let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::from_secs(0)));
    let stop = CancellationToken::new();
    let keeping = keeping(clock, &stop);
    let refuse = || async { Err::<(), _>("refused") };
    let serve = |()| async { AfterConnection::Again };
    assert_eq!(keeping.run(refuse, serve, |_| true).await, Err("refused"));

    let (ended, ()) = tokio::join!(keeping.run(refuse, serve, |_| false), async {
        tokio::time::sleep(Duration::from_secs(3600)).await; // paused time: jumps
        stop.cancel();
    });
    assert_eq!(ended, Ok(()));
}
