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

/// Stores an answer; the number of its proof is `at` if it is proven.
async fn answer(pool: &AnyPool, id: u128, at: u32, verdict: &str) {
    let number = match verdict {
        "proven" => at.to_string(),
        _ => "NULL".to_owned(),
    };
    let sql = format!(
        "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, how_ended, verdict, bytes, \
         input_tokens, output_tokens, earned, sequence) \
         VALUES ('r{id}-{at}', 's{id}', 'c', 'tiny', 1, 2, 200, 'completed', '{verdict}', 9, 3, 4, 5, {number})"
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

#[tokio::test]
async fn answers_behind_a_missing_proof_pay_nothing_unless_the_gateway_itself_lost_it() {
    for (test, store) in each().await {
        for id in 1..=3 {
            session(&test.pool, id, "NULL").await;
        }
        // Number 0 is a health check's. Session 2 withholds the proof of its first answer, session 3 that of its third.
        for (id, others, answers) in [
            (1, [0, 2].as_slice(), [1, 3, 4].as_slice()),
            (2, &[0], &[2, 3, 4]),
            (3, &[0], &[1, 2, 4]),
        ] {
            for number in others {
                let sql = format!("INSERT INTO other_proofs VALUES ('s{id}', {number}, 'proof', 1)");
                run(&test.pool, sql).await;
            }
            for number in answers {
                answer(&test.pool, id, *number, "proven").await;
            }
        }
        let paid = async |id| {
            let work = store.session_work(job(id), miner(2)).await.unwrap();
            (work.input_tokens, work.output_tokens, work.unproven)
        };
        let engine = test.engine;
        assert_eq!(paid(1).await, (9, 12, 0), "{engine}");
        assert_eq!(
            paid(2).await,
            (0, 0, 3),
            "{engine}: nothing before the gap is an answer"
        );
        assert_eq!(paid(3).await, (6, 8, 1), "{engine}");
        let stopped =
            "UPDATE sessions SET closed_because = 'the gateway was stopped' WHERE session_id = 's2'";
        run(&test.pool, stopped.to_owned()).await;
        assert_eq!(paid(2).await, (9, 12, 0), "{engine}: the validator was killed");
    }
}
