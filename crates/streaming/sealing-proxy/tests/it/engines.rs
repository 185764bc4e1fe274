//! Engines that misbehave: bounded memory, the right end, the right digest, and nothing reached that should not be.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Request;
use http_body_util::{BodyExt, Full};
use muster_process::Tasks;
use muster_protocol::Digest;
use muster_response_proof::StreamEnd;
use muster_response_proof::headers::PROOF;
use muster_sealing_proxy::{EngineAddress, Limits};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

use crate::rig::{BOUNDS, EVENTS, Engine, Kind, Rig, chunk, until};

fn limits(limits: Limits) -> Kind {
    Kind {
        limits,
        ..Kind::default()
    }
}

fn get() -> http::request::Builder {
    Request::get("/health")
}

fn whole(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn a_small_answer_has_its_proof_in_its_head() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(whole("hello").as_bytes()).await.unwrap();
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let mut ledger = rig.ledger();
    for number in 0..3 {
        let told = rig.ask(get(), "").await;
        assert_eq!(told.body, "hello");
        assert!(told.head.headers.contains_key(PROOF) && told.trailers.is_none());
        let proof = told.proven(&mut ledger);
        assert_eq!(
            (proof.sequence, proof.status, proof.end),
            (number, 200, StreamEnd::Completed)
        );
    }
    let head = rig.ask(Request::head("/health"), "").await;
    assert_eq!(head.head.headers["content-length"], "5");
    assert_eq!(head.proven(&mut ledger).output_bytes, 0);
    let close = rig.client.close(0).await.unwrap().close;
    assert_eq!(
        ledger.close(&close, muster_identity::verify).unwrap().responses,
        4
    );
}

#[tokio::test]
async fn a_large_answer_of_known_length_is_proven_by_a_trailer() {
    let tasks = Tasks::new();
    let body = "x".repeat(3 * 1024 * 1024);
    let answer = whole(&body);
    let engine = Engine::new(&tasks, move |mut stream| {
        let answer = answer.clone();
        async move { stream.write_all(answer.as_bytes()).await.unwrap() }
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let told = rig.ask(get(), "").await;
    assert_eq!(told.body, body);
    assert!(told.trailers.as_ref().unwrap().contains_key(PROOF));
    assert_eq!(told.proven(&mut rig.ledger()).output, Digest::of(body.as_bytes()));
}

#[tokio::test]
async fn malformed_engine_responses_are_proven_failures() {
    for bytes in [
        "",
        "\r\n\r\n",
        "nonsense without end",
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\ncontent-type: text/plain\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ncontent-length: ten\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ] {
        let tasks = Tasks::new();
        let engine = Engine::new(&tasks, move |mut stream| async move {
            stream.write_all(bytes.as_bytes()).await.unwrap();
        });
        let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
        let told = rig.ask(get(), "").await;
        assert_eq!(told.head.status, 502, "{bytes:?}");
        let proof = told.proven(&mut rig.ledger());
        assert_eq!(
            (proof.end, proof.status),
            (StreamEnd::EngineFailed, 502),
            "{bytes:?}"
        );
        let error: serde_json::Value = serde_json::from_slice(&told.body).unwrap();
        assert_eq!(error["error"]["code"], "engine_failed");
    }
}

#[tokio::test]
async fn nobody_there_is_a_proven_failure() {
    let tasks = Tasks::new();
    let address = EngineAddress::Address("127.0.0.1:1".parse().unwrap());
    let rig = Rig::new(tasks, address, Kind::default()).await;
    let told = rig.ask(get(), "").await;
    assert_eq!(
        (told.head.status.as_u16(), told.proven(&mut rig.ledger()).end),
        (502, StreamEnd::EngineFailed)
    );
}

#[tokio::test]
async fn an_engine_that_says_nothing_is_a_proven_failure() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    let kind = limits(Limits {
        silence: Duration::from_millis(100),
        ..Limits::default()
    });
    let rig = Rig::new(tasks, engine.address(), kind).await;
    let told = rig.ask(get(), "").await;
    assert_eq!(
        (told.head.status.as_u16(), told.proven(&mut rig.ledger()).end),
        (504, StreamEnd::EngineSilent)
    );
}

#[tokio::test]
async fn an_engine_may_answer_before_it_has_read() {
    let tasks = Tasks::new();
    let engine = Engine::reading(&tasks, false, |mut stream| async move {
        stream.write_all(whole("already").as_bytes()).await.unwrap();
        // The proxy is still writing; a reset would discard the response.
        let mut rest = tokio::io::sink();
        let _ = tokio::io::copy(&mut stream, &mut rest).await;
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let long: &'static str = Box::leak("y".repeat(4 * 1024 * 1024).into_boxed_str());
    let told = rig.ask(Request::post("/x"), long).await;
    assert_eq!(told.body, "already");
    assert_eq!(told.proven(&mut rig.ledger()).input, Digest::of(long.as_bytes()));
}

#[tokio::test]
async fn a_socket_that_became_a_link_leads_nowhere() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(whole("hello").as_bytes()).await.unwrap();
    });
    let rig = Rig::new(tasks.clone(), engine.address(), Kind::default()).await;
    assert_eq!(rig.ask(get(), "").await.body, "hello");
    // A socket that the job must not reach, such as the container engine's.
    let elsewhere = tempfile::tempdir().unwrap();
    let secret = elsewhere.path().join("docker.sock");
    let listener = UnixListener::bind(&secret).unwrap();
    let reached = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&reached);
    tasks.spawn("secret", async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    for target in [secret.clone(), engine.folder.path().join("nowhere")] {
        std::fs::remove_file(engine.socket()).unwrap();
        symlink(&target, engine.socket()).unwrap();
        let told = rig.ask(get(), "").await;
        assert_eq!(told.head.status, 502);
    }
    std::fs::remove_file(engine.socket()).unwrap();
    std::fs::write(engine.socket(), "a file").unwrap();
    assert_eq!(rig.ask(get(), "").await.head.status, 502);
    assert_eq!(reached.load(Ordering::SeqCst), 0, "nothing was reached");
    assert_eq!(rig.ends().len(), 4);
}

#[tokio::test]
async fn a_flood_waits_for_its_reader_and_hurts_nobody() {
    const FLOOD: u64 = 96 * 1024 * 1024;
    let tasks = Tasks::new();
    let written = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&written);
    let engine = Engine::new(&tasks, move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            stream.write_all(EVENTS.as_bytes()).await.unwrap();
            let event = chunk(&[b'x'; 65_536]);
            while count.load(Ordering::SeqCst) < FLOOD {
                if stream.write_all(&event).await.is_err() {
                    return;
                }
                count.fetch_add(65_536, Ordering::SeqCst);
            }
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        }
    });
    let other = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(whole("quick").as_bytes()).await.unwrap();
    });
    let rig = Rig::new(tasks.clone(), engine.address(), Kind::default()).await;
    let request = get().body(Full::default()).unwrap();
    let asked = rig.asked(&request, b"");
    let response = rig.client.send(request).await.unwrap();
    let (report, reported) = oneshot::channel();
    let mut body = rig.checked(response, report).into_body();
    body.frame().await.unwrap().unwrap();
    // Waits until the engine is held up: the count does not change any more.
    let beside = Rig::new(tasks, other.address(), Kind::default()).await;
    let mut before = 0;
    loop {
        for _ in 0..20 {
            assert_eq!(beside.ask(get(), "").await.body, "quick");
        }
        let now = written.load(Ordering::SeqCst);
        if now == before {
            break;
        }
        before = now;
    }
    // The kernel's buffers of two connections, and a little more for the proxy.
    assert!(
        before < FLOOD / 3,
        "{before} bytes were taken from the engine for a reader who takes none"
    );
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
    let checked = reported.await.unwrap();
    let (proof, _) = checked.check_proof(&asked, &mut rig.ledger(), BOUNDS).unwrap();
    assert_eq!((proof.output_bytes, proof.end), (FLOOD, StreamEnd::Completed));
}

#[tokio::test]
async fn an_answer_that_never_ends_ends_at_the_bound() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(EVENTS.as_bytes()).await.unwrap();
        let event = chunk(b"data: more\n\n");
        while stream.write_all(&event).await.is_ok() {}
    });
    let kind = limits(Limits {
        response: 100_003,
        ..Limits::default()
    });
    let rig = Rig::new(tasks, engine.address(), kind).await;
    let told = rig.ask(get(), "").await;
    assert_eq!(told.engines().len(), 100_003);
    let proof = told.proven(&mut rig.ledger());
    assert_eq!((proof.end, proof.output_bytes), (StreamEnd::Oversize, 100_003));
    until("the engine let go", || {
        (rig.proxy.signer().under_way() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn malformed_events_are_bytes_like_any_other() {
    let tasks = Tasks::new();
    let body: Vec<u8> = (0_u32..20_000)
        .map(|i| u8::try_from(i * 31 % 256).unwrap())
        .collect();
    let sent = body.clone();
    let engine = Engine::new(&tasks, move |mut stream| {
        let sent = sent.clone();
        async move {
            stream.write_all(EVENTS.as_bytes()).await.unwrap();
            for part in sent.chunks(777) {
                stream.write_all(&chunk(part)).await.unwrap();
            }
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        }
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let told = rig.ask(get(), "").await;
    assert_eq!(told.engines(), body);
    assert_eq!(told.proven(&mut rig.ledger()).output, Digest::of(&body));
}
