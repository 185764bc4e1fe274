//! Sessions: they come when somebody asks, they are believed only for what they prove, and they die.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_gateway::proof_record::{ProofRecord, Transcript};
use muster_gateway::sealed::Line;
use muster_process::clock::TestClock;
use muster_process::{Clock as _, SystemClock};
use serde_json::Value;

use crate::rig::{Fate, World, read_until, until};

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
    // Two words are here while the engine has not made the third.
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
    // And the pair lies there for a later check, word for word.
    let pair = world.store().find_sample(&id).await.unwrap().unwrap();
    assert_eq!(pair.request, body.as_bytes());
    assert_eq!(pair.response, whole.as_bytes());
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
    let waited = read_until(&mut answer, ": muster-wait\n").await;
    assert!(!waited.contains("data:"), "{waited}");
    world.subnet.open.send_replace(true);
    let rest = answer.text().await.unwrap();
    assert!(rest.contains("word0") && rest.contains("[DONE]"), "{rest}");
    assert_eq!(world.subnet.begun.load(Ordering::SeqCst), 1);
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
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let body = answer.text().await.unwrap();
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
    // Its connection stays as it is: a machine that is gone hangs up on nobody.
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

/// An answer of which one word has come, and whose session is then taken for dead, at a time that stands still.
async fn taken_for_dead(words: usize) -> (World, TestClock, reqwest::Response, String) {
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
        "who passes it on waits for more of it, and who closes the session for its end",
        || async { (clock.sleepers() == 2).then_some(()) },
    )
    .await;
    (world, clock, answer, came)
}

#[tokio::test]
async fn an_answer_that_flows_on_is_whole_although_its_session_was_taken_for_dead() {
    let (world, clock, mut answer, mut came) = taken_for_dead(4).await;
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    // No pause is a long one; all of them together are.
    for word in 1..4 {
        clock.advance(Duration::from_secs(4));
        world.pace().words.send_replace(word + 1);
        came += &read_until(&mut answer, &format!("word{word}")).await;
    }
    assert!(world.subnet.ended.lock().unwrap().is_empty(), "nobody has cut it");
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
    // The session is closed once nothing of it flows, and has its last word.
    until("the session's end", || async {
        (world.subnet.ended.lock().unwrap().len() == 1).then_some(())
    })
    .await;
    let last = &world.store().list_sessions(1).await.unwrap()[0];
    assert!(last.close.is_some() && last.fault.is_none(), "{last:?}");
}

#[tokio::test]
async fn an_answer_that_stops_with_its_session_is_given_up_soon_and_what_came_is_proven_and_paid() {
    let (world, clock, answer, _) = taken_for_dead(3).await;
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let reading = world.tasks.spawn("reading", answer.text());
    clock.advance(Duration::from_secs(5));
    // That of its health, and that of what it had sent.
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
        "its seal was there to sign: {view}"
    );
    let input = view["usage"]["input"].as_u64().unwrap();
    assert_eq!(
        (&view["usage"]["output"], &view["cost"]),
        (&1.into(), &(input + 2).into()),
        "for what was sent, and no more: {view}"
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
async fn who_cannot_seal_or_proves_something_else_serves_nobody_and_the_client_hears_why() {
    let table = [
        (Fate::CannotSeal, "cannot seal"),
        (Fate::Forged, "did not sign it"),
        (Fate::OtherImage, "instead of the whitelisted one"),
        (Fate::ClockAhead(60), "clock is ahead"),
        (Fate::ClockAhead(-60), "off the time"),
        (Fate::Unsigned, "did not sign where its job answers"),
        (Fate::Fails, "no miner took it"),
    ];
    // Each is tried three times, with pauses: all of them at once.
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
async fn an_idle_session_says_its_last_word_and_ends() {
    let world = World::new(|settings| settings.idle_s = 1).await;
    world
        .chat(1, false)
        .send()
        .await
        .unwrap()
        .error_for_status()
        .unwrap();
    let ended = until("the session's end", || async {
        world.subnet.ended.lock().unwrap().first().copied()
    })
    .await;
    assert_eq!(ended.1, "nobody used it");
    let sessions = world.store().list_sessions(10).await.unwrap();
    assert_eq!(sessions[0].closed_because.as_deref(), Some("nobody used it"));
    assert!(
        sessions[0].close.is_some() && sessions[0].fault.is_none(),
        "{sessions:?}"
    );
}

#[tokio::test]
async fn an_answer_that_nobody_stayed_for_is_no_gap_at_the_sessions_end() {
    let world = World::new(|settings| settings.idle_s = 1).await;
    world
        .chat(1, false)
        .send()
        .await
        .unwrap()
        .error_for_status()
        .unwrap();
    world.subnet.answer_nobody().await;
    until("the session's end", || async {
        world.subnet.ended.lock().unwrap().first().copied()
    })
    .await;
    let sessions = world.store().list_sessions(10).await.unwrap();
    let last = &sessions[0];
    assert!(last.close.is_some() && last.fault.is_none(), "{last:?}");
}

#[tokio::test]
async fn the_last_word_of_a_session_that_closed_of_itself_comes_by_its_miner_and_is_judged() {
    for (forged, fault) in [(false, None), (true, Some("its last word cannot be read"))] {
        let world = World::new(|_| ()).await;
        let answer = world.chat(2, false).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.bytes().await.unwrap();
        let change = |close: String| if forged { close[..40].to_owned() } else { close };
        world.subnet.close_all(change).await;
        let closed = || async {
            let sessions = world.store().list_sessions(1).await.unwrap();
            sessions.into_iter().find(|session| session.closed_at.is_some())
        };
        let session = until("the end of the session", closed).await;
        assert_eq!(session.close.is_some(), !forged, "{session:?}");
        let told = session.fault.as_deref().unwrap_or_default();
        assert!(told.starts_with(fault.unwrap_or_default()), "{told}");
        assert_eq!(session.fault.is_some(), fault.is_some(), "{session:?}");
    }
}

/// The sessions that serve once somebody was served.
async fn serving(world: &World) -> Vec<Arc<Line>> {
    world.pace().words.send_replace(usize::MAX);
    let answer = world.chat(1, false).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    drop(answer.bytes().await.unwrap());
    world.gateway.list_live_sessions().await
}

#[tokio::test]
async fn whether_the_gateway_itself_ended_a_session_is_known_to_whoever_holds_its_line() {
    let ours = World::new(|settings| settings.idle_s = 1).await;
    assert!(
        ours.gateway.list_live_sessions().await.is_empty(),
        "nobody has asked yet"
    );
    let idle = serving(&ours).await;
    assert!(idle.len() == 1 && !idle[0].is_ending());
    until("the end of a session that nobody uses", || async {
        ours.gateway.list_live_sessions().await.is_empty().then_some(())
    })
    .await;
    assert!(idle[0].is_ending(), "the gateway ended it");

    let theirs = World::new(|_| ()).await;
    let dead = serving(&theirs).await;
    theirs.subnet.kill_all();
    until("the end of a session whose machine is gone", || async {
        theirs.gateway.list_live_sessions().await.is_empty().then_some(())
    })
    .await;
    assert!(!dead[0].is_ending(), "the machine was gone");
}
