//! The validators' connections, the jobs delivered over each, and the decision which connection holds a validator's
//! jobs. Pure.
//!
//! At each moment at most one connection of a validator holds its jobs: they are delivered over it, and only it may
//! report on them. A job is due until the validator has answered it. It is delivered over one connection once. The
//! next holder gets the unanswered jobs again, and a validator treats a job that it knows as a repetition.
//!
//! ComputeHorde's greeting never changes, so a third party that has captured one can open a newer connection. Such a
//! connection takes no jobs from one that sends heartbeats. Muster's validators answer a challenge, so their newest
//! connection takes over at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_protocol::{JobId, Timestamp, ValidatorKey};

/// The silence after which another connection may take over a connection's jobs: one and a half heartbeat intervals.
pub const SILENT_AFTER: Duration = Duration::from_secs(90);

/// The time after the last frame over a proven connection during which the validator must answer a challenge.
///
/// It ends, so that an operator can return to a validator that cannot answer challenges.
const PROOF_DEMANDED: Duration = Duration::from_secs(24 * 3600);

/// The silence after which a validator gets no new jobs. Validators send a heartbeat every minute.
const QUIET_AFTER: Duration = Duration::from_secs(180);

/// The time without a heartbeat after which a validator's connection is closed.
const LOST_AFTER: Duration = Duration::from_secs(600);

/// The presence of a validator, by the time of its last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It may get new jobs.
    Selectable,
    /// Silent for a while: it gets no new jobs and keeps those that it has.
    Quiet,
    /// Silent for so long that its connection is closed.
    Lost,
}

impl Presence {
    /// The presence at `now` of a validator whose last frame came at `seen`.
    pub fn of(seen: Timestamp, now: Timestamp) -> Self {
        let silence = now.since(seen);
        if silence < QUIET_AFTER {
            Self::Selectable
        } else if silence < LOST_AFTER {
            Self::Quiet
        } else {
            Self::Lost
        }
    }

    /// The time at which a validator whose last frame came at `seen` counts as lost.
    pub fn lost_at(seen: Timestamp) -> Timestamp {
        seen.plus(LOST_AFTER)
    }
}

/// The evidence that a connection is its validator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// ComputeHorde's greeting. It never changes, so a third party can replay it.
    Claimed,
    /// The answer to a challenge that was drawn for this connection.
    Proven,
}

/// Whether a proof at the time `proven` is so recent that the validator must answer a challenge at `now`.
pub fn is_recent_proof(proven: Timestamp, now: Timestamp) -> bool {
    now.since(proven) < PROOF_DEMANDED
}

/// The number of a validator's connection, in the order of connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(u64);

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    trust: Trust,
    heard: Timestamp,
    delivered: BTreeSet<JobId>,
}

/// The connections of one validator, in the order of connecting, and the one that holds its jobs.
#[derive(Debug, Default)]
struct ValidatorEntry {
    connections: Vec<Connection>,
    holder: Option<ConnectionId>,
}

/// The connections of every validator.
#[derive(Debug, Default)]
pub struct ValidatorConnections {
    validators: BTreeMap<ValidatorKey, ValidatorEntry>,
    /// The time of each validator's last frame over a proven connection.
    proven: BTreeMap<ValidatorKey, Timestamp>,
    next: u64,
}

// === impl Connection, ValidatorEntry ===

impl Connection {
    /// Whether a frame came recently.
    fn is_alive(&self, now: Timestamp) -> bool {
        now.since(self.heard) < SILENT_AFTER
    }
}

impl ValidatorEntry {
    /// Chooses the connection that holds the jobs at `now`; with `proven_only` among the proven ones.
    ///
    /// A proven connection goes before a claimed one. Of the proven ones the newest live one holds the jobs, because
    /// the validator itself has reconnected. A claimed one holds them until it closes or falls silent, because a
    /// newer claim may be a replayed greeting.
    fn choose_holder(&mut self, proven_only: bool, now: Timestamp) -> Option<ConnectionId> {
        let eligible = || {
            self.connections
                .iter()
                .filter(|connection| !proven_only || connection.trust == Trust::Proven)
        };
        let held = eligible().find(|connection| Some(connection.id) == self.holder);
        let best =
            eligible().max_by_key(|connection| (connection.trust, connection.is_alive(now), connection.id));
        let stays = held.zip(best).filter(|(held, best)| {
            best.trust == Trust::Claimed && (held.is_alive(now) || !best.is_alive(now))
        });
        self.holder = match stays {
            Some((held, _)) => Some(held.id),
            None => best.map(|best| best.id),
        };
        self.holder
    }
}

// === impl ValidatorConnections ===

impl ValidatorConnections {
    /// Records a new connection of a validator.
    pub fn connect(&mut self, validator: ValidatorKey, trust: Trust, now: Timestamp) -> ConnectionId {
        let id = ConnectionId(self.next);
        self.next = self.next.saturating_add(1);
        let connection = Connection {
            id,
            trust,
            heard: now,
            delivered: BTreeSet::new(),
        };
        self.validators
            .entry(validator)
            .or_default()
            .connections
            .push(connection);
        self.record_frame(validator, id, now);
        self.holder(validator, now);
        id
    }

    /// Removes a connection that has ended.
    pub fn disconnect(&mut self, validator: ValidatorKey, connection: ConnectionId) {
        if let Some(entry) = self.validators.get_mut(&validator) {
            entry.connections.retain(|open| open.id != connection);
            if entry.connections.is_empty() {
                self.validators.remove(&validator);
            }
        }
    }

    /// Records that a frame came over a connection.
    pub fn record_frame(&mut self, validator: ValidatorKey, connection: ConnectionId, now: Timestamp) {
        let entry = self.validators.get_mut(&validator);
        if let Some(connection) =
            entry.and_then(|entry| entry.connections.iter_mut().find(|open| open.id == connection))
        {
            connection.heard = now;
            match connection.trust {
                Trust::Claimed => {}
                Trust::Proven => {
                    self.proven.insert(validator, now);
                }
            }
        }
    }

    /// Whether the validator must answer a challenge, because it has answered one recently.
    pub fn demands_proof(&self, validator: ValidatorKey, now: Timestamp) -> bool {
        let proven = self.proven.get(&validator);
        proven.is_some_and(|proven| is_recent_proof(*proven, now))
    }

    /// The connection that holds the validator's jobs, if there is one.
    pub fn holder(&mut self, validator: ValidatorKey, now: Timestamp) -> Option<ConnectionId> {
        let proven_only = self.demands_proof(validator, now);
        self.validators
            .get_mut(&validator)?
            .choose_holder(proven_only, now)
    }

    /// The time of the last frame over the connection that holds the validator's jobs, if there is one.
    pub fn last_frame_at(&mut self, validator: ValidatorKey, now: Timestamp) -> Option<Timestamp> {
        let holder = self.holder(validator, now)?;
        let connections = &self.validators.get(&validator)?.connections;
        connections
            .iter()
            .find(|connection| connection.id == holder)
            .map(|connection| connection.heard)
    }

    /// The open connections of the validator.
    pub fn connections_of(&self, validator: ValidatorKey) -> impl Iterator<Item = ConnectionId> {
        let entry = self.validators.get(&validator);
        entry
            .into_iter()
            .flat_map(|entry| entry.connections.iter().map(|connection| connection.id))
    }

    /// The number of connected validators.
    pub fn validator_count(&self) -> usize {
        self.validators.len()
    }

    /// Returns those of the validator's unanswered jobs that are due over `connection`, in order, and marks them as
    /// delivered. Nothing is due over a connection that does not hold the jobs.
    pub fn take_due(
        &mut self,
        validator: ValidatorKey,
        connection: ConnectionId,
        unanswered: &[JobId],
        now: Timestamp,
    ) -> Vec<JobId> {
        let Some(connection) = self.if_holder(validator, connection, now) else {
            return Vec::new();
        };
        // Answered jobs need no mark any more.
        let open: BTreeSet<_> = unanswered.iter().copied().collect();
        connection.delivered.retain(|job| open.contains(job));
        unanswered
            .iter()
            .copied()
            .filter(|job| connection.delivered.insert(*job))
            .collect()
    }

    /// Whether this unanswered job is due over `connection`. If it is, it is marked as delivered.
    pub fn take_if_due(
        &mut self,
        validator: ValidatorKey,
        connection: ConnectionId,
        job: JobId,
        now: Timestamp,
    ) -> bool {
        self.if_holder(validator, connection, now)
            .is_some_and(|connection| connection.delivered.insert(job))
    }

    /// The connection, if it holds the validator's jobs.
    fn if_holder(
        &mut self,
        validator: ValidatorKey,
        connection: ConnectionId,
        now: Timestamp,
    ) -> Option<&mut Connection> {
        if self.holder(validator, now) != Some(connection) {
            return None;
        }
        let entry = self.validators.get_mut(&validator)?;
        entry.connections.iter_mut().find(|open| open.id == connection)
    }
}

#[cfg(test)]
mod tests;
