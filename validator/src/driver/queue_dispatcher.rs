//! The dispatcher: starts the drivers of waiting jobs, in order, as far as there is room. [`WaitingLines`] decides,
//! here and in the simulation of whole clusters.
//!
//! [`WaitingLines`]: muster_job_queue::WaitingLines

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::OptionFuture;
use muster_chain::Metagraph;
use muster_job_queue::{ExecutorLine, LineStep};
use muster_protocol::{JobId, Timestamp};
use muster_routing::Route;
use muster_routing::availability::{Availability, ClassCapacity, LaterReasons};
use muster_store::StoreError;

use super::executor_need::ExecutorNeed;
use super::job_driver::{BeginningAttempt, DrivenJob, JobDriver, WaitTime};
use super::miner_channels::MinerChannels;
use super::miner_choice::MinerChooser;
use super::miner_pool::MinerPool;
use super::queue::QueueKeeper;
use super::queue_in_memory::WaitingJobs;
use super::running_jobs::{RunningJobs, RunningKind};
use crate::store::StoredJob;
use crate::validator_state::ValidatorState;

/// The earliest of some times.
fn earliest(times: impl IntoIterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    times.into_iter().flatten().min()
}

/// The fate of a job that was found startable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobStart {
    /// It started, or left the queue, or more is known of it, so that the next job may be looked at.
    Settled,
    /// No miner may be asked for it, and nothing more is known of it than before.
    Unexplained,
}

/// How far the jobs of a line got.
#[derive(Clone, Copy, Debug, Default)]
struct LineOutcome {
    /// When a reason against a miner ends; `None` if no time is known.
    again: Option<Timestamp>,
    /// Whether jobs are left because executors are at work.
    lacks_executor: bool,
}

/// Starts the drivers of waiting jobs.
#[derive(Debug)]
pub(super) struct QueueDispatcher {
    pub(super) state: Arc<ValidatorState>,
    pub(super) waiting: Arc<WaitingJobs>,
    pub(super) chooser: Arc<MinerChooser>,
    pub(super) channels: Arc<MinerChannels>,
    pub(super) running: Arc<RunningJobs>,
    pub(super) queue: Arc<QueueKeeper>,
    pub(super) driver: Arc<JobDriver>,
}

impl QueueDispatcher {
    /// Starts waiting jobs until the validator stops.
    pub(super) async fn run(self) -> Result<(), StoreError> {
        let stop = self.state.tasks.token();
        let mut blocks = self.state.subnet.head_changes();
        let mut resumed = self.driver.resumed.subscribe();
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
    async fn dispatch_round(&self) -> Result<Option<Timestamp>, StoreError> {
        let now = self.state.clock.now();
        let lines = {
            let mut waiting = self.waiting.lock();
            waiting.release_held(now);
            waiting.queue.lines()
        };
        if lines.is_empty() {
            self.waiting.note_waiting_classes(BTreeSet::new());
            return Ok(None);
        }
        let Some(metagraph) = self.metagraph_for_waiting().await else {
            self.queue.end_without_chain().await?;
            self.queue.end_expired(self.state.clock.now()).await?;
            return Ok(self.queue.chain_deadline());
        };
        let mut again = None;
        let mut without_executor = BTreeSet::new();
        for line in lines {
            let waited = self.waiting.lock().queue.waiting_for(line);
            let step = self.dispatch_line(line, Arc::clone(&metagraph)).await?;
            again = earliest([again, step.again]);
            if step.lacks_executor && !line.on_trusted_miner {
                without_executor.insert(line.class);
            }
            if self.waiting.lock().queue.waiting_for(line) < waited {
                self.queue.send_head_places(line);
            }
        }
        self.waiting.note_waiting_classes(without_executor);
        self.queue.end_expired(now).await?;
        Ok(earliest([again, self.waiting.lock().queue.next_deadline()]))
    }

    /// The metagraph to route by; `None` if the chain has not answered by the time at which a job has waited too long.
    async fn metagraph_for_waiting(&self) -> Option<Arc<Metagraph>> {
        let due = OptionFuture::from(
            self.queue
                .chain_deadline()
                .map(|at| self.state.clock.sleep_until(at)),
        );
        tokio::select! {
            biased;
            metagraph = self.state.subnet.metagraph() => Some(metagraph),
            Some(()) = due => None,
        }
    }

    /// Starts the jobs of one line for which there is room.
    async fn dispatch_line(
        &self,
        line: ExecutorLine,
        mut metagraph: Arc<Metagraph>,
    ) -> Result<LineOutcome, StoreError> {
        loop {
            if self.waiting.lock().queue.waiting_for(line) == 0 {
                return Ok(LineOutcome::default());
            }
            let found = self
                .chooser
                .route_need(ExecutorNeed::of_line(line), 0, &metagraph);
            let private = self.route_private_images(line, &metagraph);
            let step = self.waiting.lock().next_step(line, &found, private.as_ref());
            match step {
                LineStep::Start(job) => {
                    if self.start(job, &found, &metagraph).await? == JobStart::Unexplained {
                        return Ok(LineOutcome::default());
                    }
                }
                LineStep::PassOver { arrived, again } => {
                    self.send_places(arrived);
                    return Ok(LineOutcome {
                        again,
                        lacks_executor: false,
                    });
                }
                LineStep::Block(reasons) => {
                    self.block(line, reasons, &metagraph);
                    return Ok(LineOutcome {
                        again: reasons.until,
                        lacks_executor: reasons.at_work > 0 || reasons.full > 0,
                    });
                }
                LineStep::Refuse => {
                    // A miner may have announced itself since the metagraph was read.
                    if let Some(newer) = self.state.subnet.read_newer_than(&metagraph).await {
                        metagraph = newer;
                        continue;
                    }
                    let need = ExecutorNeed::of_line(line);
                    self.queue.refuse_unexamined(need, &found, &metagraph).await?;
                    return Ok(LineOutcome::default());
                }
                LineStep::RefusePrivate => {
                    let private = private.unwrap_or_default();
                    if let Some(newer) = self.refuse_private_images(line, &private, &metagraph).await? {
                        metagraph = newer;
                    }
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
        Some(self.chooser.route_need(need, 0, metagraph))
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
            self.queue.refuse_unexamined(need, found, metagraph).await?;
        }
        Ok(newer)
    }

    /// Starts a job that was found startable. Returns its fate.
    async fn start(&self, job: JobId, found: &Route, metagraph: &Metagraph) -> Result<JobStart, StoreError> {
        match self.state.store.job(job).await? {
            Some(stored) if stored.closed_at.is_none() => {
                let need = ExecutorNeed::of_job(&stored.request);
                let Err(unavailable) = self.start_waiting(stored, metagraph) else {
                    return Ok(JobStart::Settled);
                };
                let mut lines = self.waiting.lock();
                let passed = match unavailable {
                    Availability::Later(LaterReasons {
                        too_long: 1..,
                        until: Some(until),
                        ..
                    }) => {
                        lines.hold(job, until);
                        true
                    }
                    Availability::Later(_) | Availability::Never | Availability::Now(_) => {
                        lines.pass_over(job, need.line, need.private_image, &found.candidates)
                    }
                };
                Ok(if passed {
                    JobStart::Settled
                } else {
                    JobStart::Unexplained
                })
            }
            Some(_) | None => {
                // A job that ended lost its row in the same write, so this does not happen.
                tracing::error!(%job, "a job waits that has ended or is unknown; it is forgotten");
                self.waiting.lock().remove(job);
                Ok(JobStart::Settled)
            }
        }
    }

    /// Notes that a line waits, and sends the places of the jobs that have arrived: their users learn now that they
    /// wait.
    fn block(&self, line: ExecutorLine, reasons: LaterReasons, metagraph: &Metagraph) {
        let capacities = self.chooser.capacities(MinerPool::of_line(line), metagraph);
        let executors = capacities.get(&line.class).map_or(0, ClassCapacity::usable);
        let arrived = self.waiting.lock().block(line, reasons, executors);
        self.send_places(arrived);
    }

    fn send_places(&self, jobs: Vec<JobId>) {
        for job in jobs {
            self.queue.send_place(job);
        }
    }

    /// Starts the driver of a waiting job on the miner that suits it best. The next job may be looked at then.
    ///
    /// # Errors
    /// No miner may be asked now, for these reasons.
    fn start_waiting(&self, stored: StoredJob, metagraph: &Metagraph) -> Result<(), Availability> {
        let StoredJob {
            request,
            mut attempts,
            ..
        } = stored;
        let attempt = self.chooser.assign_waiting(&request, &attempts, metagraph)?;
        let job = request.uuid;
        let started = {
            let mut lines = self.waiting.lock();
            // Registered while the queue is locked, so that a cancellation finds the job here or there.
            let taken = lines.start(job);
            taken.map(|taken| (taken, self.running.register(job, RunningKind::Other, None)))
        };
        let Some(((waiting, turn), cancel)) = started else {
            // It was called off while its request was read.
            self.chooser.records.withdraw_attempt(&attempt.attempt);
            return Ok(());
        };
        let waited_s = self.state.clock.now().since(waiting.since).as_secs();
        tracing::info!(%job, waited_s, miner = %attempt.attempt.miner, "a waiting job starts");
        attempts.push(attempt.attempt.clone());
        let driven = DrivenJob {
            channel: Some(self.channels.open_for(&attempt.attempt)),
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
        self.driver.spawn(driven, cancel);
        Ok(())
    }
}
