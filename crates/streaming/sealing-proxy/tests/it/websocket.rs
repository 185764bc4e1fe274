//! WebSockets through the sealing proxy.

use futures_util::{SinkExt, StreamExt};
use http::Request;
use muster_process::Tasks;
use muster_response_proof::{Envelope, StreamEnd};
use muster_testbed::within;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{accept_async, client_async};

use crate::listener::tls;
use crate::rig::{Engine, Kind, Rig, until};

#[tokio::test]
async fn messages_pass_both_ways_and_are_signed_as_one_exchange() {
    let tasks = Tasks::new();
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("engine.sock")).unwrap();
    tasks.spawn("echo", async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = accept_async(stream).await.unwrap();
        while let Some(Ok(message)) = socket.next().await {
            if message.is_text() {
                socket.send(message).await.unwrap();
            }
        }
    });
    let socket = muster_sealing_proxy::socket::JobSocket::new(
        folder.path(),
        "engine.sock",
        muster_sealing_proxy::socket::SocketOwner::Trusted,
    );
    let address = muster_sealing_proxy::EngineAddress::Socket(socket.unwrap());
    let rig = Rig::new(tasks, address, Kind::default()).await;
    let tls = tls(&rig, &rig.identity, &[]).await.unwrap();
    let (mut socket, answer) = client_async("ws://localhost/talk", tls).await.unwrap();
    assert_eq!(answer.status(), 101);
    for number in 0..50 {
        let text = format!("message {number}");
        socket.send(Message::text(text.clone())).await.unwrap();
        let back = within("an echo", socket.next()).await.unwrap().unwrap();
        assert_eq!(back.into_text().unwrap().as_str(), text);
    }
    socket.close(None).await.unwrap();
    until("a proof", || (rig.proxy.signer().signed() == 1).then_some(())).await;
    let (proofs, _) = rig.client.fetch_proofs(0).await.unwrap();
    let proof = proofs.first().map(Envelope::statement).unwrap().unwrap();
    assert_eq!((proof.status, proof.path.as_str()), (101, "/talk"));
    assert!(matches!(proof.end, StreamEnd::Completed | StreamEnd::ClientGone));
    // Fifty frames of 9 or 10 bytes with a head of two bytes each; a close frame may follow.
    let said = 10 * (9 + 2) + 40 * (10 + 2);
    assert!(
        (said..said + 20).contains(&proof.output_bytes),
        "{}",
        proof.output_bytes
    );
}

#[tokio::test]
async fn an_engine_that_declines_is_an_answer_like_any_other() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        let answer = "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\ncontent-type: text/plain\r\n\r\nno";
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let request = Request::get("/talk")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let told = rig.ask(request, "").await;
    assert_eq!((told.head.status.as_u16(), &told.body[..]), (404, &b"no"[..]));
    told.proven(&mut rig.ledger());
    assert!(
        engine.heard()[0].contains("upgrade: websocket"),
        "{:?}",
        engine.heard()
    );
}
