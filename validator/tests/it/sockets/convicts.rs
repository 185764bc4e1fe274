//! A convict goes on being asked own prompts, without pay.

use sqlx::AnyPool;

use crate::sockets::audit_runs::{OWN_PROMPTS, with_validator};
use crate::sockets::support::model::model;

/// Own prompts after each closed bucket.
const OWN: u64 = OWN_PROMPTS as u64;
/// The own prompts of a convict in a day.
const OF_CONVICT: u64 = 4;

#[tokio::test]
async fn a_convict_is_asked_four_own_prompts_a_day_in_a_session_that_nobody_pays() {
    with_validator(model(true, None), false, async |audited| {
        audited.gather().await;
        let run = audited.audit().await;
        assert_eq!(run["verdict"], "convicted", "{run}");
        audited.answered(1 + 2 * OWN).await;
        audited.draw(2, OWN).await;
        audited.answered(1 + 3 * OWN + OF_CONVICT).await;
        audited.draw(3, OWN + OF_CONVICT).await;
        // The day is not over.
        audited.answered(1 + 4 * OWN + OF_CONVICT).await;
        audited.draw(4, OWN).await;
        let pool = AnyPool::connect(&audited.world.config.store).await.unwrap();
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
