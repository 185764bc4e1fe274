//! Messages about checks for the facilitator: the newest one about each subject.

use muster_protocol::wire::checks::{CheckOrigin, CheckState, JobCheck, MAX_CHECKED_OUTPUTS};
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::{decode, encode};
use muster_protocol::{JobId, Timestamp};
use muster_store::columns::read_column;
use muster_store::{During as _, StoreError};
use sqlx::AnyConnection;

use super::{CheckStore, DueCheck, StoreResult};
use crate::verdict::CheckVerdict;

impl CheckStore {
    /// Stores the message that a reported job is not run again. A verdict that there is stays.
    pub(crate) async fn put_refusal(&self, job: JobId, reason: &str, now: Timestamp) -> StoreResult<()> {
        const OPERATION: &str = "store why a reported job is not run again";
        let known = sqlx::query("SELECT 1 AS one FROM check_news WHERE subject = $1")
            .bind(subject_of(job))
            .fetch_optional(&self.pool)
            .await
            .during(OPERATION)?;
        if known.is_some() {
            return Ok(());
        }
        let notice = JobCheck {
            uuid: job,
            origin: CheckOrigin::Reported,
            state: CheckState::Unproven,
            reason: reason.to_owned(),
            outputs: Vec::new(),
            at: now,
        };
        let mut tx = self.writer.begin().await?;
        put_notice(&mut tx, notice, now).await?;
        tx.commit(OPERATION).await
    }

    /// The messages for the facilitator behind this number, in their order, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn news_after(
        &self,
        sequence: i64,
        since: Timestamp,
        limit: u32,
    ) -> StoreResult<Vec<(i64, ToFacilitator)>> {
        let rows = sqlx::query(
            "SELECT sequence, message FROM check_news WHERE sequence > $1 AND written_at >= $2 \
             ORDER BY sequence LIMIT $3",
        )
        .bind(sequence)
        .bind(since.micros())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("read the news of checks")?;
        rows.iter()
            .map(|row| {
                let text: String = read_column(row, "message")?;
                let message = decode(&text).map_err(|error| StoreError::corrupt("message", error.reason))?;
                Ok((read_column(row, "sequence")?, message))
            })
            .collect()
    }
}

/// The message that reports a verdict.
pub(super) fn notice(check: &DueCheck, verdict: &CheckVerdict, now: Timestamp) -> JobCheck {
    JobCheck {
        uuid: check.job,
        origin: check.origin,
        state: verdict.state,
        reason: verdict.reason.clone(),
        outputs: verdict
            .outputs
            .iter()
            .take(MAX_CHECKED_OUTPUTS)
            .cloned()
            .collect(),
        at: now,
    }
}

/// The message that a job is being run again.
pub(super) fn pending_notice(job: JobId, origin: CheckOrigin, now: Timestamp) -> JobCheck {
    JobCheck {
        uuid: job,
        origin,
        state: CheckState::Pending,
        reason: String::new(),
        outputs: Vec::new(),
        at: now,
    }
}

/// The subject of the news about a job.
fn subject_of(job: JobId) -> String {
    format!("job {job}")
}

pub(super) async fn put_notice(
    connection: &mut AnyConnection,
    notice: JobCheck,
    now: Timestamp,
) -> StoreResult<()> {
    let subject = subject_of(notice.uuid);
    put_news(
        connection,
        &subject,
        &ToFacilitator::MusterJobCheck(Box::new(notice)),
        now,
    )
    .await
}

/// Stores a message for the facilitator in place of the one before about its subject.
pub(crate) async fn put_news(
    connection: &mut AnyConnection,
    subject: &str,
    message: &ToFacilitator,
    now: Timestamp,
) -> StoreResult<()> {
    // The row stays locked until the transaction ends, so numbers become visible in their order, and none comes twice.
    let row = sqlx::query("UPDATE check_news_numbers SET last = last + 1 RETURNING last")
        .fetch_one(&mut *connection)
        .await
        .during("number the news of a check")?;
    let sequence: i64 = read_column(&row, "last")?;
    sqlx::query(
        "INSERT INTO check_news (subject, sequence, message, written_at) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (subject) DO UPDATE SET sequence = excluded.sequence, message = excluded.message, \
         written_at = excluded.written_at",
    )
    .bind(subject.to_owned())
    .bind(sequence)
    .bind(encode(message))
    .bind(now.micros())
    .execute(connection)
    .await
    .during("store news of a check")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use muster_protocol::Hotkey;
    use muster_store::testing::stores;
    use muster_validator_store::MIGRATIONS;
    use uuid::Uuid;

    use super::*;
    use crate::store::NewCheck;

    fn job(number: u128) -> JobId {
        JobId::from_uuid(Uuid::from_u128(number))
    }

    #[tokio::test]
    async fn writers_at_once_get_numbers_of_their_own_and_none_comes_again() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = CheckStore::new(test.pool.clone(), test.writer());
            let now = Timestamp::from_secs(9);
            let writing = (0..16).map(|number| store.put_refusal(job(number), "why", now));
            for written in join_all(writing).await {
                written.unwrap();
            }
            let numbers = async |store: &CheckStore| -> Vec<i64> {
                let news = store.news_after(0, Timestamp::from_secs(0), 99).await.unwrap();
                news.into_iter().map(|(sequence, _)| sequence).collect()
            };
            assert_eq!(
                numbers(&store).await,
                (1..=16).collect::<Vec<_>>(),
                "{}",
                test.engine
            );
            let later = Timestamp::from_secs(99);
            store.forget(later, later).await.unwrap();
            store.put_refusal(job(99), "why", later).await.unwrap();
            assert_eq!(numbers(&store).await, [17], "the news before it is gone");
        }
    }

    #[tokio::test]
    async fn a_report_about_a_session_is_told_at_once_and_known_for_its_miner_and_model() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = CheckStore::new(test.pool.clone(), test.writer());
            let owner = Hotkey::from_bytes([7; 32]);
            let check = NewCheck {
                job: job(1),
                origin: CheckOrigin::Reported,
                account: "user".to_owned(),
                ended: None,
                coldkey: Some(owner),
                model: Some("tiny".to_owned()),
                answer: None,
                draw_block: None,
            };
            let at = Timestamp::from_secs;
            assert!(store.insert(&check, at(100)).await.unwrap());
            assert!(!store.insert(&check, at(101)).await.unwrap(), "{}", test.engine);
            assert_eq!(
                store.news_after(0, at(0), 9).await.unwrap().len(),
                1,
                "it is pending"
            );
            let known = async |key: &Hotkey, model: &str, since| {
                store.has_session_report(key, model, at(since)).await.unwrap()
            };
            assert!(known(&owner, "tiny", 99).await);
            assert!(
                !known(&owner, "tiny", 100).await,
                "an hour later another one may be ordered"
            );
            assert!(!known(&owner, "other", 99).await);
            assert!(!known(&Hotkey::from_bytes([8; 32]), "tiny", 99).await);
        }
    }
}
