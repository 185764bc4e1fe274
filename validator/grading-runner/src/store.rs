//! The store of batches, in tables of the validator's database. The validator's migrations create the tables.
//!
//! A batch is open until one transaction writes all its results. A batch that a later process finds open is void. So a
//! batch counts as a whole or not at all.

mod columns;
mod observations;

use std::collections::BTreeMap;

use muster_grading::batch_file::{
    BatchFile, BatchHead, FORMAT, ParticipantEvidence, ProofEvidence, ProvenCount,
};
use muster_grading::batch_plan::{BatchPlan, Participant};
use muster_grading::batch_settlement::Capacity;
use muster_grading::fingerprints::Fingerprints;
use muster_grading::judgement::Judgement;
use muster_hardware_proof::challenge_keys::BatchId;
use muster_protocol::{ExecutorClass, MinerKey, Timestamp};
use muster_store::columns::{
    json_column, parse_column, read_column, time_column, time_column_option, to_signed, to_unsigned,
};
use muster_store::{During as _, StoreError, Writer};
use serde::Serialize;
use sqlx::AnyPool;
use sqlx::any::AnyRow;

pub use observations::{SeenCapacity, WaitingExcuse};

use columns::{kind_name, place_to_i64, to_json};
use observations::insert_excuses;

type Result<T> = std::result::Result<T, StoreError>;

/// Rows of evidence that one transaction deletes. A proof takes some hundred kilobytes.
const FORGET_STEP: i64 = 100;

/// A batch in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchRow {
    /// The id of the batch.
    pub batch: String,
    /// The kind: `announced` or `unannounced`.
    pub kind: String,
    /// The number of the block with which it began.
    pub block: u64,
    /// The state: `open`, `done`, or `void`.
    pub state: String,
    /// The time when it began.
    pub began_at: Timestamp,
    /// The time when it ended or was voided; none while it is open.
    pub ended_at: Option<Timestamp>,
    /// The number of executors by the name of their judgement.
    pub grades: BTreeMap<String, u64>,
}

/// The judgement of one executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GradeRow {
    /// The id of the batch.
    pub batch: String,
    /// The number of the block with which the batch began.
    pub block: u64,
    /// The place of the executor in the plan.
    pub place: u64,
    /// The miner of the executor.
    pub miner: MinerKey,
    /// The class of the executor; none for a miner that did not announce its executors.
    pub class: Option<ExecutorClass>,
    /// The number of the executor among those of its class.
    pub index: u64,
    /// The judgement as stored.
    pub judgement: Judgement,
    /// The judgement as text.
    pub said: String,
}

/// Reads and writes the tables of grading. Clones share one connection pool.
#[derive(Clone, Debug)]
pub struct GradingStore {
    pool: AnyPool,
    writer: Writer,
}

impl GradingStore {
    /// A store in the validator's database, whose migrations have been applied: `pool` reads, and `writer` writes.
    pub const fn new(pool: AnyPool, writer: Writer) -> Self {
        Self { pool, writer }
    }

    /// Voids all open batches and returns their number. Called at start, when no batch is running.
    ///
    /// # Errors
    /// The database fails.
    pub async fn void_unfinished(&self, now: Timestamp) -> Result<u64> {
        let statement = sqlx::query("UPDATE batches SET state = 'void', ended_at = $1 WHERE state = 'open'")
            .bind(now.micros());
        self.writer.execute("void batches", statement).await
    }

    /// Inserts a batch that begins. Returns `false` if it began before: its block is that of an earlier process.
    ///
    /// # Errors
    /// The database fails.
    pub async fn begin_batch(&self, id: &BatchId, head: &BatchHead, now: Timestamp) -> Result<bool> {
        let statement = sqlx::query(
            "INSERT INTO batches (batch_id, kind, block, state, began_at, head) VALUES ($1, $2, $3, 'open', $4, $5) \
             ON CONFLICT DO NOTHING",
        )
        .bind(hex::encode(id.0))
        .bind(kind_name(head.kind))
        .bind(to_signed(head.block))
        .bind(now.micros())
        .bind(to_json(head));
        let begun = self.writer.execute("begin a batch", statement).await?;
        Ok(begun > 0)
    }

    /// Inserts the evidence of one proof.
    ///
    /// # Errors
    /// The database fails.
    pub async fn insert_proof(
        &self,
        id: &BatchId,
        place: usize,
        number: u32,
        proof: &ProofEvidence,
    ) -> Result<()> {
        let statement =
            sqlx::query("INSERT INTO batch_proofs (batch_id, place, number, proof) VALUES ($1, $2, $3, $4)")
                .bind(hex::encode(id.0))
                .bind(place_to_i64(place))
                .bind(i64::from(number))
                .bind(to_json(proof));
        self.writer.execute("keep a proof", statement).await?;
        Ok(())
    }

    /// Writes all results of a batch and closes it, in one transaction.
    ///
    /// # Errors
    /// The database fails.
    #[expect(clippy::too_many_arguments, reason = "each result of a batch is one argument")]
    pub async fn finish_batch(
        &self,
        plan: &BatchPlan,
        head: &BatchHead,
        fingerprints: &Fingerprints,
        judgements: &[Judgement],
        participants: &BTreeMap<usize, ParticipantEvidence>,
        counted: &[Capacity],
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "finish a batch";
        let id = hex::encode(plan.id.0);
        let mut tx = self.writer.begin().await?;
        let participant_rows = plan.participants.iter().map(|participant| {
            (
                participant.miner,
                participant.class.to_string(),
                participant.index,
            )
        });
        // Silent miners follow the executors. Their rows have no class.
        let silent = head.silent.iter().map(|silent| (silent.miner, String::new(), 0));
        let rows = participant_rows.chain(silent).zip(judgements);
        for (place, ((miner, class, index), judgement)) in rows.enumerate() {
            let kept = participants.get(&place).cloned().unwrap_or_default();
            sqlx::query(
                "INSERT INTO grades (batch_id, place, miner, class, seat, grade, judgement, evidence) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            )
            .bind(id.clone())
            .bind(place_to_i64(place))
            .bind(miner.to_string())
            .bind(class)
            .bind(i64::from(index))
            .bind(judgement.name())
            .bind(to_json(judgement))
            .bind(to_json(&kept))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        for count in counted {
            sqlx::query(
                "INSERT INTO capacities (batch_id, miner, class, kind, block, proven, serving, excused, announced, credit) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
            )
            .bind(id.clone())
            .bind(count.miner.to_string())
            .bind(count.class.to_string())
            .bind(kind_name(head.kind))
            .bind(to_signed(head.block))
            .bind(i64::from(count.proven))
            .bind(i64::from(count.serving))
            .bind(place_to_i64(count.excuses.len()))
            .bind(i64::from(count.announced))
            .bind(to_signed(count.credit))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
            insert_excuses(&mut tx, &id, count).await?;
        }
        sqlx::query("UPDATE batches SET state = 'done', ended_at = $1, marks = $2 WHERE batch_id = $3")
            .bind(now.micros())
            .bind(to_json(fingerprints))
            .bind(id)
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        tx.commit(OPERATION).await
    }

    /// The largest number of executors that the miners of these participants had proven in one of the last eight
    /// batches of a kind, by class. Hardware that was shown earlier and is gone excuses nothing.
    ///
    /// # Errors
    /// The database fails.
    pub async fn proven_before(&self, participants: &[Participant]) -> Result<Vec<ProvenCount>> {
        let rows = sqlx::query(
            "SELECT miner, class, MAX(proven) AS proven FROM capacities WHERE \
             (kind = 'announced' AND block >= (SELECT MIN(block) FROM (SELECT DISTINCT block FROM capacities \
             WHERE kind = 'announced' ORDER BY block DESC LIMIT 8) AS latest)) OR \
             (kind = 'unannounced' AND block >= (SELECT MIN(block) FROM (SELECT DISTINCT block FROM capacities \
             WHERE kind = 'unannounced' ORDER BY block DESC LIMIT 8) AS latest)) GROUP BY miner, class",
        )
        .fetch_all(&self.pool)
        .await
        .during("read what was proven before")?;
        let mut before = Vec::new();
        for row in &rows {
            let (miner, class) = (parse_column(row, "miner")?, parse_column(row, "class")?);
            if participants
                .iter()
                .any(|participant| participant.miner == miner && participant.class == class)
            {
                let proven = u32::try_from(read_column::<i64>(row, "proven")?).unwrap_or(0);
                before.push(ProvenCount { miner, class, proven });
            }
        }
        Ok(before)
    }

    /// The newest batches, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn batches(&self, limit: u32) -> Result<Vec<BatchRow>> {
        let rows = sqlx::query(
            "SELECT batch_id, kind, block, state, began_at, ended_at FROM batches ORDER BY began_at DESC, batch_id LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("read batches")?;
        let mut batches = Vec::new();
        for row in &rows {
            let batch: String = read_column(row, "batch_id")?;
            let counts = sqlx::query(
                "SELECT grade, COUNT(*) AS executors FROM grades WHERE batch_id = $1 GROUP BY grade",
            )
            .bind(batch.clone())
            .fetch_all(&self.pool)
            .await
            .during("count grades")?;
            let mut grades = BTreeMap::new();
            for count in &counts {
                let executors = u64::try_from(read_column::<i64>(count, "executors")?).unwrap_or(0);
                grades.insert(read_column(count, "grade")?, executors);
            }
            batches.push(BatchRow {
                batch,
                kind: read_column(row, "kind")?,
                block: to_unsigned(read_column(row, "block")?),
                state: read_column(row, "state")?,
                began_at: time_column(row, "began_at")?,
                ended_at: time_column_option(row, "ended_at")?,
                grades,
            });
        }
        Ok(batches)
    }

    /// The judgements of a miner's executors, newest batch first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn grades_of(&self, miner: MinerKey, limit: u32) -> Result<Vec<GradeRow>> {
        let rows = sqlx::query(
            "SELECT g.batch_id, b.block, g.place, g.miner, g.class, g.seat, g.judgement FROM grades AS g \
             JOIN batches AS b ON b.batch_id = g.batch_id WHERE g.miner = $1 \
             ORDER BY b.began_at DESC, g.place LIMIT $2",
        )
        .bind(miner.to_string())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("read grades")?;
        rows.iter().map(read_grade).collect()
    }

    /// The newest judgements of executors of finished batches, the newest batch first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn newest_grades(&self, limit: u32) -> Result<Vec<GradeRow>> {
        let rows = sqlx::query(
            "SELECT g.batch_id, b.block, g.place, g.miner, g.class, g.seat, g.judgement FROM grades AS g \
             JOIN batches AS b ON b.batch_id = g.batch_id WHERE b.state = 'done' AND g.class <> '' \
             ORDER BY b.block DESC, b.batch_id, g.place LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("read the newest grades")?;
        rows.iter().map(read_grade).collect()
    }

    /// The file of a batch, with all its evidence or only that about one miner's executors. `None` if no such batch is
    /// done.
    ///
    /// # Errors
    /// The database fails.
    pub async fn batch_file(&self, batch: &str, of: Option<MinerKey>) -> Result<Option<BatchFile>> {
        const OPERATION: &str = "read a batch";
        let row = sqlx::query("SELECT head, marks FROM batches WHERE batch_id = $1 AND state = 'done'")
            .bind(batch.to_owned())
            .fetch_optional(&self.pool)
            .await
            .during(OPERATION)?;
        let Some(row) = row else { return Ok(None) };
        let rows = sqlx::query(
            "SELECT place, miner, judgement, evidence FROM grades WHERE batch_id = $1 ORDER BY place",
        )
        .bind(batch.to_owned())
        .fetch_all(&self.pool)
        .await
        .during(OPERATION)?;
        let mut file = BatchFile {
            format: FORMAT.to_owned(),
            head: json_column(&row, "head")?,
            fingerprints: json_column(&row, "marks")?,
            judgements: Vec::new(),
            participants: BTreeMap::new(),
        };
        for row in &rows {
            file.judgements.push(json_column(row, "judgement")?);
            let miner: MinerKey = parse_column(row, "miner")?;
            if of.is_some_and(|of| of != miner) {
                continue;
            }
            let place: i64 = read_column(row, "place")?;
            let mut participant: ParticipantEvidence = json_column(row, "evidence")?;
            let proofs = sqlx::query(
                "SELECT proof FROM batch_proofs WHERE batch_id = $1 AND place = $2 ORDER BY number",
            )
            .bind(batch.to_owned())
            .bind(place)
            .fetch_all(&self.pool)
            .await
            .during(OPERATION)?;
            for proof in &proofs {
                participant.proofs.push(json_column(proof, "proof")?);
            }
            file.participants
                .insert(usize::try_from(place).unwrap_or(usize::MAX), participant);
        }
        Ok(Some(file))
    }

    /// Deletes the proofs and grades of batches that ended before this time, a bounded number of rows in each
    /// transaction. Capacities stay.
    ///
    /// # Errors
    /// The database fails. Rows that were deleted before stay deleted.
    pub async fn forget_evidence_before(&self, before: Timestamp) -> Result<()> {
        const OPERATION: &str = "forget old batches";
        for statement in [
            "DELETE FROM batch_proofs WHERE (batch_id, place, number) IN (SELECT batch_id, place, number \
             FROM batch_proofs WHERE batch_id IN (SELECT batch_id FROM batches WHERE ended_at < $1) LIMIT $2)",
            "DELETE FROM grades WHERE (batch_id, place) IN (SELECT batch_id, place \
             FROM grades WHERE batch_id IN (SELECT batch_id FROM batches WHERE ended_at < $1) LIMIT $2)",
        ] {
            loop {
                let statement = sqlx::query(statement).bind(before.micros()).bind(FORGET_STEP);
                if self.writer.execute(OPERATION, statement).await? == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn read_grade(row: &AnyRow) -> Result<GradeRow> {
    let judgement: Judgement = json_column(row, "judgement")?;
    Ok(GradeRow {
        batch: read_column(row, "batch_id")?,
        block: to_unsigned(read_column(row, "block")?),
        place: to_unsigned(read_column(row, "place")?),
        miner: parse_column(row, "miner")?,
        class: read_class(row)?,
        index: to_unsigned(read_column(row, "seat")?),
        said: judgement.to_string(),
        judgement,
    })
}

fn read_class(row: &AnyRow) -> Result<Option<ExecutorClass>> {
    let text: String = read_column(row, "class")?;
    if text.is_empty() {
        return Ok(None);
    }
    parse_column(row, "class").map(Some)
}
