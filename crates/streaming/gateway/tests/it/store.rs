//! The gateway's tables, on every database engine that is available.

use muster_gateway::store::{GatewayStore, ResponseRow, SealedWords, SessionRow, WordConsent};
use muster_openai::TokenUsage;
use muster_protocol::{Digest, Hotkey, JobId, MinerKey, Timestamp};
use muster_response_proof::SessionId;
use muster_store::testing::stores;
use uuid::Uuid;

use crate::rig::MIGRATIONS;

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn session(seed: u128) -> SessionRow {
    SessionRow {
        session: SessionId(Uuid::from_u128(seed)),
        job: JobId::from_uuid(Uuid::from_u128(seed + 100)),
        miner: MinerKey(Hotkey::from_bytes([1; 32])),
        model: "tiny".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        attestation: "attested".to_owned(),
        opened_at: at(10 + i64::try_from(seed).unwrap()),
        closed_at: None,
        closed_because: None,
        close: None,
        fault: None,
    }
}

fn response(id: &str, verdict: &str, earned: u64) -> ResponseRow {
    ResponseRow {
        id: id.to_owned(),
        session: SessionId(Uuid::from_u128(1)),
        client: Digest::of(b"client"),
        model: "tiny".to_owned(),
        asked_at: at(20),
        first_byte_at: Some(at(21)),
        ended_at: at(22),
        status: 200,
        end: "completed".to_owned(),
        verdict: verdict.to_owned(),
        proof: Some("proof".to_owned()),
        sequence: (verdict == "proven").then_some(7),
        bytes: 9,
        usage: TokenUsage { input: 3, output: 4 },
        earned,
    }
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_restart_and_adds_up() {
    for store in stores(&MIGRATIONS).await.unwrap() {
        let gateway = GatewayStore::new(store.pool.clone());
        gateway.insert_session(&session(1)).await.unwrap();
        let sealed = SealedWords {
            key: 0,
            request: vec![0, 159, 146],
            response: b"words".to_vec(),
            content_type: Some("text/plain".to_owned()),
        };
        gateway
            .insert_response(&response("a", "proven", 11), WordConsent::Private, Some(&sealed))
            .await
            .unwrap();
        gateway
            .insert_response(&response("b", "no proof came", 0), WordConsent::Private, None)
            .await
            .unwrap();
        assert!(
            gateway
                .insert_response(&response("a", "proven", 11), WordConsent::Private, None)
                .await
                .is_err(),
            "an id is used once"
        );
        let again = GatewayStore::new(store.pool.clone());
        let (found, of) = again.find_response("a").await.unwrap().unwrap();
        assert_eq!(
            (found, of),
            (response("a", "proven", 11), session(1)),
            "{}",
            store.engine
        );
        assert_eq!(again.find_response("c").await.unwrap(), None);
        assert_eq!(
            again.find_words("a").await.unwrap(),
            None,
            "sealed until the draw"
        );
        let accounts = again.sum_earnings(at(0)).await.unwrap();
        let [account] = accounts.as_slice() else {
            panic!("{accounts:?}")
        };
        assert_eq!((account.proven, account.unproven, account.earned), (1, 1, 11));
        assert_eq!(
            account.usage,
            TokenUsage { input: 3, output: 4 },
            "only what is proven counts"
        );
        assert_eq!(again.sum_earnings(at(23)).await.unwrap(), []);
    }
}

#[tokio::test]
async fn sessions_end_once_and_those_of_a_dead_process_are_over() {
    for store in stores(&MIGRATIONS).await.unwrap() {
        let gateway = GatewayStore::new(store.pool.clone());
        gateway.insert_session(&session(1)).await.unwrap();
        gateway.insert_session(&session(2)).await.unwrap();
        let first = session(1).session;
        gateway
            .close_session(first, "nobody used it", Some("close"), None, at(30))
            .await
            .unwrap();
        gateway
            .close_session(first, "again", None, Some("x"), at(31))
            .await
            .unwrap();
        assert_eq!(gateway.close_orphans(at(40)).await.unwrap(), [session(2).job]);
        assert_eq!(gateway.close_orphans(at(41)).await.unwrap(), []);
        let all = gateway.list_sessions(10).await.unwrap();
        assert_eq!(
            all[0].closed_because.as_deref(),
            Some("the gateway was stopped"),
            "the newest first"
        );
        assert_eq!(
            (all[1].closed_at, all[1].closed_because.as_deref()),
            (Some(at(30)), Some("nobody used it"))
        );
        assert_eq!(gateway.list_sessions(1).await.unwrap().len(), 1);
    }
}
