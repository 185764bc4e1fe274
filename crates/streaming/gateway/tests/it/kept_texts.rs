//! The texts of answers that a bucket keeps, beside clients and miners that pad theirs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_gateway::logged_session::{LoggedSession, OwnQuestion};
use muster_gateway::miner_sessions::{MinerSessions, SessionTimes};
use muster_gateway::store::{BodyForm, StoredBucket, StoredDraw};
use muster_process::{Clock as _, SystemClock};
use muster_protocol::{Digest, MinerKey};
use muster_response_proof::{BucketNumber, RequestNonce};
use muster_session_pool::Service;
use serde_json::{Value, json};

use crate::engine::PADDING;
use crate::rig::{KEY, World, read_until, service, until};
use crate::subnet::{TestBackend, miner};
use crate::token_counts::tokenizer_file;

const HOSTILE: &str = "a key of a hostile client";
const BUCKET: BucketNumber = BucketNumber(7);
/// Bytes of texts that the tests' bucket keeps.
const ROOM: u64 = 1024 * 1024;
/// Bytes of an answer's fields beside its text.
const FRAME: usize = 128;

impl World {
    /// Has a request answered for the client of this key. Returns the answer's id once it is stored, and its body.
    async fn exchange(&self, key: &str, request: &Value) -> (String, String) {
        let posted = self.http.post(format!("{}/v1/chat/completions", self.base));
        let posted = posted.bearer_auth(key).header("content-type", "application/json");
        let answer = posted.body(request.to_string()).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        let body = answer.text().await.unwrap();
        until("the answer", async || {
            self.store().find_response(&id).await.unwrap()
        })
        .await;
        (id, body)
    }

    /// Closes a bucket of all answers, and draws them all.
    async fn draw_all(&self) {
        let log = self.gateway.answer_log();
        let answers = log.fill(BUCKET).await.unwrap();
        let closed = StoredBucket {
            bucket: BUCKET,
            answers: answers.len() as u64,
            header: "header".to_owned(),
            shares: "[]".to_owned(),
            canary_list: Digest::of(b"list"),
            closed_at: SystemClock::new().now(),
            draw: None,
        };
        log.close(&closed).await.unwrap();
        let draw = StoredDraw {
            block_hash: Digest::of(b"block"),
            text: "\"draw\"".to_owned(),
            at: SystemClock::new().now(),
        };
        let all: Vec<String> = answers.into_iter().map(|answer| answer.id).collect();
        log.draw(BUCKET, &draw, &all, &BTreeSet::new()).await.unwrap();
    }
}

fn chat(model: &str, words: usize) -> Value {
    json!({
        "model": model, "stream": true, "max_tokens": words,
        "messages": [{"role": "user", "content": "say words"}],
    })
}

#[tokio::test]
async fn every_honest_answer_is_opened_beside_a_client_and_a_miner_that_pad_theirs_to_megabytes() {
    let world = World::new(|settings| {
        settings.kept_text_bytes = ROOM;
        let hostile = Digest::of(HOSTILE.as_bytes());
        settings.keys.insert("hostile".to_owned(), hostile);
        let mut padding = service();
        PADDING.clone_into(&mut padding.model);
        settings.services.push(padding);
    })
    .await;
    let mut padded_request = chat("tiny", 2);
    padded_request["padding"] = "x".repeat(400_000).into();
    let (mut honest, mut padded) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        for _ in 0..3 {
            honest.push(world.exchange(KEY, &chat("tiny", 3)).await.0);
        }
        padded.push(world.exchange(HOSTILE, &padded_request).await.0);
        let (id, body) = world.exchange(KEY, &chat(PADDING, 8)).await;
        assert!(body.len() > 1_200_000, "{}", body.len());
        padded.push(id);
    }
    world.draw_all().await;
    let store = world.store();
    for id in &honest {
        let text = store
            .find_text(id)
            .await
            .unwrap()
            .expect("an honest answer is opened");
        assert_eq!(text.form, BodyForm::Read);
        let words = "word0 word1 word2 ";
        assert!(String::from_utf8_lossy(&text.response).contains(words));
        assert!(text.response.len() <= words.len() + FRAME);
    }
    let mut kept = 0;
    for id in &padded {
        kept += usize::from(store.find_text(id).await.unwrap().is_some());
    }
    assert!(
        (1..padded.len()).contains(&kept),
        "{kept}: a sample of what is padded stays"
    );
}

#[tokio::test]
async fn whole_bodies_are_kept_where_they_may_be_opened_and_fields_elsewhere() {
    let world = World::new(|_| ()).await;
    world.pace().unread.store(600_000, Ordering::SeqCst);
    let (private, _) = world.exchange(KEY, &chat("tiny", 3)).await;
    let own = OwnQuestion {
        is_chat: true,
        body: chat("tiny", 3).to_string().into(),
        client: Digest::of(b"own"),
        client_nonce: None,
        gateway_nonce: RequestNonce::from_bytes([4; 32]),
    };
    let long = world.gateway.ask(world.live_session().await, own).await.unwrap();
    world.pace().unread.store(100, Ordering::SeqCst);
    let own = OwnQuestion {
        is_chat: true,
        body: chat("tiny", 3).to_string().into(),
        client: Digest::of(b"other"),
        client_nonce: None,
        gateway_nonce: RequestNonce::from_bytes([5; 32]),
    };
    let short = world.gateway.ask(world.live_session().await, own).await.unwrap();
    world.draw_all().await;
    for (id, form) in [
        (private, BodyForm::Read),
        (long, BodyForm::Read),
        (short, BodyForm::Whole),
    ] {
        let (row, _) = world.store().find_response(&id).await.unwrap().unwrap();
        let text = world.store().find_text(&id).await.unwrap().unwrap();
        assert_eq!(text.form, form);
        let is_whole = text.response.len() as u64 == row.bytes;
        assert_eq!(
            is_whole,
            form == BodyForm::Whole,
            "{} of {}",
            text.response.len(),
            row.bytes
        );
    }
}

#[tokio::test]
async fn an_answer_that_its_client_left_is_kept_without_its_body_so_that_nothing_in_it_speaks_against_its_miner()
 {
    let world = World::new(|_| ()).await;
    world.pace().words.send_replace(2);
    let mut answer = world.chat(9, true).send().await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    read_until(&mut answer, "word1").await;
    drop(answer);
    let stored = || async { world.store().find_response(&id).await.unwrap() };
    let (row, _) = until("the answer", stored).await;
    assert_eq!(row.verdict, "proven");
    world.draw_all().await;
    let text = world.store().find_text(&id).await.unwrap().unwrap();
    assert_eq!((text.form, text.response.as_slice()), (BodyForm::Whole, &b""[..]));
    assert!(!text.request.is_empty());
}

/// Opens a session of the validator's own.
pub(crate) async fn open_trusted(world: &World, service: &Service) -> LoggedSession {
    let sessions = MinerSessions {
        backend: Arc::new(TestBackend(Arc::clone(&world.subnet))),
        miner: MinerKey(miner().hotkey()),
        is_trusted: true,
        skew: Duration::from_secs(5),
        clock: Arc::new(SystemClock::new()),
        tasks: world.tasks.clone(),
    };
    let times = SessionTimes {
        start: Duration::from_secs(600),
        lifetime: Duration::from_secs(600),
    };
    LoggedSession::open(&world.gateway, &sessions, service, times)
        .await
        .unwrap()
}

/// A question of the validator's own.
pub(crate) fn own_question() -> OwnQuestion {
    OwnQuestion {
        is_chat: true,
        body: chat("tiny", 8).to_string().into(),
        client: Digest::of(b"test"),
        client_nonce: None,
        gateway_nonce: RequestNonce::from_bytes([4; 32]),
    }
}

#[tokio::test]
async fn a_miner_that_pads_an_answer_far_beyond_the_own_miners_loses_its_session_and_no_proof() {
    let world = World::new(|settings| settings.services[0].tokenizer = Some(tokenizer_file())).await;
    let padded = async |world: &World| {
        world.pace().unread.store(110_000, Ordering::SeqCst);
        let (id, body) = world.exchange(KEY, &chat("tiny", 8)).await;
        world.pace().unread.store(0, Ordering::SeqCst);
        (world.proof(&id).await, body)
    };
    let (proof, body) = padded(&world).await;
    assert!(
        body.len() > 1_760_000 && body.contains("[DONE]"),
        "nobody knows what is usual"
    );
    assert_eq!(proof["verdict"], "proven");
    let mut tested = service();
    tested.tokenizer = Some(tokenizer_file());
    let trusted = open_trusted(&world, &tested).await;
    trusted.ask(own_question()).await.unwrap();
    trusted.close().await.unwrap();
    assert_eq!(world.gateway.list_live_sessions().await.len(), 1);
    let (proof, body) = padded(&world).await;
    assert!(body.len() < 1_500_000 && body.contains("oversize") && !body.contains("[DONE]"));
    assert_eq!(
        proof["verdict"], "proven",
        "the part that was sent is proven and paid"
    );
    until("the end of the session", || async {
        let live = world.gateway.list_live_sessions().await;
        live.is_empty().then_some(())
    })
    .await;
}
