//! The log of proven answers: places, draws, and the words of drawn and of other answers.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use muster_gateway::logged_session::OwnQuestion;
use muster_gateway::store::{LoggedAnswer, StoredBucket, StoredDraw};
use muster_openai::OpenAiError;
use muster_process::{Clock as _, SystemClock};
use muster_protocol::Digest;
use muster_response_proof::{BucketNumber, Envelope, RequestNonce, ResponseProof, SessionId};
use serde_json::json;
use uuid::Uuid;

use crate::rig::{World, read_until, until};

impl World {
    /// Asks for an answer with this header of consent and waits until it is stored.
    async fn answered(&self, consent: &str) -> String {
        let mut request = self.chat(2, false);
        if !consent.is_empty() {
            request = request.header("muster-audit-consent", consent);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        assert_eq!(self.proof(&id).await["verdict"], "proven");
        id
    }
}

fn closed(bucket: u64, answers: &[LoggedAnswer]) -> StoredBucket {
    StoredBucket {
        bucket: BucketNumber(bucket),
        answers: answers.len() as u64,
        header: "header".to_owned(),
        shares: "[]".to_owned(),
        canary_list: Digest::of(b"list"),
        closed_at: SystemClock::new().now(),
        draw: None,
    }
}

fn draw() -> StoredDraw {
    StoredDraw {
        block_hash: Digest::of(b"block"),
        text: "\"draw\"".to_owned(),
        at: SystemClock::new().now(),
    }
}

#[tokio::test]
async fn drawn_answers_keep_their_words_and_those_of_all_others_are_gone() {
    let world = World::new(|_| ()).await;
    let log = world.gateway.answer_log();
    let drawn = world.answered("").await;
    let other = world.answered("private").await;
    let own = world.answered("publish").await;
    let declined = world.answered("decline").await;
    let answers = log.fill(BucketNumber(7)).await.unwrap();
    let ids: Vec<&str> = answers.iter().map(|answer| answer.id.as_str()).collect();
    assert_eq!(
        ids,
        [&drawn, &other, &own, &declined],
        "in the order of their ends"
    );
    let places: Vec<u64> = answers.iter().map(|answer| answer.position).collect();
    assert_eq!(places, [0, 1, 2, 3]);
    assert!(answers.iter().all(|answer| answer.leaf().is_some()));
    log.close(&closed(7, &answers)).await.unwrap();
    // An answer that comes after the header stands in the next bucket.
    let late = world.answered("").await;
    assert_eq!(log.fill(BucketNumber(7)).await.unwrap().len(), 4);
    let next = log.fill(BucketNumber(8)).await.unwrap();
    assert_eq!(next.iter().map(|answer| &answer.id).collect::<Vec<_>>(), [&late]);
    log.close(&closed(8, &next)).await.unwrap();
    assert_eq!(log.store().undrawn_buckets().await.unwrap().len(), 2);

    let kept = BTreeSet::from([own.clone()]);
    let chosen = [drawn.clone(), declined.clone()];
    log.draw(BucketNumber(7), &draw(), &chosen, &kept).await.unwrap();
    let words = async |id: &str| log.store().find_text(id).await.unwrap();
    let asked: serde_json::Value = serde_json::from_slice(&words(&drawn).await.unwrap().request).unwrap();
    assert_eq!(asked["max_tokens"], json!(2));
    assert!(words(&own).await.is_some());
    assert_eq!(words(&other).await, None);
    assert_eq!(
        words(&declined).await,
        None,
        "its client did not let the words be kept"
    );
    let logged = log.store().answers_of_bucket(BucketNumber(7)).await.unwrap();
    let marks: Vec<bool> = logged.iter().map(|answer| answer.is_drawn).collect();
    assert_eq!(marks, [true, false, false, true]);
    let left = log.store().undrawn_buckets().await.unwrap();
    assert_eq!(left.len(), 1);
    // The key of later words lives on.
    log.draw(
        BucketNumber(8),
        &draw(),
        std::slice::from_ref(&late),
        &BTreeSet::new(),
    )
    .await
    .unwrap();
    assert!(words(&late).await.is_some());
    log.store().drop_text(&late).await.unwrap();
    assert_eq!(words(&late).await, None);
}

#[tokio::test]
async fn the_words_of_an_answer_that_is_an_error_are_not_kept() {
    let world = World::new(|_| ()).await;
    let log = world.gateway.answer_log();
    let good = world.answered("").await;
    world.pace().is_broken.store(true, Ordering::SeqCst);
    let answer = world.chat(2, false).send().await.unwrap();
    assert_eq!(answer.status(), 500);
    let bad = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(world.proof(&bad).await["verdict"], "proven");
    let answers = log.fill(BucketNumber(7)).await.unwrap();
    log.close(&closed(7, &answers)).await.unwrap();
    let all = [good.clone(), bad.clone()];
    log.draw(BucketNumber(7), &draw(), &all, &BTreeSet::new())
        .await
        .unwrap();
    assert!(log.store().find_text(&good).await.unwrap().is_some());
    assert_eq!(log.store().find_text(&bad).await.unwrap(), None);
}

#[tokio::test]
async fn buckets_that_an_earlier_process_filled_and_did_not_close_are_filled_anew() {
    let world = World::new(|_| ()).await;
    let log = world.gateway.answer_log();
    let id = world.answered("").await;
    assert_eq!(log.fill(BucketNumber(3)).await.unwrap().len(), 1);
    log.store().release_unclosed().await.unwrap();
    let again = log.fill(BucketNumber(9)).await.unwrap();
    assert_eq!((again[0].id.as_str(), again[0].bucket.0), (id.as_str(), 9));
}

#[tokio::test]
async fn a_wrong_consent_is_refused_by_name() {
    let world = World::new(|_| ()).await;
    let request = world.chat(1, false).header("muster-audit-consent", "maybe");
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 400);
    let body: serde_json::Value = answer.json().await.unwrap();
    assert!(body.to_string().contains("private, publish or decline"), "{body}");
}

#[tokio::test]
async fn the_validators_own_questions_take_the_way_of_every_clients_to_one_session() {
    let world = World::new(|_| ()).await;
    let body = json!({"model": "tiny", "stream": true, "max_tokens": 2, "messages": []});
    let pseudonym = Digest::of(b"own");
    let fixed = |number: u8| RequestNonce::from_bytes([number; 32]);
    let own = |body: &serde_json::Value, client_nonce, number| OwnQuestion {
        is_chat: true,
        body: body.to_string().into(),
        client: pseudonym,
        client_nonce,
        gateway_nonce: fixed(number),
    };
    let gone = SessionId(Uuid::nil());
    let refused = world.gateway.ask(gone, own(&body, None, 1)).await.unwrap_err();
    assert!(matches!(refused, OpenAiError::UpstreamFailed(_)), "{refused:?}");
    assert!(
        world.gateway.list_live_sessions().await.is_empty(),
        "it starts no session"
    );
    world.answered("").await;
    let session = world.live_session().await;
    for (number, nonce) in [(2, None), (3, Some(RequestNonce::from_bytes([7; 32])))] {
        let id = world
            .gateway
            .ask(session, own(&body, nonce, number))
            .await
            .unwrap();
        let (row, _) = world.store().find_response(&id).await.unwrap().unwrap();
        assert_eq!((row.client, row.verdict.as_str()), (pseudonym, "proven"));
        let signed = Envelope::<ResponseProof>::from_text(&row.proof.unwrap()).unwrap();
        let proof = signed.statement().unwrap();
        assert_eq!(
            (proof.client_nonce, proof.gateway_nonce),
            (nonce, Some(fixed(number)))
        );
        assert_eq!(proof.session, session);
    }
    let unknown = json!({"model": "none", "messages": []});
    assert!(world.gateway.ask(session, own(&unknown, None, 4)).await.is_err());
}

#[tokio::test]
async fn an_own_question_is_asked_once_and_waits_for_a_place_of_its_session() {
    let world = World::new(|settings| settings.per_session = 1).await;
    world.answered("").await;
    let session = world.live_session().await;
    let own = || OwnQuestion {
        is_chat: true,
        body: json!({"model": "tiny", "stream": true, "max_tokens": 9, "messages": []})
            .to_string()
            .into(),
        client: Digest::of(b"own"),
        client_nonce: None,
        gateway_nonce: RequestNonce::from_bytes([9; 32]),
    };
    world.pace().words.send_replace(1);
    let mut users = world.chat(9, true).send().await.unwrap();
    read_until(&mut users, "word0").await;
    let mut asking = std::pin::pin!(world.gateway.ask(session, own()));
    world.pace().words.send_replace(4);
    tokio::select! {
        ended = &mut asking => panic!("the session has no place: {ended:?}"),
        _ = read_until(&mut users, "word3") => {}
    }
    world.pace().words.send_replace(0);
    drop(users);
    // The session ends before it answers: the question is over, and no other session gets it.
    let killing = async {
        until("the question", || async {
            (world.pace().asked.load(Ordering::SeqCst) >= 3).then_some(())
        })
        .await;
        world.subnet.kill_all();
    };
    let (ended, ()) = tokio::join!(asking, killing);
    assert!(matches!(ended, Err(OpenAiError::UpstreamFailed(_))), "{ended:?}");
}
