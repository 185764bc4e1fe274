//! Persistent executors: enrolled machines that stay connected and take one lease after another.
//!
//! An [`ExecutorPool`] knows the connected executors and their free capacity. [`Fleet`] lends from it, and starts a
//! process of the miner's own where none of them is free. [`PersistentServer`] accepts their connections. A persistent
//! executor serves a lease exactly as a started one does: its connection dials in with the lease's token, and
//! everything after that is the same.

mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use muster_protocol::wire::muster::ListedImage;
use muster_protocol::{AttemptId, ExecutorClass, Feature, FeatureSet, Manifest};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::lease_table::{Event, ExecutorCapacity};
use crate::manager::{ExecutorManager, ManagerError, Order, Running};
use crate::queues::Inbox;

pub use server::PersistentServer;

/// The jobs of all connected executors together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// The most jobs that they run at once.
    pub places: u32,
    /// The jobs that they run now.
    pub busy: u32,
}

/// A lease on its way to a persistent executor.
#[derive(Debug)]
pub(crate) struct AssignedLease {
    /// The lease to serve.
    pub(crate) order: Order,
    /// Cancelled once the lease has ended.
    pub(crate) stop: CancellationToken,
    /// Gets a text when the executor is free again; dropped if the executor has vanished.
    pub(crate) over: oneshot::Sender<String>,
    /// Cancelled once the lease has its executor: a lost connection is no end of it from then on.
    pub(crate) begun: CancellationToken,
}

/// The connected persistent executors. Clones share one pool.
#[derive(Clone, Debug, Default)]
pub struct ExecutorPool(Arc<PoolState>);

#[derive(Debug, Default)]
struct PoolState {
    seats: Mutex<ConnectedExecutors>,
    /// Counts the changes that could let a waiting order proceed.
    changed: watch::Sender<u64>,
    /// The images that all of them are to fetch.
    shelf: watch::Sender<Vec<ListedImage>>,
}

#[derive(Debug, Default)]
struct ConnectedExecutors {
    next: u64,
    taken: BTreeMap<u64, ConnectedExecutor>,
}

/// One connected executor.
#[derive(Debug)]
struct ConnectedExecutor {
    class: ExecutorClass,
    capacity: u32,
    /// Whether it takes images from archives or with a login.
    private_images: bool,
    busy: u32,
    hand: mpsc::UnboundedSender<AssignedLease>,
}

/// A connected executor's membership in the pool. Dropping it leaves the pool.
#[derive(Debug)]
pub(crate) struct PoolMembership {
    pool: ExecutorPool,
    id: u64,
}

/// One job's worth of a connected executor. Dropping it gives it back.
#[derive(Debug)]
struct CapacitySlot {
    pool: ExecutorPool,
    id: u64,
    hand: mpsc::UnboundedSender<AssignedLease>,
}

// === impl ExecutorPool ===

impl ExecutorPool {
    /// Adds a connected executor that runs `busy` jobs from an earlier connection. Its leases arrive at the receiver.
    pub(crate) fn join(
        &self,
        class: ExecutorClass,
        capacity: u32,
        busy: u32,
        features: FeatureSet,
    ) -> (PoolMembership, mpsc::UnboundedReceiver<AssignedLease>) {
        let (hand, orders) = mpsc::unbounded_channel();
        let mut seats = self.seats();
        let id = seats.next;
        seats.next += 1;
        seats.taken.insert(
            id,
            ConnectedExecutor {
                class,
                capacity,
                private_images: features.has(Feature::PrivateImages),
                busy,
                hand,
            },
        );
        drop(seats);
        self.notify();
        let pool = self.clone();
        (PoolMembership { pool, id }, orders)
    }

    /// Sets the images that executors are to fetch, each on executors of its class.
    pub fn set_whitelist(&self, images: Vec<ListedImage>) {
        self.0.shelf.send_replace(images);
    }

    /// Follows the images that executors are to fetch.
    pub(crate) fn watch_whitelist(&self) -> watch::Receiver<Vec<ListedImage>> {
        self.0.shelf.subscribe()
    }

    /// How many jobs all of them run at once.
    pub fn capacity(&self) -> ExecutorCapacity {
        let mut sum = ExecutorCapacity::default();
        for seat in self.seats().taken.values() {
            let one = Manifest::new([(seat.class, seat.capacity)]);
            sum.all = sum.all.plus(&one);
            if seat.private_images {
                sum.private_images = sum.private_images.plus(&one);
            }
        }
        sum
    }

    /// How many jobs all of them run at once, and how many they run now.
    pub fn usage(&self) -> PoolUsage {
        let mut usage = PoolUsage::default();
        for seat in self.seats().taken.values() {
            usage.places = usage.places.saturating_add(seat.capacity);
            usage.busy = usage.busy.saturating_add(seat.busy);
        }
        usage
    }

    /// Tells the dispatcher the capacity of all executors, whenever that changes.
    pub async fn publish(self, inbox: Inbox, stop: CancellationToken) {
        let mut changed = self.0.changed.subscribe();
        let mut told = ExecutorCapacity::default();
        loop {
            changed.borrow_and_update();
            let capacity = self.capacity();
            if capacity != told {
                told = capacity.clone();
                inbox.send(Event::Capacity(capacity)).await;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                // The sender lives as long as this pool.
                _ = changed.changed() => {}
            }
        }
    }

    /// A slot of the least busy executor for an order. An image that everybody may read leaves the executors that take
    /// private images to others, where it can.
    fn take(&self, order: &Order) -> Option<CapacitySlot> {
        let mut seats = self.seats();
        let free = seats.taken.iter_mut().filter(|(_, seat)| {
            seat.class == order.class
                && seat.busy < seat.capacity
                && (seat.private_images || !order.private_image)
        });
        let (id, seat) = free.min_by_key(|(_, seat)| (seat.private_images, seat.busy))?;
        seat.busy += 1;
        Some(CapacitySlot {
            pool: self.clone(),
            id: *id,
            hand: seat.hand.clone(),
        })
    }

    fn notify(&self) {
        self.0.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn seats(&self) -> MutexGuard<'_, ConnectedExecutors> {
        // The entries are whole between any two statements, so a panic elsewhere cannot have spoilt them.
        self.0.seats.lock()
    }
}

impl PoolMembership {
    /// One of the jobs from an earlier connection has ended.
    pub(crate) fn free_one(&self) {
        if let Some(seat) = self.pool.seats().taken.get_mut(&self.id) {
            seat.busy = seat.busy.saturating_sub(1);
        }
        self.pool.notify();
    }
}

impl Drop for PoolMembership {
    fn drop(&mut self) {
        self.pool.seats().taken.remove(&self.id);
        self.pool.notify();
    }
}

impl Drop for CapacitySlot {
    fn drop(&mut self) {
        if let Some(seat) = self.pool.seats().taken.get_mut(&self.id) {
            seat.busy = seat.busy.saturating_sub(1);
        }
        self.pool.notify();
    }
}

/// Lends persistent executors, and runs one of the miner's own where none of them is free.
#[derive(Clone)]
pub struct Fleet {
    pool: ExecutorPool,
    own: Arc<dyn ExecutorManager>,
    own_class: ExecutorClass,
    own_free: Arc<Semaphore>,
}

impl Fleet {
    /// `count` executors of `class` may be brought to life by `own`.
    pub fn new(pool: ExecutorPool, own: Arc<dyn ExecutorManager>, class: ExecutorClass, count: u32) -> Self {
        Self {
            pool,
            own,
            own_class: class,
            own_free: Arc::new(Semaphore::new(
                usize::try_from(count).unwrap_or(Semaphore::MAX_PERMITS),
            )),
        }
    }

    async fn live(self, order: Order, stop: CancellationToken) -> Result<String, ManagerError> {
        let mut changed = self.pool.0.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if let Some(slot) = self.pool.take(&order) {
                let (over, ended) = oneshot::channel();
                let begun = CancellationToken::new();
                let assigned = AssignedLease {
                    order: order.clone(),
                    stop: stop.clone(),
                    over,
                    begun: begun.clone(),
                };
                if slot.hand.send(assigned).is_ok() {
                    let how = ended.await;
                    if how.is_err() && begun.is_cancelled() {
                        // The executor runs on and may come back; only the end of the lease ends it here.
                        drop(slot);
                        stop.cancelled().await;
                    }
                    return Ok(how.unwrap_or_else(|_| "its connection ended".to_owned()));
                }
                // It is just leaving; another may be free.
            } else if order.class == self.own_class
                && let Ok(permit) = Arc::clone(&self.own_free).try_acquire_owned()
            {
                let how = self.own.run(order, stop).await;
                drop(permit);
                self.pool.notify();
                return how;
            }
            tokio::select! {
                () = stop.cancelled() => return Ok("no executor became free in time".to_owned()),
                _ = changed.changed() => {}
            }
        }
    }
}

impl ExecutorManager for Fleet {
    fn run(&self, order: Order, stop: CancellationToken) -> Running {
        Box::pin(self.clone().live(order, stop))
    }

    fn resume(&self, order: Order, apart: bool, stop: CancellationToken) -> Option<Running> {
        let running = self.own.resume(order, apart, stop)?;
        // It takes a place of the miner's own executors until it ends.
        let permit = Arc::clone(&self.own_free).try_acquire_owned().ok();
        let pool = self.pool.clone();
        Some(Box::pin(async move {
            let how = running.await;
            drop(permit);
            pool.notify();
            how
        }))
    }

    fn reclaim(&self, kept: BTreeSet<AttemptId>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.own.reclaim(kept)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use muster_protocol::ExecutorToken;
    use uuid::Uuid;

    use super::*;

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
        }
    }

    fn fleet(own: u32) -> (ExecutorPool, Fleet) {
        let pool = ExecutorPool::default();
        let fleet = Fleet::new(pool.clone(), Arc::new(Own), CLASS, own);
        (pool, fleet)
    }

    #[tokio::test]
    async fn standing_executors_first_then_our_own_then_whoever_is_free_first() {
        let (pool, fleet) = fleet(1);
        let (_seat, mut orders) = pool.join(CLASS, 1, 0, FeatureSet::ours());
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
        let (_old, mut old_orders) = pool.join(CLASS, 1, 0, FeatureSet::NONE);
        let (_new, mut new_orders) = pool.join(CLASS, 1, 0, FeatureSet::ours());
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
        let (seat, mut orders) = pool.join(CLASS, 2, 0, FeatureSet::ours());
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
        let (_seat, _orders) = pool.join(ExecutorClass::AlwaysOnCpu8c16Gb, 1, 0, FeatureSet::ours());
        let mut run = fleet.run(order(ExecutorClass::AlwaysOnGpu24Gb), stop.clone());
        assert!((&mut run).now_or_never().is_none());
        stop.cancel();
        assert_eq!(run.await.unwrap(), "no executor became free in time");
    }
}
