//! Attempts: the job machine's state after every event, in one transaction with the receipts and statuses it caused.

use std::net::SocketAddr;

use muster_chain::{BlockNumber, Uid};
use muster_protocol::job::Attempt;
use muster_protocol::wire::facilitator::StatusMetadata;
use muster_protocol::{AttemptId, ExecutorClass, JobId, JobStatus, MinerKey, Timestamp};
use muster_routing::{Decision, Mark};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::receipts::OwnReceipt;
use super::{Draft, Result, Store, column, corrupt, failed, json, parsed, text_of, time, unsigned};

/// One try of a job on one miner.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAttempt {
    /// Its id on the wire.
    pub id: AttemptId,
    /// The first is 1.
    pub ordinal: u32,
    /// Who is to run it.
    pub miner: MinerKey,
    /// The miner's place in the subnet at the time.
    pub uid: Uid,
    /// Where the miner listened at the time.
    pub address: SocketAddr,
    /// How far it is.
    pub machine: Attempt,
    /// When it began.
    pub started_at: Timestamp,
}

/// An attempt that is about to begin.
#[derive(Clone, Debug, PartialEq)]
pub struct Beginning {
    /// The attempt, its miner not dialled yet.
    pub attempt: StoredAttempt,
    /// The started receipt that goes with its offer.
    pub receipt: OwnReceipt,
    /// Why it is where it is.
    pub decision: Decision,
    /// The chain's head at the time; `None` while the chain has not answered yet.
    pub block: Option<BlockNumber>,
}

/// What one event changed.
#[derive(Clone, Debug)]
pub struct Step {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The attempt's state after the event.
    pub machine: Attempt,
    /// What its end leaves on the miner's record; `None` while it is under way.
    pub mark: Option<Mark>,
    /// Receipts that were written because of it.
    pub receipts: Vec<OwnReceipt>,
    /// What the user is told because of it.
    pub reports: Vec<(JobStatus, Option<StatusMetadata>)>,
    /// The chain's head at the time; `None` while the chain has not answered yet.
    pub block: Option<BlockNumber>,
    /// When.
    pub now: Timestamp,
}

/// What is known of attempts of lately that are alike to the second, for the miners' records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Who had them.
    pub miner: MinerKey,
    /// The kind of executor.
    pub class: ExecutorClass,
    /// When they began, to the second.
    pub started_at: Timestamp,
    /// When they ended, to the second, and what that left; `None` while they are under way.
    pub ended: Option<(Timestamp, Mark)>,
    /// How many they are.
    pub count: u64,
}

/// Why an attempt went where it went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptRoute {
    /// Which attempt; the first is 1.
    pub ordinal: u32,
    /// When it was decided.
    pub decided_at: Timestamp,
    /// What was decided.
    #[serde(flatten)]
    pub decision: Decision,
}

impl Store {
    /// An attempt is about to begin; see [`Beginning`].
    ///
    /// It is kept as one whose offer is on its way, receipt and all, so that nothing more has to be written before the offer
    /// is sent: whoever takes it up again says the offer again, and a miner knows an attempt by its id.
    ///
    /// # Errors
    /// The database's.
    pub async fn begin_attempt(&self, job: JobId, beginning: &Beginning) -> Result<()> {
        let begun = self
            .carry_whole("begin an attempt", |draft| draft.put_attempt(job, beginning))
            .await?;
        if begun {
            Ok(())
        } else {
            Err(corrupt(
                "attempt_id",
                &"an attempt has an id that was used before",
            ))
        }
    }

    /// Writes what one event changed, all of it or nothing.
    ///
    /// # Errors
    /// The database's.
    pub async fn save(&self, step: &Step) -> Result<()> {
        self.carry("write the state of an attempt", |draft| {
            let ended = step.machine.outcome().map(|_| step.now.micros());
            draft.script.add(
                "UPDATE attempts SET machine = $1, ended_at = $2, mark = $3 WHERE attempt_id = $4",
                [
                    text_of(&step.machine).into(),
                    ended.into(),
                    step.mark.map(|mark| mark.as_str().to_owned()).into(),
                    step.attempt.to_string().into(),
                ],
            );
            for receipt in &step.receipts {
                draft.put_receipt(receipt, step.block);
            }
            for (status, metadata) in &step.reports {
                draft.report(step.job, *status, metadata.as_ref(), step.now);
            }
        })
        .await
    }

    /// Keeps a decision that led to no attempt, as the one of attempt `ordinal`.
    ///
    /// # Errors
    /// The database's.
    pub async fn keep_decision(
        &self,
        job: JobId,
        ordinal: u32,
        decision: &Decision,
        now: Timestamp,
    ) -> Result<()> {
        self.carry("keep a decision", |draft| {
            draft.keep_route(job, ordinal, decision, now)
        })
        .await
    }

    /// Why a job's attempts went where they went, oldest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn routes_of(&self, job: JobId) -> Result<Vec<KeptRoute>> {
        let rows = sqlx::query(
            "SELECT ordinal, decided_at, decision FROM routes WHERE job_id = $1 ORDER BY ordinal",
        )
        .bind(job.to_string())
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read a job's routes"))?;
        let read = |row| {
            Ok(KeptRoute {
                ordinal: ordinal(row)?,
                decided_at: time(row, "decided_at")?,
                decision: json(row, "decision")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Attempts that are under way, ended since `ended`, or began since `started`.
    ///
    /// # Errors
    /// The database's.
    pub async fn history(&self, ended: Timestamp, started: Timestamp) -> Result<Vec<Past>> {
        let rows = sqlx::query(
            "SELECT miner, class, mark, started_at / 1000000 AS started_s, ended_at / 1000000 AS ended_s, COUNT(*) AS alike \
             FROM attempts WHERE ended_at IS NULL OR ended_at >= $1 OR started_at >= $2 \
             GROUP BY miner, class, mark, started_at / 1000000, ended_at / 1000000",
        )
        .bind(ended.micros())
        .bind(started.micros())
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read what miners did lately"))?;
        let past = |row| {
            let word: Option<String> = column(row, "mark")?;
            let started: i64 = column(row, "started_s")?;
            let ended: Option<i64> = column(row, "ended_s")?;
            let mark = word.as_deref().and_then(Mark::from_word).unwrap_or(Mark::Clean);
            Ok(Past {
                miner: parsed(row, "miner")?,
                class: parsed(row, "class")?,
                started_at: Timestamp::from_secs(started),
                ended: ended.map(|at| (Timestamp::from_secs(at), mark)),
                count: unsigned(column(row, "alike")?),
            })
        };
        rows.iter().map(past).collect()
    }

    pub(super) async fn attempts_of(&self, job: JobId) -> Result<Vec<StoredAttempt>> {
        let rows = sqlx::query(
            "SELECT attempt_id, ordinal, miner, uid, address, machine, started_at FROM attempts WHERE job_id = $1 ORDER BY ordinal",
        )
        .bind(job.to_string())
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the attempts of a job"))?;
        rows.iter().map(read).collect()
    }

    /// An attempt by its id, of whichever job.
    ///
    /// # Errors
    /// The database's.
    pub async fn attempt(&self, attempt: AttemptId) -> Result<Option<StoredAttempt>> {
        let row = sqlx::query(
            "SELECT attempt_id, ordinal, miner, uid, address, machine, started_at FROM attempts WHERE attempt_id = $1",
        )
        .bind(attempt.to_string())
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("read an attempt"))?;
        row.as_ref().map(read).transpose()
    }
}

impl Draft<'_> {
    /// A new attempt as one that was offered, its receipt, and why it is where it is.
    pub(super) fn put_attempt(&mut self, job: JobId, beginning: &Beginning) {
        let attempt = &beginning.attempt;
        let decision = &beginning.decision;
        self.keep_route(job, attempt.ordinal, decision, attempt.started_at);
        self.put_receipt(&beginning.receipt, beginning.block);
        let offered = attempt.machine.clone().offered(attempt.started_at);
        self.script.add(
            "INSERT INTO attempts (attempt_id, job_id, ordinal, miner, uid, address, class, machine, started_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING",
            [
                attempt.id.to_string().into(),
                job.to_string().into(),
                i64::from(attempt.ordinal).into(),
                attempt.miner.to_string().into(),
                i64::from(attempt.uid.0).into(),
                attempt.address.to_string().into(),
                attempt.machine.plan().class.as_str().into(),
                text_of(&offered).into(),
                attempt.started_at.micros().into(),
            ],
        );
    }

    fn keep_route(&mut self, job: JobId, ordinal: u32, decision: &Decision, now: Timestamp) {
        self.script.add(
            "INSERT INTO routes (job_id, ordinal, decided_at, decision) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (job_id, ordinal) DO UPDATE SET decided_at = excluded.decided_at, decision = excluded.decision",
            [
                job.to_string().into(),
                i64::from(ordinal).into(),
                now.micros().into(),
                text_of(decision).into(),
            ],
        );
    }
}

fn ordinal(row: &AnyRow) -> Result<u32> {
    Ok(u32::try_from(unsigned(column(row, "ordinal")?)).unwrap_or(u32::MAX))
}

pub(super) fn read(row: &AnyRow) -> Result<StoredAttempt> {
    let uid = u16::try_from(unsigned(column(row, "uid")?)).map_err(|error| corrupt("uid", &error))?;
    Ok(StoredAttempt {
        id: parsed(row, "attempt_id")?,
        ordinal: ordinal(row)?,
        miner: parsed(row, "miner")?,
        uid: Uid(uid),
        address: parsed(row, "address")?,
        machine: json(row, "machine")?,
        started_at: time(row, "started_at")?,
    })
}
