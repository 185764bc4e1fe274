//! The dispatcher: starts the drivers of waiting jobs, in order, as far as there is room.

use std::sync::Arc;

use futures_util::future::OptionFuture;
use muster_chain::Metagraph;
use muster_protocol::{ExecutorClass, JobId, Timestamp};
use muster_routing::Candidate;
use muster_routing::availability::{Availability, availability};
use muster_store::StoreError;

use super::super::{BeginningAttempt, DrivenJob, JobDrivers, WaitTime, assignment};
use crate::store::StoredJob;

/// The earliest of some times.
fn earliest(times: impl IntoIterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    times.into_iter().flatten().min()
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
        let classes = self.waiting.lock().queue.classes();
        if classes.is_empty() {
            return Ok(None);
        }
        let Some(metagraph) = self.metagraph_for_waiting().await else {
            self.end_without_chain().await?;
            self.end_expired(self.state.clock.now()).await?;
            return Ok(self.chain_deadline());
        };
        let mut again = None;
        for class in classes {
            let waited = self.waiting.lock().queue.waiting_for(class);
            again = earliest([again, self.dispatch_class(class, Arc::clone(&metagraph)).await?]);
            if self.waiting.lock().queue.waiting_for(class) < waited {
                self.tell_head(class);
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
    async fn dispatch_class(
        self: &Arc<Self>,
        class: ExecutorClass,
        mut metagraph: Arc<Metagraph>,
    ) -> Result<Option<Timestamp>, StoreError> {
        loop {
            if self.waiting.lock().queue.waiting_for(class) == 0 {
                return Ok(None);
            }
            let found = assignment::route_class(self, class, &metagraph);
            match availability(&found) {
                Availability::Now(_) => {}
                Availability::Later(reasons) => {
                    let capacities = assignment::capacities(self, &metagraph);
                    let executors = capacities.get(&class).map_or(0, |capacity| capacity.executors);
                    let arrived = {
                        let mut lines = self.waiting.lock();
                        lines.executors.insert(class, executors);
                        lines.blocked.insert(class, reasons);
                        lines.unexamined.remove(&class).unwrap_or_default()
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
                    self.refuse_unexamined(class, &found, &metagraph).await?;
                    return Ok(None);
                }
            }
            let Some(job) = self.first_startable(class, &found.candidates) else {
                // All that wait have been tried on the miners that are free.
                self.waiting.lock().unexamined.remove(&class);
                return Ok(None);
            };
            match self.state.store.job(job).await? {
                Some(stored) if !stored.closed => {
                    if !self.start_waiting(stored, &metagraph) {
                        // The subnet has changed since a job with attempts was found startable: it avoids an owner's
                        // miners that were not known as such. Other jobs may start.
                        let mut lines = self.waiting.lock();
                        let Some(tried) = lines.tried.get_mut(&job) else {
                            return Ok(None);
                        };
                        tried.extend(found.candidates.iter().map(|candidate| candidate.miner));
                    }
                }
                Some(_) | None => {
                    // A job that ended lost its row in the same write, so this does not happen.
                    tracing::error!(%job, "a job waits that has ended or is unknown; it is forgotten");
                    self.waiting.lock().queue.remove(job);
                }
            }
        }
    }

    /// The first job of a line that one of these miners may run. Only jobs that have had an attempt are ever passed
    /// over, and their account's turn goes to its next job.
    fn first_startable(&self, class: ExecutorClass, candidates: &[Candidate]) -> Option<JobId> {
        let lines = self.waiting.lock();
        let first = lines
            .queue
            .first_where(class, |waiting| match lines.tried.get(&waiting.job) {
                None => true,
                Some(tried) => candidates
                    .iter()
                    .any(|candidate| !tried.contains(&candidate.miner)),
            });
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
                lines.tried.remove(&job);
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
