//! The choice of a pool for a lease, and the pools' executors as one manager.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_protocol::{AttemptId, ExecutorClass, Manifest};
use muster_provisioning::{ExecutorManager, ManagerError, Order, Running, SpendExceeded};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::executor_pools::config::{EngineKind, PoolConfig};

/// One open pool.
pub struct Pool {
    name: String,
    class: ExecutorClass,
    engine: EngineKind,
    count: u32,
    price: u64,
    /// The processes beside its places that only fetch images.
    fetching: u32,
    dial: String,
    manager: Arc<dyn ExecutorManager>,
    used: Mutex<u32>,
}

/// A pool as its operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// The name in the configuration.
    pub name: String,
    /// The class of all its executors.
    pub class: ExecutorClass,
    /// The way in which its executors are started.
    pub engine: EngineKind,
    /// The most executors at one time, by its configuration.
    pub count: u32,
    /// The executors that there is a place for now, busy ones included.
    pub places: u32,
    /// The executors that are started or run.
    pub used: u32,
    /// The executors that are started and do not run yet, each with the engine's reason.
    pub waiting: BTreeMap<AttemptId, String>,
    /// The engine's fault, if it does not answer.
    pub fault: Option<String>,
}

/// All pools of a miner. Clones share them.
#[derive(Clone)]
pub struct Pools(Arc<PoolList>);

struct PoolList {
    pools: Vec<Pool>,
    /// The places of the pools in the list, the cheapest pool first.
    by_price: Vec<usize>,
    /// The attempts whose executors are processes on this machine.
    local: Mutex<BTreeSet<AttemptId>>,
    /// Counts the executors that have ended.
    freed: watch::Sender<u64>,
}

/// A place in a pool. Dropping it gives it back.
#[must_use]
pub struct PoolSlot {
    pools: Pools,
    index: usize,
}

impl fmt::Debug for Pools {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.status()).finish()
    }
}

impl Pool {
    /// A pool of this configuration, whose executors `manager` starts. `fetching` processes beside its places may only
    /// fetch images.
    pub fn new(config: &PoolConfig, manager: Arc<dyn ExecutorManager>, fetching: u32) -> Self {
        Self {
            name: config.name.clone(),
            class: config.class,
            engine: config.engine,
            count: config.count,
            price: config.price,
            fetching: if config.count == 0 { 0 } else { fetching },
            dial: config.dial.clone(),
            manager,
            used: Mutex::new(0),
        }
    }

    /// The executors that there is a place for now, busy ones included: an engine that does not answer has none.
    fn places(&self) -> u32 {
        match self.manager.view() {
            None => self.count,
            Some(view) if view.fault.is_some() => 0,
            Some(view) => view.places.unwrap_or(0).min(self.count),
        }
    }

    /// Takes one of its places, or of the `beside` further ones.
    fn use_one(&self, beside: u32) -> bool {
        let places = self.places().saturating_add(beside);
        let mut used = self.used.lock();
        let is_free = *used < places;
        *used = used.saturating_add(u32::from(is_free));
        is_free
    }

    fn status(&self) -> PoolStatus {
        let view = self.manager.view().unwrap_or_default();
        PoolStatus {
            name: self.name.clone(),
            class: self.class,
            engine: self.engine,
            count: self.count,
            places: self.places(),
            used: *self.used.lock(),
            waiting: view.waiting,
            fault: view.fault,
        }
    }
}

impl Pools {
    /// These pools. Of those of a class with a free place the cheapest one gets a lease, and of equally cheap ones the
    /// first.
    pub fn new(pools: Vec<Pool>) -> Self {
        let mut by_price: Vec<usize> = (0..pools.len()).collect();
        by_price.sort_by_key(|index| pools.get(*index).map(|pool| pool.price));
        Self(Arc::new(PoolList {
            pools,
            by_price,
            local: Mutex::default(),
            freed: watch::Sender::new(0),
        }))
    }

    /// The executors of each class that the configuration promises whatever an engine reports: those on this machine
    /// and those of the operator's commands.
    pub fn fixed(&self) -> Manifest {
        self.sum(|pool| pool.manager.view().is_none())
    }

    /// The executors of each class that engines have places for now.
    pub fn elastic(&self) -> Manifest {
        self.sum(|pool| pool.manager.view().is_some())
    }

    /// The executors that all pools have places for now.
    pub fn places(&self) -> u32 {
        let places = self.0.pools.iter().map(Pool::places);
        places.fold(0, u32::saturating_add)
    }

    fn sum(&self, counts: impl Fn(&Pool) -> bool) -> Manifest {
        let pools = self.0.pools.iter().filter(|pool| counts(pool));
        pools.fold(Manifest::default(), |sum, pool| {
            sum.plus(&Manifest::new([(pool.class, pool.places())]))
        })
    }

    /// Waits until every engine has reported what it has places for, or has not answered.
    pub async fn settled(&self) {
        join_all(self.0.pools.iter().map(|pool| pool.manager.settled())).await;
    }

    /// Every pool as it is now.
    pub fn status(&self) -> Vec<PoolStatus> {
        self.0.pools.iter().map(Pool::status).collect()
    }

    /// Follows the ends of executors, after each of which a place may be free.
    pub fn freed(&self) -> watch::Receiver<u64> {
        self.0.freed.subscribe()
    }

    /// Whether the executor of an attempt is a process on this machine.
    pub fn is_local(&self, attempt: AttemptId) -> bool {
        self.0.local.lock().contains(&attempt)
    }

    /// A place of the cheapest pool of a class that has one and is not in `refused`. A process that only fetches is the
    /// last choice.
    pub fn take(&self, class: ExecutorClass, refused: &BTreeSet<usize>) -> Option<PoolSlot> {
        let of_class = || {
            let pools = self.0.by_price.iter();
            let pools = pools.filter_map(|index| Some((*index, self.0.pools.get(*index)?)));
            pools.filter(|(index, pool)| pool.class == class && !refused.contains(index))
        };
        let (index, _) = of_class()
            .find(|(_, pool)| pool.use_one(0))
            .or_else(|| of_class().find(|(_, pool)| pool.use_one(pool.fetching)))?;
        let pools = self.clone();
        Some(PoolSlot { pools, index })
    }

    fn end(&self, attempt: AttemptId) {
        self.0.local.lock().remove(&attempt);
    }
}

impl PoolSlot {
    /// The pool's place in the list of pools.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Where the pool's executors dial; `None` where all of the miner's do.
    pub fn dial(&self) -> Option<&str> {
        let pool = self.pools.0.pools.get(self.index)?;
        Some(pool.dial.as_str()).filter(|dial| !dial.is_empty())
    }

    /// Runs the executor of an order in this place.
    ///
    /// # Errors
    /// The pool's manager cannot run it.
    pub async fn run(self, order: Order, stop: CancellationToken) -> Result<String, ManagerError> {
        let Some(pool) = self.pools.0.pools.get(self.index) else {
            return Ok("its pool is gone".to_owned());
        };
        let attempt = order.token.attempt();
        if pool.engine == EngineKind::Local {
            self.pools.0.local.lock().insert(attempt);
        }
        let how = pool.manager.run(order, stop).await;
        self.pools.end(attempt);
        how
    }
}

impl Drop for PoolSlot {
    fn drop(&mut self) {
        if let Some(pool) = self.pools.0.pools.get(self.index) {
            let mut used = pool.used.lock();
            *used = used.saturating_sub(1);
        }
        self.pools
            .0
            .freed
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}

// The calls of an `ExecutorManager`, for all pools.
impl Pools {
    /// Checks that an executor may be started for a lease that may take `lasts`, by some pool.
    ///
    /// # Errors
    /// The operator's limits on machine time are reached everywhere.
    pub fn check_spend(&self, lasts: Duration) -> Result<(), SpendExceeded> {
        // A pool without a limit takes what another one may not.
        let mut checks = self.0.pools.iter().map(|pool| pool.manager.check_spend(lasts));
        let first = checks.next().unwrap_or(Ok(()));
        checks.fold(first, Result::or)
    }

    /// As [`ExecutorManager::resume`].
    pub fn resume(&self, order: Order, apart: bool, stop: CancellationToken) -> Option<Running> {
        let attempt = order.token.attempt();
        let mut runs = Vec::new();
        for (index, pool) in self.0.pools.iter().enumerate() {
            let may_have_it = !apart || pool.engine == EngineKind::Local;
            if pool.class != order.class || !may_have_it {
                continue;
            }
            let Some(running) = pool.manager.resume(order.clone(), apart, stop.clone()) else {
                continue;
            };
            if pool.engine == EngineKind::Local {
                self.0.local.lock().insert(attempt);
            }
            // It takes a place until it ends, or until the engine reports that it does not have it.
            *pool.used.lock() += 1;
            let slot = PoolSlot {
                pools: self.clone(),
                index,
            };
            runs.push(async move {
                let how = running.await;
                slot.pools.end(attempt);
                drop(slot);
                how
            });
        }
        if runs.is_empty() {
            return None;
        }
        Some(Box::pin(async move {
            // One of them has it; the others end at once.
            let mut ends = join_all(runs).await.into_iter();
            let first = ends.next().unwrap_or(Ok(String::new()));
            ends.fold(first, |said, next| {
                let (said, next) = (said?, next?);
                Ok(format!("{said}; {next}"))
            })
        }))
    }

    /// As [`ExecutorManager::reclaim`].
    pub fn reclaim(&self, kept: BTreeSet<AttemptId>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let all: Vec<_> = self
            .0
            .pools
            .iter()
            .map(|pool| pool.manager.reclaim(kept.clone()))
            .collect();
        Box::pin(async move {
            join_all(all).await;
        })
    }

    /// As [`ExecutorManager::exclude_hosts`].
    pub fn exclude_hosts(&self, hosts: BTreeSet<String>) {
        for pool in &self.0.pools {
            pool.manager.exclude_hosts(hosts.clone());
        }
    }

    /// As [`ExecutorManager::attempts_on`].
    pub fn attempts_on(&self, hosts: &BTreeSet<String>) -> BTreeSet<AttemptId> {
        let pools = self.0.pools.iter();
        pools.flat_map(|pool| pool.manager.attempts_on(hosts)).collect()
    }
}

#[cfg(test)]
mod tests;
