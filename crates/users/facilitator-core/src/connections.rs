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
mod tests {
    use super::*;
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    fn validator(n: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([n; 32]))
    }

    fn job(n: u128) -> JobId {
        JobId::from_uuid(uuid::Uuid::from_u128(n))
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(1000 + secs)
    }

    const V: u8 = 1;

    #[test]
    fn a_job_goes_over_a_connection_once_and_again_over_the_next() {
        let (mut connections, v) = (ValidatorConnections::default(), validator(V));
        let first = connections.connect(v, Trust::Claimed, at(0));
        assert_eq!(
            connections.take_due(v, first, &[job(1), job(2)], at(0)),
            [job(1), job(2)]
        );
        assert_eq!(
            connections.take_due(v, first, &[job(1), job(2), job(3)], at(0)),
            [job(3)]
        );
        connections.disconnect(v, first);
        let second = connections.connect(v, Trust::Claimed, at(0));
        assert_eq!(connections.take_due(v, second, &[job(2)], at(0)), [job(2)]);
    }

    #[test]
    fn a_second_claim_takes_nothing_from_a_live_connection() {
        let (mut connections, v) = (ValidatorConnections::default(), validator(V));
        let first = connections.connect(v, Trust::Claimed, at(0));
        let copy = connections.connect(v, Trust::Claimed, at(1));
        for minute in 1..100 {
            connections.record_frame(v, first, at(60 * minute));
            connections.record_frame(v, copy, at(60 * minute + 1));
            assert_eq!(connections.holder(v, at(60 * minute + 59)), Some(first));
            assert_eq!(
                connections.last_frame_at(v, at(60 * minute + 59)),
                Some(at(60 * minute))
            );
            assert!(
                connections
                    .take_due(v, copy, &[job(1)], at(60 * minute))
                    .is_empty()
            );
        }
        connections.disconnect(v, first);
        assert_eq!(connections.take_due(v, copy, &[job(1)], at(6000)), [job(1)]);
    }

    #[test]
    fn a_connection_that_is_silent_is_succeeded_by_one_that_is_not() {
        let (mut connections, v) = (ValidatorConnections::default(), validator(V));
        let first = connections.connect(v, Trust::Claimed, at(0));
        let second = connections.connect(v, Trust::Claimed, at(30));
        assert_eq!(connections.holder(v, at(89)), Some(first));
        assert_eq!(connections.holder(v, at(90)), Some(second));
        // A connection that lost the jobs does not get them back while the new holder is alive.
        connections.record_frame(v, first, at(91));
        assert_eq!(connections.holder(v, at(119)), Some(second));
        assert_eq!(connections.holder(v, at(120)), Some(first));
        // Silence alone costs nothing while every other connection is silent too.
        assert_eq!(connections.holder(v, at(9999)), Some(first));
    }

    #[test]
    fn proof_goes_before_a_claim_for_as_long_as_it_is_recent_proof() {
        let (mut connections, v) = (ValidatorConnections::default(), validator(V));
        let copy = connections.connect(v, Trust::Claimed, at(0));
        assert!(!connections.demands_proof(v, at(0)));
        let real = connections.connect(v, Trust::Proven, at(1));
        assert_eq!(connections.holder(v, at(1)), Some(real));
        // The claim gets nothing even when the proven connection is silent or closed.
        connections.record_frame(v, copy, at(500));
        assert_eq!(connections.holder(v, at(500)), Some(real));
        connections.disconnect(v, real);
        assert_eq!(connections.holder(v, at(500)), None);
        assert!(connections.demands_proof(v, at(500)) && !connections.demands_proof(validator(2), at(500)));
        // A proven connection holds the jobs at once, also beside an older one.
        let again = connections.connect(v, Trust::Proven, at(501));
        let newer = connections.connect(v, Trust::Proven, at(502));
        assert_ne!(again, newer);
        assert_eq!(connections.holder(v, at(502)), Some(newer));
        connections.disconnect(v, again);
        connections.disconnect(v, newer);
        assert_eq!(connections.holder(v, at(502 + 86_400)), Some(copy));
    }

    #[test]
    fn a_job_that_is_announced_alone_goes_once_too() {
        let (mut connections, v) = (ValidatorConnections::default(), validator(V));
        let connection = connections.connect(v, Trust::Claimed, at(0));
        assert!(connections.take_if_due(v, connection, job(1), at(0)));
        assert!(!connections.take_if_due(v, connection, job(1), at(0)));
        assert!(connections.take_if_due(v, connection, job(2), at(0)));
        assert!(
            connections
                .take_due(v, connection, &[job(1), job(2)], at(0))
                .is_empty()
        );
        let copy = connections.connect(v, Trust::Claimed, at(0));
        assert!(!connections.take_if_due(v, copy, job(3), at(0)));
    }

    #[test]
    fn another_validators_connection_gets_nothing() {
        let mut connections = ValidatorConnections::default();
        let connection = connections.connect(validator(1), Trust::Claimed, at(0));
        assert!(
            connections
                .take_due(validator(2), connection, &[job(1)], at(0))
                .is_empty()
        );
        connections.disconnect(validator(2), connection);
        assert_eq!(connections.holder(validator(1), at(0)), Some(connection));
    }

    #[test]
    fn silence_costs_jobs_first_and_the_connection_later() {
        let seen = Timestamp::from_secs(1000);
        for (secs, presence) in [
            (0, Presence::Selectable),
            (179, Presence::Selectable),
            (180, Presence::Quiet),
            (599, Presence::Quiet),
            (600, Presence::Lost),
        ] {
            assert_eq!(
                Presence::of(seen, Timestamp::from_secs(1000 + secs)),
                presence,
                "{secs}"
            );
        }
        assert_eq!(Presence::of(seen, Presence::lost_at(seen)), Presence::Lost);
    }

    proptest! {
        /// After any sequence of events no connection has been given a job twice, only the holder has been given
        /// jobs, and a claim has never taken over from a proven connection nor from a live one.
        #[test]
        fn one_delivery_a_connection(
            actions in proptest::collection::vec((0_u8..6, 0_usize..6, 0_i64..70, any::<bool>()), 0..120)
        ) {
            let (mut connections, v) = (ValidatorConnections::default(), validator(V));
            let mut open: Vec<(ConnectionId, Trust, i64)> = Vec::new();
            let mut given: BTreeSet<(ConnectionId, JobId)> = BTreeSet::new();
            let unanswered: Vec<_> = (0..5).map(job).collect();
            let mut secs = 0;
            for (action, which, pause, proves) in actions {
                secs += pause;
                let before = connections.holder(v, at(secs));
                let chosen = (!open.is_empty()).then(|| which % open.len());
                match (action, chosen) {
                    (0, _) => {
                        let trust = if proves { Trust::Proven } else { Trust::Claimed };
                        let connection = connections.connect(v, trust, at(secs));
                        let kept = before.filter(|_| trust == Trust::Claimed);
                        open.push((connection, trust, secs));
                        if let Some((_, _, heard)) = open.iter().find(|(id, ..)| Some(*id) == kept) {
                            let moved = connections.holder(v, at(secs)) != kept;
                            prop_assert!(!moved || secs - heard >= 90, "a claim displaced a live connection");
                        }
                    }
                    (1, Some(at_)) => {
                        let (connection, ..) = open.remove(at_);
                        connections.disconnect(v, connection);
                    }
                    (2 | 3, Some(at_)) => {
                        open[at_].2 = secs;
                        connections.record_frame(v, open[at_].0, at(secs));
                    }
                    (_, Some(at_)) => {
                        let connection = open[at_].0;
                        for job in connections.take_due(v, connection, &unanswered, at(secs)) {
                            prop_assert_eq!(connections.holder(v, at(secs)), Some(connection));
                            prop_assert!(given.insert((connection, job)));
                        }
                    }
                    (_, None) => {}
                }
                let holder = connections.holder(v, at(secs));
                let trust = open.iter().find(|(id, ..)| Some(*id) == holder).map(|(_, trust, _)| *trust);
                prop_assert_eq!(trust.is_some(), holder.is_some());
                if open.iter().any(|(_, trust, _)| *trust == Trust::Proven) {
                    prop_assert_eq!(trust, Some(Trust::Proven));
                }
            }
        }
    }
}
