//! A manager of executors that an [`ExecutorEngine`] starts. The engine is asked once for all of a pool's executors,
//! however many there are, and again after a pause.
//!
//! An engine that reports that an executor is gone proves nothing: programs have outlived the daemons that watched
//! them. So the end that an engine shows ends a lease only until the executor has dialled in (the lease decides), and
//! no second executor is started for a lease whose first one is away.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use muster_process::backoff::random_jitter;
use muster_process::{Backoff, SharedClock};
use muster_protocol::AttemptId;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::engine::{EngineError, EngineExecutor, ExecutorEngine, Survey};
use crate::{ExecutorManager, ManagerError, Order, PoolView, Running};

/// The pause between two surveys while executors are open, and while none is.
const SURVEY_EVERY: Duration = Duration::from_secs(2);
const IDLE_SURVEY_EVERY: Duration = Duration::from_secs(30);
/// The time for an executor whose lease has ended to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// This many surveys in a row have to miss an executor before it counts as gone: an engine may list a new one late.
const ABSENT_SURVEYS: u32 = 3;
/// The waits between the tries of a call that the engine did not answer.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(30),
};
/// After this many surveys in a row without an answer the engine counts as away. One that is lost changes nothing.
const FAULT_AFTER: u32 = 3;
/// After this many failures in a row the operator has to look.
const ALARM_AFTER: u32 = 6;

/// Executors of one pool on one engine. Clones share one state.
pub struct EngineExecutors<E> {
    shared: Arc<PoolState<E>>,
}

struct PoolState<E> {
    engine: E,
    clock: SharedClock,
    /// The attempts whose executors this process started or went on with, and has not taken away yet.
    open: Mutex<BTreeSet<AttemptId>>,
    /// The hosts that get no executor, because their operator empties them.
    excluded: Mutex<BTreeSet<String>>,
    latest: watch::Sender<Latest>,
    /// Wakes the survey before its pause is over.
    wake: Notify,
}

/// The last survey that the engine answered, and the fault since then.
#[derive(Clone, Debug, Default)]
struct Latest {
    /// Counts the surveys that were answered.
    number: u64,
    survey: Arc<Survey>,
    fault: Option<String>,
}

impl<E> Clone for EngineExecutors<E> {
    fn clone(&self) -> Self {
        let shared = Arc::clone(&self.shared);
        Self { shared }
    }
}

impl<E: ExecutorEngine> EngineExecutors<E> {
    /// Starts nothing yet: [`EngineExecutors::follow`] has to run beside it.
    pub fn new(engine: E, clock: SharedClock) -> Self {
        let shared = PoolState {
            engine,
            clock,
            open: Mutex::default(),
            excluded: Mutex::default(),
            latest: watch::Sender::default(),
            wake: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Surveys the engine until `stop` is cancelled.
    pub async fn follow(self, stop: CancellationToken) {
        let mut failures = 0_u32;
        loop {
            let excluded = self.shared.excluded.lock().clone();
            let survey = tokio::select! {
                () = stop.cancelled() => return,
                survey = self.shared.engine.survey(&excluded) => survey,
            };
            let pause = match survey {
                Ok(survey) => {
                    failures = 0;
                    self.shared.latest.send_modify(|latest| {
                        latest.number = latest.number.wrapping_add(1);
                        latest.survey = Arc::new(survey);
                        latest.fault = None;
                    });
                    if self.shared.open.lock().is_empty() {
                        IDLE_SURVEY_EVERY
                    } else {
                        SURVEY_EVERY
                    }
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    self.log_failure("the engine's executors cannot be surveyed", failures, &error);
                    if failures >= FAULT_AFTER {
                        let fault = Some(error.to_string());
                        self.shared.latest.send_modify(|latest| latest.fault = fault);
                    }
                    RETRY.delay(failures, random_jitter())
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.shared.clock.sleep(pause) => {}
                () = self.shared.wake.notified() => {}
            }
        }
    }

    fn log_failure(&self, what: &str, failures: u32, error: &EngineError) {
        let engine = self.shared.engine.kind();
        if failures < ALARM_AFTER {
            tracing::warn!(engine, failures, %error, "{what}; trying again");
        } else {
            tracing::error!(engine, failures, %error, "{what}; executors may still run there; trying again");
        }
    }

    async fn run_to_end(self, order: Order, stop: CancellationToken) -> Result<String, ManagerError> {
        let attempt = order.token.attempt();
        self.shared.open.lock().insert(attempt);
        let created = self.create(&order, &stop).await;
        let how = match &created {
            Ok(()) => self.watch(&order, &stop, EngineSays::Nothing).await,
            Err(_) => None,
        };
        // Also after a failure: the call may have made one.
        self.delete(attempt).await;
        self.shared.open.lock().remove(&attempt);
        created.map(|()| how.unwrap_or_else(|| "it was taken away".to_owned()))
    }

    /// Creates the executor. Tries again while the engine does not answer, until the lease has ended.
    async fn create(&self, order: &Order, stop: &CancellationToken) -> Result<(), ManagerError> {
        let mut failures = 0_u32;
        loop {
            let excluded = self.shared.excluded.lock().clone();
            let Some(created) = stop
                .run_until_cancelled(self.shared.engine.create(order, &excluded))
                .await
            else {
                return Ok(());
            };
            match created {
                Ok(()) => {
                    self.shared.wake.notify_one();
                    return Ok(());
                }
                Err(error @ EngineError::Refused(_)) => return Err(ManagerError::Engine(error)),
                Err(error @ EngineError::Unreachable(_)) => {
                    failures = failures.saturating_add(1);
                    self.log_failure("an executor cannot be started", failures, &error);
                    order.tell(error.to_string());
                    let pause = self.shared.clock.sleep(RETRY.delay(failures, random_jitter()));
                    if stop.run_until_cancelled(pause).await.is_none() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Follows an executor until the engine shows its end or its lease has ended. An end that the engine shows is
    /// returned at once; `None` if the lease ended first.
    async fn watch(&self, order: &Order, stop: &CancellationToken, mut says: EngineSays) -> Option<String> {
        let attempt = order.token.attempt();
        let mut latest = self.shared.latest.subscribe();
        let begun = latest.borrow_and_update().number;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                // The sender lives as long as this manager.
                _ = latest.changed() => {}
            }
            let now = latest.borrow_and_update().clone();
            if now.number == begun || now.fault.is_some() {
                continue;
            }
            says = says.after(now.survey.executors.get(&attempt));
            match &says {
                EngineSays::Nothing | EngineSays::Absent(_) | EngineSays::Running => {}
                EngineSays::Pending(reason) => {
                    order.tell(format!("{}: {reason}", self.shared.engine.kind()));
                }
                EngineSays::Over(how) => return Some(how.clone()),
            }
        }
        self.wait_for_own_end(attempt, latest).await;
        None
    }

    /// An executor whose lease has ended removes its container and ends by itself, if it is let.
    async fn wait_for_own_end(&self, attempt: AttemptId, mut latest: watch::Receiver<Latest>) {
        let ended = async {
            loop {
                let is_there = latest
                    .borrow_and_update()
                    .survey
                    .executors
                    .get(&attempt)
                    .is_some_and(|executor| matches!(executor, EngineExecutor::Running { .. }));
                if !is_there || latest.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = ended => {}
            () = self.shared.clock.sleep(PATIENCE) => {}
        }
    }

    /// Takes an executor away; tries until the engine reports that it is gone.
    async fn delete(&self, attempt: AttemptId) {
        let mut failures = 0_u32;
        while let Err(error) = self.shared.engine.delete(attempt).await {
            failures = failures.saturating_add(1);
            self.log_failure("an executor cannot be taken away", failures, &error);
            self.shared
                .clock
                .sleep(RETRY.delay(failures, random_jitter()))
                .await;
        }
    }

    /// Goes on with an executor of an earlier process, if the engine has it.
    async fn adopt(self, order: Order, stop: CancellationToken) -> Result<String, ManagerError> {
        let attempt = order.token.attempt();
        let survey = self.answered_survey().await;
        if !survey.executors.contains_key(&attempt) {
            self.shared.open.lock().remove(&attempt);
            return Ok(format!("it is not on {}", self.shared.engine.kind()));
        }
        let how = self.watch(&order, &stop, EngineSays::Running).await;
        self.delete(attempt).await;
        self.shared.open.lock().remove(&attempt);
        Ok(how.unwrap_or_else(|| "it was taken away".to_owned()))
    }

    /// The first survey that the engine answers from now on.
    async fn answered_survey(&self) -> Arc<Survey> {
        let mut latest = self.shared.latest.subscribe();
        let begun = latest.borrow_and_update().number;
        self.shared.wake.notify_one();
        // The sender lives as long as this manager.
        let answered = latest.wait_for(|latest| latest.number != begun).await;
        answered
            .map(|latest| Arc::clone(&latest.survey))
            .unwrap_or_default()
    }

    async fn take_away_all_but(self, kept: BTreeSet<AttemptId>) {
        let survey = self.answered_survey().await;
        let left = survey.executors.keys().filter(|attempt| !kept.contains(attempt));
        for attempt in left.copied() {
            // A lease of this process may have begun since the survey was asked for.
            if self.shared.open.lock().contains(&attempt) {
                continue;
            }
            tracing::info!(%attempt, engine = self.shared.engine.kind(), "taking away an executor that an earlier process started");
            self.delete(attempt).await;
        }
    }
}

/// The engine's report on one executor, over several surveys.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EngineSays {
    /// No survey since its start has shown it.
    Nothing,
    Pending(String),
    Running,
    /// This many surveys in a row have missed it.
    Absent(u32),
    Over(String),
}

impl EngineSays {
    /// The report after one more survey.
    fn after(self, shown: Option<&EngineExecutor>) -> Self {
        let missed = match (&self, shown) {
            (Self::Over(_), _) => return self,
            (_, Some(EngineExecutor::Pending { reason })) => return Self::Pending(reason.clone()),
            (_, Some(EngineExecutor::Running { .. })) => return Self::Running,
            (_, Some(EngineExecutor::Ended { how })) => return Self::Over(how.clone()),
            (Self::Absent(missed), None) => missed.saturating_add(1),
            (Self::Nothing | Self::Pending(_) | Self::Running, None) => 1,
        };
        if missed >= ABSENT_SURVEYS {
            Self::Over("the engine does not show it any more".to_owned())
        } else {
            Self::Absent(missed)
        }
    }
}

impl<E: ExecutorEngine> ExecutorManager for EngineExecutors<E> {
    fn run(&self, order: Order, stop: CancellationToken) -> Running {
        Box::pin(self.clone().run_to_end(order, stop))
    }

    fn resume(&self, order: Order, _apart: bool, stop: CancellationToken) -> Option<Running> {
        // Marked before the first survey, so that `reclaim` leaves it alone.
        self.shared.open.lock().insert(order.token.attempt());
        Some(Box::pin(self.clone().adopt(order, stop)))
    }

    fn reclaim(&self, kept: BTreeSet<AttemptId>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.clone().take_away_all_but(kept))
    }

    fn view(&self) -> Option<PoolView> {
        let latest = self.shared.latest.borrow().clone();
        let waiting: BTreeMap<_, _> = latest
            .survey
            .executors
            .iter()
            .filter_map(|(attempt, executor)| match executor {
                EngineExecutor::Pending { reason } => Some((*attempt, reason.clone())),
                EngineExecutor::Running { .. } | EngineExecutor::Ended { .. } => None,
            })
            .collect();
        Some(PoolView {
            // Before the first answer, nothing is known of the machines.
            places: (latest.number > 0).then_some(latest.survey.places),
            waiting,
            fault: latest.fault,
        })
    }

    fn settled(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut latest = self.shared.latest.subscribe();
        Box::pin(async move {
            // The sender may be gone with its manager.
            let _ = latest
                .wait_for(|latest| latest.number > 0 || latest.fault.is_some())
                .await;
        })
    }

    fn exclude_hosts(&self, hosts: BTreeSet<String>) {
        let mut excluded = self.shared.excluded.lock();
        if *excluded != hosts {
            *excluded = hosts;
            self.shared.wake.notify_one();
        }
    }

    fn attempts_on(&self, hosts: &BTreeSet<String>) -> BTreeSet<AttemptId> {
        let survey = Arc::clone(&self.shared.latest.borrow().survey);
        let on_host = survey.executors.iter().filter(|(_, executor)| match executor {
            EngineExecutor::Running { host } => host.as_ref().is_some_and(|host| hosts.contains(host)),
            EngineExecutor::Pending { .. } | EngineExecutor::Ended { .. } => false,
        });
        on_host.map(|(attempt, _)| *attempt).collect()
    }
}

#[cfg(test)]
mod tests;
