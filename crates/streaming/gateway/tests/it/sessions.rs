//! Sessions: they start on demand, are trusted only for what they prove, and may die.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_gateway::saved_proof::{ProofRecord, Transcript};
use muster_process::clock::TestClock;
use muster_process::{Clock as _, SystemClock};
use serde_json::Value;

use crate::rig::{World, read_until, settings, until};
use crate::subnet::JobFate;

#[tokio::test]
async fn a_stream_passes_as_it_is_made_and_is_proven_to_whoever_kept_it() {
    let world = World::new(|_| ()).await;
    let clock = SystemClock::new();
    let asked_at = clock.now();
    world.pace().words.send_replace(2);
    let body = r#"{"model":"tiny","stream":true,"max_tokens":3,"messages":[]}"#;
    let mut answer = world
        .post("/v1/chat/completions")
        .body(body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    // Two words have arrived before the engine has made the third.
    let mut whole = read_until(&mut answer, "word1").await;
    assert!(
        !whole.contains("word2") && !whole.contains("muster-proof"),
        "{whole}"
    );
    world.pace().words.send_replace(usize::MAX);
    whole += &answer.text().await.unwrap();
    assert!(
        whole.contains("data: [DONE]") && whole.contains("\n: muster-proof "),
        "{whole}"
    );

    let view = world.proof(&id).await;
    assert_eq!(view["verdict"], "proven", "{view}");
    assert_eq!(
        (&view["usage"]["input"], &view["usage"]["output"]),
        (&5.into(), &3.into())
    );
    assert_eq!(view["cost"], 5 + 2 * 3, "rao, by the whitelist's price");
    let words = Transcript {
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        request: STANDARD.encode(body),
        status: 200,
        content_type: Some("text/event-stream".to_owned()),
        response: STANDARD.encode(&whole),
        client_nonce: None,
        asked_at,
        ended_at: clock.now(),
    };
    let mut record: ProofRecord = serde_json::from_value(view).unwrap();
    record.transcript = Some(words);
    let proven = record.check(Arc::new(SystemClock::new())).await.unwrap();
    assert!(proven.has_transcript);
    // Nobody reads the words before the draw.
    assert_eq!(world.store().find_text(&id).await.unwrap(), None);
}

#[tokio::test]
async fn a_document_carries_its_proof_in_a_header() {
    let world = World::new(|_| ()).await;
    let answer = world.chat(2, false).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers().contains_key("muster-proof"));
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["choices"][0]["message"]["content"], "word word ");
    assert_eq!(world.proof(&id).await["verdict"], "proven");
    let answer = world
        .post("/v1/embeddings")
        .body(r#"{"model":"tiny","input":"x"}"#)
        .send()
        .await
        .unwrap();
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["data"][0]["embedding"][0], 0.5);
}

#[tokio::test]
async fn the_first_client_hears_a_sign_while_it_waits() {
    let world = World::new(|settings| settings.heartbeat_s = 1).await;
    world.subnet.open.send_replace(false);
    let mut answer = world.chat(1, true).send().await.unwrap();
    assert_eq!(
        answer.status(),
        200,
        "the stream has begun before there is a session"
    );
    let waited = read_until(&mut answer, ": muster-wait place=1 for=start\n").await;
    assert!(!waited.contains("data:"), "{waited}");
    world.subnet.open.send_replace(true);
    let rest = answer.text().await.unwrap();
    assert!(rest.contains("word0") && rest.contains("[DONE]"), "{rest}");
    assert_eq!(world.subnet.begun.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_client_waits_for_an_executor_in_a_list_and_is_served_once_one_is_free() {
    let world = World::new(|settings| {
        settings.heartbeat_s = 1;
        settings.wait_s = 1;
    })
    .await;
    // More declines than failed starts that end the wait.
    *world.subnet.fates.lock().unwrap() = vec![JobFate::NoRoom(0); 50];
    let mut answer = world.chat(1, true).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    read_until(&mut answer, ": muster-wait place=1 for=executor\n").await;
    // A client that asked for a document learns nothing while it waits, so it is told soon.
    let document = world.chat(1, false).send().await.unwrap();
    assert_eq!(document.status(), 503);
    assert!(document.headers().contains_key("retry-after"));
    let body = document.text().await.unwrap();
    assert!(
        body.contains("all executors are at work") && body.contains("place 2 of the waiting list"),
        "{body}"
    );
    world.subnet.fates.lock().unwrap().clear();
    world.subnet.room.send_replace(());
    let rest = answer.text().await.unwrap();
    assert!(rest.contains("word0") && rest.contains("[DONE]"), "{rest}");
}

#[tokio::test]
async fn a_session_is_as_long_as_the_miner_that_declines_it_offers() {
    let world = World::new(|_| ()).await;
    *world.subnet.fates.lock().unwrap() = vec![JobFate::NoRoom(75), JobFate::NoRoom(25)];
    let answer = world.chat(1, true).send().await.unwrap().text().await.unwrap();
    assert!(answer.contains("word0") && answer.contains("[DONE]"), "{answer}");
    let usual = settings().session_s;
    let asked: Vec<u64> = {
        let lifetimes = world.subnet.lifetimes.lock().unwrap();
        lifetimes.iter().map(std::time::Duration::as_secs).collect()
    };
    assert_eq!(asked, [usual, usual - 75, usual - 100]);
}

#[tokio::test]
async fn before_the_first_byte_another_session_takes_over() {
    let world = World::new(|_| ()).await;
    world.pace().words.send_replace(0);
    let asking = world.tasks.spawn("asking", world.chat(1, true).send());
    until("the engine is asked", || async {
        (world.pace().asked.load(Ordering::SeqCst) == 1).then_some(())
    })
    .await;
    world.subnet.kill_all();
    world.pace().words.send_replace(usize::MAX);
    let answer = asking.join().await.unwrap().unwrap();
    let id = answer.headers().get("x-request-id").cloned();
    let body = answer.text().await.unwrap();
    let id = id
        .unwrap_or_else(|| panic!("{body}"))
        .to_str()
        .unwrap()
        .to_owned();
    assert!(body.contains("[DONE]"), "{body}");
    assert_eq!(world.subnet.begun.load(Ordering::SeqCst), 2);
    assert_eq!(world.proof(&id).await["verdict"], "proven");
}

#[tokio::test]
async fn a_request_leaves_a_session_that_is_taken_for_dead_and_says_nothing() {
    let world = World::new(|_| ()).await;
    world.pace().words.send_replace(0);
    let asking = world.tasks.spawn("asking", world.chat(2, true).send());
    let asked = |times| {
        let pace = world.pace();
        until("the engine is asked", move || async move {
            (pace.asked.load(Ordering::SeqCst) == times).then_some(())
        })
    };
    asked(1).await;
    // Its connection stays open: a machine that is gone closes no connection.
    world.subnet.declare_dead();
    asked(2).await;
    world.pace().words.send_replace(usize::MAX);
    let answer = asking.join().await.unwrap().unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let body = answer.text().await.unwrap();
    assert!(body.contains("[DONE]"), "{body}");
    assert_eq!(world.proof(&id).await["verdict"], "proven");
}

#[tokio::test]
async fn after_the_first_byte_the_client_is_told_inside_the_stream() {
    let world = World::new(|_| ()).await;
    world.pace().words.send_replace(1);
    let mut answer = world.chat(3, true).send().await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    read_until(&mut answer, "word0").await;
    world.subnet.kill_all();
    let rest = answer.text().await.unwrap();
    let event = rest
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .next_back()
        .unwrap();
    let error: Value = serde_json::from_str(event).unwrap();
    assert_eq!(error["error"]["code"], "upstream_failed", "{rest}");
    let view = world.proof(&id).await;
    assert_eq!(view["end"], "engine-failed");
    assert_ne!(view["verdict"], "proven", "nobody was left to sign");
    assert_eq!(
        (&view["usage"]["output"], &view["cost"]),
        (&1.into(), &0.into()),
        "only what was sent is counted"
    );
}

#[tokio::test]
async fn the_client_is_told_of_an_answer_that_its_session_ended_early() {
    let world = World::new(|_| ()).await;
    world.pace().words.send_replace(1);
    let mut answer = world.chat(3, true).send().await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let mut body = read_until(&mut answer, "word0").await;
    world.pace().breaks_off.store(true, Ordering::SeqCst);
    world.pace().words.send_replace(usize::MAX);
    body += &answer.text().await.unwrap();
    // The session ends the body in order, with its proof.
    let parts = body.split_once("\n: muster-proof ");
    let (said, after) = parts.unwrap_or_else(|| panic!("{body}"));
    assert!(said.contains("word0") && !said.contains("word1"), "{body}");
    let event = after
        .lines()
        .find_map(|line| line.strip_prefix("data: "))
        .unwrap();
    let error: Value = serde_json::from_str(event).unwrap();
    assert_eq!(error["error"]["code"], "upstream_failed", "{body}");
    let view = world.proof(&id).await;
    assert_eq!(
        (&view["verdict"], &view["end"]),
        (&"proven".into(), &"engine-failed".into())
    );
}

/// An answer of which one word has arrived, and whose session is then presumed dead, with a clock that stands still.
async fn presumed_dead(words: usize) -> (World, TestClock, reqwest::Response, String) {
    let clock = TestClock::new(SystemClock::new().now());
    let world = World::at(Arc::new(clock.clone()), |_| ()).await;
    world.pace().words.send_replace(1);
    let mut answer = world.chat(words, true).send().await.unwrap();
    let came = read_until(&mut answer, "word0").await;
    world.subnet.declare_dead();
    until("the session is given up", || async {
        (world.gateway.list_models().await[0].live == 0).then_some(())
    })
    .await;
    until(
        "the relay waits for the next frame and the close waits for the answer's end",
        || async { (clock.sleepers() == 2).then_some(()) },
    )
    .await;
    (world, clock, answer, came)
}

#[tokio::test]
async fn an_answer_that_flows_on_is_whole_although_its_session_was_taken_for_dead() {
    let (world, clock, mut answer, mut came) = presumed_dead(4).await;
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    // Each pause is shorter than the grace period; their sum is longer.
    for word in 1..4 {
        clock.advance(Duration::from_secs(4));
        world.pace().words.send_replace(word + 1);
        came += &read_until(&mut answer, &format!("word{word}")).await;
    }
    assert!(
        world.subnet.ended.lock().unwrap().is_empty(),
        "the answer was not cut"
    );
    world.pace().words.send_replace(usize::MAX);
    came += &answer.text().await.unwrap();
    assert!(
        came.contains("[DONE]") && came.contains("\n: muster-proof ") && !came.contains("error"),
        "{came}"
    );
    let view = world.proof(&id).await;
    assert_eq!(
        (&view["verdict"], &view["end"], &view["usage"]["output"]),
        (&"proven".into(), &"completed".into(), &4.into()),
        "{view}"
    );
    // The session is closed once none of its answers is under way, with its close statement.
    until("the session's end", || async {
        (world.subnet.ended.lock().unwrap().len() == 1).then_some(())
    })
    .await;
    let last = &world.store().list_sessions(1).await.unwrap()[0];
    assert!(last.close.is_some() && last.fault.is_none(), "{last:?}");
}

#[tokio::test]
async fn an_answer_that_stops_with_its_session_is_given_up_soon_and_what_came_is_proven_and_paid() {
    let (world, clock, answer, _) = presumed_dead(3).await;
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let reading = world.tasks.spawn("reading", answer.text());
    clock.advance(Duration::from_secs(5));
    // The proof of the health check, and the proof of the part that was sent.
    until("the session's proof", || async {
        (world.subnet.signed() == 2).then_some(())
    })
    .await;
    until("the end of the answer", || async {
        clock.advance(Duration::from_millis(100));
        reading.is_finished().then_some(())
    })
    .await;
    let rest = reading.join().await.unwrap().unwrap();
    let event = rest
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .next_back();
    let error: Value = serde_json::from_str(event.unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "upstream_failed", "{rest}");
    let view = world.proof(&id).await;
    assert_eq!(
        (&view["verdict"], &view["end"]),
        (&"proven".into(), &"client-gone".into()),
        "the seal was still there to sign: {view}"
    );
    let input = view["usage"]["input"].as_u64().unwrap();
    assert_eq!(
        (&view["usage"]["output"], &view["cost"]),
        (&1.into(), &(input + 2).into()),
        "the price covers the part that was sent: {view}"
    );
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_a_proof_of_what_it_was_sent() {
    let world = World::new(|_| ()).await;
    world.pace().words.send_replace(1);
    let mut answer = world.chat(3, true).send().await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    read_until(&mut answer, "word0").await;
    drop(answer);
    let view = world.proof(&id).await;
    assert_eq!(
        (&view["verdict"], &view["end"]),
        (&"proven".into(), &"client-gone".into()),
        "{view}"
    );
    assert_eq!(view["usage"]["output"], 1);
}

#[tokio::test]
async fn a_session_that_cannot_be_sealed_or_proven_serves_nobody_and_the_client_gets_the_reason() {
    let table = [
        (JobFate::CannotSeal, "cannot seal"),
        (JobFate::Forged, "did not sign it"),
        (JobFate::OtherImage, "instead of the whitelisted one"),
        (JobFate::ClockAhead(60), "clock is ahead"),
        (JobFate::ClockAhead(-60), "off the time"),
        (JobFate::Unsigned, "did not sign where its job answers"),
        (JobFate::Fails, "no miner took it"),
    ];
    // Each case takes three starts with pauses, so all cases run at once.
    let tried = table.map(|(fate, says)| async move {
        let world = World::new(|_| ()).await;
        *world.subnet.fates.lock().unwrap() = vec![fate; 3];
        let answer = world.chat(1, false).send().await.unwrap();
        assert_eq!(answer.status(), 503, "{fate:?}");
        assert!(answer.headers().contains_key("retry-after"));
        let body: Value = answer.json().await.unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{fate:?}: {message}");
        assert_eq!(
            world.pace().asked.load(Ordering::SeqCst),
            0,
            "{fate:?}: nothing was asked of it"
        );
    });
    futures_util::future::join_all(tried).await;
}

#[tokio::test]
async fn answers_with_an_error_of_the_server_are_no_checks_of_health() {
    let world = World::new(|_| ()).await;
    world.chat(1, true).send().await.unwrap().bytes().await.unwrap();
    world.pace().is_broken.store(true, Ordering::SeqCst);
    // Proven errors come all the time, and the session is given up all the same.
    until("the end of the session", || async {
        let answer = world.chat(1, true).send().await.unwrap();
        // A stream that waits for the next session has begun before its error.
        let status = answer.status();
        let body = answer.text().await.unwrap();
        assert!(
            status.is_server_error() || body.contains("\"error\""),
            "{status}: {body}"
        );
        let ended = world.subnet.ended.lock().unwrap().len();
        (ended > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_the_store_refuses_is_lost_alone_and_the_gateway_goes_on() {
    let world = World::new(|_| {}).await;
    // The engine refuses a length that no value may have.
    let refuse = "CREATE TRIGGER too_long BEFORE INSERT ON responses WHEN NEW.output_tokens = 3 \
                  BEGIN SELECT LENGTH(zeroblob(2000000000)); END";
    sqlx::raw_sql(refuse).execute(&world.database.pool).await.unwrap();
    let ask = async |words| {
        // A stream ends for its client once the answer is settled.
        let answer = world.chat(words, true).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        answer.bytes().await.unwrap();
        id
    };
    let lost = ask(3).await;
    let kept = ask(2).await;
    assert_eq!(world.proof(&kept).await["verdict"], "proven");
    assert_eq!(world.store().find_response(&lost).await.unwrap(), None);
    assert!(!world.has_failed.load(Ordering::SeqCst), "the store works");
}
