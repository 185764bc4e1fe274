//! Every write to the validator's database goes through the store's writer, those of the gateway and of grading too.
//! Spot checks and cross-checks have tests of their own beside their stores.

use std::collections::BTreeMap;

use muster_gateway::store::{
    GatewayStore, ResponseRow, SessionRow, StoredBucket, TextChange, TextConsent, mark_refund,
};
use muster_grading::batch_file::ProofEvidence;
use muster_grading_runner::store::GradingStore;
use muster_openai::TokenUsage;
use muster_protocol::wire::facilitator::CheatReport;
use muster_response_proof::{BucketNumber, SessionId};
use muster_store::Writer;
use muster_validator::store::OfferState;

use super::audits::offer;
use super::grading::drawn;
use super::*;
use crate::sockets::cross_checks::report;

fn session(seed: u128) -> SessionRow {
    SessionRow {
        session: SessionId(Uuid::from_u128(seed)),
        job: job(seed),
        miner: miner(1),
        model: "tiny".to_owned(),
        address: String::new(),
        attestation: String::new(),
        opened_at: NOW(1),
        closed_at: None,
        closed_because: None,
        close: None,
        fault: None,
    }
}

fn response(id: &str) -> ResponseRow {
    ResponseRow {
        id: id.to_owned(),
        session: session(1).session,
        client: Digest::of(b"client"),
        client_key: None,
        pseudonym_nonce: None,
        model: "tiny".to_owned(),
        asked_at: NOW(2),
        first_byte_at: None,
        ended_at: NOW(3),
        status: 200,
        end: "completed".to_owned(),
        cut: false,
        verdict: "proven".to_owned(),
        proof: Some("proof".to_owned()),
        sequence: Some(1),
        bytes: 9,
        usage: TokenUsage { input: 3, output: 4 },
        earned: 5,
    }
}

fn bucket() -> StoredBucket {
    StoredBucket {
        bucket: BucketNumber(1),
        answers: 0,
        header: String::new(),
        shares: String::new(),
        canary_list: Digest::of(b"list"),
        closed_at: NOW(4),
        draw: None,
    }
}

fn assert_superseded(engine: &str, refused: impl IntoIterator<Item = Result<(), StoreError>>) {
    for (place, refused) in refused.into_iter().enumerate() {
        let is_superseded = matches!(refused, Err(StoreError::Superseded));
        assert!(is_superseded, "{engine}: {place}: {refused:?}");
    }
}

#[tokio::test]
async fn a_superseded_process_stores_no_session_no_answer_and_no_bucket() {
    for (test, store) in each().await {
        let gateway = GatewayStore::new(store.pool(), store.writer());
        gateway.insert_session(&session(1)).await.unwrap();
        gateway
            .insert_response(&response("before"), TextConsent::Private, &TextChange::default())
            .await
            .unwrap();
        let later = Store::open(&test.url).await.unwrap();
        let proofs = [(1, "proof".to_owned())];
        let refused = [
            gateway.insert_session(&session(2)).await,
            gateway
                .close_session(session(1).session, "over", None, None, NOW(5))
                .await,
            gateway.close_orphans(NOW(5)).await.map(drop),
            gateway
                .insert_response(&response("after"), TextConsent::Private, &TextChange::default())
                .await,
            gateway.fill_bucket(BucketNumber(1)).await.map(drop),
            gateway.close_bucket(&bucket()).await,
            gateway.release_unclosed().await,
            gateway
                .put_other_proofs(session(1).session, &proofs, NOW(5))
                .await,
            gateway.drop_text("before").await,
        ];
        assert_superseded(test.engine, refused);
        let owners = GatewayStore::new(later.pool(), later.writer());
        let sessions = owners.list_sessions(9).await.unwrap();
        assert_eq!(sessions, [session(1)], "{}", test.engine);
        assert_eq!(owners.find_response("after").await.unwrap(), None);
        assert_eq!(owners.last_bucket().await.unwrap(), None);
        later.close().await;
    }
}

#[tokio::test]
async fn a_superseded_process_stores_no_batch_and_voids_none() {
    for (test, store) in each().await {
        let grading = GradingStore::new(store.pool(), store.writer());
        let (head, plan) = drawn(5, &[(1, 2)]);
        grading.begin_batch(&plan.id, &head, NOW(10)).await.unwrap();
        let later = Store::open(&test.url).await.unwrap();
        let (other_head, other) = drawn(6, &[(1, 2)]);
        let proof = ProofEvidence {
            trial: 0,
            sent_us: 0,
            evidence: String::new(),
            trouble: None,
            seals: vec![],
        };
        let (marks, none) = (BTreeMap::new(), BTreeMap::new());
        let refused = [
            grading
                .begin_batch(&other.id, &other_head, NOW(11))
                .await
                .map(drop),
            grading.insert_proof(&plan.id, 0, 0, &proof).await,
            grading
                .finish_batch(&plan, &head, &marks, &[], &none, &[], NOW(11))
                .await,
            grading.void_unfinished(NOW(11)).await.map(drop),
            grading.settle_excuses(&[]).await,
            grading.forget_evidence_before(NOW(99)).await,
        ];
        assert_superseded(test.engine, refused);
        let batches = GradingStore::new(later.pool(), later.writer()).batches(9).await;
        let states: Vec<_> = batches.unwrap().into_iter().map(|row| row.state).collect();
        assert_eq!(states, ["open"], "{}", test.engine);
        later.close().await;
    }
}

#[tokio::test]
async fn no_write_gets_through_the_stores_connections_even_while_it_is_the_owner() {
    for (test, store) in each().await {
        let gateway = GatewayStore::new(store.pool(), store.writer());
        gateway.insert_session(&session(1)).await.unwrap();
        gateway
            .insert_response(&response("a"), TextConsent::Private, &TextChange::default())
            .await
            .unwrap();
        let pool = store.pool();
        let refund = "UPDATE responses SET refunded = 'x'";
        assert!(
            sqlx::query(refund).execute(&pool).await.is_err(),
            "{}",
            test.engine
        );
        let returning = "DELETE FROM responses RETURNING response_id";
        assert!(
            sqlx::query(returning).fetch_all(&pool).await.is_err(),
            "{}",
            test.engine
        );
        let mut tx = pool.begin().await.unwrap();
        let marked = mark_refund(&mut tx, "a", Some(&Digest::of(b"bundle"))).await;
        assert!(marked.is_err(), "{}", test.engine);
        drop(tx);
        // A writer over these connections writes no more than they do.
        let own = GatewayStore::new(store.pool(), Writer::new(&pool));
        assert!(own.close_orphans(NOW(5)).await.is_err(), "{}", test.engine);
        assert_eq!(
            gateway.count_refunds().await.unwrap(),
            [].into(),
            "{}",
            test.engine
        );
        assert!(gateway.find_response("a").await.unwrap().is_some());
    }
}

#[tokio::test]
async fn a_peers_text_with_u0000_is_stored_because_postgresql_would_refuse_it() {
    for (test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let report = CheatReport {
            trusted_job_uuid: "no job\0".to_owned(),
            ..report("//User", job(1), None, 2)
        };
        store.keep_cheat_report(&report, NOW(2)).await.unwrap();
        let mut refused = offer("refused", 1, 4, 2);
        (refused.state, refused.decided_at) = (OfferState::Refused, Some(NOW(2)));
        refused.reason = Some("unknown field `\0`".to_owned());
        store.put_offer(&refused, None).await.unwrap();
        let gateway = GatewayStore::new(store.pool(), store.writer());
        gateway.insert_session(&session(1)).await.unwrap();
        let answer = ResponseRow {
            verdict: "no proof: \0".to_owned(),
            ..response("a")
        };
        gateway
            .insert_response(&answer, TextConsent::Private, &TextChange::default())
            .await
            .unwrap();
        let kept = gateway.find_response("a").await.unwrap().unwrap();
        assert_eq!(kept.0.verdict, "no proof: \u{fffd}", "{}", test.engine);
        let (id, fault) = (session(1).session, Some("\0"));
        gateway
            .close_session(id, "its time is over", None, fault, NOW(3))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_value_that_the_store_refuses_ends_its_own_write_and_none_beside_it() {
    for (test, store) in each().await {
        refuse_rows(&test.pool, test.engine, "responses").await;
        let gateway = GatewayStore::new(store.pool(), store.writer());
        gateway.insert_session(&session(1)).await.unwrap();
        let before = store.tally();
        let two = session(2);
        let answer = response("a");
        let no_text = TextChange::default();
        let (chain, refused, opened) = tokio::join!(
            store.note_chain("another", BlockNumber(2), NOW(2)),
            gateway.insert_response(&answer, TextConsent::Private, &no_text),
            gateway.insert_session(&two),
        );
        chain.unwrap();
        opened.unwrap();
        let refused = refused.unwrap_err();
        assert!(refused.is_refused_value(), "{}: {refused:?}", test.engine);
        assert_eq!(gateway.find_response("a").await.unwrap(), None);
        assert_eq!(
            gateway.list_sessions(9).await.unwrap().len(),
            2,
            "{}",
            test.engine
        );
        assert_eq!(store.tally().writes, before.writes + 2, "{}", test.engine);
    }
}
