//! Attempts: the state of the job machine after every event, stored in one transaction with the receipts and status
//! updates that the event caused.

use std::net::SocketAddr;

use muster_chain::{BlockNumber, Uid};
use muster_job_messages::IssuedReceipt;
use muster_job_messages::pay::{USUAL_OF, WorkedAttempt};
use muster_protocol::job::{Attempt, ImageFetchFailure};
use muster_protocol::wire::facilitator::StatusMetadata;
use muster_protocol::wire::route::RouteStep;
use muster_protocol::{AttemptId, Digest, ExecutorClass, JobId, JobIdPrefix, JobStatus, MinerKey, Timestamp};
use muster_routing::{AttemptMark, RouteDecision};
use muster_store::columns::{json_column, parse_column, read_column, time_column, to_signed, to_unsigned};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{Draft, Result, Store, corrupt, query_error, text_of};

/// One attempt of a job, on one miner.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAttempt {
    /// The attempt's id on the wire.
    pub id: AttemptId,
    /// The number of the attempt in its job; the first is 1.
    pub ordinal: u32,
    /// The miner that runs it.
    pub miner: MinerKey,
    /// The miner's uid when the attempt began.
    pub uid: Uid,
    /// The miner's address when the attempt began.
    pub address: SocketAddr,
    /// The state machine after the last event.
    pub machine: Attempt,
    /// When the attempt began.
    pub started_at: Timestamp,
    /// Whether it has left a checkpoint that was kept.
    pub has_checkpoint: bool,
}

impl StoredAttempt {
    /// The reason for which the job's image did not come, if the attempt ended by that. An image that came while no
    /// executor was free is no such reason.
    pub fn image_failure(&self) -> Option<ImageFetchFailure> {
        let failure = self.machine.outcome()?.image_fetch_failure()?;
        (!failure.is_about_the_miner()).then_some(failure)
    }
}

/// An attempt that is about to begin.
#[derive(Clone, Debug, PartialEq)]
pub struct NewAttempt {
    /// The attempt in its first state.
    pub attempt: StoredAttempt,
    /// The started receipt that goes with its offer.
    pub receipt: IssuedReceipt,
    /// Why it goes to this miner.
    pub decision: RouteDecision,
    /// The chain's head when the attempt began; `None` if the chain has not answered yet.
    pub block: Option<BlockNumber>,
}

/// The changes that one event caused.
#[derive(Clone, Debug)]
pub struct AttemptChange {
    /// The job of the attempt.
    pub job: JobId,
    /// The attempt that changed.
    pub attempt: AttemptId,
    /// The attempt's state after the event.
    pub machine: Attempt,
    /// The mark that the attempt's end leaves on the miner's record; `None` while the attempt is under way.
    pub mark: Option<AttemptMark>,
    /// The work of an attempt whose program has run to its end.
    pub worked: Option<EndedWork>,
    /// Receipts issued because of the event.
    pub receipts: Vec<IssuedReceipt>,
    /// Status updates for the user because of the event.
    pub reports: Vec<(JobStatus, Option<StatusMetadata>)>,
    /// The chain's head when the attempt began; `None` if the chain has not answered yet.
    pub block: Option<BlockNumber>,
    /// When the event happened.
    pub now: Timestamp,
}

/// The work of an attempt whose program has run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedWork {
    /// The digest of its image, its arguments and its class.
    pub work: Digest,
    /// The time that it took, and the owner of its miner.
    pub attempt: WorkedAttempt,
}

/// Recent attempts that are alike to the second, from which the miners' records are restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptGroup {
    /// The miner of the attempts.
    pub miner: MinerKey,
    /// The class of executor.
    pub class: ExecutorClass,
    /// When the attempts began, to the second.
    pub started_at: Timestamp,
    /// When the attempts ended, to the second, and the mark they left; `None` while they are under way.
    pub ended: Option<(Timestamp, AttemptMark)>,
    /// The number of attempts.
    pub count: u64,
}

/// The offers that a miner got in one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferCount {
    /// The miner that was asked.
    pub miner: MinerKey,
    /// The class of executor.
    pub class: ExecutorClass,
    /// The number of offers.
    pub offers: u32,
    /// The number of those that it refused, although nothing showed its executors at work.
    pub refused: u32,
}

/// Offers that ended at a miner within an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedOffers {
    /// The miner that was asked.
    pub miner: MinerKey,
    /// The begin of the hour.
    pub at: Timestamp,
    /// The number of users' offers.
    pub offers: u32,
    /// The number of all offers that ended without a fetch slot for nothing.
    pub no_slots: u32,
}

/// Microseconds of an hour.
const HOUR_MICROS: i64 = 3_600_000_000;

/// Why an attempt went to its miner, as the operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteView {
    /// The number of the attempt in its job; the first is 1.
    pub ordinal: u32,
    /// When the miner was chosen.
    pub decided_at: Timestamp,
    /// The chosen miner and the others, with reasons.
    #[serde(flatten)]
    pub decision: RouteDecision,
}

impl Store {
    /// Stores a new attempt with its receipt and its decision.
    ///
    /// The attempt is stored as if its offer had been sent, so that sending the offer needs no further write. A process
    /// that resumes the attempt sends the offer again, and the miner recognises the attempt by its id.
    ///
    /// # Errors
    /// The database fails.
    pub async fn begin_attempt(&self, job: JobId, new: &NewAttempt) -> Result<()> {
        let begun = self
            .write_whole("begin an attempt", |draft| draft.put_attempt(job, new))
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

    /// Stores another mark for an attempt that has ended, because a later attempt showed what its end is worth.
    ///
    /// # Errors
    /// The database fails.
    pub async fn replace_mark(&self, attempt: AttemptId, mark: AttemptMark) -> Result<()> {
        self.write("replace the mark of an attempt", |draft| {
            draft.script.add(
                "UPDATE attempts SET mark = $1 WHERE attempt_id = $2 AND mark IS NOT NULL",
                [mark.as_str().to_owned().into(), attempt.to_string().into()],
            );
        })
        .await
    }

    /// Notes that a miner passed a trial: those that it failed since `since` count as incidents from here on, and bench
    /// it no longer.
    ///
    /// # Errors
    /// The database fails.
    pub async fn end_bench(&self, miner: MinerKey, since: Timestamp) -> Result<()> {
        self.write("end the bench of a miner", |draft| {
            draft.script.add(
                "UPDATE attempts SET mark = $1 WHERE ended_at >= $2 AND miner = $3 AND mark = $4",
                [
                    AttemptMark::Incident.as_str().to_owned().into(),
                    since.micros().into(),
                    miner.to_string().into(),
                    AttemptMark::FailedTrial.as_str().to_owned().into(),
                ],
            );
        })
        .await
    }

    /// Takes the excuse off an attempt's record, because its end turned out to be the user's fault. Returns when the
    /// attempt ended; `None` if its mark is no excuse.
    ///
    /// # Errors
    /// The database fails.
    pub async fn forgive_excuse(&self, attempt: AttemptId) -> Result<Option<Timestamp>> {
        let row = sqlx::query("SELECT ended_at FROM attempts WHERE attempt_id = $1 AND mark = $2")
            .bind(attempt.to_string())
            .bind(AttemptMark::Excuse.as_str())
            .fetch_optional(&self.pool)
            .await
            .map_err(query_error("read the mark of an attempt"))?;
        let Some(row) = row else { return Ok(None) };
        self.replace_mark(attempt, AttemptMark::Clean).await?;
        Ok(Some(time_column(&row, "ended_at")?))
    }

    /// Stores the changes that one event caused, all or none.
    ///
    /// # Errors
    /// The database fails.
    pub async fn save(&self, change: &AttemptChange) -> Result<()> {
        self.write("write the state of an attempt", |draft| {
            let ended = change.machine.outcome().map(|_| change.now.micros());
            let worked = change.worked.as_ref();
            draft.script.add(
                "UPDATE attempts SET machine = $1, ended_at = $2, mark = $3, work = $4, coldkey = $5, worked_us = $6 \
                 WHERE attempt_id = $7",
                [
                    text_of(&change.machine).into(),
                    ended.into(),
                    change.mark.map(|mark| mark.as_str().to_owned()).into(),
                    worked.map(|ended| ended.work.to_string()).into(),
                    worked.map(|ended| ended.attempt.coldkey.to_string()).into(),
                    worked.map(|ended| to_signed(ended.attempt.took_us)).into(),
                    change.attempt.to_string().into(),
                ],
            );
            for receipt in &change.receipts {
                draft.put_receipt(receipt, change.block);
            }
            for (status, metadata) in &change.reports {
                draft.report(change.job, *status, metadata.as_ref(), change.now);
            }
        })
        .await
    }

    /// Stores a decision that led to no attempt, as that of attempt number `ordinal`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn keep_decision(
        &self,
        job: JobId,
        ordinal: u32,
        decision: &RouteDecision,
        now: Timestamp,
    ) -> Result<()> {
        self.write("keep a decision", |draft| {
            draft.keep_route(job, ordinal, decision, now)
        })
        .await
    }

    /// Why each attempt of a job went to its miner, oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn routes_of(&self, job: JobId) -> Result<Vec<RouteView>> {
        let rows = sqlx::query(
            "SELECT ordinal, decided_at, decision FROM routes WHERE job_id = $1 ORDER BY ordinal",
        )
        .bind(job.to_string())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read a job's routes"))?;
        let read = |row| {
            Ok(RouteView {
                ordinal: ordinal(row)?,
                decided_at: time_column(row, "decided_at")?,
                decision: json_column(row, "decision")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// The jobs whose ids begin like this and whose routes are kept, by id; `limit` at most.
    ///
    /// # Errors
    /// The database fails.
    pub async fn routed_jobs(&self, prefix: &JobIdPrefix, limit: u32) -> Result<Vec<JobId>> {
        let rows = sqlx::query(
            "SELECT DISTINCT job_id FROM routes WHERE job_id BETWEEN $1 AND $2 ORDER BY job_id LIMIT $3",
        )
        .bind(prefix.first().to_string())
        .bind(prefix.last().to_string())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("find a job's routes by the beginning of its id"))?;
        rows.iter().map(|row| parse_column(row, "job_id")).collect()
    }

    /// The decisions about a job as they are reported to its user, each with the number of its attempt.
    ///
    /// # Errors
    /// The database fails.
    pub async fn told_routes(&self, job: JobId) -> Result<Vec<(u32, RouteStep)>> {
        let routes = self.routes_of(job).await?;
        Ok(routes
            .iter()
            .map(|route| (route.ordinal, route.decision.tell()))
            .collect())
    }

    /// Attempts that are under way, or ended since `ended`, or began since `started`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn history(&self, ended: Timestamp, started: Timestamp) -> Result<Vec<AttemptGroup>> {
        let rows = sqlx::query(
            "SELECT miner, class, mark, started_at / 1000000 AS started_s, ended_at / 1000000 AS ended_s, COUNT(*) AS alike \
             FROM attempts WHERE ended_at IS NULL OR ended_at >= $1 OR started_at >= $2 \
             GROUP BY miner, class, mark, started_at / 1000000, ended_at / 1000000",
        )
        .bind(ended.micros())
        .bind(started.micros())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read what miners did lately"))?;
        let group = |row| {
            let word: Option<String> = read_column(row, "mark")?;
            let started: i64 = read_column(row, "started_s")?;
            let ended: Option<i64> = read_column(row, "ended_s")?;
            let mark = word
                .as_deref()
                .and_then(AttemptMark::from_word)
                .unwrap_or(AttemptMark::Clean);
            Ok(AttemptGroup {
                miner: parse_column(row, "miner")?,
                class: parse_column(row, "class")?,
                started_at: Timestamp::from_secs(started),
                ended: ended.map(|at| (Timestamp::from_secs(at), mark)),
                count: to_unsigned(read_column(row, "alike")?),
            })
        };
        rows.iter().map(group).collect()
    }

    /// Users' jobs that were offered to each miner since a time and have ended there, and how many of them it refused
    /// although nothing showed it at work.
    ///
    /// # Errors
    /// The database fails.
    pub async fn offers_since(&self, since: Timestamp) -> Result<Vec<OfferCount>> {
        let rows = sqlx::query(
            "SELECT a.miner, a.class, COUNT(*) AS offers, \
             CAST(SUM(CASE WHEN a.mark = $2 THEN 1 ELSE 0 END) AS BIGINT) AS refused \
             FROM attempts AS a JOIN jobs AS j ON j.job_id = a.job_id \
             WHERE a.started_at >= $1 AND a.mark IS NOT NULL AND j.own = 0 GROUP BY a.miner, a.class",
        )
        .bind(since.micros())
        .bind(AttemptMark::Unexcused.as_str())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("count offers"))?;
        let number = |row, name| Ok(u32::try_from(to_unsigned(read_column(row, name)?)).unwrap_or(u32::MAX));
        let count = |row| {
            Ok(OfferCount {
                miner: parse_column(row, "miner")?,
                class: parse_column(row, "class")?,
                offers: number(row, "offers")?,
                refused: number(row, "refused")?,
            })
        };
        rows.iter().map(count).collect()
    }

    /// The offers that ended at each miner since a time, by the hour.
    ///
    /// # Errors
    /// The database fails.
    pub async fn ended_offers(&self, since: Timestamp) -> Result<Vec<EndedOffers>> {
        let rows = sqlx::query(
            "SELECT a.miner, a.ended_at / 3600000000 AS hour, \
             CAST(SUM(CASE WHEN j.own = 0 THEN 1 ELSE 0 END) AS BIGINT) AS offers, \
             CAST(SUM(CASE WHEN a.mark = $2 THEN 1 ELSE 0 END) AS BIGINT) AS no_slots \
             FROM attempts AS a JOIN jobs AS j ON j.job_id = a.job_id \
             WHERE a.ended_at >= $1 AND a.mark IS NOT NULL GROUP BY a.miner, a.ended_at / 3600000000",
        )
        .bind(since.micros())
        .bind(AttemptMark::NoSlot.as_str())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("count the offers that ended"))?;
        let number = |row, name| Ok(u32::try_from(to_unsigned(read_column(row, name)?)).unwrap_or(u32::MAX));
        let count = |row| {
            let hour: i64 = read_column(row, "hour")?;
            Ok(EndedOffers {
                miner: parse_column(row, "miner")?,
                at: Timestamp::from_micros(hour.saturating_mul(HOUR_MICROS)),
                offers: number(row, "offers")?,
                no_slots: number(row, "no_slots")?,
            })
        };
        rows.iter().map(count).collect()
    }

    /// The newest attempts at the same work whose programs ran to their ends, newest first; at most [`USUAL_OF`].
    ///
    /// # Errors
    /// The database fails.
    pub async fn attempts_at(&self, work: Digest) -> Result<Vec<WorkedAttempt>> {
        let rows = sqlx::query(
            "SELECT coldkey, worked_us FROM attempts WHERE work = $1 AND work IS NOT NULL \
             ORDER BY ended_at DESC, attempt_id LIMIT $2",
        )
        .bind(work.to_string())
        .bind(i64::try_from(USUAL_OF).unwrap_or(i64::MAX))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read how long the same work took"))?;
        let worked = |row| {
            Ok(WorkedAttempt {
                coldkey: parse_column(row, "coldkey")?,
                took_us: to_unsigned(read_column(row, "worked_us")?),
            })
        };
        rows.iter().map(worked).collect()
    }

    pub(super) async fn attempts_of(&self, job: JobId) -> Result<Vec<StoredAttempt>> {
        let rows = sqlx::query(
            "SELECT attempt_id, ordinal, miner, uid, address, machine, started_at, kept FROM attempts WHERE job_id = $1 ORDER BY ordinal",
        )
        .bind(job.to_string())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read the attempts of a job"))?;
        rows.iter().map(read).collect()
    }

    /// The attempt with this id; `None` if there is none.
    ///
    /// # Errors
    /// The database fails.
    pub async fn attempt(&self, attempt: AttemptId) -> Result<Option<StoredAttempt>> {
        let row = sqlx::query(
            "SELECT attempt_id, ordinal, miner, uid, address, machine, started_at, kept FROM attempts WHERE attempt_id = $1",
        )
        .bind(attempt.to_string())
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error("read an attempt"))?;
        row.as_ref().map(read).transpose()
    }
}

impl Draft<'_> {
    /// Adds a new attempt as one whose offer was sent, its receipt and its decision.
    pub(super) fn put_attempt(&mut self, job: JobId, new: &NewAttempt) {
        let attempt = &new.attempt;
        let decision = &new.decision;
        self.keep_route(job, attempt.ordinal, decision, attempt.started_at);
        self.put_receipt(&new.receipt, new.block);
        let offered = attempt.machine.clone().assume_offered(attempt.started_at);
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

    pub(super) fn keep_route(&mut self, job: JobId, ordinal: u32, decision: &RouteDecision, now: Timestamp) {
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
    Ok(u32::try_from(to_unsigned(read_column(row, "ordinal")?)).unwrap_or(u32::MAX))
}

pub(super) fn read(row: &AnyRow) -> Result<StoredAttempt> {
    let uid = u16::try_from(to_unsigned(read_column(row, "uid")?)).map_err(|error| corrupt("uid", &error))?;
    Ok(StoredAttempt {
        id: parse_column(row, "attempt_id")?,
        ordinal: ordinal(row)?,
        miner: parse_column(row, "miner")?,
        uid: Uid(uid),
        address: parse_column(row, "address")?,
        machine: json_column(row, "machine")?,
        started_at: time_column(row, "started_at")?,
        has_checkpoint: read_column::<i64>(row, "kept")? != 0,
    })
}
