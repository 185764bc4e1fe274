//! Brings the marks of refunded answers in line with the verdicts that count, and notifies the facilitator of each
//! change.

use muster_gateway::store::{GatewayStore, RefundableAnswer, mark_refund};
use muster_protocol::wire::checks::RefundNotice;
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::{Digest, Timestamp};
use muster_validator_store::Store;

use crate::refund_rule::{RefundSpan, refund_spans};
use crate::store::{CheckStore, StoreResult, put_news};

/// Verdicts that are read: more than a validator adopts while answers are kept.
const MAX_AUDITS: u32 = 10_000;

/// Answers that are marked in one step. The rest follows with the next block.
const MAX_CHANGES: i64 = 1_000;

/// Marks the answers that a conviction refunds, and takes the marks off those that none refunds any more.
pub(crate) async fn reconcile_refunds(checks: &CheckStore, store: &Store, now: Timestamp) -> StoreResult<()> {
    let spans = refund_spans(&store.audits(MAX_AUDITS).await?);
    lift(checks, &spans, now).await?;
    for span in &spans {
        mark(checks, span, now).await?;
    }
    Ok(())
}

/// Takes the marks off the answers whose bundle convicts no more.
async fn lift(checks: &CheckStore, spans: &[RefundSpan], now: Timestamp) -> StoreResult<()> {
    let answers = GatewayStore::new(checks.pool.clone(), checks.writer.clone());
    for bundle in answers.refunding_bundles().await? {
        if spans.iter().any(|span| span.bundle == bundle) {
            continue;
        }
        let marked = answers.refunded_by(&bundle, MAX_CHANGES).await?;
        tracing::info!(%bundle, answers = marked.len(), "a conviction was lifted, and its refunds with it");
        write_changes(checks, marked, None, now).await?;
    }
    Ok(())
}

/// Marks the answers of a span. Own prompts have a client too, whom no facilitator knows.
async fn mark(checks: &CheckStore, span: &RefundSpan, now: Timestamp) -> StoreResult<()> {
    let store = GatewayStore::new(checks.pool.clone(), checks.writer.clone());
    for miner in &span.miners {
        let ended = (span.after, span.until);
        let found = store
            .unrefunded_answers(miner, &span.model, ended, MAX_CHANGES)
            .await?;
        if !found.is_empty() {
            let answers = found.len();
            tracing::info!(%miner, model = span.model, answers, bundle = %span.bundle, "answers are refunded");
        }
        write_changes(checks, found, Some(span.bundle), now).await?;
    }
    Ok(())
}

/// Stores the marks of these answers together with the messages about them.
async fn write_changes(
    checks: &CheckStore,
    answers: Vec<RefundableAnswer>,
    bundle: Option<Digest>,
    now: Timestamp,
) -> StoreResult<()> {
    if answers.is_empty() {
        return Ok(());
    }
    let mut tx = checks.writer.begin().await?;
    for answer in answers {
        mark_refund(&mut tx, &answer.response, bundle.as_ref()).await?;
        let subject = format!("answer {}", answer.response);
        let message = ToFacilitator::MusterRefund(Box::new(notice(answer, bundle)));
        put_news(&mut tx, &subject, &message, now).await?;
    }
    tx.commit("mark refunded answers").await
}

fn notice(answer: RefundableAnswer, bundle: Option<Digest>) -> RefundNotice {
    RefundNotice {
        response: answer.response,
        client: answer.client,
        model: answer.model,
        answered_at: answer.ended_at,
        input_tokens: answer.input_tokens,
        output_tokens: answer.output_tokens,
        bundle,
    }
}

#[cfg(test)]
mod tests {
    use muster_chain::BlockNumber;
    use muster_identity::Keypair;
    use muster_job_messages::outgoing::{AttemptPay, sign_finished_receipt};
    use muster_protocol::wire::checks::{CheckOrigin, CheckState};
    use muster_protocol::{AttemptId, Hotkey, JobId, MinerKey};
    use muster_store::StoreError;
    use muster_store::testing::stores;
    use muster_validator_store::{AdoptedAudit, MIGRATIONS};
    use sqlx::AnyPool;
    use uuid::Uuid;

    use muster_validator_store::AuditOrigin;

    use super::*;
    use crate::image_marks::{ImageMark, effect_of};
    use crate::store::DueCheck;
    use crate::verdict::CheckVerdict;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn audit(verdict: &str, at: i64) -> AdoptedAudit {
        AdoptedAudit {
            digest: Digest::of(verdict.as_bytes()),
            coldkey: key(1),
            miners: vec![MinerKey(key(2))],
            model: "tiny".to_owned(),
            verdict: verdict.to_owned(),
            quality_per_mille: 0,
            adopted_at: Timestamp::from_secs(at),
            origin: AuditOrigin::Own,
            author: None,
            through_bucket: 0,
            newest_answer: 0,
            scored: 0,
        }
    }

    async fn put_answer(pool: &AnyPool, id: &str, miner: u8, ended: i64) {
        let session = format!("session {miner}");
        sqlx::query(
            "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at) \
             VALUES ($1, $1, $2, 'tiny', '', '', 1) ON CONFLICT DO NOTHING",
        )
        .bind(session.clone())
        .bind(key(miner).to_string())
        .execute(pool)
        .await
        .unwrap();
        sqlx::query(
            "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, how_ended, \
             verdict, bytes, input_tokens, output_tokens, earned) \
             VALUES ($1, $2, $3, 'tiny', 1, $4, 200, 'complete', 'proven', 1, 3, 4, 5)",
        )
        .bind(id.to_owned())
        .bind(session)
        .bind(Digest::of(id.as_bytes()).to_string())
        .bind(Timestamp::from_secs(ended).micros())
        .execute(pool)
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn a_conviction_marks_the_answers_since_the_last_consistent_verdict_until_it_is_lifted() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = Store::with_pool(test.pool.clone()).await.unwrap();
            let (pool, at) = (&test.pool, Timestamp::from_secs);
            let (checks, answers) = (
                CheckStore::new(pool.clone(), store.writer()),
                GatewayStore::new(pool.clone(), store.writer()),
            );
            for (id, miner, ended) in [
                ("before", 2, 5),
                ("within", 2, 15),
                ("after", 2, 25),
                ("another's", 3, 15),
            ] {
                put_answer(pool, id, miner, ended).await;
            }
            store.put_audit(&audit("consistent", 10), "{}").await.unwrap();
            store.put_audit(&audit("convicted", 20), "{}").await.unwrap();
            reconcile_refunds(&checks, &store, at(21)).await.unwrap();
            let news = async || {
                let news = checks.news_after(0, at(0), 100).await.unwrap();
                let refund = |(_, message)| {
                    let ToFacilitator::MusterRefund(refund) = message else {
                        panic!("a refund was due, not {message:?}")
                    };
                    (refund.response, refund.bundle)
                };
                news.into_iter().map(refund).collect::<Vec<_>>()
            };
            let bundle = audit("convicted", 20).digest;
            assert_eq!(
                news().await,
                [("within".to_owned(), Some(bundle))],
                "{}",
                test.engine
            );
            let counted = answers.count_refunds().await.unwrap();
            assert_eq!(counted, [(bundle.to_string(), 1)].into());
            reconcile_refunds(&checks, &store, at(22)).await.unwrap();
            assert_eq!(news().await.len(), 1, "nothing is told twice");
            store.put_audit(&audit("consistent", 30), "{}").await.unwrap();
            reconcile_refunds(&checks, &store, at(31)).await.unwrap();
            assert_eq!(
                news().await,
                [("within".to_owned(), None)],
                "the newest word stands alone"
            );
            assert_eq!(answers.count_refunds().await.unwrap(), [].into());
        }
    }

    #[tokio::test]
    async fn a_superseded_process_marks_no_refund_and_gives_no_verdict() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = Store::with_pool(test.pool.clone()).await.unwrap();
            let (checks, at) = (
                CheckStore::new(store.pool(), store.writer()),
                Timestamp::from_secs,
            );
            put_answer(&test.pool, "within", 2, 15).await;
            store.put_audit(&audit("convicted", 20), "{}").await.unwrap();
            let job = JobId::from_uuid(Uuid::from_u128(1));
            let check = DueCheck {
                job,
                origin: CheckOrigin::Reported,
                coldkey: None,
                attempt: Some(AttemptId::first_of(job)),
                model: None,
                answer: None,
                outputs: None,
                runs: Vec::new(),
                tries: 0,
                created_at: at(4),
            };
            let differs = effect_of(
                CheckVerdict {
                    state: CheckState::Differs,
                    ..CheckVerdict::unproven("")
                },
                None,
                at(21),
            );
            let later = Store::open(&test.url).await.unwrap();
            let refused = [
                reconcile_refunds(&checks, &store, at(21)).await,
                checks.put_verdict(&check, &differs, Some("image"), at(21)).await,
                checks.put_own_verdict(job, &differs.verdict, at(21)).await,
                checks.forget_own(at(99)).await,
                checks.put_refusal(job, "why", at(21)).await,
                checks.put_runs(job, &[]).await,
                checks.put_try(job, 1, at(22), "why").await,
                checks.forget(at(99), at(99)).await,
            ];
            for refused in refused {
                let is_superseded = matches!(refused, Err(StoreError::Superseded));
                assert!(is_superseded, "{}: {refused:?}", test.engine);
            }
            let owners = CheckStore::new(later.pool(), later.writer());
            let answers = GatewayStore::new(later.pool(), later.writer());
            assert_eq!(
                answers.count_refunds().await.unwrap(),
                [].into(),
                "{}",
                test.engine
            );
            assert_eq!(owners.news_after(0, at(0), 9).await.unwrap(), []);
            reconcile_refunds(&owners, &later, at(22)).await.unwrap();
            assert_eq!(owners.news_after(0, at(0), 9).await.unwrap().len(), 1);
            later.close().await;
        }
    }

    #[tokio::test]
    async fn the_receipt_of_a_wrong_result_is_scored_no_more() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = Store::with_pool(test.pool.clone()).await.unwrap();
            let at = Timestamp::from_secs;
            store.note_chain("0x00", BlockNumber(1), at(1)).await.unwrap();
            let (job, other) = (
                JobId::from_uuid(Uuid::from_u128(1)),
                JobId::from_uuid(Uuid::from_u128(2)),
            );
            for id in [job, other] {
                let (pair, pay) = (Keypair::from_seed([1; 32]), AttemptPay::default());
                let (attempt, miner) = (AttemptId::first_of(id), MinerKey(key(2)));
                let receipt = sign_finished_receipt(&pair, attempt, miner, pay, at(2), at(3));
                store.keep_receipt(&receipt, Some(BlockNumber(5))).await.unwrap();
            }
            let scored = async || {
                let paid = store
                    .finished_between(BlockNumber(1), BlockNumber(9), &mut |_| true)
                    .await
                    .unwrap();
                paid.iter().map(|paid| paid.receipt.job_uuid).collect::<Vec<_>>()
            };
            assert_eq!(scored().await.len(), 2, "{}", test.engine);
            let check = |job, attempt| DueCheck {
                job,
                origin: CheckOrigin::Reported,
                coldkey: None,
                attempt: Some(attempt),
                model: None,
                answer: None,
                outputs: None,
                runs: Vec::new(),
                tries: 0,
                created_at: at(4),
            };
            let verdict = |state| CheckVerdict {
                state,
                ..CheckVerdict::unproven("")
            };
            let checks = CheckStore::new(store.pool(), store.writer());
            for (job, state) in [(job, CheckState::Differs), (other, CheckState::Agrees)] {
                let check = check(job, AttemptId::first_of(job));
                let effect = effect_of(verdict(state), None, at(4));
                checks
                    .put_verdict(&check, &effect, Some("image"), at(4))
                    .await
                    .unwrap();
            }
            assert_eq!(scored().await, [AttemptId::first_of(other)]);
            // The image is marked, so the next difference with it refunds nothing.
            let mark = checks.image_mark("image").await.unwrap();
            assert_eq!(mark, Some(ImageMark { job, at: at(4) }), "{}", test.engine);
            assert_eq!(checks.image_mark("another").await.unwrap(), None);
            let effect = effect_of(verdict(CheckState::Differs), mark.as_ref(), at(5));
            let check = check(other, AttemptId::first_of(other));
            checks
                .put_verdict(&check, &effect, Some("image"), at(5))
                .await
                .unwrap();
            assert_eq!(scored().await, [AttemptId::first_of(other)]);
            assert_eq!(checks.image_mark("image").await.unwrap(), mark);
            checks.forget_own(at(5)).await.unwrap();
            assert_eq!(checks.image_mark("image").await.unwrap(), None);
        }
    }
}
