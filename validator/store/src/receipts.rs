//! Receipts of this validator's own attempts, with the miner's signature once it has come.

use muster_chain::BlockNumber;
use muster_job_messages::IssuedReceipt;
use muster_protocol::receipt::OfferedReceipt;
use muster_protocol::{
    AttemptId, ExecutorClass, JobId, MinerKey, Receipt, ReceiptKind, ReceiptPayload, Signature, Timestamp,
};
use muster_scoring::PaidReceipt;
use muster_store::columns::{json_column, read_column, to_signed, to_unsigned};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{Draft, GatheredFinish, Result, Store, corrupt, query_error, text_of};

/// The stored block of a receipt that was issued before the chain answered.
const NO_BLOCK: i64 = -1;

/// Sums up the answers of a job's sessions. Both tables have an index for it, since the sessions of months are kept.
/// A proof is placed behind those with lower numbers. An answer pays if its place is its number: then the session has
/// proven everything before it. The gateway's own restart loses proofs for which no session is to blame.
const SESSION_WORK: &str = "WITH mine AS (SELECT session_id, fault, \
    CASE WHEN closed_because = 'the gateway was stopped' THEN 1 ELSE 0 END AS is_cut \
    FROM sessions WHERE job_id = $1 AND miner = $2), \
    numbers AS (SELECT r.session_id, r.sequence FROM responses r JOIN mine m ON m.session_id = r.session_id \
    WHERE r.sequence IS NOT NULL \
    UNION SELECT o.session_id, o.sequence FROM other_proofs o JOIN mine m ON m.session_id = o.session_id), \
    placed AS (SELECT session_id, sequence, \
    ROW_NUMBER() OVER (PARTITION BY session_id ORDER BY sequence) - 1 AS place FROM numbers), \
    answers AS (SELECT r.refunded, r.input_tokens, r.output_tokens, \
    CASE WHEN r.verdict = 'proven' AND (m.is_cut = 1 OR p.place = r.sequence) THEN 1 ELSE 0 END AS is_whole \
    FROM responses r JOIN mine m ON m.session_id = r.session_id \
    LEFT JOIN placed p ON p.session_id = r.session_id AND p.sequence = r.sequence) \
    SELECT \
    CAST(COALESCE(SUM(CASE WHEN is_whole = 1 AND refunded IS NULL THEN input_tokens ELSE 0 END), 0) AS BIGINT) AS input, \
    CAST(COALESCE(SUM(CASE WHEN is_whole = 1 AND refunded IS NULL THEN output_tokens ELSE 0 END), 0) AS BIGINT) AS output, \
    CAST(COALESCE(SUM(1 - is_whole), 0) AS BIGINT) AS unproven, \
    (SELECT MAX(fault) FROM mine) AS fault FROM answers";

/// The answers of a job's sealed sessions at one miner, by the gateway's own counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionWork {
    /// Input tokens of the proven answers that are not refunded and have no gap in the session's proofs before them.
    pub input_tokens: u64,
    /// Output tokens of these answers.
    pub output_tokens: u64,
    /// Number of answers without a proof, or behind a missing proof of their session, which pay nothing.
    pub unproven: u64,
    /// The fault of a session's closing statement, or what is missing before it.
    pub fault: Option<String>,
}

/// A receipt as the operator sees it.
#[derive(Clone, Debug, Serialize)]
pub struct ReceiptView {
    /// The payload of the receipt.
    pub payload: ReceiptPayload,
    /// This validator's signature.
    pub validator_signature: Signature,
    /// The miner's signature; `None` until it has come.
    pub miner_signature: Option<Signature>,
}

impl Store {
    /// The receipts of one attempt, in the order in which they are issued.
    ///
    /// # Errors
    /// The database fails.
    pub async fn receipts_of(&self, attempt: AttemptId) -> Result<Vec<IssuedReceipt>> {
        let rows = sqlx::query(
            "SELECT payload, validator_signature, miner_signature FROM receipts WHERE attempt_id = $1",
        )
        .bind(attempt.to_string())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read receipts"))?;
        let mut receipts = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
        receipts.sort_by_key(IssuedReceipt::kind);
        Ok(receipts)
    }

    /// Stores a receipt that no event of an attempt caused.
    ///
    /// # Errors
    /// The database fails.
    pub async fn keep_receipt(&self, receipt: &IssuedReceipt, block: Option<BlockNumber>) -> Result<()> {
        self.write("write a receipt", |draft| draft.put_receipt(receipt, block))
            .await
    }

    /// Adds the miner's signature to a receipt of this validator's; returns `false` if there is no such receipt. The
    /// caller has checked both signatures. The receipt is shown on `page` of this validator's receipt pages, if it
    /// serves any.
    ///
    /// # Errors
    /// The database fails.
    pub async fn countersign(&self, receipt: &Receipt, page: Option<i64>) -> Result<bool> {
        let countersign = |draft: &mut Draft<'_>| {
            if let Some(page) = page {
                draft.put_line(receipt, page);
            }
            draft.script.add(
                "UPDATE receipts SET miner_signature = $1 WHERE attempt_id = $2 AND kind = $3 AND payload = $4",
                [
                    receipt.miner_signature.to_prefixed_hex().into(),
                    receipt.payload.attempt().to_string().into(),
                    receipt.payload.kind().as_str().into(),
                    text_of(&receipt.payload).into(),
                ],
            );
        };
        self.write_draft("keep a miner's signature", countersign, |_| 1)
            .await
    }

    /// The newest receipts, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn receipts(&self, limit: u32) -> Result<Vec<ReceiptView>> {
        let rows = sqlx::query(
            "SELECT payload, validator_signature, miner_signature FROM receipts \
             ORDER BY written_at DESC, attempt_id, kind LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read receipts"))?;
        let view = |row| {
            let receipt = read(row)?;
            Ok(ReceiptView {
                payload: receipt.offered.payload,
                validator_signature: receipt.offered.validator_signature,
                miner_signature: receipt.miner_signature,
            })
        };
        rows.iter().map(view).collect()
    }

    /// The finished receipts that count in these blocks, both ends included: this validator's own without those of
    /// refunded attempts, then those of others that `admit` takes. They are read one by one, so what is not taken needs
    /// no memory.
    ///
    /// # Errors
    /// The database fails.
    pub async fn finished_between(
        &self,
        first: BlockNumber,
        last: BlockNumber,
        admit: &mut (dyn FnMut(&GatheredFinish) -> bool + Send),
    ) -> Result<Vec<PaidReceipt>> {
        let mut paid = self.own_finished_between(first, last).await?;
        self.add_others_finished(&mut paid, first, last, admit).await?;
        Ok(paid)
    }

    /// The answers of a job's sealed sessions at one miner. A job without sessions has none.
    ///
    /// # Errors
    /// The database fails.
    pub async fn session_work(&self, job: JobId, miner: MinerKey) -> Result<SessionWork> {
        let row = sqlx::query(SESSION_WORK)
            .bind(job.to_string())
            .bind(miner.to_string())
            .fetch_one(&self.pool)
            .await
            .map_err(query_error("read the answers of a session"))?;
        let number = |name| read_column(&row, name).map(to_unsigned);
        Ok(SessionWork {
            input_tokens: number("input")?,
            output_tokens: number("output")?,
            unproven: number("unproven")?,
            fault: read_column(&row, "fault")?,
        })
    }

    async fn own_finished_between(&self, first: BlockNumber, last: BlockNumber) -> Result<Vec<PaidReceipt>> {
        let rows = sqlx::query(
            "SELECT r.payload, a.class FROM receipts r LEFT JOIN attempts a ON a.attempt_id = r.attempt_id \
             WHERE r.kind = $1 AND r.block >= $2 AND r.block <= $3 AND r.chain = $4 \
             AND NOT EXISTS (SELECT 1 FROM refunded_attempts f WHERE f.attempt_id = r.attempt_id) \
             ORDER BY r.block, r.attempt_id",
        )
        .bind(ReceiptKind::Finished.as_str())
        .bind(to_signed(first.0))
        .bind(to_signed(last.0))
        .bind(self.chain().genesis)
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the receipts of a cycle"))?;
        let paid = |row| {
            let class: Option<String> = read_column(row, "class")?;
            Ok(PaidReceipt {
                receipt: json_column(row, "payload")?,
                class: class.and_then(|class| class.parse::<ExecutorClass>().ok()),
            })
        };
        rows.iter().map(paid).collect()
    }
}

impl Draft<'_> {
    /// Adds a receipt. `block` is the chain's head as the caller saw it. If it saw none, the head at the chain's first
    /// answer is taken; if the chain has not answered, the receipt gets its block later.
    pub(super) fn put_receipt(&mut self, receipt: &IssuedReceipt, block: Option<BlockNumber>) {
        let block = block
            .or(self.chain.head)
            .map_or(NO_BLOCK, |block| to_signed(block.0));
        let payload = &receipt.offered.payload;
        let written: Timestamp = payload.timestamp();
        self.script.add(
            "INSERT INTO receipts (attempt_id, kind, miner, payload, validator_signature, written_at, block, chain) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING",
            [
                payload.attempt().to_string().into(),
                payload.kind().as_str().into(),
                payload.miner().to_string().into(),
                text_of(payload).into(),
                receipt.offered.validator_signature.to_prefixed_hex().into(),
                written.micros().into(),
                block.into(),
                self.chain.genesis.clone().into(),
            ],
        );
    }

    /// Gives this block to the receipts that have none, unless they belong to another chain.
    pub(super) fn place_receipts(&mut self, genesis: &str, head: BlockNumber) {
        self.script.add(
            "UPDATE receipts SET block = $1, chain = $2 WHERE block = $3 AND (chain = $2 OR chain = '')",
            [to_signed(head.0).into(), genesis.into(), NO_BLOCK.into()],
        );
    }
}

pub(super) fn read(row: &AnyRow) -> Result<IssuedReceipt> {
    let signature = |name, text: &str| Signature::from_hex(text).map_err(|error| corrupt(name, &error));
    let ours: String = read_column(row, "validator_signature")?;
    let theirs: Option<String> = read_column(row, "miner_signature")?;
    Ok(IssuedReceipt {
        offered: OfferedReceipt {
            payload: json_column(row, "payload")?,
            validator_signature: signature("validator_signature", &ours)?,
        },
        miner_signature: theirs
            .map(|text| signature("miner_signature", &text))
            .transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use muster_store::testing::stores;
    use sqlx::{AssertSqlSafe, Row as _};

    use super::*;
    use crate::MIGRATIONS;

    #[tokio::test]
    async fn answers_of_a_jobs_sessions_are_found_by_indexes() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            // PostgreSQL's plan depends on the number of rows.
            if test.engine != "sqlite" {
                continue;
            }
            let explained = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {SESSION_WORK}"));
            let rows = sqlx::query(explained)
                .bind("job")
                .bind("miner")
                .fetch_all(&test.pool)
                .await
                .unwrap();
            let steps: Vec<String> = rows.iter().map(|row| row.get("detail")).collect();
            for (table, by) in [
                ("sessions", "sessions_of_job (job_id=? AND miner=?)"),
                ("r", "responses_of_session (session_id=?"),
                ("o", "other_proofs_1 (session_id=?"),
            ] {
                let reads = steps.iter().filter(|step| step.split(' ').nth(1) == Some(table));
                let reads: Vec<&String> = reads.collect();
                let is_search = |step: &&String| step.starts_with("SEARCH") && step.contains(by);
                assert!(
                    !reads.is_empty() && reads.iter().all(is_search),
                    "{table}: {steps:#?}"
                );
            }
        }
    }
}
