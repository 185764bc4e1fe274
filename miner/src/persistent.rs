//! Persistent executors: enrolled machines that stay connected and take one lease after another.
//!
//! An [`ExecutorPool`] knows the connected executors and their free capacity; the [`Fleet`](crate::fleet::Fleet) lends
//! from it. [`PersistentServer`] accepts their connections. A persistent
//! executor serves a lease exactly as a started one does: its connection dials in with the lease's token, and
//! everything after that is the same.

mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_protocol::wire::muster::ListedImage;
use muster_protocol::{AttemptId, ExecutorClass, Feature, FeatureSet, Manifest};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::lease_table::ExecutorCapacity;
use crate::manager::Order;

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
    /// The names of those that get no further lease.
    excluded: BTreeSet<String>,
    taken: BTreeMap<u64, ConnectedExecutor>,
}

/// One connected executor.
#[derive(Debug)]
struct ConnectedExecutor {
    /// Its name in the registry.
    name: String,
    /// The attempts of its leases.
    attempts: BTreeSet<AttemptId>,
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
pub(crate) struct CapacitySlot {
    pool: ExecutorPool,
    id: u64,
    pub(crate) hand: mpsc::UnboundedSender<AssignedLease>,
}

// === impl ExecutorPool ===

impl ExecutorPool {
    /// Adds a connected executor that runs `busy` jobs from an earlier connection. Its leases arrive at the receiver.
    pub(crate) fn join(
        &self,
        name: &str,
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
                name: name.to_owned(),
                attempts: BTreeSet::new(),
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

    /// How many jobs all of them run at once, but for those that are excluded.
    pub fn capacity(&self) -> ExecutorCapacity {
        let mut sum = ExecutorCapacity::default();
        let seats = self.seats();
        let lent = seats
            .taken
            .values()
            .filter(|seat| !seats.excluded.contains(&seat.name));
        for seat in lent {
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

    /// Follows the changes that could let a waiting order proceed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// The attempts whose leases the executors with these names serve.
    pub(crate) fn attempts_on(&self, names: &BTreeSet<String>) -> BTreeSet<AttemptId> {
        let seats = self.seats();
        let named = seats.taken.values().filter(|seat| names.contains(&seat.name));
        named.flat_map(|seat| seat.attempts.iter().copied()).collect()
    }

    /// Lends nothing of the executors with these names from now on.
    pub(crate) fn exclude(&self, names: BTreeSet<String>) {
        let mut seats = self.seats();
        if seats.excluded == names {
            return;
        }
        seats.excluded = names;
        drop(seats);
        self.notify();
    }

    /// A slot of the least busy executor for an order. An image that everybody may read leaves the executors that take
    /// private images to others, where it can.
    pub(crate) fn take(&self, order: &Order) -> Option<CapacitySlot> {
        let mut seats = self.seats();
        let ConnectedExecutors { taken, excluded, .. } = &mut *seats;
        let free = taken.iter_mut().filter(|(_, seat)| {
            seat.class == order.class
                && !excluded.contains(&seat.name)
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

    pub(crate) fn notify(&self) {
        self.0.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn seats(&self) -> MutexGuard<'_, ConnectedExecutors> {
        // The entries are whole between any two statements, so a panic elsewhere cannot have spoilt them.
        self.0.seats.lock()
    }
}

impl PoolMembership {
    /// The executor serves the lease of an attempt.
    pub(crate) fn serve(&self, attempt: AttemptId) {
        if let Some(seat) = self.pool.seats().taken.get_mut(&self.id) {
            seat.attempts.insert(attempt);
        }
    }

    /// The executor is done with the lease of an attempt.
    pub(crate) fn leave(&self, attempt: AttemptId) {
        if let Some(seat) = self.pool.seats().taken.get_mut(&self.id) {
            seat.attempts.remove(&attempt);
        }
    }

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
