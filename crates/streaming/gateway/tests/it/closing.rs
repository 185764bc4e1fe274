//! The ends of sessions: idle, closed by themselves, or dead; and their close statements.

use std::sync::Arc;
use std::time::Duration;

use muster_process::{Clock as _, SystemClock, TestClock};
use muster_protocol::ExecutorClass;
use muster_response_proof::well_known::MAX_PROOFS;
use muster_sealed_client::SealedSession;
use muster_testbed::within;

use crate::rig::{World, read_until, until};

/// A world on a clock that the test moves.
async fn timed() -> (World, TestClock) {
    let clock = TestClock::new(SystemClock::new().now());
    let world = World::at(Arc::new(clock.clone()), |settings| settings.idle_s = 10).await;
    (world, clock)
}

/// Lets time pass for a session: quickly while it is open, slowly once it ends, because its end asks the machine.
fn pass_time(clock: &TestClock, session: &SealedSession) {
    clock.advance(Duration::from_millis(if session.is_ending() {
        10
    } else {
        1_000
    }));
}

#[tokio::test]
async fn an_idle_session_gives_its_close_statement_and_ends() {
    let (world, clock) = timed().await;
    let session = serving(&world).await.swap_remove(0);
    let ended = until("the session's end", || async {
        pass_time(&clock, &session);
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
async fn an_unused_session_makes_room_for_jobs_that_wait_for_its_class_and_for_no_others() {
    let clock = TestClock::new(SystemClock::new().now());
    let world = World::at(Arc::new(clock.clone()), |settings| {
        settings.idle_s = 3_600;
        settings.yield_s = 10;
        settings.health_s = 36_000;
    })
    .await;
    let session = serving(&world).await.swap_remove(0);
    let class = session.class();
    let others = ExecutorClass::ALL.into_iter().filter(|other| *other != class);
    world.subnet.waiting.send_replace(others.collect());
    clock.advance(Duration::from_secs(60));
    let still = serving(&world).await.swap_remove(0);
    assert_eq!(still.job(), session.job(), "jobs of other classes wait");
    world.subnet.waiting.send_replace([class].into());
    let ended = until("the session's end", || async {
        pass_time(&clock, &session);
        world.subnet.ended.lock().unwrap().first().copied()
    })
    .await;
    assert_eq!(ended, (session.job(), "nobody used it"));
}

#[tokio::test]
async fn an_answer_that_nobody_stayed_for_is_no_gap_at_the_sessions_end() {
    let (world, clock) = timed().await;
    let session = serving(&world).await.swap_remove(0);
    world.subnet.answer_nobody().await;
    until("the session's end", || async {
        pass_time(&clock, &session);
        world.subnet.ended.lock().unwrap().first().copied()
    })
    .await;
    let sessions = world.store().list_sessions(10).await.unwrap();
    let last = &sessions[0];
    assert!(last.close.is_some() && last.fault.is_none(), "{last:?}");
}

#[tokio::test]
async fn more_proofs_than_a_closing_document_has_are_fetched_page_by_page() {
    let world = World::new(|settings| settings.health_s = 3_600).await;
    let session = serving(&world).await.swap_remove(0);
    for _ in 0..2 * MAX_PROOFS {
        world.subnet.answer_nobody().await;
    }
    world.gateway.drain_session(session.job());
    until("the session's end", || async {
        world.subnet.ended.lock().unwrap().first().copied()
    })
    .await;
    let sessions = world.store().list_sessions(10).await.unwrap();
    assert!(
        sessions[0].close.is_some() && sessions[0].fault.is_none(),
        "{sessions:?}"
    );
    let others = world.store().other_proofs(session.id()).await.unwrap();
    assert!(others.len() >= 2 * MAX_PROOFS, "{}", others.len());
}

#[tokio::test]
async fn a_missing_proof_of_an_answer_that_nobody_stayed_for_is_fetched_while_the_session_serves() {
    let world = World::new(|_| ()).await;
    let session = serving(&world).await.swap_remove(0);
    world.subnet.answer_nobody().await;
    let missing = world.subnet.signed() - 1;
    drop(serving(&world).await);
    let kept = until("the missing proof", || async {
        let others = world.store().other_proofs(session.id()).await.unwrap();
        let mut numbers = others.iter().map(|(number, _)| *number);
        numbers.any(|number| number == missing).then_some(())
    });
    kept.await;
    assert!(!session.fetch_missing().await, "nothing is withheld");
    assert_eq!(world.gateway.list_live_sessions().await.len(), 1);
}

#[tokio::test]
async fn other_proofs_are_kept_until_they_are_stored_and_stored_before_the_next_answer() {
    let world = World::new(|settings| settings.health_s = 3_600).await;
    let session = serving(&world).await.swap_remove(0);
    session.check_health().await.unwrap();
    let kept = session.other_proofs().pop().unwrap();
    assert!(session.other_proofs().contains(&kept), "nobody has stored it");
    let answer = world.chat(1, false).send().await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    drop(answer.bytes().await.unwrap());
    world.proof(&id).await;
    let stored = world.store().other_proofs(session.id()).await.unwrap();
    assert!(stored.contains(&kept), "{stored:?}");
    assert!(!session.other_proofs().contains(&kept), "it is stored");
}

#[tokio::test]
async fn the_close_statement_of_a_session_that_closed_by_itself_comes_from_its_miner_and_is_judged() {
    for (forged, fault) in [
        (false, None),
        (true, Some("its closing statement cannot be read")),
    ] {
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

#[tokio::test]
async fn a_gateway_that_drains_ends_the_answers_under_way_and_takes_no_others() {
    let world = World::new(|_| ()).await;
    let session = serving(&world).await.swap_remove(0);
    world.pace().words.send_replace(1);
    let mut response = world.chat(3, true).send().await.unwrap();
    read_until(&mut response, "data:").await;
    let gateway = world.gateway.clone();
    let draining = world.tasks.spawn("drain", async move { gateway.drain().await });
    until("a refusal", || async {
        world.chat(1, false).send().await.is_err().then_some(())
    })
    .await;
    assert!(!session.is_ending(), "its answer is under way");
    world.pace().words.send_replace(usize::MAX);
    read_until(&mut response, "[DONE]").await;
    within("the end of the drain", draining.join()).await.unwrap();
}

/// The live sessions after one answer.
async fn serving(world: &World) -> Vec<Arc<SealedSession>> {
    world.pace().words.send_replace(usize::MAX);
    let answer = world.chat(1, false).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    drop(answer.bytes().await.unwrap());
    world.gateway.list_live_sessions().await
}

#[tokio::test]
async fn a_session_knows_whether_the_gateway_itself_ended_it() {
    let (ours, clock) = timed().await;
    assert!(
        ours.gateway.list_live_sessions().await.is_empty(),
        "nobody has asked yet"
    );
    let idle = serving(&ours).await;
    assert!(idle.len() == 1 && !idle[0].is_ending());
    until("the end of a session that nobody uses", || async {
        pass_time(&clock, &idle[0]);
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
