//! Uploads of blocks over real connections: what slow ones cost their account, and nobody else.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use futures_util::stream;
use muster_file_store::checkpoint_blocks::block_routes;
use muster_process::Tasks;
use muster_protocol::Digest;
use muster_testbed::within;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tower::ServiceExt as _;

use crate::checkpoint_blocks::{BASE, Bench, JOB};

const BOBS: &str = "11111111-2222-4333-8444-555555555557";

/// The path and query below which a block lies.
fn target(url: &str, block: Digest) -> String {
    let (path, query) = url.strip_prefix(BASE).unwrap().split_once('?').unwrap();
    format!("{path}/{}?{query}", block.hex())
}

/// A connection that has sent the head of an upload and the first of its eight mebibytes' bytes.
async fn trickle(address: &str, target: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("PUT {target} HTTP/1.1\r\nHost: f\r\nContent-Length: 8388608\r\n\r\nx");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn answer_of(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // The server may end the connection with a reset, since it has not read all.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn trickled_uploads_of_one_account_stop_no_other_accounts_and_end_with_408() {
    muster_process::tls::install_provider();
    for bench in Bench::all().await {
        bench.add_job(BOBS, "bob").await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let tasks = Tasks::new();
        let app = block_routes::router(Arc::clone(&bench.service));
        tasks.spawn("serve", async move { axum::serve(listener, app).await });
        let base = format!("http://{address}");
        let granted = |job| bench.grant(job);
        let (alices, bobs) = (granted(JOB).await, granted(BOBS).await);

        // An account alone gets three quarters of the permits; the others of its uploads wait.
        let slow = target(&alices, Digest::of(b"never sent"));
        let mut trickled = Vec::new();
        for _ in 0..40 {
            trickled.push(trickle(&address, &slow).await);
        }
        bench.clock.wait_for_sleepers(24).await;

        let client = reqwest::Client::new();
        let put = |url: &str, content: &'static [u8]| {
            let url = format!("{base}{}", target(url, Digest::of(content)));
            client.put(url).body(content).send()
        };
        let of_bob = within("bob's block", put(&bobs, b"bob's")).await.unwrap();
        assert_eq!(of_bob.status(), 201, "the reserve is another account's");

        bench.clock.advance(Duration::from_secs(20));
        // Their permits go to the sixteen that waited.
        let now = muster_process::Clock::now(bench.clock.as_ref());
        let judged = now.plus(Duration::from_secs(20));
        bench.clock.wait_for_sleepers_until(judged, 16).await;
        let of_alice = within("alice's block", put(&alices, b"alice's")).await.unwrap();
        assert_eq!(of_alice.status(), 201);
        bench.clock.advance(Duration::from_secs(20));
        for stream in trickled {
            let answer = within("an answer", answer_of(stream)).await;
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            assert!(answer.contains("too slowly"), "{answer}");
        }
        tasks.shutdown();
    }
}

#[tokio::test]
async fn a_block_arrives_over_a_slow_honest_line_and_not_over_a_slower_one() {
    for bench in Bench::all().await {
        let url = bench.grant(JOB).await;
        // 1 Mbit/s that three uploads share, and a fifth of it.
        for (bytes, expected) in [
            (125_000 / 3, StatusCode::CREATED),
            (125_000 / 15, StatusCode::REQUEST_TIMEOUT),
        ] {
            let second = Bytes::from(vec![7_u8; bytes]);
            let whole = second.repeat(24);
            let (sender, receiver) = unbounded_channel();
            let body = stream::unfold(receiver, |mut receiver: UnboundedReceiver<Bytes>| async move {
                let piece = receiver.recv().await?;
                Some((Ok::<_, std::io::Error>(piece), receiver))
            });
            let request = Request::builder()
                .method(Method::PUT)
                .uri(target(&url, Digest::of(&whole)))
                .body(Body::from_stream(body))
                .unwrap();
            let answer = block_routes::router(Arc::clone(&bench.service)).oneshot(request);
            let sending = async {
                bench.clock.wait_for_sleepers(1).await;
                for _ in 0..24 {
                    // An upload that was given up takes nothing more.
                    let _ = sender.send(second.clone());
                    bench.clock.advance(Duration::from_secs(1));
                    tokio::task::yield_now().await;
                }
                drop(sender);
            };
            let (answer, ()) = tokio::join!(answer, sending);
            assert_eq!(answer.unwrap().status(), expected, "{bytes} B/s");
        }
    }
}
