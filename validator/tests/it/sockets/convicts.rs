//! A convict goes on being asked own prompts, without pay.

use sqlx::AnyPool;

use crate::sockets::audit_runs::{sealing_until, with_validator};
use crate::sockets::support::model::model;

/// The own prompts of a convict in a day.
const OF_CONVICT: i64 = 4;

#[tokio::test]
async fn a_convict_is_asked_four_own_prompts_a_day_in_a_session_that_nobody_pays() {
    with_validator(model(true, None), false, async |audited| {
        audited.gather().await;
        let run = audited.audit().await;
        assert_eq!(run["verdict"], "convicted", "{run}");
        let pool = AnyPool::connect(&audited.world.config.store).await.unwrap();
        let asked = async || {
            let (lists,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM own_lists WHERE length = $1")
                .bind(OF_CONVICT)
                .fetch_one(&pool)
                .await
                .unwrap();
            let (answers,): (i64,) = sqlx::query_as(
                "SELECT COUNT(*) FROM canaries AS c JOIN own_lists AS o ON o.list = c.list \
                 WHERE o.length = $1 AND c.response_id IS NOT NULL",
            )
            .bind(OF_CONVICT)
            .fetch_one(&pool)
            .await
            .unwrap();
            (lists, answers)
        };
        sealing_until(&audited.world, "the convict's answers", async || {
            (asked().await == (1, OF_CONVICT)).then_some(())
        })
        .await;
        // The day is not over.
        let later = audited.world.chain.height() + 60;
        sealing_until(&audited.world, "two buckets more", async || {
            (audited.world.chain.height() >= later).then_some(())
        })
        .await;
        assert_eq!(asked().await, (1, OF_CONVICT));
        let receipts: Vec<(String, String)> = sqlx::query_as("SELECT attempt_id, payload FROM receipts")
            .fetch_all(&pool)
            .await
            .unwrap();
        let unpaid = receipts
            .iter()
            .filter(|(_, payload)| payload.contains("\"is_organic\":false"));
        let [(attempt, _)] = unpaid.collect::<Vec<_>>()[..] else {
            panic!("one session of the convict alone: {receipts:?}")
        };
        let finished =
            |(of, payload): &&(String, String)| of == attempt && payload.contains("JobFinishedReceipt");
        assert_eq!(receipts.iter().find(finished), None);
    })
    .await;
}
