//! The dispatcher: starts the drivers of waiting jobs, in order, as far as there is room.

use std::sync::Arc;

use futures_util::future::OptionFuture;
use muster_chain::Metagraph;
use muster_job_queue::ExecutorLine;
use muster_protocol::{JobId, Timestamp};
use muster_routing::availability::{Availability, availability};
use muster_routing::{Candidate, Route};
use muster_store::StoreError;

use super::super::assignment::ExecutorNeed;
use super::super::miner_pool::MinerPool;
use super::super::{BeginningAttempt, DrivenJob, JobDrivers, WaitTime, assignment};
use crate::store::StoredJob;

/// The earliest of some times.
fn earliest(times: impl IntoIterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    times.into_iter().flatten().min()
}

/// When a reason ends for which no miner of a route may be asked now.
fn end_of_wait(found: &Route) -> Option<Timestamp> {
    match availability(found) {
        Availability::Later(reasons) => reasons.until,
        Availability::Now(_) | Availability::Never => None,
    }
}

impl JobDrivers {
    /// Starts waiting jobs until the validator stops.
    pub(in crate::driver) async fn dispatch_waiting(self: Arc<Self>) -> Result<(), StoreError> {
        let stop = self.state.tasks.token();
        let mut blocks = self.state.subnet.head_changes();
        let mut resumed = self.resumed.subscribe();
        let all_resumed = async { resumed.wait_for(|all| *all).await.is_ok() };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = all_resumed => {}
        }
        loop {
            let again = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                again = self.dispatch_round() => again?,
            };
            let due = OptionFuture::from(again.map(|at| self.state.clock.sleep_until(at)));
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = self.waiting.wake.notified() => {}
                // A miner may have come with the block. The sender lives as long as the state, so the channel is open.
                _ = blocks.changed() => {}
                Some(()) = due => {}
            }
        }
    }

    /// Starts every waiting job for which there is room, and closes those that had waited too long before it looked for
    /// room. Returns when to look again even if nothing happens.
    async fn dispatch_round(self: &Arc<Self>) -> Result<Option<Timestamp>, StoreError> {
        let now = self.state.clock.now();
        let lines = self.waiting.lock().queue.lines();
        if lines.is_empty() {
            return Ok(None);
        }
        let Some(metagraph) = self.metagraph_for_waiting().await else {
            self.end_without_chain().await?;
            self.end_expired(self.state.clock.now()).await?;
            return Ok(self.chain_deadline());
        };
        let mut again = None;
        for line in lines {
            let waited = self.waiting.lock().queue.waiting_for(line);
            again = earliest([again, self.dispatch_line(line, Arc::clone(&metagraph)).await?]);
            if self.waiting.lock().queue.waiting_for(line) < waited {
                self.tell_head(line);
            }
        }
        self.end_expired(now).await?;
        Ok(earliest([again, self.waiting.lock().queue.next_deadline()]))
    }

    /// The metagraph to route by; `None` if the chain has not answered by the time at which a job has waited too long.
    async fn metagraph_for_waiting(&self) -> Option<Arc<Metagraph>> {
        let due = OptionFuture::from(self.chain_deadline().map(|at| self.state.clock.sleep_until(at)));
        tokio::select! {
            biased;
            metagraph = self.state.subnet.metagraph() => Some(metagraph),
            Some(()) = due => None,
        }
    }

    /// Starts the jobs of one line for which there is room. Returns when a reason against a miner ends.
    async fn dispatch_line(
        self: &Arc<Self>,
        line: ExecutorLine,
        mut metagraph: Arc<Metagraph>,
    ) -> Result<Option<Timestamp>, StoreError> {
        loop {
            if self.waiting.lock().queue.waiting_for(line) == 0 {
                return Ok(None);
            }
            let found = assignment::route_need(self, ExecutorNeed::of_line(line), &metagraph);
            let private = self.route_private_images(line, &metagraph);
            if let Some(private) = &private
                && availability(private) == Availability::Never
                && self.has_unexamined_private_image(line)
            {
                if let Some(newer) = self.refuse_private_images(line, private, &metagraph).await? {
                    metagraph = newer;
                }
                continue;
            }
            match availability(&found) {
                Availability::Now(_) => {}
                Availability::Later(reasons) => {
                    let capacities = assignment::capacities(self, MinerPool::of_line(line), &metagraph);
                    let executors = capacities
                        .get(&line.class)
                        .map_or(0, |capacity| capacity.executors);
                    let arrived = {
                        let mut lines = self.waiting.lock();
                        lines.executors.insert(line, executors);
                        lines.blocked.insert(line, reasons);
                        lines.unexamined.remove(&line).unwrap_or_default()
                    };
                    // Their users learn now that they wait.
                    for job in arrived {
                        self.tell_position(job);
                    }
                    return Ok(reasons.until);
                }
                Availability::Never => {
                    // A miner may have announced itself since the metagraph was read.
                    if let Some(newer) = self.state.subnet.read_newer_than(&metagraph).await {
                        metagraph = newer;
                        continue;
                    }
                    self.refuse_unexamined(ExecutorNeed::of_line(line), &found, &metagraph)
                        .await?;
                    return Ok(None);
                }
            }
            let takers = private
                .as_ref()
                .map_or(&found.candidates, |private| &private.candidates);
            let Some(job) = self.first_startable(line, &found.candidates, takers) else {
                // All that wait have been tried on the miners that are free, or have images which these do not take.
                let arrived = self.waiting.lock().unexamined.remove(&line);
                for job in arrived.unwrap_or_default() {
                    self.tell_position(job);
                }
                return Ok(private.and_then(|private| end_of_wait(&private)));
            };
            match self.state.store.job(job).await? {
                Some(stored) if stored.closed_at.is_none() => {
                    let need = ExecutorNeed::of_job(&stored.request);
                    if !self.start_waiting(stored, &metagraph)
                        && !self.pass_over(job, need, &found.candidates)
                    {
                        return Ok(None);
                    }
                }
                Some(_) | None => {
                    // A job that ended lost its row in the same write, so this does not happen.
                    tracing::error!(%job, "a job waits that has ended or is unknown; it is forgotten");
                    self.waiting.lock().remove(job);
                }
            }
        }
    }

    /// The route of the waiting jobs of a line with private images; `None` if no such job is known to wait.
    fn route_private_images(&self, line: ExecutorLine, metagraph: &Metagraph) -> Option<Route> {
        if !self.waiting.lock().needs_private_images(line) {
            return None;
        }
        let need = ExecutorNeed {
            line,
            private_image: true,
        };
        Some(assignment::route_need(self, need, metagraph))
    }

    /// Notes why a job that was found startable does not start, so that others may; `false` if nothing more is known of
    /// it than before.
    fn pass_over(&self, job: JobId, need: ExecutorNeed, candidates: &[Candidate]) -> bool {
        let mut lines = self.waiting.lock();
        // A job of an earlier process whose image not every executor takes.
        if need.private_image && lines.private_images.insert(job) {
            return true;
        }
        // The trusted miner is asked again later.
        if need.line.on_trusted_miner {
            return false;
        }
        // The subnet has changed since a job with attempts was found startable: it avoids an owner's miners that were
        // not known as such.
        let Some(tried) = lines.tried.get_mut(&job) else {
            return false;
        };
        tried.extend(candidates.iter().map(|candidate| candidate.miner));
        true
    }

    /// Refuses the jobs with private images that have just arrived in a line, because no miner could run them. Returns
    /// a newer metagraph instead if there is one: a miner may have announced itself in it.
    async fn refuse_private_images(
        &self,
        line: ExecutorLine,
        found: &Route,
        metagraph: &Metagraph,
    ) -> Result<Option<Arc<Metagraph>>, StoreError> {
        let newer = self.state.subnet.read_newer_than(metagraph).await;
        if newer.is_none() {
            let need = ExecutorNeed {
                line,
                private_image: true,
            };
            self.refuse_unexamined(need, found, metagraph).await?;
        }
        Ok(newer)
    }

    /// Whether a job with a private image has arrived since the line was last looked at.
    fn has_unexamined_private_image(&self, line: ExecutorLine) -> bool {
        let lines = self.waiting.lock();
        let mut arrived = lines.unexamined.get(&line).into_iter().flatten();
        arrived.any(|job| lines.private_images.contains(job))
    }

    /// The first job of a line that one of these miners may run; `takers` are those that take private images. Only jobs
    /// that have had an attempt, or have a private image, are ever passed over.
    fn first_startable(
        &self,
        line: ExecutorLine,
        candidates: &[Candidate],
        takers: &[Candidate],
    ) -> Option<JobId> {
        let lines = self.waiting.lock();
        let is_startable = |job: &JobId| {
            let candidates = if lines.private_images.contains(job) {
                takers
            } else {
                candidates
            };
            match lines.tried.get(job) {
                None => !candidates.is_empty(),
                Some(tried) => candidates
                    .iter()
                    .any(|candidate| !tried.contains(&candidate.miner)),
            }
        };
        // The turn of an account goes to its next job where its first one is passed over.
        let first = lines
            .queue
            .first_where(line, |waiting| is_startable(&waiting.job));
        first.map(|waiting| waiting.job)
    }

    /// Starts the driver of a waiting job on the miner that suits it best. Returns whether the next job may be looked
    /// at: `false` if no miner may be asked.
    fn start_waiting(self: &Arc<Self>, stored: StoredJob, metagraph: &Metagraph) -> bool {
        let StoredJob {
            request,
            mut attempts,
            ..
        } = stored;
        let Some(attempt) = assignment::assign_waiting(self, &request, &attempts, metagraph) else {
            return false;
        };
        let job = request.uuid;
        let started = {
            let mut lines = self.waiting.lock();
            // Registered while the queue is locked, so that a cancellation finds the job here or there.
            lines.queue.take(job).map(|taken| {
                lines.forget(job);
                (taken, self.running.register(job, None))
            })
        };
        let Some(((waiting, turn), cancel)) = started else {
            // It was called off while its request was read.
            self.withdraw_attempt(&attempt.attempt);
            return true;
        };
        let waited_s = self.state.clock.now().since(waiting.since).as_secs();
        tracing::info!(%job, waited_s, miner = %attempt.attempt.miner, "a waiting job starts");
        attempts.push(attempt.attempt.clone());
        let driven = DrivenJob {
            channel: Some(self.channel_of(&attempt.attempt)),
            receipts: vec![attempt.receipt.clone()],
            wait: WaitTime {
                since: waiting.since,
                deadline: waiting.deadline,
            },
            begins: Some(Box::new(BeginningAttempt {
                waiting,
                turn,
                attempt,
            })),
            request,
            cancelled: None,
            attempts,
            resumed: false,
        };
        self.spawn_registered(driven, cancel);
        true
    }
}
