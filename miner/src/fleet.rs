//! All executors of a miner as one manager: those that stay connected first, then those of its pools.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use muster_process::SharedClock;
use muster_protocol::{AttemptId, Digest, Manifest};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::executor_pools::Pools;
use crate::lease_table::{Event, ExecutorCapacity};
use crate::manager::{ExecutorManager, ManagerError, Order, Running, SpendExceeded};
use crate::persistent::{AssignedLease, CapacitySlot, ExecutorPool};
use crate::session_queues::Inbox;

/// How often the engines of pools are looked at for what they have places for.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The end of a wait for an executor of a miner that stops. Its next process goes on with the lease.
const STOPPING: &str = "the miner stops";

/// Lends persistent executors, and starts one of a pool where none of them is free.
#[derive(Clone)]
pub struct Fleet {
    connected: ExecutorPool,
    pools: Pools,
    /// The certificate of the miner's port, by which executors that dial `wss://` know it.
    certificate: Option<watch::Receiver<Digest>>,
    /// All executors of the miner.
    manifest: watch::Sender<Manifest>,
    /// Cancelled when the miner stops.
    hangup: CancellationToken,
}

impl Fleet {
    /// Lends from `connected` first, then from `pools`. Executors of pools that dial `wss://` receive the certificate.
    /// After `hangup` nothing waits for persistent executors.
    pub fn new(
        connected: ExecutorPool,
        pools: Pools,
        certificate: Option<watch::Receiver<Digest>>,
        hangup: CancellationToken,
    ) -> Self {
        let manifest = watch::Sender::new(pools.fixed());
        Self {
            connected,
            pools,
            certificate,
            manifest,
            hangup,
        }
    }

    /// Follows the number of all executors, as it is sent to validators.
    pub fn manifest(&self) -> watch::Receiver<Manifest> {
        self.manifest.subscribe()
    }

    /// The address that an executor dials, with the certificate there.
    fn pinned(&self, address: &str) -> String {
        match &self.certificate {
            Some(certificate) if address.starts_with("wss://") && !address.contains('#') => {
                muster_websocket::pinned(address, *certificate.borrow())
            }
            Some(_) | None => address.to_owned(),
        }
    }

    /// The executors whose number changes while the miner runs: those that are connected, and those that engines have
    /// places for.
    pub fn capacity(&self) -> ExecutorCapacity {
        let (connected, elastic) = (self.connected.capacity(), self.pools.elastic());
        ExecutorCapacity {
            all: connected.all.plus(&elastic),
            private_images: connected.private_images.plus(&elastic),
        }
    }

    /// Reports the capacity to the dispatcher whenever it changes.
    pub async fn publish(self, inbox: Inbox, clock: SharedClock, stop: CancellationToken) {
        let mut changed = self.connected.changes();
        let mut told = ExecutorCapacity::default();
        loop {
            changed.borrow_and_update();
            let capacity = self.capacity();
            if capacity != told {
                told = capacity.clone();
                self.manifest.send_replace(self.pools.fixed().plus(&told.all));
                inbox.send(Event::Capacity(capacity)).await;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                // The sender lives as long as this fleet.
                _ = changed.changed() => {}
                () = clock.sleep(LOOK_EVERY) => {}
            }
        }
    }

    async fn live(self, order: Order, stop: CancellationToken) -> Result<String, ManagerError> {
        let (mut changed, mut freed) = (self.connected.changes(), self.pools.freed());
        let mut refused = BTreeSet::new();
        let mut refusal = None;
        loop {
            changed.borrow_and_update();
            freed.borrow_and_update();
            if let Some(slot) = self.connected.take(&order) {
                if let Some(how) = lend(slot, &order, &stop, &self.hangup).await {
                    return Ok(how);
                }
                // It is just leaving; another may be free.
            } else if let Some(slot) = self.pools.take(order.class, &refused) {
                let index = slot.index();
                let mut dialling = order.clone();
                dialling.miner_address = self.pinned(slot.dial().unwrap_or(&order.miner_address));
                match slot.run(dialling, stop.clone()).await {
                    // Another pool of the class may take it.
                    Err(error @ ManagerError::Engine(_)) => {
                        tracing::warn!(attempt = %order.token.attempt(), %error, "a pool's engine refused an executor");
                        refused.insert(index);
                        refusal = Some(error);
                        continue;
                    }
                    how => return how,
                }
            } else if let Some(error) = refusal {
                return Err(error);
            }
            tokio::select! {
                () = stop.cancelled() => return Ok("no executor became free in time".to_owned()),
                () = self.hangup.cancelled() => return Ok(STOPPING.to_owned()),
                _ = changed.changed() => {}
                _ = freed.changed() => {}
            }
        }
    }
}

/// Gives a lease to a connected executor and waits for its end; `None` if the executor is just leaving.
async fn lend(
    slot: CapacitySlot,
    order: &Order,
    stop: &CancellationToken,
    hangup: &CancellationToken,
) -> Option<String> {
    let (over, ended) = oneshot::channel();
    let begun = CancellationToken::new();
    let assigned = AssignedLease {
        order: order.clone(),
        stop: stop.clone(),
        over,
        begun: begun.clone(),
    };
    slot.hand.send(assigned).ok()?;
    let how = ended.await;
    if how.is_err() && begun.is_cancelled() {
        // The executor runs on and may come back, to the next process of a miner that stops; only the end of the lease
        // ends it here.
        drop(slot);
        tokio::select! {
            () = stop.cancelled() => {}
            () = hangup.cancelled() => return Some(STOPPING.to_owned()),
        }
    }
    Some(how.unwrap_or_else(|_| "its connection ended".to_owned()))
}

impl ExecutorManager for Fleet {
    fn run(&self, order: Order, stop: CancellationToken) -> Running {
        Box::pin(self.clone().live(order, stop))
    }

    fn check_spend(&self, lasts: Duration) -> Result<(), SpendExceeded> {
        // A persistent executor costs nothing; the choice falls when the lease gets one.
        if self.connected.capacity() != ExecutorCapacity::default() {
            return Ok(());
        }
        self.pools.check_spend(lasts)
    }

    fn resume(&self, order: Order, apart: bool, stop: CancellationToken) -> Option<Running> {
        self.pools.resume(order, apart, stop)
    }

    fn reclaim(&self, kept: BTreeSet<AttemptId>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.pools.reclaim(kept)
    }

    fn exclude_hosts(&self, hosts: BTreeSet<String>) {
        self.connected.exclude(hosts.clone());
        self.pools.exclude_hosts(hosts);
    }

    fn attempts_on(&self, hosts: &BTreeSet<String>) -> BTreeSet<AttemptId> {
        let mut attempts = self.connected.attempts_on(hosts);
        attempts.extend(self.pools.attempts_on(hosts));
        attempts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use muster_protocol::{ExecutorClass, ExecutorToken, FeatureSet, Manifest};
    use uuid::Uuid;

    use super::*;
    use crate::executor_pools::{Pool, PoolConfig};

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    struct Own;

    impl ExecutorManager for Own {
        fn run(&self, _order: Order, stop: CancellationToken) -> Running {
            Box::pin(async move {
                stop.cancelled().await;
                Ok("own".to_owned())
            })
        }
    }

    fn order(class: ExecutorClass) -> Order {
        Order {
            token: ExecutorToken::new(AttemptId::from_uuid(Uuid::new_v4()), Uuid::new_v4()),
            class,
            private_image: false,
            miner_address: "ws://127.0.0.1:1".to_owned(),
            lasts: std::time::Duration::from_secs(60),
            notice: crate::manager::Notice::default(),
        }
    }

    fn fleet(own: u32) -> (ExecutorPool, Fleet) {
        let pool = ExecutorPool::default();
        let config = PoolConfig {
            count: own,
            ..PoolConfig::default()
        };
        let pools = Pools::new(vec![Pool::new(&config, Arc::new(Own), 0)]);
        let fleet = Fleet::new(pool.clone(), pools, None, CancellationToken::new());
        (pool, fleet)
    }

    #[tokio::test]
    async fn a_miner_that_stops_waits_for_no_persistent_executor() {
        let (pool, fleet) = fleet(0);
        let (seat, mut orders) = pool.join("box", CLASS, 1, 0, FeatureSet::ours());
        let lent = fleet.run(order(CLASS), CancellationToken::new());
        let mut lent = std::pin::pin!(lent);
        assert!(lent.as_mut().now_or_never().is_none());
        let assigned = orders.try_recv().unwrap();
        assigned.begun.cancel();
        drop((assigned, seat));
        assert!(lent.as_mut().now_or_never().is_none(), "it may come back");
        fleet.hangup.cancel();
        assert_eq!(lent.await.unwrap(), STOPPING);
        let waiting = fleet.run(order(CLASS), CancellationToken::new());
        assert_eq!(waiting.await.unwrap(), STOPPING, "no executor is connected");
    }

    #[tokio::test]
    async fn persistent_executors_first_then_our_own_then_whoever_is_free_first() {
        let (pool, fleet) = fleet(1);
        let (_seat, mut orders) = pool.join("box", CLASS, 1, 0, FeatureSet::ours());
        assert_eq!(pool.capacity().all, Manifest::new([(CLASS, 1)]));
        let stops: Vec<_> = (0..3).map(|_| CancellationToken::new()).collect();
        let mut runs: Vec<_> = stops
            .iter()
            .map(|stop| fleet.run(order(CLASS), stop.clone()))
            .collect();
        for run in &mut runs {
            assert!(run.now_or_never().is_none());
        }
        let first = orders.try_recv().unwrap();
        assert!(
            orders.try_recv().is_err(),
            "the second is the miner's own, the third waits"
        );
        stops[1].cancel();
        assert_eq!((&mut runs[1]).await.unwrap(), "own");
        first.over.send("free again".to_owned()).unwrap();
        assert_eq!((&mut runs[0]).await.unwrap(), "free again");
        assert!((&mut runs[2]).now_or_never().is_none());
        assert!(orders.try_recv().is_ok(), "the slot that was given back");
    }

    #[tokio::test]
    async fn a_private_image_waits_for_an_executor_that_takes_it_and_others_leave_that_one_free() {
        let (pool, fleet) = fleet(0);
        let (_old, mut old_orders) = pool.join("box", CLASS, 1, 0, FeatureSet::NONE);
        let (_new, mut new_orders) = pool.join("box", CLASS, 1, 0, FeatureSet::ours());
        let one = Manifest::new([(CLASS, 1)]);
        assert_eq!(
            (pool.capacity().all.count(CLASS), pool.capacity().private_images),
            (2, one)
        );
        let private = || Order {
            private_image: true,
            ..order(CLASS)
        };
        let mut runs: Vec<_> = [order(CLASS), private(), private()]
            .into_iter()
            .map(|order| fleet.run(order, CancellationToken::new()))
            .collect();
        for run in &mut runs {
            assert!(run.now_or_never().is_none());
        }
        let everybodys = old_orders.try_recv().unwrap();
        assert!(!everybodys.order.private_image);
        let taken = new_orders.try_recv().unwrap();
        assert!(taken.order.private_image);
        // The executor that does not take it becomes free, and the second private image goes on waiting.
        everybodys.over.send("free again".to_owned()).unwrap();
        (&mut runs[0]).await.unwrap();
        assert!((&mut runs[2]).now_or_never().is_none());
        assert!(old_orders.try_recv().is_err() && new_orders.try_recv().is_err());
        taken.over.send("free again".to_owned()).unwrap();
        (&mut runs[1]).await.unwrap();
        assert!((&mut runs[2]).now_or_never().is_none());
        assert!(new_orders.try_recv().unwrap().order.private_image);
    }

    #[tokio::test]
    async fn an_executor_that_vanishes_ends_its_lease_and_leaves_no_capacity() {
        let (pool, fleet) = fleet(0);
        let (seat, mut orders) = pool.join("box", CLASS, 2, 0, FeatureSet::ours());
        let mut run = fleet.run(order(CLASS), CancellationToken::new());
        assert!((&mut run).now_or_never().is_none());
        drop((orders.try_recv().unwrap(), seat, orders));
        assert_eq!(run.await.unwrap(), "its connection ended");
        assert_eq!(pool.capacity(), ExecutorCapacity::default());
    }

    #[tokio::test]
    async fn an_order_for_which_nobody_comes_ends_when_it_is_given_up() {
        let (pool, fleet) = fleet(1);
        let stop = CancellationToken::new();
        let (_seat, _orders) = pool.join("box", ExecutorClass::AlwaysOnCpu8c16Gb, 1, 0, FeatureSet::ours());
        let mut run = fleet.run(order(ExecutorClass::AlwaysOnGpu24Gb), stop.clone());
        assert!((&mut run).now_or_never().is_none());
        stop.cancel();
        assert_eq!(run.await.unwrap(), "no executor became free in time");
    }

    #[test]
    fn an_executor_that_is_excluded_gets_no_lease_and_counts_no_more() {
        let (pool, fleet) = fleet(0);
        let (seat, mut orders) = pool.join("box", CLASS, 2, 0, FeatureSet::ours());
        let given = order(CLASS);
        let attempt = given.token.attempt();
        let mut first = fleet.run(given, CancellationToken::new());
        assert!((&mut first).now_or_never().is_none());
        assert!(orders.try_recv().is_ok());
        seat.serve(attempt);
        let hosts: BTreeSet<String> = ["box".to_owned()].into();
        fleet.exclude_hosts(hosts.clone());
        assert_eq!(fleet.capacity(), ExecutorCapacity::default());
        assert_eq!(fleet.attempts_on(&hosts), [attempt].into());
        let mut second = fleet.run(order(CLASS), CancellationToken::new());
        assert!((&mut second).now_or_never().is_none());
        assert!(orders.try_recv().is_err(), "it is emptied");
        fleet.exclude_hosts(BTreeSet::new());
        assert!((&mut second).now_or_never().is_none());
        assert!(orders.try_recv().is_ok());
        seat.leave(attempt);
        assert_eq!(fleet.attempts_on(&hosts), BTreeSet::new());
    }
}
