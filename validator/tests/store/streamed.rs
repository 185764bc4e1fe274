//! The answers of sealed sessions, as they are summed up for a cycle.

use muster_chain::BlockNumber;
use muster_protocol::receipt::OfferedReceipt;
use muster_protocol::{AttemptId, ReceiptPayload, Signature};
use muster_scoring::StreamedSession;
use muster_validator::store::{IssuedReceipt, Store};
use sqlx::AnyPool;

use super::{NOW, attempt, beginning, each, finished, job, miner, request};

async fn run(pool: &AnyPool, sql: String) {
    // The statement contains no text from outside this file.
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(pool).await.unwrap();
}

/// Stores a job of one attempt on miner 2 that ended in this block, and the session that it ran.
async fn session(store: &Store, pool: &AnyPool, id: u128, block: u64, fault: &str) {
    let (request, frame) = request(job(id), i64::try_from(id).unwrap());
    store.admit(&request, &frame, NOW(1), None).await.unwrap();
    let begun = beginning(attempt(id, 1));
    store.begin_attempt(request.uuid, &begun).await.unwrap();
    let offered = OfferedReceipt {
        payload: ReceiptPayload::Finished(finished(id, 2, "3.000000")),
        validator_signature: Signature::from_bytes([3; 64]),
    };
    let receipt = IssuedReceipt {
        offered,
        miner_signature: None,
    };
    store
        .keep_receipt(&receipt, Some(BlockNumber(block)))
        .await
        .unwrap();
    let (job, miner) = (job(id), miner(2));
    let sql = format!(
        "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at, fault) \
         VALUES ('s{id}', '{job}', '{miner}', 'tiny', 'a', 'a', 1, {fault})"
    );
    run(pool, sql).await;
}

async fn answer(pool: &AnyPool, id: u128, at: u32, verdict: &str, earned: u64) {
    let sql = format!(
        "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, how_ended, verdict, bytes, \
         input_tokens, output_tokens, earned) \
         VALUES ('r{id}-{at}', 's{id}', 'c', 'tiny', 1, 2, 200, 'completed', '{verdict}', 9, 3, 4, {earned})"
    );
    run(pool, sql).await;
}

#[tokio::test]
async fn a_session_is_taken_up_once_and_whole_where_its_attempts_receipt_is() {
    for (test, store) in each().await {
        session(&store, &test.pool, 1, 17, "NULL").await;
        session(&store, &test.pool, 2, 18, "'two proofs are missing'").await;
        // A session without requests.
        session(&store, &test.pool, 3, 18, "'it sent no closing statement'").await;
        for at in 0..3 {
            answer(&test.pool, 1, at, "proven", 11).await;
        }
        answer(&test.pool, 1, 3, "no proof came", 0).await;
        answer(&test.pool, 2, 0, "proven", 7).await;
        let between = async |first, last| {
            let found = store
                .streamed_between(BlockNumber(first), BlockNumber(last))
                .await;
            found.unwrap()
        };
        let streamed = |id, proven, earned| StreamedSession {
            attempt: AttemptId::first_of(job(id)),
            miner: miner(2),
            proven,
            unproven: 0,
            input_tokens: proven * 3,
            output_tokens: proven * 4,
            earned,
            fault: None,
        };
        let one = StreamedSession {
            unproven: 1,
            ..streamed(1, 3, 33)
        };
        let two = StreamedSession {
            fault: Some("two proofs are missing".to_owned()),
            ..streamed(2, 1, 7)
        };
        assert_eq!(between(0, 16).await, [], "{}", test.engine);
        assert_eq!(
            between(17, 17).await,
            std::slice::from_ref(&one),
            "{}",
            test.engine
        );
        assert_eq!(between(17, 99).await, [one, two], "{}", test.engine);
    }
}
