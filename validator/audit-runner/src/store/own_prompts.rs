//! The lists of own prompts, and which of their prompts were sent and answered.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::{Canary, CanaryList, ListHead};
use muster_protocol::{Digest, Timestamp};
use muster_response_proof::BucketNumber;
use muster_store::columns::{parse_column, read_column, storable_text, to_signed, unsigned_column};
use muster_store::{During as _, StoreError};
use sqlx::any::AnyRow;

use crate::store::audit_store::{AuditStore, Result};

/// A list to which the header of a bucket commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredHead {
    pub(crate) bucket: BucketNumber,
    pub(crate) head: ListHead,
}

impl AuditStore {
    /// Stores the lists to which the header of a bucket commits, in their order. An earlier process that did not sign
    /// the header may have stored others.
    pub(crate) async fn insert_lists(
        &self,
        bucket: BucketNumber,
        lists: &[(&ListHead, &CanaryList)],
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "store lists of own prompts";
        let mut tx = self.writer.begin().await?;
        for earlier in [
            "DELETE FROM canaries WHERE list IN (SELECT o.list FROM own_lists AS o WHERE o.bucket = $1)",
            "DELETE FROM own_lists WHERE bucket = $1",
        ] {
            sqlx::query(earlier)
                .bind(to_signed(bucket.0))
                .execute(&mut *tx)
                .await
                .during(OPERATION)?;
        }
        for (place, (head, list)) in (0_u64..).zip(lists) {
            let digest = head.digest().to_string();
            sqlx::query(
                "INSERT INTO own_lists (list, bucket, place, salt, session, miner, model, length, root, committed_at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
            )
            .bind(digest.clone())
            .bind(to_signed(bucket.0))
            .bind(to_signed(place))
            .bind(hex::encode(head.salt))
            .bind(head.session.to_string())
            .bind(head.miner.to_string())
            .bind(head.model.clone())
            .bind(to_signed(head.length))
            .bind(head.root.to_string())
            .bind(now.micros())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
            for (position, canary) in (0_u64..).zip(list.iter()) {
                sqlx::query(
                    "INSERT INTO canaries (list, position, salt, request, made_at) VALUES ($1, $2, $3, $4, $5)",
                )
                .bind(digest.clone())
                .bind(to_signed(position))
                .bind(hex::encode(canary.salt))
                .bind(STANDARD.encode(&canary.request))
                .bind(now.micros())
                .execute(&mut *tx)
                .await
                .during(OPERATION)?;
            }
        }
        tx.commit(OPERATION).await
    }

    /// The lists to which the headers of these buckets commit, in the order of buckets and of their places.
    pub(crate) async fn lists_of(&self, first: BucketNumber, last: BucketNumber) -> Result<Vec<StoredHead>> {
        let rows =
            sqlx::query("SELECT * FROM own_lists WHERE bucket >= $1 AND bucket <= $2 ORDER BY bucket, place")
                .bind(to_signed(first.0))
                .bind(to_signed(last.0))
                .fetch_all(&self.pool)
                .await
                .during("read lists of own prompts")?;
        rows.iter().map(head_from).collect()
    }

    /// The list that this digest names; `None` if the store has none, as of lists of earlier releases.
    pub(crate) async fn find_list(&self, digest: &Digest) -> Result<Option<StoredHead>> {
        let row = sqlx::query("SELECT * FROM own_lists WHERE list = $1")
            .bind(digest.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("look for a list of own prompts")?;
        row.as_ref().map(head_from).transpose()
    }

    /// The prompts of a list; empty if the store has none.
    pub(crate) async fn read_list(&self, digest: &Digest) -> Result<CanaryList> {
        let rows = sqlx::query("SELECT salt, request FROM canaries WHERE list = $1 ORDER BY position")
            .bind(digest.to_string())
            .fetch_all(&self.pool)
            .await
            .during("read a list of own prompts")?;
        let canaries = rows.iter().map(canary_from).collect::<Result<_>>()?;
        Ok(CanaryList::new(canaries))
    }

    /// Notes that a prompt is being sent: it is used once, whatever becomes of it.
    pub(crate) async fn note_sent(&self, root: &Digest, position: u64, now: Timestamp) -> Result<()> {
        let statement = sqlx::query("UPDATE canaries SET sent_at = $1 WHERE list = $2 AND position = $3")
            .bind(now.micros())
            .bind(root.to_string())
            .bind(to_signed(position));
        self.writer.execute("note a prompt as sent", statement).await?;
        Ok(())
    }

    /// Notes the answer to a prompt. The first answer stands: another one to the same prompt is no evidence.
    pub(crate) async fn note_answer(&self, root: &Digest, position: u64, answer: &str) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE canaries SET response_id = $1 WHERE list = $2 AND position = $3 AND response_id IS NULL",
        )
        .bind(answer.to_owned())
        .bind(root.to_string())
        .bind(to_signed(position));
        self.writer
            .execute("note the answer to a prompt", statement)
            .await?;
        Ok(())
    }

    /// Keeps the text of the answer to a prompt, so that a later prompt may go on with it.
    pub(crate) async fn put_reply(&self, answer: &str, reply: &str) -> Result<()> {
        let statement = sqlx::query("UPDATE canaries SET reply = $1 WHERE response_id = $2")
            .bind(storable_text(reply))
            .bind(answer.to_owned());
        self.writer
            .execute("keep the answer to a prompt", statement)
            .await?;
        Ok(())
    }

    /// Takes requests of own prompts to a model with the texts of the answers to them, the newest ones first, at most
    /// `most`. Nobody takes them again.
    pub(crate) async fn take_replies(
        &self,
        model: &str,
        since: Timestamp,
        most: u32,
    ) -> Result<Vec<(Vec<u8>, String)>> {
        const OPERATION: &str = "take answers to prompts";
        let mut write = self.writer.begin().await?;
        let rows = sqlx::query(
            "SELECT c.list, c.position, c.request, c.reply FROM canaries c \
             JOIN responses r ON r.response_id = c.response_id \
             WHERE c.reply IS NOT NULL AND r.model = $1 AND r.ended_at >= $2 \
             ORDER BY r.ended_at DESC, c.response_id LIMIT $3",
        )
        .bind(model.to_owned())
        .bind(since.micros())
        .bind(i64::from(most))
        .fetch_all(&mut *write)
        .await
        .during(OPERATION)?;
        let mut taken = Vec::new();
        for row in &rows {
            let (list, position): (String, i64) = (read_column(row, "list")?, read_column(row, "position")?);
            sqlx::query("UPDATE canaries SET reply = NULL WHERE list = $1 AND position = $2")
                .bind(list)
                .bind(position)
                .execute(&mut *write)
                .await
                .during(OPERATION)?;
            taken.push((request_column(row)?, read_column(row, "reply")?));
        }
        write.commit(OPERATION).await?;
        Ok(taken)
    }

    /// The lists and places of own prompts that were answered since, by the ids of the answers.
    pub(crate) async fn answered_prompts(&self, since: Timestamp) -> Result<BTreeMap<String, (Digest, u64)>> {
        let rows = sqlx::query(
            "SELECT response_id, list, position FROM canaries WHERE response_id IS NOT NULL AND sent_at >= $1",
        )
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("list answered prompts")?;
        rows.iter()
            .map(|row| {
                let place = (parse_column(row, "list")?, unsigned_column(row, "position")?);
                Ok((read_column(row, "response_id")?, place))
            })
            .collect()
    }
}

fn head_from(row: &AnyRow) -> Result<StoredHead> {
    Ok(StoredHead {
        bucket: BucketNumber(unsigned_column(row, "bucket")?),
        head: ListHead {
            salt: salt_column(row)?,
            session: parse_column(row, "session")?,
            miner: parse_column(row, "miner")?,
            model: read_column(row, "model")?,
            length: unsigned_column(row, "length")?,
            root: parse_column(row, "root")?,
        },
    })
}

fn salt_column(row: &AnyRow) -> Result<[u8; 32]> {
    let salt: String = read_column(row, "salt")?;
    let mut bytes = [0; 32];
    hex::decode_to_slice(salt, &mut bytes).map_err(|error| StoreError::corrupt("salt", error.to_string()))?;
    Ok(bytes)
}

fn canary_from(row: &AnyRow) -> Result<Canary> {
    Ok(Canary {
        salt: salt_column(row)?,
        request: request_column(row)?,
    })
}

fn request_column(row: &AnyRow) -> Result<Vec<u8>> {
    let request: String = read_column(row, "request")?;
    STANDARD
        .decode(request)
        .map_err(|error| StoreError::corrupt("request", error.to_string()))
}

#[cfg(test)]
mod tests {
    use muster_store::Writer;
    use muster_store::testing::stores;
    use muster_validator_store::MIGRATIONS;

    use super::*;
    use crate::testing::list_head;

    fn list() -> CanaryList {
        let canary = |number: u8| Canary {
            salt: [number; 32],
            request: vec![number],
        };
        CanaryList::new((0..4).map(canary).collect())
    }

    #[tokio::test]
    async fn lists_are_stored_with_their_bucket_and_others_of_a_header_that_was_not_signed_are_replaced() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = AuditStore::new(test.pool.clone(), Writer::new(&test.pool));
            let (list, now) = (list(), Timestamp::from_secs(1));
            let first = list_head(&list);
            let second = ListHead {
                salt: [8; 32],
                ..first.clone()
            };
            let third = ListHead {
                salt: [7; 32],
                ..first.clone()
            };
            let both = [(&first, &list), (&second, &list)];
            store.insert_lists(BucketNumber(7), &both, now).await.unwrap();
            store
                .insert_lists(BucketNumber(8), &[(&third, &list)], now)
                .await
                .unwrap();
            let of = async |first, last| {
                let lists = store
                    .lists_of(BucketNumber(first), BucketNumber(last))
                    .await
                    .unwrap();
                lists
                    .into_iter()
                    .map(|stored| (stored.bucket.0, stored.head))
                    .collect::<Vec<_>>()
            };
            let all = [(7, first.clone()), (7, second.clone()), (8, third.clone())];
            assert_eq!(of(0, 9).await, all, "{}", test.engine);
            assert_eq!(of(8, 9).await, all[2..]);
            // The process ended before it signed the header, and another one closes the bucket.
            store
                .insert_lists(BucketNumber(7), &[(&second, &list)], now)
                .await
                .unwrap();
            assert_eq!(of(0, 7).await, [(7, second.clone())]);
            assert_eq!(store.find_list(&first.digest()).await.unwrap(), None);
            assert_eq!(
                store.read_list(&first.digest()).await.unwrap(),
                CanaryList::default()
            );
            let found = store.find_list(&second.digest()).await.unwrap().unwrap();
            assert_eq!((found.bucket.0, found.head), (7, second.clone()));
            for answer in ["the first answer", "another one"] {
                store.note_sent(&second.digest(), 0, now).await.unwrap();
                store.note_answer(&second.digest(), 0, answer).await.unwrap();
            }
            let answered = store.answered_prompts(now).await.unwrap();
            let ids: Vec<&String> = answered.keys().collect();
            assert_eq!(ids, ["the first answer"]);
        }
    }

    #[tokio::test]
    async fn the_answer_to_a_prompt_is_taken_once_and_for_its_model() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = AuditStore::new(test.pool.clone(), Writer::new(&test.pool));
            let list = list();
            let digest = list_head(&list).digest();
            let now = Timestamp::from_secs(1);
            store
                .insert_lists(BucketNumber(7), &[(&list_head(&list), &list)], now)
                .await
                .unwrap();
            let session = "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at) \
                           VALUES ('s', 's', 'm', 'tiny', '', '', 1)";
            sqlx::query(session).execute(&test.pool).await.unwrap();
            for (position, model, ended_at) in
                [(0, "tiny", 20), (1, "tiny", 30), (2, "other", 30), (3, "tiny", 5)]
            {
                let answer = format!("answer {position}");
                let row = sqlx::query(
                    "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, \
                     how_ended, verdict, bytes, input_tokens, output_tokens, earned) \
                     VALUES ($1, 's', 'c', $2, 1, $3, 200, 'completed', 'proven', 1, 0, 0, 0)",
                );
                let row = row.bind(answer.clone()).bind(model).bind(i64::from(ended_at));
                row.execute(&test.pool).await.unwrap();
                store.note_answer(&digest, position, &answer).await.unwrap();
                store.put_reply(&answer, "a\0reply").await.unwrap();
            }
            let take = async |most| {
                let since = Timestamp::from_micros(10);
                store.take_replies("tiny", since, most).await.unwrap()
            };
            assert_eq!(
                take(1).await,
                [(vec![1], "a\u{fffd}reply".to_owned())],
                "{}: PostgreSQL holds no U+0000, which a miner may answer",
                test.engine
            );
            assert_eq!(take(9).await, [(vec![0], "a\u{fffd}reply".to_owned())]);
            assert_eq!(take(9).await, []);
            assert_eq!(store.read_list(&digest).await.unwrap(), list, "the list stays");
        }
    }
}
