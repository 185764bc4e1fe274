//! The lease table's answers to executors.

use muster_protocol::job::MAX_SLOT_LEASES;
use muster_protocol::wire::miner::ExecutorManifest;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{AttemptId, ExecutorClass, ExecutorToken, Feature, FeatureSet, Manifest, Timestamp};

use super::fetch_slots::FetchRequest;
use super::validators::executor_complaint;
use super::{ConnectionId, DialId, Effect, ExecutorCapacity, LeaseTable};
use crate::lease::{self, ExecutorReport, FetchStage, Lease, LeaseState, ReturningExecutor, SlotHolders};

impl LeaseTable {
    /// A token is valid once: for its lease, while that lease waits for its executor.
    pub(super) fn on_dialled(
        &mut self,
        dial: DialId,
        token: &ExecutorToken,
        event: lease::Event,
        features: FeatureSet,
        now: Timestamp,
    ) -> Vec<Effect> {
        let attempt = token.attempt();
        let lease = self.active_by_token(token).map(|active| &active.lease);
        let needed = lease.map(Lease::needed_features).unwrap_or_default();
        let unknown = features.lacks(needed);
        match (lease.map(Lease::state), unknown) {
            (None, _) => vec![Effect::Dismiss {
                dial,
                details: format!("No job waiting for token {token}"),
            }],
            // It would run another program, or report that there is no such image.
            (Some(LeaseState::WaitingForExecutor), Some(feature)) => {
                let how = format!("it does not know {feature}, which the job needs");
                let details = format!("Job with token {token} is for an executor of a newer version: {how}");
                let mut effects = vec![Effect::Dismiss { dial, details }];
                let event = lease::Event::ExecutorExited(how);
                effects.extend(self.drive(attempt, event, now).unwrap_or_default());
                effects
            }
            (Some(LeaseState::WaitingForExecutor), None) => {
                if let Some(active) = self.active.get_mut(&attempt) {
                    active.executor = Some(dial);
                }
                let mut effects = vec![Effect::Admit { dial, attempt }];
                effects.extend(self.drive(attempt, event, now).unwrap_or_default());
                effects
            }
            (
                Some(
                    LeaseState::Preparing
                    | LeaseState::Fetching(_)
                    | LeaseState::WaitingForPayload
                    | LeaseState::Running(_)
                    | LeaseState::Ended(_),
                ),
                _,
            ) => {
                let details = format!("Job with token {token} is not waiting for an executor");
                vec![Effect::Dismiss { dial, details }]
            }
        }
    }

    /// An executor that comes back takes the place of its earlier connection.
    pub(super) fn on_reattached(
        &mut self,
        dial: DialId,
        attempt: AttemptId,
        back: ReturningExecutor,
        now: Timestamp,
    ) -> Vec<Effect> {
        match self.drive(attempt, lease::Event::Reattached(back), now) {
            Ok(effects) => {
                if let Some(active) = self.active.get_mut(&attempt) {
                    active.executor = Some(dial);
                }
                let admit = Effect::Admit { dial, attempt };
                std::iter::once(admit).chain(effects).collect()
            }
            Err(refused) => vec![Effect::Dismiss {
                dial,
                details: refused.to_string(),
            }],
        }
    }

    /// A report counts only on the connection that was admitted to the lease: the fence.
    pub(super) fn on_report(
        &mut self,
        dial: DialId,
        attempt: AttemptId,
        report: ExecutorReport,
        now: Timestamp,
    ) -> Vec<Effect> {
        if !self.serves(dial, attempt) {
            let details = format!("attempt {attempt} has ended, or is served by another executor");
            return vec![Effect::Dismiss { dial, details }];
        }
        // A repeated report changes nothing in the order of those that fetch.
        let fetched = self.is_fetching(attempt);
        match self.drive(attempt, lease::Event::Said(report), now) {
            Ok(effects) => {
                if !fetched && self.is_fetching(attempt) {
                    self.join_fetches(attempt);
                }
                effects
            }
            Err(refused) => vec![Effect::Order {
                attempt,
                message: executor_complaint(refused.to_string()),
            }],
        }
    }

    fn is_fetching(&self, attempt: AttemptId) -> bool {
        let lease = self.active.get(&attempt).map(|active| &active.lease);
        lease.is_some_and(|lease| matches!(lease.state(), LeaseState::Fetching(_)))
    }

    pub(super) fn on_executor_gone(
        &mut self,
        dial: DialId,
        attempt: AttemptId,
        now: Timestamp,
    ) -> Vec<Effect> {
        if !self.serves(dial, attempt) {
            return vec![];
        }
        self.drive(attempt, lease::Event::ExecutorGone, now)
            .unwrap_or_default()
    }

    /// A lease joins those that fetch. It keeps its executor if too many wait without one.
    fn join_fetches(&mut self, attempt: AttemptId) {
        let places = self.rules.fetch.places();
        let apart = self.active.values().filter(|active| {
            !active.lease.holds_executor() && matches!(active.lease.state(), LeaseState::Fetching(_))
        });
        let apart = u32::try_from(apart.count()).unwrap_or(u32::MAX);
        self.fetches = self.fetches.saturating_add(1);
        if let Some(active) = self.active.get_mut(&attempt) {
            active.fetch_number = self.fetches;
            // The count includes this lease.
            if apart > places {
                active.lease.keep_executor();
            }
        }
    }

    /// The leases that hold slots now, with both receipts of those that began to fetch first.
    pub(super) fn slot_holders(&self) -> SlotHolders {
        let granted = LeaseState::Fetching(FetchStage::Granted);
        let mut holders: Vec<_> = self
            .active
            .values()
            .filter(|active| active.lease.state() == granted)
            .collect();
        holders.sort_unstable_by_key(|active| active.fetch_number);
        let shown = holders.iter().take(MAX_SLOT_LEASES);
        let receipts = shown.flat_map(|active| {
            std::iter::once(&active.started)
                .chain(active.accepted.as_deref())
                .cloned()
        });
        SlotHolders {
            leases: holders.len(),
            receipts: receipts.collect(),
        }
    }

    /// Grants slots to leases that wait for one, and executors to leases whose images have arrived, in the order in
    /// which they began to fetch.
    pub(super) fn settle_fetches(&mut self, now: Timestamp) -> Vec<Effect> {
        let mut fetching: Vec<_> = self
            .active
            .values()
            .filter_map(|active| match active.lease.state() {
                LeaseState::Fetching(stage) => Some((active.fetch_number, stage, &active.lease)),
                LeaseState::WaitingForExecutor
                | LeaseState::Preparing
                | LeaseState::WaitingForPayload
                | LeaseState::Running(_)
                | LeaseState::Ended(_) => None,
            })
            .collect();
        if fetching.is_empty() {
            return vec![];
        }
        fetching.sort_unstable_by_key(|(number, _, _)| *number);
        let requests: Vec<_> = fetching
            .iter()
            .filter(|(_, stage, _)| *stage != FetchStage::Arrived)
            .map(|(_, stage, lease)| {
                let (account, registry) = lease.fetch_of();
                FetchRequest {
                    attempt: lease.attempt(),
                    account,
                    registry,
                    granted: *stage == FetchStage::Granted,
                }
            })
            .collect();
        let granted = self.rules.fetch.grant(&requests);
        let arrived: Vec<_> = fetching
            .iter()
            .filter(|(_, stage, _)| *stage == FetchStage::Arrived)
            .map(|(_, _, lease)| (lease.attempt(), lease.class(), lease.holds_executor()))
            .collect();
        let mut effects = Vec::new();
        for attempt in granted {
            let event = lease::Event::FetchGranted;
            effects.extend(self.drive(attempt, event, now).unwrap_or_default());
        }
        for (attempt, class, seated) in arrived {
            // A lease that kept its executor has it still.
            if seated || self.count_started(class) < self.rules.manifest.count(class) {
                effects.extend(self.drive(attempt, lease::Event::Seated, now).unwrap_or_default());
            }
        }
        effects
    }

    /// Leases of a class that hold an executor of those that the miner starts itself, or may yet get one.
    fn count_started(&self, class: ExecutorClass) -> u32 {
        let started = self.active.values().filter(|active| {
            let lease = &active.lease;
            let undecided = lease.state() == LeaseState::WaitingForExecutor;
            lease.class() == class && lease.holds_executor() && (lease.is_apart() || undecided)
        });
        u32::try_from(started.count()).unwrap_or(u32::MAX)
    }

    /// The whole capacity of the miner at this moment.
    pub(super) fn manifest(&self) -> Manifest {
        self.rules.manifest.plus(&self.persistent.all)
    }

    /// The capacity for images from archives or with a login. The executors that the miner starts are of its version.
    pub(super) fn private_manifest(&self) -> Manifest {
        self.rules.manifest.plus(&self.persistent.private_images)
    }

    /// The announcement of the executors, for a validator that showed these features.
    pub(super) fn announcement(&self, features: FeatureSet) -> MinerToValidator {
        let tells = features.has(Feature::PrivateImages);
        MinerToValidator::V0ExecutorManifestRequest(ExecutorManifest {
            manifest: self.manifest(),
            private_images: tells.then(|| self.private_manifest()),
        })
    }

    /// Muster validators get the new manifest at once. Others get it when they connect, since a second one might
    /// confuse them.
    pub(super) fn on_capacity(&mut self, capacity: ExecutorCapacity) -> Vec<Effect> {
        if self.persistent == capacity {
            return vec![];
        }
        self.persistent = capacity;
        let mut everyone: Vec<_> = self.connections.keys().copied().collect();
        everyone.sort_unstable();
        let (mut telling, mut others) = (Vec::new(), Vec::new());
        for id in self.muster_only(&everyone) {
            if self.features_of(id).has(Feature::PrivateImages) {
                telling.push(id);
            } else {
                others.push(id);
            }
        }
        let groups = [(telling, FeatureSet::ours()), (others, FeatureSet::NONE)];
        let told = groups.into_iter().filter(|(to, _)| !to.is_empty());
        told.map(|(to, features)| Effect::Tell {
            to,
            message: Box::new(self.announcement(features)),
        })
        .collect()
    }

    fn features_of(&self, id: ConnectionId) -> FeatureSet {
        let known = self.connections.get(&id);
        known.map_or(FeatureSet::NONE, |known| known.features)
    }

    /// Those of the connections whose other side is Muster.
    pub(super) fn muster_only(&self, connections: &[ConnectionId]) -> Vec<ConnectionId> {
        let muster = |id: &&ConnectionId| self.connections.get(id).is_some_and(|known| known.muster);
        connections.iter().filter(muster).copied().collect()
    }

    /// Shows a live message to the connections out of these that know it, to each as far as it knows its parts.
    pub(super) fn show_live(&self, audience: &[ConnectionId], message: Box<MinerToValidator>) -> Vec<Effect> {
        let mut to = self.muster_only(audience);
        if matches!(*message, MinerToValidator::MusterCheckpoint(_)) {
            to.retain(|id| self.features_of(*id).has(Feature::Checkpoints));
        }
        let MinerToValidator::MusterJobMetrics(metrics) = &*message else {
            return vec![Effect::Live { to, message }];
        };
        to.retain(|id| self.features_of(*id).has(Feature::Metrics));
        let (whole, older): (Vec<_>, Vec<_>) = to
            .into_iter()
            .partition(|id| metrics.report.fits(self.features_of(*id)));
        let mut known = metrics.clone();
        let mut effects = vec![Effect::Live { to: whole, message }];
        if let Some(id) = older.first() {
            known.report.fit_to(self.features_of(*id));
            let message = Box::new(MinerToValidator::MusterJobMetrics(known));
            effects.push(Effect::Live { to: older, message });
        }
        effects
    }

    fn serves(&self, dial: DialId, attempt: AttemptId) -> bool {
        self.active
            .get(&attempt)
            .is_some_and(|active| active.executor == Some(dial))
    }
}
