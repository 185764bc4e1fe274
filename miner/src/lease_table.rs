//! The table of leases: it takes every outside event, one after another, and returns the effects to carry out.
//!
//! Pure: no sockets, no store, no clock. The dispatcher feeds it and carries its effects out.
//!
//! *The audience of a lease* is the connection that last sent a message about the attempt, and every connection that
//! its validator opened since. A validator that reconnects therefore misses nothing, although its old connection may
//! look alive for a while.
//!
//! *Owed histories.* The history of an ended lease is owed to its validator until the finished receipt arrives; each
//! further connection gets it again. Ended attempts are remembered for [`LeaseRules::memory`]. An accepted started
//! receipt grows too old to be accepted again within that time, so an attempt is run at most once.

mod events;
mod executors;
mod fetch_slots;
#[cfg(test)]
mod tests;
mod validators;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use muster_protocol::wire::muster::WhitelistNotice;
use muster_protocol::{
    AttemptId, ExecutorClass, Feature, FeatureSet, Manifest, ParticipantType, Receipt, ReceiptKind,
    Timestamp, ValidatorKey,
};
use muster_protocol::{ExecutorToken, HordeFailureReason};

use crate::lease::{self, DRAIN_LEAD, FetchStage, Lease, LeaseRefusal, LeaseState, LeaseTimeouts};
use crate::validator_shares::shares::{ShareRules, WaitingValidators};
use crate::validator_shares::unpaid::{UnpaidRules, UnpaidTime};

pub use events::{
    ConnectionId, DialId, Effect, Event, ExecutorCapacity, HeldLease, JobOffer, LeaseRecord, LeaseStatus,
    LeaseWrite,
};
pub use fetch_slots::FetchRules;

/// The interval between two searches for attempts that are old enough to be forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// The miner's capacity and its waiting times. They are fixed while it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseRules {
    /// The executors that the miner starts itself, by class.
    pub manifest: Manifest,
    /// The waiting times of a lease.
    pub patience: LeaseTimeouts,
    /// How long ended attempts are remembered and their results kept for their validators.
    pub memory: Duration,
    /// The bounds on fetches of images.
    pub fetch: FetchRules,
    /// The shares of validators.
    pub shares: ShareRules,
    /// The bounds on unpaid leases.
    pub unpaid: UnpaidRules,
}

/// A lease that has not ended, with its audience.
#[derive(Debug)]
struct ActiveLease {
    lease: Lease,
    /// The started receipt with both signatures: proof that this executor is at work while the job is reserved.
    started: Receipt,
    /// The accepted receipt with both signatures: proof that the executor is at work until the job must have ended.
    accepted: Option<Box<Receipt>>,
    /// The connections that get its messages.
    audience: Vec<ConnectionId>,
    /// The open connections that have sent a message about it, the latest last.
    spoke: Vec<ConnectionId>,
    executor: Option<DialId>,
    /// Where it stands among the leases that fetch, once it does: the lowest number began first.
    fetch_number: u64,
    /// When it began, if its validator had its share already; none after a restart of the miner.
    beyond_share_since: Option<Timestamp>,
}

impl ActiveLease {
    /// A lease that was just accepted over connection `id`, with its started receipt.
    fn new(lease: Lease, started: Receipt, id: ConnectionId) -> Self {
        Self {
            lease,
            started,
            accepted: None,
            audience: vec![id],
            spoke: vec![id],
            executor: None,
            fetch_number: 0,
            beyond_share_since: None,
        }
    }

    /// The connection that spoke last becomes the whole audience: the validator's other connections belong to other
    /// attempts.
    fn set_speaker(&mut self, id: ConnectionId) {
        self.spoke.retain(|other| *other != id);
        self.spoke.push(id);
        self.audience = vec![id];
    }

    /// Removes a closed connection. If the audience is empty then, the connection that spoke before takes over, because
    /// frames of a dead connection may have been read after its successor's. The successor is returned: it has missed
    /// the messages since.
    fn remove_connection(&mut self, id: ConnectionId) -> Option<ConnectionId> {
        self.spoke.retain(|other| *other != id);
        self.audience.retain(|other| *other != id);
        if !self.audience.is_empty() {
            return None;
        }
        let heir = self.spoke.last().copied()?;
        self.audience.push(heir);
        Some(heir)
    }
}

/// An attempt whose lease has ended.
#[derive(Clone, Copy, Debug)]
struct EndedLease {
    validator: ValidatorKey,
    status: LeaseStatus,
    accepted_receipt: bool,
    finished_receipt: bool,
    at: Timestamp,
    /// The class and the time of a lease beyond its validator's share that is not paid.
    unpaid: Option<(ExecutorClass, Duration)>,
}

#[derive(Clone, Copy, Debug)]
struct ValidatorConnection {
    validator: ValidatorKey,
    /// It showed the header of Muster, so our own messages may be sent.
    muster: bool,
    features: FeatureSet,
}

/// All leases of the miner, the connections of validators, and the histories owed to them.
#[derive(Debug)]
pub struct LeaseTable {
    rules: LeaseRules,
    /// The capacity of connected persistent executors.
    persistent: ExecutorCapacity,
    active: HashMap<AttemptId, ActiveLease>,
    past: HashMap<AttemptId, EndedLease>,
    /// Ended and not yet acknowledged, by validator.
    owed: HashMap<ValidatorKey, BTreeSet<AttemptId>>,
    connections: HashMap<ConnectionId, ValidatorConnection>,
    /// The whitelist of each validator, as long as this process lives.
    listed: BTreeMap<ValidatorKey, WhitelistNotice>,
    draining: bool,
    /// Validators that wait for an executor within their share.
    waiting: WaitingValidators,
    /// The unpaid leases beyond the shares of validators, as long as their attempts are remembered.
    unpaid: UnpaidTime,
    forget_at: Timestamp,
    /// Leases that have begun to fetch in this process.
    fetches: u64,
}

impl LeaseTable {
    /// Builds the table from the records in the store. An open lease waits for its executor to come back. If the
    /// executor cannot, the lease ends here, and its validator learns it when it connects.
    pub fn open(rules: LeaseRules, records: Vec<LeaseRecord>, now: Timestamp) -> (Self, Vec<Effect>) {
        let mut book = Self {
            rules,
            persistent: ExecutorCapacity::default(),
            active: HashMap::new(),
            past: HashMap::new(),
            owed: HashMap::new(),
            connections: HashMap::new(),
            listed: BTreeMap::new(),
            draining: false,
            waiting: WaitingValidators::default(),
            unpaid: UnpaidTime::default(),
            forget_at: now,
            fetches: 0,
        };
        let mut effects = Vec::new();
        for record in records {
            let attempt = record.attempt;
            let status = match (record.status, record.held) {
                (LeaseStatus::Open, Some(held)) if !book.rules.patience.reattach.is_zero() => {
                    effects.push(book.restore(record.validator, attempt, held, now));
                    continue;
                }
                (LeaseStatus::Open, _) => {
                    let reason = HordeFailureReason::ExecutorDisconnected;
                    let text = "the miner restarted while the job was on its executor".to_owned();
                    let lost = lease::horde_failed(attempt, ParticipantType::Miner, reason, text);
                    let history = vec![events::accepted_message(attempt), lost];
                    effects.push(Effect::Write(LeaseWrite::Ended {
                        attempt,
                        status: LeaseStatus::Owed,
                        history,
                        at: now,
                    }));
                    LeaseStatus::Owed
                }
                (LeaseStatus::Owed | LeaseStatus::Settled | LeaseStatus::Cancelled, _) => record.status,
            };
            let past = EndedLease {
                validator: record.validator,
                status,
                accepted_receipt: record.receipts.contains(&ReceiptKind::Accepted),
                finished_receipt: record.receipts.contains(&ReceiptKind::Finished),
                at: record.at,
                unpaid: None,
            };
            book.remember(attempt, past);
        }
        (book, effects)
    }

    /// Goes on with a lease of an earlier process.
    fn restore(
        &mut self,
        validator: ValidatorKey,
        attempt: AttemptId,
        held: HeldLease,
        now: Timestamp,
    ) -> Effect {
        let lease = Lease::restore(validator, *held.snapshot, self.rules.patience, now);
        let resume = Effect::Resume {
            token: lease.token().clone(),
            class: lease.class(),
            private_image: lease.has_private_image(),
            apart: lease.is_apart(),
            lasts: lease.longest(),
        };
        let active = ActiveLease {
            lease,
            started: held.started,
            accepted: held.accepted.map(Box::new),
            audience: Vec::new(),
            spoke: Vec::new(),
            executor: None,
            fetch_number: 0,
            beyond_share_since: None,
        };
        self.active.insert(attempt, active);
        resume
    }

    /// Applies one event and returns the effects in order.
    pub fn apply(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut effects = self.apply_event(event, now);
        effects.extend(self.settle_fetches(now));
        effects
    }

    fn apply_event(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        match event {
            Event::Joined {
                connection,
                validator,
                muster,
                features,
            } => self.on_joined(
                connection,
                ValidatorConnection {
                    validator,
                    muster,
                    features,
                },
            ),
            Event::Left(connection) => self.on_left(connection),
            Event::Offered {
                connection,
                offer,
                token,
            } => self.on_offered(connection, *offer, token, now),
            Event::Payload { connection, request } => self.on_payload(connection, request, now),
            Event::Cancelled { connection, cancel } => self.on_cancelled(connection, cancel, now),
            Event::Forwarded {
                connection,
                attempt,
                message,
            } => self.on_forwarded(connection, attempt, message, now),
            Event::Listed { connection, notice } => self.on_listed(connection, notice),
            Event::Permitted(served) => self.on_permitted(&served),
            Event::ReceiptOffered { connection, receipt } => self.on_receipt(connection, receipt, now),
            Event::Dialled {
                dial,
                token,
                executor_ip,
                apart,
                features,
                secret,
            } => {
                let dialled = lease::Event::Dialled {
                    executor_ip,
                    apart,
                    secret: features.has(Feature::Reattach).then_some(secret),
                };
                self.on_dialled(dial, &token, dialled, features, now)
            }
            Event::Reattached { dial, attempt, back } => self.on_reattached(dial, attempt, back, now),
            Event::Said {
                dial,
                attempt,
                report,
            } => self.on_report(dial, attempt, *report, now),
            Event::ExecutorGone { dial, attempt } => self.on_executor_gone(dial, attempt, now),
            Event::ExecutorWaits { attempt, reason } => self
                .drive(attempt, lease::Event::ExecutorWaits(reason), now)
                .unwrap_or_default(),
            Event::ExecutorExited { attempt, how } => self
                .drive(attempt, lease::Event::ExecutorExited(how), now)
                .unwrap_or_default(),
            Event::Capacity(capacity) => self.on_capacity(capacity),
            Event::Drain(draining) => {
                self.draining = draining;
                match draining {
                    true => {
                        let all = self.open_attempts();
                        self.drain_jobs(&all, DRAIN_LEAD, now)
                    }
                    false => vec![],
                }
            }
            Event::DrainAttempts(attempts) => self.drain_jobs(&attempts, DRAIN_LEAD, now),
            Event::Closing => {
                self.draining = true;
                vec![]
            }
            Event::Stop => self.on_stop(now),
            Event::Tick => self.on_tick(now),
        }
    }

    /// When the next [`Event::Tick`] is due.
    pub fn next_tick(&self) -> Timestamp {
        let leases = self.active.values().map(|active| active.lease.deadline());
        leases.fold(self.forget_at, Timestamp::min)
    }

    /// How long the miner waits before it gives a lease up.
    pub fn timeouts(&self) -> &LeaseTimeouts {
        &self.rules.patience
    }

    /// Whether offers are declined because the miner is being emptied.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// The attempts of leases that have not ended.
    pub fn open_attempts(&self) -> BTreeSet<AttemptId> {
        self.active.keys().copied().collect()
    }

    /// Leases that have not ended.
    pub fn open_leases(&self) -> usize {
        self.active.len()
    }

    /// Every open lease, in the order of attempts.
    pub fn leases(&self) -> Vec<&Lease> {
        let mut leases: Vec<_> = self.active.values().map(|active| &active.lease).collect();
        leases.sort_unstable_by_key(|lease| lease.attempt());
        leases
    }

    /// Leases that hold an executor.
    pub fn working_leases(&self) -> usize {
        let leases = self.active.values().map(|active| &active.lease);
        leases.filter(|lease| lease.holds_executor()).count()
    }

    /// Leases of one class that hold an executor, or wait for one with their image at hand: a newcomer must not
    /// overtake them.
    fn count_leases(&self, class: ExecutorClass) -> u32 {
        let waits = LeaseState::Fetching(FetchStage::Arrived);
        let count = self
            .active
            .values()
            .map(|active| &active.lease)
            .filter(|lease| lease.class() == class && (lease.holds_executor() || lease.state() == waits))
            .count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The leases of one class that a validator has, those that fetch an image among them.
    fn count_leases_of(&self, class: ExecutorClass, validator: ValidatorKey) -> u32 {
        let leases = self.active.values().map(|active| &active.lease);
        let count = leases
            .filter(|lease| lease.class() == class && lease.validator() == validator)
            .count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// As [`Self::count_leases`], of leases whose executors must take private images.
    fn count_private_leases(&self, class: ExecutorClass) -> u32 {
        let waits = LeaseState::Fetching(FetchStage::Arrived);
        let count = self
            .active
            .values()
            .map(|active| &active.lease)
            .filter(|lease| lease.class() == class && lease.has_private_image())
            .filter(|lease| lease.holds_executor() || lease.state() == waits)
            .count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn on_stop(&mut self, now: Timestamp) -> Vec<Effect> {
        self.draining = true;
        self.each_active(|_| true, || lease::Event::MinerStops, now)
    }

    fn on_tick(&mut self, now: Timestamp) -> Vec<Effect> {
        let is_due = |lease: &Lease| lease.deadline() <= now;
        let waits = |lease: &Lease| lease.state() == LeaseState::Fetching(FetchStage::Waiting);
        let mut effects = Vec::new();
        let mut leases = self.active.values().map(|active| &active.lease);
        if leases.any(|lease| is_due(lease) && waits(lease)) {
            // Before any other lease ends: those that end now held their slots until now.
            let holders = self.slot_holders();
            let tick = || lease::Event::TickWithoutSlot(holders.clone());
            effects.extend(self.each_active(|lease| is_due(lease) && waits(lease), tick, now));
        }
        effects.extend(self.each_active(is_due, || lease::Event::Tick, now));
        if now >= self.forget_at {
            self.forget_at = now.plus(FORGET_EVERY);
            effects.extend(self.forget(now));
        }
        effects
    }

    fn each_active(
        &mut self,
        which: impl Fn(&Lease) -> bool,
        event: impl Fn() -> lease::Event,
        now: Timestamp,
    ) -> Vec<Effect> {
        let mut attempts: Vec<_> = self
            .active
            .values()
            .filter(|active| which(&active.lease))
            .map(|active| active.lease.attempt())
            .collect();
        // The order of a hash map differs from run to run; a replayed schedule must not.
        attempts.sort_unstable();
        let drive = |attempt| self.drive(attempt, event(), now).unwrap_or_default();
        attempts.into_iter().flat_map(drive).collect()
    }

    fn forget(&mut self, now: Timestamp) -> Vec<Effect> {
        let memory = self.rules.memory;
        let old = |at: Timestamp| at.plus(memory) <= now;
        let attempts: Vec<_> = self
            .past
            .iter()
            .filter(|(_, past)| old(past.at))
            .map(|(id, _)| *id)
            .collect();
        if attempts.is_empty() {
            return vec![];
        }
        for attempt in &attempts {
            if let Some(past) = self.past.remove(attempt) {
                self.forget_unpaid(past.validator, past.unpaid);
                self.forget_owed(past.validator, *attempt);
            }
        }
        vec![Effect::Write(LeaseWrite::Forgotten(attempts))]
    }

    /// Gives an event to a lease and turns its effects into the table's.
    fn drive(
        &mut self,
        attempt: AttemptId,
        event: lease::Event,
        now: Timestamp,
    ) -> Result<Vec<Effect>, LeaseRefusal> {
        let active = self
            .active
            .get_mut(&attempt)
            .ok_or(LeaseRefusal::NotOpen(attempt))?;
        let effects = active.lease.apply(event, now)?;
        Ok(self.translate(attempt, effects, now))
    }

    fn translate(&mut self, attempt: AttemptId, effects: Vec<lease::Effect>, now: Timestamp) -> Vec<Effect> {
        let audience = self
            .active
            .get(&attempt)
            .map(|active| active.audience.clone())
            .unwrap_or_default();
        let mut out = Vec::with_capacity(effects.len());
        for effect in effects {
            match effect {
                lease::Effect::Ended(ending) => out.extend(self.close(attempt, ending, now)),
                lease::Effect::Tell(message) => out.push(Effect::Tell {
                    to: audience.clone(),
                    message,
                }),
                lease::Effect::Live(message) => out.extend(self.show_live(&audience, message)),
                lease::Effect::Order(message) => out.push(Effect::Order { attempt, message }),
                lease::Effect::StopExecutor => out.push(Effect::StopExecutor { attempt }),
                lease::Effect::Hold(snapshot) => {
                    out.push(Effect::Write(LeaseWrite::Held { attempt, snapshot }));
                }
                lease::Effect::StartSuccessor => out.extend(self.start_successor(attempt)),
            }
        }
        out
    }

    fn start_successor(&self, attempt: AttemptId) -> Option<Effect> {
        let lease = &self.active.get(&attempt)?.lease;
        Some(Effect::Start {
            token: lease.token().clone(),
            class: lease.class(),
            private_image: lease.has_private_image(),
            lasts: lease.longest(),
        })
    }

    fn close(&mut self, attempt: AttemptId, ending: lease::LeaseEnding, now: Timestamp) -> Option<Effect> {
        let active = self.active.remove(&attempt)?;
        let status = match ending {
            lease::LeaseEnding::Finished | lease::LeaseEnding::Failed | lease::LeaseEnding::HordeFailed => {
                LeaseStatus::Owed
            }
            lease::LeaseEnding::Cancelled => LeaseStatus::Cancelled,
        };
        let class = active.lease.class();
        let unpaid = match ending {
            lease::LeaseEnding::Finished | lease::LeaseEnding::Failed | lease::LeaseEnding::Cancelled => {
                active.beyond_share_since.map(|since| (class, now.since(since)))
            }
            // The miner's or its executor's own fault.
            lease::LeaseEnding::HordeFailed => None,
        };
        if let Some((class, held)) = unpaid {
            self.unpaid.add(active.lease.validator(), class, held);
        }
        let past = EndedLease {
            validator: active.lease.validator(),
            status,
            accepted_receipt: active.accepted.is_some(),
            finished_receipt: false,
            at: now,
            unpaid,
        };
        self.remember(attempt, past);
        let history = active.lease.into_history();
        Some(Effect::Write(LeaseWrite::Ended {
            attempt,
            status,
            history,
            at: now,
        }))
    }

    fn remember(&mut self, attempt: AttemptId, past: EndedLease) {
        match past.status {
            LeaseStatus::Owed => {
                self.owed.entry(past.validator).or_default().insert(attempt);
            }
            LeaseStatus::Open | LeaseStatus::Settled | LeaseStatus::Cancelled => {}
        }
        self.past.insert(attempt, past);
    }

    fn forget_unpaid(&mut self, validator: ValidatorKey, unpaid: Option<(ExecutorClass, Duration)>) {
        if let Some((class, held)) = unpaid {
            self.unpaid.remove(validator, class, held);
        }
    }

    fn forget_owed(&mut self, validator: ValidatorKey, attempt: AttemptId) {
        if let Some(owed) = self.owed.get_mut(&validator) {
            owed.remove(&attempt);
            if owed.is_empty() {
                self.owed.remove(&validator);
            }
        }
    }

    /// The validator behind a connection; `None` once it has left.
    fn validator_of(&self, connection: ConnectionId) -> Option<ValidatorKey> {
        self.connections
            .get(&connection)
            .map(|connection| connection.validator)
    }

    /// The open lease whose executor shows this token.
    fn active_by_token(&self, token: &ExecutorToken) -> Option<&ActiveLease> {
        self.active
            .get(&token.attempt())
            .filter(|active| active.lease.token() == token)
    }
}
