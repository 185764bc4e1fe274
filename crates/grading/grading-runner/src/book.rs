//! What stays of batches. A part of the validator's database, whose migrations make the tables.
//!
//! A batch is open until everything that came of it is written, in one transaction; one that a later process finds open is void.
//! So it counts whole or not at all.

use std::collections::BTreeMap;

use muster_grading::evidence::{BatchFile, Before, FORMAT, Head, ProofFile, SeatFile};
use muster_grading::fingerprints::Marks;
use muster_grading::judgement::Judgement;
use muster_grading::plan::{Plan, Seat};
use muster_grading::settlement::Capacity;
use muster_hardware_proof::keys::BatchId;
use muster_process::store::{During as _, StoreError, begin};
use muster_protocol::{ExecutorClass, MinerKey, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::AnyRow;
use sqlx::{Any, AnyPool, Decode, Row as _, Type};

type Result<T> = std::result::Result<T, StoreError>;

/// A batch, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchRow {
    /// Its id.
    pub batch: String,
    /// The block that it began with.
    pub block: u64,
    /// `open`, `done`, or `void`.
    pub state: String,
    /// When it began.
    pub began_at: Timestamp,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
    /// Executors of each judgement.
    pub grades: BTreeMap<String, u64>,
}

/// What one executor came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GradeRow {
    /// In which batch.
    pub batch: String,
    /// The block that it began with.
    pub block: u64,
    /// Its place in the plan.
    pub place: u64,
    /// Whose.
    pub miner: MinerKey,
    /// Of which kind; none for a miner that did not say what it has.
    pub class: Option<ExecutorClass>,
    /// Which of them.
    pub index: u64,
    /// What it came to.
    pub judgement: Judgement,
    /// In words.
    pub said: String,
}

/// The tables. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Book {
    pool: AnyPool,
}

impl Book {
    /// Over the validator's database, which is migrated.
    pub const fn new(pool: AnyPool) -> Self {
        Self { pool }
    }

    /// Batches that nobody will finish any more; how many.
    ///
    /// # Errors
    /// The database's.
    pub async fn void_open(&self, now: Timestamp) -> Result<u64> {
        let done = sqlx::query("UPDATE batches SET state = 'void', ended_at = $1 WHERE state = 'open'")
            .bind(now.micros())
            .execute(&self.pool)
            .await
            .during("void batches")?;
        Ok(done.rows_affected())
    }

    /// A batch begins.
    ///
    /// # Errors
    /// The database's.
    pub async fn begin(&self, id: &BatchId, head: &Head, now: Timestamp) -> Result<()> {
        sqlx::query(
            "INSERT INTO batches (batch_id, block, state, began_at, head) VALUES ($1, $2, 'open', $3, $4)",
        )
        .bind(hex::encode(id.0))
        .bind(signed(head.block))
        .bind(now.micros())
        .bind(text(head))
        .execute(&self.pool)
        .await
        .during("begin a batch")?;
        Ok(())
    }

    /// Keeps the evidence of one proof.
    ///
    /// # Errors
    /// The database's.
    pub async fn keep_proof(&self, id: &BatchId, place: usize, number: u32, proof: &ProofFile) -> Result<()> {
        sqlx::query("INSERT INTO batch_proofs (batch_id, place, number, proof) VALUES ($1, $2, $3, $4)")
            .bind(hex::encode(id.0))
            .bind(place_of(place))
            .bind(i64::from(number))
            .bind(text(proof))
            .execute(&self.pool)
            .await
            .during("keep a proof")?;
        Ok(())
    }

    /// A batch is over: all that came of it, or nothing.
    ///
    /// # Errors
    /// The database's.
    #[expect(clippy::too_many_arguments, reason = "what came of a batch, each part once")]
    pub async fn finish(
        &self,
        plan: &Plan,
        head: &Head,
        marks: &Marks,
        judgements: &[Judgement],
        seats: &BTreeMap<usize, SeatFile>,
        counted: &[Capacity],
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "finish a batch";
        let id = hex::encode(plan.id.0);
        let mut tx = begin(&self.pool).await?;
        let seats_of = plan
            .seats
            .iter()
            .map(|seat| (seat.miner, seat.class.to_string(), seat.index));
        // Silent miners come behind: nobody knows which class their executors would be of.
        let silent = head.silent.iter().map(|silent| (silent.miner, String::new(), 0));
        let rows = seats_of.chain(silent).zip(judgements);
        for (place, ((miner, class, index), judgement)) in rows.enumerate() {
            let kept = seats.get(&place).cloned().unwrap_or_default();
            sqlx::query(
                "INSERT INTO grades (batch_id, place, miner, class, seat, grade, judgement, evidence) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            )
            .bind(id.clone())
            .bind(place_of(place))
            .bind(miner.to_string())
            .bind(class)
            .bind(i64::from(index))
            .bind(judgement.name())
            .bind(text(judgement))
            .bind(text(&kept))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        for count in counted {
            sqlx::query(
                "INSERT INTO capacities (batch_id, miner, class, block, proven, excused) VALUES ($1, $2, $3, $4, $5, $6)",
            )
            .bind(id.clone())
            .bind(count.miner.to_string())
            .bind(count.class.to_string())
            .bind(signed(head.block))
            .bind(i64::from(count.proven))
            .bind(i64::from(count.excused))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        sqlx::query("UPDATE batches SET state = 'done', ended_at = $1, marks = $2 WHERE batch_id = $3")
            .bind(now.micros())
            .bind(text(marks))
            .bind(id)
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        tx.commit().await.during(OPERATION)
    }

    /// The most executors of each kind that the miners of these ever had proven in one batch.
    ///
    /// # Errors
    /// The database's.
    pub async fn proven_before(&self, seats: &[Seat]) -> Result<Vec<Before>> {
        let rows =
            sqlx::query("SELECT miner, class, MAX(proven) AS proven FROM capacities GROUP BY miner, class")
                .fetch_all(&self.pool)
                .await
                .during("read what was proven before")?;
        let mut before = Vec::new();
        for row in &rows {
            let (miner, class) = (parsed(row, "miner")?, parsed(row, "class")?);
            if seats
                .iter()
                .any(|seat| seat.miner == miner && seat.class == class)
            {
                let proven = u32::try_from(column::<i64>(row, "proven")?).unwrap_or(0);
                before.push(Before { miner, class, proven });
            }
        }
        Ok(before)
    }

    /// What each miner's last batch in these blocks showed, both ends included.
    ///
    /// # Errors
    /// The database's.
    pub async fn capacities_between(&self, first: u64, last: u64) -> Result<Vec<Capacity>> {
        let rows = sqlx::query(
            "SELECT miner, class, block, proven, excused FROM capacities WHERE block >= $1 AND block <= $2 ORDER BY block",
        )
        .bind(signed(first))
        .bind(signed(last))
        .fetch_all(&self.pool)
        .await
        .during("read proven capacities")?;
        let mut latest = BTreeMap::new();
        for row in &rows {
            let count = Capacity {
                miner: parsed(row, "miner")?,
                class: parsed(row, "class")?,
                proven: u32::try_from(column::<i64>(row, "proven")?).unwrap_or(0),
                excused: u32::try_from(column::<i64>(row, "excused")?).unwrap_or(0),
            };
            latest.insert((count.miner, count.class), count);
        }
        Ok(latest.into_values().collect())
    }

    /// The newest batches.
    ///
    /// # Errors
    /// The database's.
    pub async fn batches(&self, limit: u32) -> Result<Vec<BatchRow>> {
        let rows = sqlx::query(
            "SELECT batch_id, block, state, began_at, ended_at FROM batches ORDER BY began_at DESC, batch_id LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("read batches")?;
        let mut batches = Vec::new();
        for row in &rows {
            let batch: String = column(row, "batch_id")?;
            let counts = sqlx::query(
                "SELECT grade, COUNT(*) AS executors FROM grades WHERE batch_id = $1 GROUP BY grade",
            )
            .bind(batch.clone())
            .fetch_all(&self.pool)
            .await
            .during("count grades")?;
            let mut grades = BTreeMap::new();
            for count in &counts {
                let executors = u64::try_from(column::<i64>(count, "executors")?).unwrap_or(0);
                grades.insert(column(count, "grade")?, executors);
            }
            batches.push(BatchRow {
                batch,
                block: unsigned(column(row, "block")?),
                state: column(row, "state")?,
                began_at: Timestamp::from_micros(column(row, "began_at")?),
                ended_at: column::<Option<i64>>(row, "ended_at")?.map(Timestamp::from_micros),
                grades,
            });
        }
        Ok(batches)
    }

    /// What a miner's executors came to, the newest batch first.
    ///
    /// # Errors
    /// The database's.
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
        rows.iter().map(grade).collect()
    }

    /// The file of a batch: all of it, or the evidence about one miner's executors only. `None` if there is none that is over.
    ///
    /// # Errors
    /// The database's.
    pub async fn file(&self, batch: &str, of: Option<MinerKey>) -> Result<Option<BatchFile>> {
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
            head: json(&row, "head")?,
            marks: json(&row, "marks")?,
            judgements: Vec::new(),
            seats: BTreeMap::new(),
        };
        for row in &rows {
            file.judgements.push(json(row, "judgement")?);
            let miner: MinerKey = parsed(row, "miner")?;
            if of.is_some_and(|of| of != miner) {
                continue;
            }
            let place: i64 = column(row, "place")?;
            let mut seat: SeatFile = json(row, "evidence")?;
            let proofs = sqlx::query(
                "SELECT proof FROM batch_proofs WHERE batch_id = $1 AND place = $2 ORDER BY number",
            )
            .bind(batch.to_owned())
            .bind(place)
            .fetch_all(&self.pool)
            .await
            .during(OPERATION)?;
            for proof in &proofs {
                seat.proofs.push(json(proof, "proof")?);
            }
            file.seats
                .insert(usize::try_from(place).unwrap_or(usize::MAX), seat);
        }
        Ok(Some(file))
    }

    /// Forgets batches that ended before this, with their evidence.
    ///
    /// # Errors
    /// The database's.
    pub async fn forget(&self, before: Timestamp) -> Result<()> {
        const OPERATION: &str = "forget old batches";
        let mut tx = begin(&self.pool).await?;
        for statement in [
            "DELETE FROM batch_proofs WHERE batch_id IN (SELECT batch_id FROM batches WHERE ended_at < $1)",
            "DELETE FROM grades WHERE batch_id IN (SELECT batch_id FROM batches WHERE ended_at < $1)",
        ] {
            sqlx::query(statement)
                .bind(before.micros())
                .execute(&mut *tx)
                .await
                .during(OPERATION)?;
        }
        tx.commit().await.during(OPERATION)
    }
}

fn grade(row: &AnyRow) -> Result<GradeRow> {
    let judgement: Judgement = json(row, "judgement")?;
    Ok(GradeRow {
        batch: column(row, "batch_id")?,
        block: unsigned(column(row, "block")?),
        place: unsigned(column(row, "place")?),
        miner: parsed(row, "miner")?,
        class: class_of(row)?,
        index: unsigned(column(row, "seat")?),
        said: judgement.to_string(),
        judgement,
    })
}

fn class_of(row: &AnyRow) -> Result<Option<ExecutorClass>> {
    let text: String = column(row, "class")?;
    if text.is_empty() {
        return Ok(None);
    }
    parsed(row, "class").map(Some)
}

fn column<'r, T>(row: &'r AnyRow, name: &'static str) -> Result<T>
where
    T: Decode<'r, Any> + Type<Any>,
{
    row.try_get(name)
        .map_err(|error| StoreError::corrupt(name, error))
}

fn parsed<T>(row: &AnyRow, name: &'static str) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: String = column(row, name)?;
    text.parse()
        .map_err(|error: T::Err| StoreError::corrupt(name, error.to_string()))
}

fn json<T: DeserializeOwned>(row: &AnyRow, name: &'static str) -> Result<T> {
    let text: String = column(row, name)?;
    serde_json::from_str(&text).map_err(|error| StoreError::corrupt(name, error.to_string()))
}

/// The JSON text of a value of ours, all of which have one.
fn text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn place_of(place: usize) -> i64 {
    i64::try_from(place).unwrap_or(i64::MAX)
}
