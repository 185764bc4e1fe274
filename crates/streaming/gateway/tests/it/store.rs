//! The gateway's tables, on every database engine that is available.

use muster_gateway::store::{
    BodyForm, GatewayStore, ResponseRow, SealedText, SessionRow, StoredBucket, TextChange, TextConsent,
};
use muster_openai::TokenUsage;
use muster_protocol::{Digest, Hotkey, JobId, MinerKey, Timestamp};
use muster_response_proof::{BucketNumber, SessionId};
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
        client_key: None,
        pseudonym_nonce: None,
        model: "tiny".to_owned(),
        asked_at: at(20),
        first_byte_at: Some(at(21)),
        ended_at: at(22),
        status: 200,
        end: "completed".to_owned(),
        cut: false,
        verdict: verdict.to_owned(),
        proof: Some("proof".to_owned()),
        sequence: (verdict == "proven").then_some(7),
        bytes: 9,
        usage: TokenUsage { input: 3, output: 4 },
        earned,
    }
}

fn kept(text: SealedText) -> TextChange {
    TextChange {
        kept: Some(text),
        let_go: Vec::new(),
    }
}

#[tokio::test]
async fn stored_answers_survive_a_restart_and_add_up() {
    for store in stores(&MIGRATIONS).await.unwrap() {
        let gateway = GatewayStore::new(store.pool.clone(), store.writer());
        gateway.insert_session(&session(1)).await.unwrap();
        let sealed = SealedText {
            key: 0,
            request: vec![0, 159, 146],
            response: b"words".to_vec(),
            form: BodyForm::Read,
            content_type: Some("text/plain".to_owned()),
        };
        gateway
            .insert_response(&response("a", "proven", 11), TextConsent::Private, &kept(sealed))
            .await
            .unwrap();
        gateway
            .insert_response(
                &response("b", "no proof came", 0),
                TextConsent::Private,
                &TextChange::default(),
            )
            .await
            .unwrap();
        assert!(
            gateway
                .insert_response(
                    &response("a", "proven", 11),
                    TextConsent::Private,
                    &TextChange::default()
                )
                .await
                .is_err(),
            "an id is used once"
        );
        let again = GatewayStore::new(store.pool.clone(), store.writer());
        let (found, of) = again.find_response("a").await.unwrap().unwrap();
        assert_eq!(
            (found, of),
            (response("a", "proven", 11), session(1)),
            "{}",
            store.engine
        );
        assert_eq!(again.find_response("c").await.unwrap(), None);
        assert_eq!(again.find_text("a").await.unwrap(), None, "sealed until the draw");
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
        let gateway = GatewayStore::new(store.pool.clone(), store.writer());
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

#[tokio::test]
async fn an_answer_whose_bucket_is_so_old_that_it_is_gone_is_not_logged_again() {
    for store in stores(&MIGRATIONS).await.unwrap() {
        let gateway = GatewayStore::new(store.pool.clone(), store.writer());
        gateway.insert_session(&session(1)).await.unwrap();
        let insert = async |id: &str, sequence: u64| {
            let one = ResponseRow {
                sequence: Some(sequence),
                ..response(id, "proven", 1)
            };
            gateway
                .insert_response(&one, TextConsent::Private, &TextChange::default())
                .await
                .unwrap();
        };
        for (number, id) in [(3, "old"), (5, "newer")] {
            insert(id, number).await;
            let filled = gateway.fill_bucket(BucketNumber(number)).await.unwrap();
            assert_eq!(filled.len(), 1);
            gateway.close_bucket(&closed(number)).await.unwrap();
        }
        insert("unclosed", 6).await;
        gateway.fill_bucket(BucketNumber(6)).await.unwrap();
        // Retention drops the old bucket, and keeps the newest.
        sqlx::query("DELETE FROM answer_buckets WHERE bucket = 3")
            .execute(&store.pool)
            .await
            .unwrap();
        gateway.release_unclosed().await.unwrap();
        let again = gateway.fill_bucket(BucketNumber(9)).await.unwrap();
        let ids: Vec<&str> = again.iter().map(|answer| answer.id.as_str()).collect();
        assert_eq!(ids, ["unclosed"], "{}", store.engine);
    }
}

fn closed(bucket: u64) -> StoredBucket {
    StoredBucket {
        bucket: BucketNumber(bucket),
        answers: 1,
        header: "header".to_owned(),
        shares: "[]".to_owned(),
        canary_list: Digest::of(b"list"),
        closed_at: at(30),
        draw: None,
    }
}

#[tokio::test]
async fn the_sessions_of_a_miner_with_audited_answers_are_listed_newest_first() {
    for store in stores(&MIGRATIONS).await.unwrap() {
        let gateway = GatewayStore::new(store.pool.clone(), store.writer());
        // Session 1 has the newest drawn answer, 2 an own prompt, 3 nothing audited, and 4 is another miner's.
        for seed in 1..=4 {
            let mut row = session(seed);
            if seed == 4 {
                row.miner = MinerKey(Hotkey::from_bytes([9; 32]));
            }
            gateway.insert_session(&row).await.unwrap();
        }
        for (seed, count, newest) in [(1_u128, 3_u64, 90), (2, 2, 80), (3, 1, 99), (4, 1, 95)] {
            for sequence in 0..count {
                let one = ResponseRow {
                    session: SessionId(Uuid::from_u128(seed)),
                    sequence: Some(sequence),
                    ended_at: at(newest - 10 + i64::try_from(sequence).unwrap()),
                    ..response(&format!("{seed}-{sequence}"), "proven", 1)
                };
                gateway
                    .insert_response(&one, TextConsent::Private, &TextChange::default())
                    .await
                    .unwrap();
            }
        }
        gateway.fill_bucket(BucketNumber(7)).await.unwrap();
        for statement in [
            "UPDATE responses SET drawn = 1 WHERE response_id IN ('1-1', '4-0')",
            "INSERT INTO canaries (list, position, salt, request, response_id) VALUES ('l', 0, '', '', '2-1')",
        ] {
            sqlx::query(statement).execute(&store.pool).await.unwrap();
        }
        let miner = session(1).miner;
        let listed = gateway.audited_sessions(&miner, "tiny", at(0)).await.unwrap();
        let told: Vec<_> = listed
            .iter()
            .map(|one| (one.session.0.as_u128(), one.answers, one.proof_bytes, one.newest))
            .collect();
        assert_eq!(told, [(1, 3, 15, at(81)), (2, 2, 10, at(71))], "{}", store.engine);
        assert_eq!(
            gateway.audited_sessions(&miner, "other", at(0)).await.unwrap(),
            []
        );
        assert_eq!(
            gateway
                .audited_sessions(&miner, "tiny", at(12))
                .await
                .unwrap()
                .len(),
            1
        );
        let two = gateway.answers_of_session(session(1).session, 2).await.unwrap();
        let numbers: Vec<u64> = two.iter().map(|answer| answer.sequence).collect();
        assert_eq!(numbers, [0, 1], "the first ones");

        // Without audited answers: session 3 has one in the log, 5 a missing one, and 6 nothing that counts.
        gateway.close_bucket(&closed(7)).await.unwrap();
        gateway
            .close_bucket(&StoredBucket {
                closed_at: at(200),
                ..closed(8)
            })
            .await
            .unwrap();
        for seed in [5, 6] {
            gateway.insert_session(&session(seed)).await.unwrap();
        }
        for (seed, id, ended_at, how_ended) in [
            (3_u128, "3-missing", at(28), "completed"),
            (5, "5-missing", at(20), "completed"),
            (6, "6-gone", at(20), "client-gone"),
            (6, "6-not-drawn", at(150), "completed"),
            (6, "6-not-closed", at(250), "completed"),
        ] {
            let one = ResponseRow {
                session: SessionId(Uuid::from_u128(seed)),
                sequence: None,
                proof: None,
                ended_at,
                end: how_ended.to_owned(),
                ..response(id, "unproven", 0)
            };
            gateway
                .insert_response(&one, TextConsent::Private, &TextChange::default())
                .await
                .unwrap();
        }
        let unaudited = async || {
            let listed = gateway.unaudited_sessions(&miner, "tiny", at(0)).await.unwrap();
            let told = listed
                .iter()
                .map(|one| (one.session.0.as_u128(), one.answers, one.proof_bytes, one.newest));
            told.collect::<Vec<_>>()
        };
        assert_eq!(
            unaudited().await,
            [(3, 1, 5, at(89))],
            "nothing is missing before the draw"
        );
        sqlx::query(
            "UPDATE answer_buckets SET draw = 'drawn', drawn_at = 1, block_hash = '' WHERE bucket = 7",
        )
        .execute(&store.pool)
        .await
        .unwrap();
        assert_eq!(unaudited().await, [(3, 1, 5, at(89)), (5, 0, 0, at(20))]);
        let missing = gateway.missing_answers(at(0), at(0), 9).await.unwrap();
        let told: Vec<_> = missing.iter().map(|one| (one.miner, one.ended_at)).collect();
        assert_eq!(told, [(miner, at(28)), (miner, at(20))]);
        assert_eq!(
            gateway.missing_answers(at(0), at(0), 1).await.unwrap(),
            missing[..1]
        );
        let of_model = gateway.unproven_of_model("tiny", at(0)).await.unwrap();
        let told: Vec<_> = of_model
            .iter()
            .map(|one| (one.session.0.as_u128(), one.bucket.0))
            .collect();
        assert_eq!(told, [(5, 7), (3, 7)]);
    }
}
