//! The book of leases: every outside event goes through it, one after another, and it says what to do.
//!
//! Pure: no sockets, no store, no clock. The dispatcher feeds it and carries its effects out.
//!
//! *Who hears of a lease.* The connection that last spoke about an attempt, and every connection its validator opened
//! since: a validator that lost its connection hears on, though the old connection may look alive for a while.
//!
//! *What is owed.* The story of an ended lease is owed to its validator until the finished receipt arrives; each
//! further connection is told it again. Ended attempts are remembered for [`Rules::memory`], and every receipt that was taken
//! is too old to be taken again before that is over, so an attempt is run at most once.

mod executors;
mod messages;
#[cfg(test)]
mod tests;
mod validators;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use muster_protocol::wire::muster::WhitelistNotice;
use muster_protocol::{
    AttemptId, ExecutorClass, Manifest, ParticipantType, Receipt, ReceiptKind, Timestamp, ValidatorKey,
};
use muster_protocol::{ExecutorToken, HordeFailureReason};

use crate::lease::{self, Lease, Patience, Refused};

pub use messages::{ConnectionId, DialId, Effect, Event, Offered, Record, Standing, Write};

/// How often what is old enough to be forgotten is looked for.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// What the miner promises and how long it waits. Fixed while it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// What the miner has besides standing executors.
    pub manifest: Manifest,
    /// How long leases wait.
    pub patience: Patience,
    /// How long ended attempts are remembered and their results kept for their validators.
    pub memory: Duration,
}

/// A lease that has not ended, with who hears of it.
#[derive(Debug)]
struct Active {
    lease: Lease,
    /// The started receipt with both signatures: proof that this executor is at work.
    started: Receipt,
    accepted_receipt: bool,
    /// Who hears of it.
    audience: Vec<ConnectionId>,
    /// Who has spoken about it and is still there, the latest last.
    spoke: Vec<ConnectionId>,
    executor: Option<DialId>,
}

impl Active {
    /// Whoever spoke last hears alone: the validator's other connections are other attempts'.
    fn speaks(&mut self, id: ConnectionId) {
        self.spoke.retain(|other| *other != id);
        self.spoke.push(id);
        self.audience = vec![id];
    }

    /// A connection is gone. If nobody hears of the lease any more, who spoke before takes over: what a dead connection had
    /// sent may have been read after its successor's. That one is returned, since it has missed what was told meanwhile.
    fn left(&mut self, id: ConnectionId) -> Option<ConnectionId> {
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
struct Past {
    validator: ValidatorKey,
    standing: Standing,
    accepted_receipt: bool,
    finished_receipt: bool,
    at: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    validator: ValidatorKey,
    /// It showed the header of Muster, so our own messages may be sent.
    muster: bool,
}

/// The book.
#[derive(Debug)]
pub struct Book {
    rules: Rules,
    /// What standing executors add.
    standing: Manifest,
    active: HashMap<AttemptId, Active>,
    past: HashMap<AttemptId, Past>,
    /// Ended and not yet acknowledged, by validator.
    owed: HashMap<ValidatorKey, BTreeSet<AttemptId>>,
    connections: HashMap<ConnectionId, Connection>,
    /// What each validator has published, as long as this process lives.
    listed: BTreeMap<ValidatorKey, WhitelistNotice>,
    draining: bool,
    forget_at: Timestamp,
}

impl Book {
    /// Opens the book on what the store holds. Leases found open lost their executors with the process before: they
    /// end here, and their validators are told when they connect.
    pub fn open(rules: Rules, records: Vec<Record>, now: Timestamp) -> (Self, Vec<Effect>) {
        let mut book = Self {
            rules,
            standing: Manifest::default(),
            active: HashMap::new(),
            past: HashMap::new(),
            owed: HashMap::new(),
            connections: HashMap::new(),
            listed: BTreeMap::new(),
            draining: false,
            forget_at: now,
        };
        let mut effects = Vec::new();
        for record in records {
            let attempt = record.attempt;
            let standing = match record.standing {
                Standing::Open => {
                    let reason = HordeFailureReason::ExecutorDisconnected;
                    let text = "the miner restarted while the job was on its executor".to_owned();
                    let lost = lease::horde_failed(attempt, ParticipantType::Miner, reason, text);
                    let story = vec![messages::accepted(attempt), lost];
                    effects.push(Effect::Write(Write::Ended {
                        attempt,
                        standing: Standing::Owed,
                        story,
                        at: now,
                    }));
                    Standing::Owed
                }
                Standing::Owed | Standing::Settled | Standing::Cancelled => record.standing,
            };
            let past = Past {
                validator: record.validator,
                standing,
                accepted_receipt: record.receipts.contains(&ReceiptKind::Accepted),
                finished_receipt: record.receipts.contains(&ReceiptKind::Finished),
                at: record.at,
            };
            book.remember(attempt, past);
        }
        (book, effects)
    }

    /// Takes one event and says what to do, in order.
    pub fn apply(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        match event {
            Event::Joined {
                connection,
                validator,
                muster,
            } => self.on_joined(connection, validator, muster),
            Event::Left(connection) => self.on_left(connection),
            Event::Offered {
                connection,
                offer,
                token,
            } => self.on_offered(connection, *offer, token, now),
            Event::Payload { connection, request } => self.on_payload(connection, request, now),
            Event::Cancelled { connection, cancel } => self.on_cancelled(connection, cancel, now),
            Event::Listed { connection, notice } => self.on_listed(connection, notice),
            Event::ReceiptOffered { connection, receipt } => self.on_receipt(connection, receipt, now),
            Event::Dialled {
                dial,
                token,
                executor_ip,
            } => self.on_dialled(dial, &token, executor_ip, now),
            Event::Said {
                dial,
                attempt,
                report,
            } => self.on_said(dial, attempt, *report, now),
            Event::ExecutorGone { dial, attempt } => self.on_executor_gone(dial, attempt, now),
            Event::ExecutorExited { attempt, how } => self
                .drive(attempt, lease::Event::ExecutorExited(how), now)
                .unwrap_or_default(),
            Event::Capacity(standing) => self.on_capacity(standing),
            Event::Drain => {
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

    /// Leases that have not ended.
    pub fn open_leases(&self) -> usize {
        self.active.len()
    }

    /// Leases of one class that have not ended.
    fn leased(&self, class: ExecutorClass) -> u32 {
        let count = self
            .active
            .values()
            .filter(|active| active.lease.class() == class)
            .count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn on_stop(&mut self, now: Timestamp) -> Vec<Effect> {
        self.draining = true;
        self.each_active(|_| true, || lease::Event::MinerStops, now)
    }

    fn on_tick(&mut self, now: Timestamp) -> Vec<Effect> {
        let mut effects = self.each_active(|lease| lease.deadline() <= now, || lease::Event::Tick, now);
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
                self.no_longer_owed(past.validator, *attempt);
            }
        }
        vec![Effect::Write(Write::Forgotten(attempts))]
    }

    /// Gives an event to a lease and turns its effects into the book's.
    fn drive(
        &mut self,
        attempt: AttemptId,
        event: lease::Event,
        now: Timestamp,
    ) -> Result<Vec<Effect>, Refused> {
        let active = self.active.get_mut(&attempt).ok_or(Refused::NotOpen(attempt))?;
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
                lease::Effect::Live(message) => out.push(Effect::Live {
                    to: self.muster_only(&audience),
                    message,
                }),
                lease::Effect::Order(message) => out.push(Effect::Order { attempt, message }),
                lease::Effect::StopExecutor => out.push(Effect::StopExecutor { attempt }),
            }
        }
        out
    }

    fn close(&mut self, attempt: AttemptId, ending: lease::Ending, now: Timestamp) -> Option<Effect> {
        let active = self.active.remove(&attempt)?;
        let standing = match ending {
            lease::Ending::Finished | lease::Ending::Failed | lease::Ending::HordeFailed => Standing::Owed,
            lease::Ending::Cancelled => Standing::Cancelled,
        };
        let past = Past {
            validator: active.lease.validator(),
            standing,
            accepted_receipt: active.accepted_receipt,
            finished_receipt: false,
            at: now,
        };
        self.remember(attempt, past);
        let story = active.lease.into_story();
        Some(Effect::Write(Write::Ended {
            attempt,
            standing,
            story,
            at: now,
        }))
    }

    fn remember(&mut self, attempt: AttemptId, past: Past) {
        match past.standing {
            Standing::Owed => {
                self.owed.entry(past.validator).or_default().insert(attempt);
            }
            Standing::Open | Standing::Settled | Standing::Cancelled => {}
        }
        self.past.insert(attempt, past);
    }

    fn no_longer_owed(&mut self, validator: ValidatorKey, attempt: AttemptId) {
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
    fn active_by_token(&self, token: &ExecutorToken) -> Option<&Active> {
        self.active
            .get(&token.attempt())
            .filter(|active| active.lease.token() == token)
    }
}
