//! The miners' records, by which jobs are assigned, and beside them the miners' claims about their machines.

use std::sync::Arc;

use muster_process::SharedClock;
use muster_protocol::wire::machines::ClaimedOffer;
use muster_protocol::wire::miner::ExecutorManifest;
use muster_protocol::{AttemptId, ExecutorClass, FeatureSet, Hotkey, MinerKey, Timestamp};
use muster_routing::slot_excuse::FetchingLeases;
use muster_routing::start_claims::{ProgramKey, StartClaim, StartClaims};
use muster_routing::trials::{TrialSchedule, TrialVerdict};
use muster_routing::{CacheKey, MinerLedger};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::queue_in_memory::WaitingJobs;
use crate::miner_reports::claims::ClaimBoard;
use crate::store::{RestoredMiners, StoredAttempt};

/// The validator's knowledge about miners.
#[derive(Debug)]
pub(crate) struct MinerRecords {
    clock: SharedClock,
    /// Locked from reading it to noting the new attempt, so that two jobs do not take one executor; never locked across
    /// an await.
    ledger: Mutex<MinerLedger>,
    /// The miners that lately started programs, and those that said that they cannot be started. After a start of this
    /// process it is empty: an earlier claim stays as it was marked.
    starts: Mutex<StartClaims>,
    /// The leases whose images are on their way.
    fetching: Mutex<FetchingLeases>,
    /// The miners under suspicion.
    trials: Mutex<TrialSchedule>,
    /// Wakes the part that orders trials.
    trials_changed: Notify,
    /// Miners' claims about their machines.
    pub(crate) claims: ClaimBoard,
    /// A record may make room for these.
    pub(super) waiting: Arc<WaitingJobs>,
}

impl MinerRecords {
    /// The records as the store has them.
    pub(super) fn new(restored: RestoredMiners, clock: SharedClock, waiting: Arc<WaitingJobs>) -> Self {
        Self {
            clock,
            ledger: Mutex::new(restored.ledger),
            starts: Mutex::default(),
            fetching: Mutex::default(),
            trials: Mutex::new(restored.trials),
            trials_changed: Notify::new(),
            claims: ClaimBoard::default(),
            waiting,
        }
    }

    /// The miners' ledger. Hold the lock for a statement or two at most.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, MinerLedger> {
        self.ledger.lock()
    }

    /// The leases whose images are on their way. Hold the lock for a statement or two at most; a thread that needs the
    /// ledger too locks the ledger first.
    pub(super) fn fetching(&self) -> MutexGuard<'_, FetchingLeases> {
        self.fetching.lock()
    }

    /// Whether the miner may be without a fetch slot once more for nothing.
    pub(super) fn has_free_no_slot(&self, miner: MinerKey) -> bool {
        let now = self.clock.now();
        self.ledger().has_free_no_slot(miner, now)
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

    /// Whether the miner of another owner than `owner` started the program within the last hour.
    pub(super) fn is_started_elsewhere(&self, program: ProgramKey, owner: Hotkey) -> bool {
        let now = self.clock.now();
        self.starts.lock().is_started_elsewhere(program, owner, now)
    }

    /// Notes a claim that a program cannot be started, or a failure of an executor at it.
    pub(super) fn note_start_claim(&self, program: ProgramKey, claim: (AttemptId, MinerKey, Hotkey)) {
        let now = self.clock.now();
        self.starts.lock().note_claim(program, claim, now);
    }

    /// Notes that a miner of `owner` started a program. Returns the claims that it has shown to be wrong.
    pub(super) fn note_program_start(&self, program: ProgramKey, owner: Hotkey) -> Vec<StartClaim> {
        let now = self.clock.now();
        self.starts.lock().note_start(program, owner, now)
    }

    /// Notes that a user's job failed at a miner, and may have provoked that: a trial follows.
    pub(super) fn note_suspect(&self, miner: MinerKey, class: ExecutorClass) {
        let now = self.clock.now();
        self.trials.lock().note_suspect(miner, class, now);
        self.trials_changed.notify_one();
    }

    /// Whether one more failed trial benches the miner.
    pub(super) fn is_last_chance(&self, miner: MinerKey) -> bool {
        self.trials.lock().is_last_chance(miner)
    }

    /// Notes what a trial showed. Returns whether it ends a bench.
    pub(super) fn note_trial(&self, miner: MinerKey, verdict: TrialVerdict) -> bool {
        self.trials.lock().note_verdict(miner, verdict, self.clock.now());
        let ends_bench = verdict == TrialVerdict::Passed && self.ledger().end_bench(miner);
        if ends_bench {
            self.waiting.note_room();
        }
        ends_bench
    }

    /// The trials that begin now, with the classes of their executors.
    pub(crate) fn begin_trials(&self) -> Vec<(MinerKey, ExecutorClass)> {
        self.trials.lock().begin_due(self.clock.now())
    }

    /// When the next trial is due; `None` if no miner waits for one.
    pub(crate) fn next_trial(&self) -> Option<Timestamp> {
        self.trials.lock().next_due(self.clock.now())
    }

    /// Notes that the job of a trial is over, whatever it showed.
    pub(crate) fn end_trial(&self, miner: MinerKey) {
        self.trials.lock().end(miner);
        self.trials_changed.notify_one();
    }

    /// Waits until the schedule of trials has changed.
    pub(crate) async fn trials_changed(&self) {
        self.trials_changed.notified().await;
    }

    /// Forgets miners outside the subnet. `keep` returns whether a miner is in it.
    pub(crate) fn forget(&self, keep: impl Fn(&MinerKey) -> bool) {
        self.ledger().forget(&keep);
        self.claims.forget(&keep);
        self.trials.lock().forget(&keep);
    }

    /// Whether another miner than `miner` had an image lately.
    pub(super) fn is_image_elsewhere(&self, docker_image: &str, miner: MinerKey) -> bool {
        let image = CacheKey::image(docker_image);
        self.ledger().is_elsewhere(image, miner, self.clock.now())
    }
}
