//! The ends of waiting jobs that get no further attempt: called off, waited too long, or refused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_chain::Metagraph;
use muster_job_messages::job_spans::export_trace;
use muster_job_messages::last_status::{describe, fault_of, final_metadata};
use muster_job_messages::{JobTimes, trace_job};
use muster_job_queue::{LeftJob, WaitingJob};
use muster_protocol::job::Outcome;
use muster_protocol::status::JobStage;
use muster_protocol::{ErrorCode, JobId, Timestamp};
use muster_routing::Route;
use muster_routing::availability::{Availability, availability};
use muster_routing::earlier_attempts::last_failure;
use muster_store::StoreError;
use serde_json::{Value, json};

use super::super::checkpoint_record::earlier_attempts;
use super::super::executor_need::ExecutorNeed;
use super::super::no_miner::{no_chain, no_miner};
use super::keeper::QueueKeeper;
use crate::outcome_counts::count_job;
use crate::store::{StoredJob, ended_attempts};

/// Jobs that are closed at a time, so that their writes share commits.
const CLOSED_AT_ONCE: usize = 64;

impl QueueKeeper {
    /// Ends a job that was called off and waits in the store.
    pub(in crate::driver) async fn end_cancelled(
        &self,
        job: JobId,
        reason: &str,
        has_attempts: bool,
    ) -> Result<(), StoreError> {
        let stored = self.read_waiting(job, has_attempts).await?;
        let outcome = Outcome::cancelled(JobStage::ExecutorStartup, reason);
        self.close_waiting(job, &outcome, stored.as_ref()).await
    }

    /// Ends every waiting job whose time was over at `now`.
    pub(in crate::driver) async fn end_expired(&self, now: Timestamp) -> Result<(), StoreError> {
        let expired = self.waiting.lock().expire(now);
        if expired.is_empty() {
            return Ok(());
        }
        let metagraph = self.state.subnet.last_metagraph();
        let lines: BTreeSet<_> = expired.iter().map(|left| left.waiting.line).collect();
        let reasons: BTreeMap<_, _> = lines
            .into_iter()
            .map(|line| {
                let found = metagraph
                    .as_ref()
                    .map(|metagraph| self.chooser.route_need(ExecutorNeed::of_line(line), 0, metagraph));
                (line, explain_wait(found))
            })
            .collect();
        self.end_all(expired, now, |waiting| {
            let line = waiting.line;
            let seconds = now.since(waiting.since).as_secs();
            let (why, excluded) = reasons.get(&line).cloned().unwrap_or_default();
            let of = if line.on_trusted_miner {
                " of this validator's trusted miner"
            } else {
                ""
            };
            let message = format!(
                "the job waited {seconds} s for an executor of class {}{of}, which is as long as it may: {why}",
                line.class
            );
            no_miner(&message, json!({ "waited_s": seconds, "excluded": excluded }))
        })
        .await
    }

    /// Ends the jobs that wait although the chain has not answered since the start, once they have done so for
    /// `chain.wait_s`.
    pub(in crate::driver) async fn end_without_chain(&self) -> Result<(), StoreError> {
        if self.state.subnet.head().is_some() {
            return Ok(());
        }
        let now = self.state.clock.now();
        let ended: Vec<_> = {
            let mut lines = self.waiting.lock();
            let over = lines
                .queue
                .jobs()
                .filter(|waiting| self.chain_wait_end(waiting) <= now);
            let over: Vec<JobId> = over.map(|waiting| waiting.job).collect();
            over.into_iter().filter_map(|job| lines.remove(job)).collect()
        };
        if !ended.is_empty() {
            let code = ErrorCode::ChainUnreachable;
            tracing::warn!(%code, jobs = ended.len(), "the chain has not answered yet, so no miner is known for waiting jobs");
        }
        self.end_all(ended, now, |_| no_chain()).await
    }

    /// When the dispatcher must end a job although the chain does not answer.
    pub(in crate::driver) fn chain_deadline(&self) -> Option<Timestamp> {
        let lines = self.waiting.lock();
        let deadline = lines.queue.next_deadline();
        if self.state.subnet.head().is_some() {
            return deadline;
        }
        let waits = lines.queue.jobs().map(|waiting| self.chain_wait_end(waiting));
        waits.chain(deadline).min()
    }

    /// When a job has waited long enough for the chain's first answer. The time before this process started does not
    /// count: an earlier process may have known the chain.
    fn chain_wait_end(&self, waiting: &WaitingJob) -> Timestamp {
        let limit = Duration::from_secs(self.state.config.chain.wait_s);
        waiting.since.max(self.started_at).plus(limit)
    }

    /// Refuses the jobs that have just arrived in a line and that no miner could run: all of them, or those with a
    /// private image. Jobs that have waited go on waiting: a miner may come back.
    pub(in crate::driver) async fn refuse_unexamined(
        &self,
        need: ExecutorNeed,
        found: &Route,
        metagraph: &Metagraph,
    ) -> Result<(), StoreError> {
        let line = need.line;
        let refused = self.waiting.lock().remove_unexamined(line, need.private_image);
        let (decision, now) = (
            found.decision(line.class, metagraph.block.0),
            self.state.clock.now(),
        );
        let outcome = self.chooser.explain_refusal(need, found, metagraph);
        for left in refused {
            let job = left.waiting.job;
            self.state.store.keep_decision(job, 1, &decision, now).await?;
            self.close_waiting(job, &outcome, None).await?;
        }
        Ok(())
    }

    /// Closes jobs that have left the queue. A job whose attempts failed ends as the last of them did.
    async fn end_all(
        &self,
        ended: Vec<LeftJob>,
        now: Timestamp,
        outcome: impl Fn(&WaitingJob) -> Outcome + Sync,
    ) -> Result<(), StoreError> {
        let outcome = &outcome;
        let closing = ended.into_iter().map(|left| async move {
            let LeftJob { waiting, has_attempts } = left;
            tracing::info!(job = %waiting.job, waited_s = now.since(waiting.since).as_secs(), "a job waited too long");
            let stored = self.read_waiting(waiting.job, has_attempts).await?;
            let failure = stored
                .as_ref()
                .and_then(|stored| last_failure(&earlier_attempts(&stored.attempts)));
            let outcome = failure.unwrap_or_else(|| outcome(&waiting));
            self.close_waiting(waiting.job, &outcome, stored.as_ref()).await
        });
        stream::iter(closing)
            .buffer_unordered(CLOSED_AT_ONCE)
            .try_collect::<()>()
            .await
    }

    /// A waiting job with its attempts; `None` if it has none.
    async fn read_waiting(&self, job: JobId, has_attempts: bool) -> Result<Option<StoredJob>, StoreError> {
        if !has_attempts {
            return Ok(None);
        }
        self.state.store.job(job).await
    }

    async fn close_waiting(
        &self,
        job: JobId,
        outcome: &Outcome,
        stored: Option<&StoredJob>,
    ) -> Result<(), StoreError> {
        let now = self.state.clock.now();
        let attempts = stored.map(|stored| ended_attempts(&stored.attempts));
        let attempts = attempts.unwrap_or_default();
        count_job(outcome);
        tracing::info!(%job, outcome = describe(outcome), fault = %fault_of(outcome), attempts = attempts.len(), "waiting job over");
        let trace = stored.and_then(|stored| {
            let times = JobTimes {
                arrived: stored.created_at,
                closed: now,
            };
            Some(trace_job(stored.request.traceparent()?, times, &attempts))
        });
        export_trace(job, trace.as_ref(), outcome);
        let decisions = self.state.store.told_routes(job).await?;
        let metadata = final_metadata(outcome, &attempts, Vec::new(), trace, decisions);
        self.state.store.close_waiting(job, outcome, &metadata, now).await
    }
}

/// Excluded miners that the report of a job names that waited too long.
const MAX_EXPLAINED: usize = 16;

/// The reason why a job of a class has waited, as text and by miner.
fn explain_wait(found: Option<Route>) -> (String, Value) {
    let Some(mut found) = found else {
        let why = "the chain does not answer, so no miner is known";
        return (why.to_owned(), Value::Null);
    };
    let why = describe_wait(&found);
    found.excluded.truncate(MAX_EXPLAINED);
    (why, found.explain())
}

/// The reason why a job of a class waits, as text.
fn describe_wait(found: &Route) -> String {
    match availability(found) {
        Availability::Now(_) => "jobs before it were started first".to_owned(),
        Availability::Later(reasons) => reasons.to_string(),
        Availability::Never => "no miner of this subnet offers the class any more".to_owned(),
    }
}
