//! Sockets between two of ours, and between ours and peers that are strange, slow or hostile.

use std::time::Duration;

use crate::support::{LIMITS, Server, within};
use futures_util::{SinkExt, StreamExt};
use muster_protocol::FeatureSet;
use muster_websocket::{CloseCode, ConnectError, Limits, PeerClose, Socket, SocketError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode as FrameCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// A peer that speaks plain websocket and knows nothing of Muster.
type Stranger = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A stranger, and our side of its socket.
#[cfg(test)]
async fn with_stranger(server: &mut Server) -> (Stranger, Socket) {
    let (stranger, _) = connect_async(server.url()).await.unwrap();
    (stranger, server.socket().await)
}

#[tokio::test]
async fn messages_go_both_ways_in_order() {
    let mut server = Server::start(LIMITS).await;
    let (mut client, mut ours) = server.with_client(&LIMITS).await;
    let long = "ü".repeat(LIMITS.max_frame / 2);
    for text in ["", "{}", &long] {
        client.send(text.to_owned()).await.unwrap();
        assert_eq!(within(ours.recv()).await.unwrap().as_deref(), Some(text));
        ours.send(text.to_owned()).await.unwrap();
        assert_eq!(within(client.recv()).await.unwrap().as_deref(), Some(text));
    }
    assert_eq!(client.peer(), server.address);
    assert!(ours.peer().ip().is_loopback());
}

#[tokio::test]
async fn a_message_sent_with_the_handshake_is_not_lost() {
    // The server's first frame may arrive in the same segment as its answer to the upgrade.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let server = async {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let length = tcp.read(&mut request).await.unwrap();
        let text = String::from_utf8_lossy(&request[..length]).to_ascii_lowercase();
        let key = String::from_utf8_lossy(&request[..length])
            .lines()
            .find(|line| line.to_ascii_lowercase().starts_with("sec-websocket-key:"))
            .map(|line| line[18..].trim().to_owned())
            .unwrap();
        assert!(text.contains("muster-protocol: 1"), "{text}");
        assert!(
            text.contains("muster-features: terms, fetching, private-images, queue, capacity, reattach, results, webhooks, machines"),
            "{text}"
        );
        let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes());
        let mut answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        )
        .into_bytes();
        answer.extend(b"\x81\x05hello");
        tcp.write_all(&answer).await.unwrap();
        tcp
    };
    let (client, _tcp) = tokio::join!(muster_websocket::connect(&url, &LIMITS), server);
    let mut client = client.unwrap();
    assert!(!client.is_muster());
    assert_eq!(within(client.recv()).await.unwrap().as_deref(), Some("hello"));
}

#[tokio::test]
async fn each_side_knows_whether_the_other_is_muster() {
    let mut server = Server::start(LIMITS).await;
    let (client, ours) = server.with_client(&LIMITS).await;
    assert!(client.is_muster() && ours.is_muster());
    assert_eq!(client.features(), FeatureSet::ours());
    assert_eq!(ours.features(), FeatureSet::ours());
    let (_stranger, ours) = with_stranger(&mut server).await;
    assert!(!ours.is_muster());
    assert_eq!(ours.features(), FeatureSet::NONE);
}

#[tokio::test]
async fn halves_work_in_two_tasks_and_a_writer_can_be_shared() {
    let mut server = Server::start(LIMITS).await;
    let (client, ours) = server.with_client(&LIMITS).await;
    let ((mut from_client, _), (_, to_ours)) = (ours.split(), client.split());
    for task in 0..4 {
        let writer = to_ours.clone();
        server.tasks.spawn("writer", async move {
            for n in 0..25 {
                writer.send(format!("{task}:{n}")).await.unwrap();
            }
        });
    }
    let mut next = [0; 4];
    for _ in 0..100 {
        let text = within(from_client.recv()).await.unwrap().unwrap();
        let (task, n) = text.split_once(':').unwrap();
        let task: usize = task.parse().unwrap();
        assert_eq!(n, next[task].to_string());
        next[task] += 1;
    }
}

#[tokio::test]
async fn a_close_carries_its_code_and_reason() {
    let mut server = Server::start(LIMITS).await;
    let (mut client, ours) = server.with_client(&LIMITS).await;
    let closing = server
        .tasks
        .spawn("close", ours.close(CloseCode::Other(4001), "not you"));
    assert_eq!(within(client.recv()).await.unwrap(), None);
    let closed = PeerClose {
        code: CloseCode::Other(4001),
        reason: "not you".to_owned(),
    };
    assert_eq!(client.closed(), Some(&closed));
    assert_eq!(within(client.recv()).await.unwrap(), None);
    assert!(matches!(
        client.send(String::new()).await,
        Err(SocketError::Lost(_))
    ));
    within(closing.join()).await.unwrap();
}

#[tokio::test]
async fn a_stranger_may_close_with_any_code() {
    let mut server = Server::start(LIMITS).await;
    for code in [1000, 1001, 3000, 4999] {
        let (mut stranger, mut ours) = with_stranger(&mut server).await;
        let frame = CloseFrame {
            code: FrameCode::from(code),
            reason: "".into(),
        };
        stranger.send(Message::Close(Some(frame))).await.unwrap();
        assert_eq!(within(ours.recv()).await.unwrap(), None);
        assert_eq!(
            ours.closed().map(|closed| closed.code),
            Some(CloseCode::from(code))
        );
    }
}

#[tokio::test]
async fn a_dropped_connection_is_an_error_and_not_a_close() {
    let mut server = Server::start(LIMITS).await;
    let (stranger, mut ours) = with_stranger(&mut server).await;
    drop(stranger);
    assert!(matches!(within(ours.recv()).await, Err(SocketError::Lost(_))));
}

#[tokio::test]
async fn an_oversize_message_is_named_and_ends_the_session() {
    let limits = Limits {
        max_frame: 1000,
        ..LIMITS
    };
    let mut server = Server::start(limits).await;

    let (mut stranger, mut ours) = with_stranger(&mut server).await;
    stranger.send(Message::text("x".repeat(1001))).await.unwrap();
    let error = within(ours.recv()).await.unwrap_err();
    assert!(
        matches!(
            error,
            SocketError::Oversize {
                size: 1001,
                limit: 1000
            }
        ),
        "{error:?}"
    );
    assert!(error.is_fatal());
    assert_eq!(close_code(&mut stranger).await, Some(FrameCode::Size));

    // In pieces it is no better.
    let (mut stranger, mut ours) = with_stranger(&mut server).await;
    let half = || "x".repeat(600).into_bytes();
    let first = Frame::message(half(), OpCode::Data(Data::Text), false);
    let second = Frame::message(half(), OpCode::Data(Data::Continue), true);
    stranger.send(Message::Frame(first)).await.unwrap();
    stranger.send(Message::Frame(second)).await.unwrap();
    assert!(matches!(
        within(ours.recv()).await,
        Err(SocketError::Oversize { .. })
    ));
}

#[tokio::test]
async fn our_own_oversize_message_stays_at_home() {
    let limits = Limits {
        max_frame: 10,
        ..LIMITS
    };
    let mut server = Server::start(LIMITS).await;
    let (mut client, mut ours) = server.with_client(&limits).await;
    let error = client.send("x".repeat(11)).await.unwrap_err();
    assert!(matches!(
        error,
        SocketError::TooLongToSend { size: 11, limit: 10 }
    ));
    client.send("x".repeat(10)).await.unwrap();
    assert!(within(ours.recv()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_binary_frame_is_named_and_survived() {
    let mut server = Server::start(LIMITS).await;
    let (mut stranger, mut ours) = with_stranger(&mut server).await;
    stranger.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    stranger.send(Message::text("{}")).await.unwrap();
    assert!(matches!(within(ours.recv()).await, Err(SocketError::Binary(3))));
    assert_eq!(within(ours.recv()).await.unwrap().as_deref(), Some("{}"));
}

#[tokio::test]
async fn invalid_utf8_is_named() {
    let mut server = Server::start(LIMITS).await;
    let (mut stranger, mut ours) = with_stranger(&mut server).await;
    let frame = Frame::message(vec![0xff, 0xfe], OpCode::Data(Data::Text), true);
    stranger.send(Message::Frame(frame)).await.unwrap();
    assert!(matches!(within(ours.recv()).await, Err(SocketError::InvalidUtf8)));
    assert_eq!(close_code(&mut stranger).await, Some(FrameCode::Invalid));
}

#[tokio::test]
async fn a_broken_frame_is_named() {
    let mut server = Server::start(LIMITS).await;
    let (mut stranger, mut ours) = with_stranger(&mut server).await;
    // A continuation of nothing.
    let frame = Frame::message(b"x".to_vec(), OpCode::Data(Data::Continue), true);
    stranger.send(Message::Frame(frame)).await.unwrap();
    assert!(matches!(within(ours.recv()).await, Err(SocketError::Protocol(_))));
    assert_eq!(close_code(&mut stranger).await, Some(FrameCode::Protocol));
}

#[tokio::test]
async fn garbage_after_the_upgrade_is_survived() {
    let mut server = Server::start(LIMITS).await;
    // A cheap generator is random enough, and the same every time.
    let mut state = 1_u64;
    for round in 0..32_usize {
        let (mut stranger, mut ours) = with_stranger(&mut server).await;
        let noise: Vec<u8> = (0..round * 7 + 1)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                state.to_be_bytes()[0]
            })
            .collect();
        stranger.get_mut().write_all(&noise).await.unwrap();
        stranger.get_mut().shutdown().await.unwrap();
        // Random bytes end the socket in one way or another, and never hang it.
        while let Ok(Some(_)) = within(ours.recv()).await {}
    }
    assert_eq!(server.tasks.panics(), 0);
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_given_up() {
    let limits = Limits {
        write: Duration::from_millis(300),
        ..LIMITS
    };
    let mut server = Server::start(limits).await;
    let (_stranger, ours) = with_stranger(&mut server).await;
    let (mut reader, writer) = ours.split();
    // The kernel's buffers are filled sooner or later.
    let error = loop {
        if let Err(error) = within(writer.send("x".repeat(1024 * 1024))).await {
            break error;
        }
    };
    assert!(matches!(error, SocketError::SlowReader(_)), "{error:?}");
    assert!(matches!(
        writer.send(String::new()).await,
        Err(SocketError::Lost(_))
    ));
    // The other half does not wait for a dead connection.
    assert!(matches!(within(reader.recv()).await, Err(SocketError::Lost(_))));
}

#[tokio::test]
async fn a_silent_peer_is_pinged_and_then_given_up() {
    // Sixty pings fit into the limit, so that a machine that is busy for a second loses nobody.
    let limits = Limits {
        heartbeat: Duration::from_millis(50),
        idle: Duration::from_secs(3),
        ..LIMITS
    };
    let mut server = Server::start(limits).await;

    // One that answers pings lives longer than the limit.
    let (mut stranger, mut ours) = with_stranger(&mut server).await;
    let begun = tokio::time::Instant::now();
    let answering = server.tasks.spawn("stranger", async move {
        while begun.elapsed() <= limits.idle {
            assert!(matches!(stranger.next().await, Some(Ok(Message::Ping(_)))));
        }
        stranger.send(Message::text("still here")).await.unwrap();
    });
    assert_eq!(within(ours.recv()).await.unwrap().as_deref(), Some("still here"));
    within(answering.join()).await.unwrap();

    // One that stops reading is gone, however often its reader comes and goes.
    let mut server = Server::start(Limits {
        idle: Duration::from_millis(400),
        ..limits
    })
    .await;
    let (stranger, mut ours) = with_stranger(&mut server).await;
    let error = within(async {
        loop {
            tokio::select! {
                frame = ours.recv() => break frame,
                () = tokio::task::yield_now() => {}
            }
        }
    });
    assert!(matches!(error.await, Err(SocketError::Silent(_))));
    drop(stranger);
}

#[tokio::test]
async fn urls_without_an_address_or_a_listener_are_named() {
    let connect = |url: String| async move {
        within(muster_websocket::connect(&url, &LIMITS))
            .await
            .unwrap_err()
    };
    assert!(matches!(
        connect("http://127.0.0.1/".to_owned()).await,
        ConnectError::Url { .. }
    ));
    let free = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    assert!(matches!(
        connect(format!("ws://{free}/")).await,
        ConnectError::Unreachable { .. }
    ));
    let server = Server::start(LIMITS).await;
    let refused = connect(format!("ws://{}/nothing-here", server.address)).await;
    assert!(
        matches!(refused, ConnectError::Refused { status: 404, .. }),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_no_websocket_is_named() {
    for answer in [
        "SSH-2.0-OpenSSH_9.6\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        "",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/", listener.local_addr().unwrap());
        let serve = async {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = tcp.read(&mut request).await.unwrap();
            tcp.write_all(answer.as_bytes()).await.unwrap();
        };
        let (error, ()) = tokio::join!(within(muster_websocket::connect(&url, &LIMITS)), serve);
        assert!(
            matches!(error, Err(ConnectError::Handshake { .. })),
            "{answer:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_left_in_time() {
    let limits = Limits {
        handshake: Duration::from_millis(100),
        ..LIMITS
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let error = within(muster_websocket::connect(&url, &limits)).await;
    assert!(matches!(error, Err(ConnectError::Timeout { .. })), "{error:?}");
}

#[tokio::test]
async fn requests_without_an_upgrade_get_an_http_answer() {
    let server = Server::start(LIMITS).await;
    let plain = "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let old = "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n\r\n";
    let keyless = "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n";
    for (request, status) in [
        (plain, "426"),
        (old, "426"),
        (keyless, "400"),
        ("\u{1}\u{2}garbage\r\n\r\n", "400"),
    ] {
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        tcp.write_all(request.as_bytes()).await.unwrap();
        tcp.shutdown().await.unwrap();
        let mut answer = String::new();
        within(tcp.read_to_string(&mut answer)).await.unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request:?}: {answer}"
        );
    }
    assert_eq!(server.tasks.panics(), 0);
}

#[tokio::test]
async fn waiting_for_a_message_can_be_given_up_without_losing_one() {
    let mut server = Server::start(LIMITS).await;
    let (client, mut ours) = server.with_client(&LIMITS).await;
    let (_reader, writer) = client.split();
    server.tasks.spawn("writer", async move {
        for n in 0..200 {
            writer.send(n.to_string()).await.unwrap();
        }
        std::future::pending::<()>().await;
    });
    for n in 0..200 {
        let text = within(recv_impatiently(&mut ours)).await;
        assert_eq!(text, n.to_string());
    }
}

/// Drops and repeats the wait at every chance.
#[cfg(test)]
async fn recv_impatiently(socket: &mut Socket) -> String {
    loop {
        tokio::select! {
            biased;
            frame = socket.recv() => return frame.unwrap().unwrap(),
            () = tokio::task::yield_now() => {}
        }
    }
}

/// The code with which a stranger's socket was closed.
async fn close_code(stranger: &mut Stranger) -> Option<FrameCode> {
    while let Some(Ok(message)) = within(stranger.next()).await {
        if let Message::Close(frame) = message {
            return frame.map(|frame| frame.code);
        }
    }
    None
}
