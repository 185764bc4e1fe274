//! The answers of sealed sessions, as a session's receipt sums them up.

use muster_validator::store::SessionWork;
use sqlx::AnyPool;

use super::{each, job, miner};

async fn run(pool: &AnyPool, sql: String) {
    // The statement contains no text from outside this file.
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(pool).await.unwrap();
}

/// Stores a session of a job at miner 2.
async fn session(pool: &AnyPool, id: u128, fault: &str) {
    let (job, miner) = (job(id), miner(2));
    let sql = format!(
        "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at, fault) \
         VALUES ('s{id}', '{job}', '{miner}', 'tiny', 'a', 'a', 1, {fault})"
    );
    run(pool, sql).await;
}

async fn answer(pool: &AnyPool, id: u128, at: u32, verdict: &str) {
    let sql = format!(
        "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, how_ended, verdict, bytes, \
         input_tokens, output_tokens, earned) \
         VALUES ('r{id}-{at}', 's{id}', 'c', 'tiny', 1, 2, 200, 'completed', '{verdict}', 9, 3, 4, 5)"
    );
    run(pool, sql).await;
}

#[tokio::test]
async fn only_proven_answers_of_a_session_are_work() {
    for (test, store) in each().await {
        session(&test.pool, 1, "NULL").await;
        session(&test.pool, 2, "'two proofs are missing'").await;
        for at in 0..3 {
            answer(&test.pool, 1, at, "proven").await;
        }
        answer(&test.pool, 1, 3, "no proof came").await;
        let work = async |id, of| store.session_work(job(id), miner(of)).await.unwrap();
        let one = SessionWork {
            input_tokens: 9,
            output_tokens: 12,
            unproven: 1,
            fault: None,
        };
        assert_eq!(work(1, 2).await, one, "{}", test.engine);
        let two = SessionWork {
            fault: Some("two proofs are missing".to_owned()),
            ..SessionWork::default()
        };
        assert_eq!(work(2, 2).await, two, "{}: it answered nothing", test.engine);
        assert_eq!(
            work(1, 3).await,
            SessionWork::default(),
            "{}: another miner",
            test.engine
        );
        assert_eq!(
            work(9, 2).await,
            SessionWork::default(),
            "{}: no session",
            test.engine
        );
    }
}
