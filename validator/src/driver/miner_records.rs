//! The miners' records, by which jobs are assigned, and beside them the miners' claims about their machines.

use std::sync::Arc;

use muster_process::SharedClock;
use muster_protocol::wire::machines::ClaimedOffer;
use muster_protocol::wire::miner::ExecutorManifest;
use muster_protocol::{ExecutorClass, FeatureSet, MinerKey};
use muster_routing::{CacheKey, MinerLedger};
use parking_lot::{Mutex, MutexGuard};

use super::queue_in_memory::WaitingJobs;
use crate::miner_reports::claims::ClaimBoard;
use crate::store::StoredAttempt;

/// The validator's knowledge about miners.
#[derive(Debug)]
pub(crate) struct MinerRecords {
    clock: SharedClock,
    /// Locked from reading it to noting the new attempt, so that two jobs do not take one executor; never locked across
    /// an await.
    ledger: Mutex<MinerLedger>,
    /// Miners' claims about their machines.
    pub(crate) claims: ClaimBoard,
    /// A record may make room for these.
    waiting: Arc<WaitingJobs>,
}

impl MinerRecords {
    /// The records as the store has them.
    pub(super) fn new(ledger: MinerLedger, clock: SharedClock, waiting: Arc<WaitingJobs>) -> Self {
        Self {
            clock,
            ledger: Mutex::new(ledger),
            claims: ClaimBoard::default(),
            waiting,
        }
    }

    /// The miners' ledger. Hold the lock for a statement or two at most.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, MinerLedger> {
        self.ledger.lock()
    }

    /// The executors that a miner offers now, by class.
    pub(super) fn offers_of(&self, miner: MinerKey) -> Vec<ClaimedOffer> {
        let (ledger, now) = (self.ledger(), self.clock.now());
        let offer = |class| {
            let executors = ledger.executors(miner, class, now)?;
            (executors > 0).then_some(ClaimedOffer { class, executors })
        };
        ExecutorClass::ALL.into_iter().filter_map(offer).collect()
    }

    /// Takes back an attempt that was never offered, so that its executor is free again.
    pub(crate) fn withdraw_attempt(&self, attempt: &StoredAttempt) {
        let class = attempt.machine.plan().class;
        self.ledger()
            .withdraw_attempt(attempt.miner, class, attempt.started_at);
        self.waiting.note_room();
    }

    /// Notes a miner's manifest, which may make room for jobs that wait.
    pub(crate) fn record_manifest(&self, miner: MinerKey, shown: ExecutorManifest) {
        let now = self.clock.now();
        {
            let mut ledger = self.ledger();
            ledger.record_private_images(miner, shown.private_images, now);
            ledger.record_manifest(miner, shown.manifest, now);
        }
        self.waiting.note_room();
    }

    /// Notes the features that a miner showed on its connection.
    pub(crate) fn record_features(&self, miner: MinerKey, features: FeatureSet) {
        let now = self.clock.now();
        self.ledger().record_features(miner, features, now);
    }

    /// Whether another miner than `miner` had an image lately.
    pub(super) fn is_image_elsewhere(&self, docker_image: &str, miner: MinerKey) -> bool {
        let image = CacheKey::image(docker_image);
        self.ledger().is_elsewhere(image, miner, self.clock.now())
    }
}
