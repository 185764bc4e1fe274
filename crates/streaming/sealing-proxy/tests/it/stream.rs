//! Streamed responses, of honest engines and of engines that end in other ways.

use std::sync::Arc;

use http::Request;
use http_body_util::BodyExt;
use muster_process::Tasks;
use muster_protocol::Digest;
use muster_response_proof::headers::{CLIENT, CLIENT_NONCE, GATEWAY_NONCE, PROOF};
use muster_response_proof::{Forgery, HashScheme, StreamEnd};
use muster_testbed::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::rig::{BOUNDS, EVENTS, Engine, Kind, Rig, chunk, until};

fn post() -> http::request::Builder {
    Request::post("/v1/chat/completions?x=1").header("content-type", "application/json")
}

#[tokio::test]
async fn events_pass_one_by_one_and_the_last_line_and_the_trailer_prove_them() {
    let tasks = Tasks::new();
    let (say, said) = mpsc::channel::<Vec<u8>>(1);
    let said = Arc::new(Mutex::new(said));
    let engine = Engine::new(&tasks, move |mut stream| {
        let said = Arc::clone(&said);
        async move {
            stream.write_all(EVENTS.as_bytes()).await.unwrap();
            while let Some(event) = said.lock().await.recv().await {
                stream.write_all(&event).await.unwrap();
            }
        }
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let nonce = "ab".repeat(32);
    let request = post()
        .header(CLIENT_NONCE, &nonce)
        .header(GATEWAY_NONCE, "cd".repeat(32))
        .header(CLIENT, "ef".repeat(32));
    let request = request.body(http_body_util::Full::from("{}")).unwrap();
    let asked = rig.asked(&request, b"{}");
    let response = rig.client.send(request).await.unwrap();
    let (report, reported) = oneshot::channel();
    let mut body = rig.checked(response, report).into_body();
    for number in 0..20 {
        let event = format!("data: {{\"number\":{number}}}\n\n");
        say.send(chunk(event.as_bytes())).await.unwrap();
        // The next event is not sent before this one has arrived.
        let frame = within("an event", body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
    say.send(b"0\r\n\r\n".to_vec()).await.unwrap();
    let line = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
    assert!(body.frame().await.is_none());
    let proof = trailers.get(PROOF).unwrap().to_str().unwrap();
    assert_eq!(line, format!("\n: muster-proof {proof}\n"));
    let checked = reported.await.unwrap();
    let (proof, _) = checked.check_proof(&asked, &mut rig.ledger(), BOUNDS).unwrap();
    assert_eq!(proof.client_nonce.unwrap().hex(), nonce);
    assert_eq!(proof.client.unwrap().hex(), "ef".repeat(32));
    assert_eq!(proof.end, StreamEnd::Completed);
    assert_eq!(proof.input, Digest::of(b"{}"));
    let heard = engine.heard().remove(0);
    assert_eq!(
        heard.matches("muster-").count(),
        1,
        "the engine hears the seed and nothing else of ours: {heard}"
    );
    assert!(heard.contains("\r\nmuster-seed: "), "{heard}");
    assert!(
        heard.starts_with("POST /v1/chat/completions?x=1 HTTP/1.1\r\n"),
        "{heard}"
    );
}

#[tokio::test]
async fn requests_that_come_while_a_stream_flows_are_answered_behind_it_on_the_same_connection() {
    let tasks = Tasks::new();
    let (say, said) = mpsc::channel::<Vec<u8>>(8);
    let said = Arc::new(Mutex::new(said));
    let engine = Engine::new(&tasks, move |mut stream| {
        let said = Arc::clone(&said);
        async move {
            stream.write_all(EVENTS.as_bytes()).await.unwrap();
            stream.write_all(&chunk(b"data: begun\n\n")).await.unwrap();
            let last = said.lock().await.recv().await.unwrap();
            stream.write_all(&chunk(&last)).await.unwrap();
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        }
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let mut tls = crate::listener::tls(&rig, &rig.identity, &[]).await.unwrap();
    let ask = |name: &str, more: &str| {
        format!("POST /{name} HTTP/1.1\r\nhost: x\r\n{more}content-length: 2\r\n\r\n{{}}")
    };
    // The second request comes with the first, the third in two pieces while the first response streams.
    let third = ask("c", "connection: close\r\n");
    let (half, rest) = third.split_at(20);
    let together = format!("{}{}{half}", ask("a", "te: trailers\r\n"), ask("b", ""));
    tls.write_all(together.as_bytes()).await.unwrap();
    let mut heard = String::new();
    let mut buffer = [0; 4_096];
    while !heard.contains("begun") {
        let length = within("the first answer", tls.read(&mut buffer)).await.unwrap();
        heard.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    tls.write_all(rest.as_bytes()).await.unwrap();
    for word in ["data: one\n\n", "data: two\n\n", "data: three\n\n"] {
        say.send(word.into()).await.unwrap();
    }
    let mut last = Vec::new();
    within("the last answer", tls.read_to_end(&mut last))
        .await
        .unwrap();
    heard.push_str(std::str::from_utf8(&last).unwrap());
    let answers: Vec<_> = heard.split("HTTP/1.1 200 OK\r\n").skip(1).collect();
    assert_eq!(answers.len(), 3, "{heard}");
    for (answer, word) in answers.iter().zip(["one", "two", "three"]) {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains("transfer-encoding: chunked") && head.contains("date: "),
            "{head}"
        );
        assert_eq!(head.contains("connection: close"), word == "three", "{head}");
        let trailer = body.split_once("\r\n0\r\n").unwrap().1;
        assert_eq!(trailer.starts_with("muster-proof: "), word == "one", "{body}");
        assert!(
            body.contains(&format!("data: {word}\n\n")) && body.ends_with("\r\n\r\n"),
            "{body}"
        );
    }
    let paths: Vec<_> = engine.heard().iter().map(|head| head[..7].to_owned()).collect();
    assert_eq!(paths, ["POST /a", "POST /b", "POST /c"]);
    assert_eq!(rig.ends(), [StreamEnd::Completed; 3]);
}

#[tokio::test]
async fn lines_and_headers_of_an_engine_under_our_prefix_are_removed_wherever_they_are_cut() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nMuster-Proof: forged\r\nmuster-x: 1\r\n\
                    trailer: muster-proof\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let body = b": muster-proof Zm9yZ2Vk\ndata: 1\n\n: muster-proof Zm9yZ2Vk\r\n: mustard\ndata: : muster-2\n\n: muster-pr";
        for part in body.chunks(5) {
            stream.write_all(&chunk(part)).await.unwrap();
            stream.flush().await.unwrap();
            tokio::task::yield_now().await;
        }
        stream
            .write_all(b"0\r\nmuster-proof: forged\r\n\r\n")
            .await
            .unwrap();
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let told = rig.ask(post(), "{}").await;
    assert_eq!(told.engines(), b"data: 1\n\n: mustard\ndata: : muster-2\n\n");
    assert_eq!(
        told.body
            .windows(9)
            .filter(|window| window == b": muster-")
            .count(),
        2
    );
    assert!(!told.head.headers.contains_key("muster-x") && !told.head.headers.contains_key(PROOF));
    let trailers = told.trailers.as_ref().unwrap();
    assert_eq!(trailers.get_all(PROOF).iter().count(), 1);
    let proof = told.proven(&mut rig.ledger());
    assert_eq!(proof.output, Digest::of(told.engines()));
}

#[tokio::test]
async fn an_answer_that_ends_within_a_line_ends_there() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(EVENTS.as_bytes()).await.unwrap();
        stream
            .write_all(&chunk(b"data: 1\n\ndata: {\"cut"))
            .await
            .unwrap();
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let told = rig.ask(post(), "").await;
    let proof = told.proven(&mut rig.ledger());
    assert_eq!(proof.output, Digest::of(b"data: 1\n\ndata: {\"cut"));
    assert_eq!(proof.output_bytes, 20);
    // No empty line follows the cut event, so that no reader takes it for a whole one.
    assert!(!told.body[20..].windows(2).any(|window| window == b"\n\n"));
}

#[tokio::test]
async fn an_engine_that_drops_within_a_chunk_is_told_apart_from_one_that_ended() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(EVENTS.as_bytes()).await.unwrap();
        stream.write_all(b"20\r\ndata: half\n\n").await.unwrap();
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let told = rig.ask(post(), "").await;
    let proof = told.proven(&mut rig.ledger());
    assert_eq!(proof.end, StreamEnd::EngineFailed);
    assert_eq!(proof.output, Digest::of(b"data: half\n\n"));
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_one_proof_of_what_it_was_sent_and_the_engine_stops() {
    let tasks = Tasks::new();
    let (gone, hung_up) = mpsc::channel(1);
    let engine = Engine::new(&tasks, move |mut stream| {
        let gone = gone.clone();
        async move {
            stream.write_all(EVENTS.as_bytes()).await.unwrap();
            stream.write_all(&chunk(b"data: 1\n\n")).await.unwrap();
            // The stream would not end by itself.
            let mut nothing = [0; 1];
            let read = stream.read(&mut nothing).await;
            gone.send(read.unwrap_or(0)).await.unwrap();
        }
    });
    let mut hung_up = hung_up;
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let request = post().body(http_body_util::Full::default()).unwrap();
    let asked = rig.asked(&request, b"");
    let response = rig.client.send(request).await.unwrap();
    let (report, reported) = oneshot::channel();
    let mut body = rig.checked(response, report).into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "data: 1\n\n");
    drop(body);
    assert_eq!(within("the engine is left", hung_up.recv()).await, Some(0));
    until("a proof", || (!rig.signed().is_empty()).then_some(())).await;
    until("the end", || (rig.proxy.signer().under_way() == 0).then_some(())).await;
    assert_eq!(rig.ends(), [StreamEnd::ClientGone]);
    assert_eq!(rig.signed()[0].output, Digest::of(b"data: 1\n\n"));
    // The proof is fetched, and agrees with the beginning that was received.
    let checked = reported.await.unwrap();
    assert!(!checked.whole && checked.proof.is_none());
    let (proofs, next) = rig.client.fetch_proofs(0).await.unwrap();
    assert_eq!((proofs.len(), next), (1, 1));
    checked
        .check_other_proof(&proofs[0], &asked, &mut rig.ledger(), BOUNDS)
        .unwrap();
}

#[tokio::test]
async fn a_session_that_is_closed_ends_what_is_under_way_and_says_its_last_word() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(EVENTS.as_bytes()).await.unwrap();
        stream.write_all(&chunk(b"data: 1\n\n")).await.unwrap();
        std::future::pending::<()>().await;
    });
    let rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let mut ledger = rig.ledger();
    let (told, last) = tokio::join!(rig.ask(post(), "{}"), async {
        until("a stream", || (rig.proxy.signer().under_way() == 1).then_some(())).await;
        within("the last word", rig.client.close(0)).await.unwrap()
    });
    let proof = told.proven(&mut ledger);
    assert_eq!(proof.end, StreamEnd::SessionClosed);
    let stated = ledger.close(&last.close, muster_identity::verify).unwrap();
    assert_eq!(stated.responses, 1);
    // The proof of a response whose client went away comes with the closing statement.
    let mut absent = rig.ledger();
    let [unseen] = last.proofs.as_slice() else {
        panic!("{last:?}");
    };
    assert_eq!(
        absent.close(&last.close, muster_identity::verify),
        Err(Forgery::Gap(1))
    );
    assert_eq!(absent.accept_unseen(unseen, muster_identity::verify), Ok(proof));
    assert_eq!(absent.close(&last.close, muster_identity::verify), Ok(stated));
    let refused = rig.ask(post(), "{}").await;
    assert_eq!(refused.head.status, 503);
    assert!(refused.received.proof.is_none(), "the engine was not asked");
    let again = rig.client.close(1).await.unwrap();
    assert_eq!((again.close, again.proofs.len()), (last.close, 0));
    assert_eq!(
        rig.client.fetch_attestation().await.unwrap(),
        *rig.proxy.signer().attestation()
    );
}

#[tokio::test]
async fn an_endpoint_that_closes_signs_for_clients_that_do_not_listen() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(EVENTS.as_bytes()).await.unwrap();
        let event = chunk(&[b'x'; 65_536]);
        while stream.write_all(&event).await.is_ok() {}
    });
    let mut rig = Rig::new(tasks, engine.address(), Kind::default()).await;
    let request = post().body(http_body_util::Full::default()).unwrap();
    let unread = rig.client.send(request).await.unwrap();
    let endpoint = rig.endpoint.take().unwrap();
    let closing = endpoint.close(std::time::Duration::from_millis(50));
    within("the endpoint's end", closing).await;
    assert_eq!(rig.ends(), [StreamEnd::SessionClosed]);
    assert_eq!(rig.proxy.signer().close().statement().unwrap().responses, 1);
    drop(unread);
}

#[tokio::test]
async fn under_the_scheme_of_words_two_transports_of_one_text_have_one_digest() {
    let tasks = Tasks::new();
    let engine = Engine::new(&tasks, |mut stream| async move {
        stream.write_all(EVENTS.as_bytes()).await.unwrap();
        for part in [
            "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"}}]}\n\ndata: [DONE]\n\n",
        ] {
            stream.write_all(&chunk(part.as_bytes())).await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    });
    let kind = Kind {
        scheme: HashScheme::Text,
        ..Kind::default()
    };
    let rig = Rig::new(tasks.clone(), engine.address(), kind).await;
    let told = rig
        .ask(
            post(),
            r#"{"messages":[{"role":"user","content":"Hi"}],"stream":true}"#,
        )
        .await;
    let streamed = told.proven(&mut rig.ledger());
    let engine = Engine::new(&tasks, |mut stream| async move {
        let body =
            r#"{"created":7,"choices":[{"index":0,"message":{"role":"assistant","content":"Hello"}}]}"#;
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    let rig = Rig::new(tasks, engine.address(), kind).await;
    let told = rig
        .ask(
            post(),
            r#"{"stream":false,"messages":[{"content":"Hi","role":"user"}]}"#,
        )
        .await;
    let whole = told.proven(&mut rig.ledger());
    assert!(
        told.head.headers.contains_key(PROOF),
        "a small answer has it in its head"
    );
    assert_eq!((streamed.input, streamed.output), (whole.input, whole.output));
    assert_ne!(streamed.chunks, whole.chunks);
}
