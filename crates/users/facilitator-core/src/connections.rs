//! Who gets which job when: a pure account of the validators' connections and of what went over each.
//!
//! One connection of a validator at a time holds its jobs: they go over it, and only over it are they reported on. A job is
//! due until the validator has said anything about it. It goes over one connection once; a successor gets what is still
//! unanswered again, and validators take a job they know as a repetition.
//!
//! ComputeHorde's greeting is the same for ever, so a newer connection may be a stranger's who has captured one. It takes
//! nothing over from a connection that beats. Muster's validators answer a challenge and need no such patience.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_protocol::{JobId, Timestamp, ValidatorKey};

/// After this long without a frame a connection may be succeeded by another one: a heartbeat a minute, and half of one more.
pub const SILENT_AFTER: Duration = Duration::from_secs(90);

/// For this long after a validator was last heard on a connection where it had proven itself, a mere claim is not enough.
///
/// It ends, so that an operator may go back to a validator that cannot answer challenges.
const PROOF_DEMANDED: Duration = Duration::from_secs(24 * 3600);

/// After this long without a heartbeat no further job is given to a validator (they beat every minute).
const QUIET_AFTER: Duration = Duration::from_secs(180);

/// After this long without a heartbeat its connection is closed.
const LOST_AFTER: Duration = Duration::from_secs(600);

/// What a validator's last sign of life says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Jobs may be sent to it.
    Selectable,
    /// Silent for a while: no new jobs, what it holds it keeps.
    Quiet,
    /// Silent for so long that its connection is given up.
    Lost,
}

impl Presence {
    /// The presence at `now` of a validator that last gave a sign at `seen`.
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

    /// When a validator that last gave a sign at `seen` is lost unless it gives another.
    pub fn lost_at(seen: Timestamp) -> Timestamp {
        seen.plus(LOST_AFTER)
    }
}

/// How sure it is that a connection is its validator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// It showed ComputeHorde's greeting, which never changes: whoever has captured one can show it.
    Claimed,
    /// It has answered a challenge that was drawn for this connection.
    Proven,
}

/// Whether a validator's proof of `proven` is recent enough that a mere claim is not enough at `now`.
pub fn is_recent_proof(proven: Timestamp, now: Timestamp) -> bool {
    now.since(proven) < PROOF_DEMANDED
}

/// One connection of a validator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(u64);

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    trust: Trust,
    heard: Timestamp,
    delivered: BTreeSet<JobId>,
}

/// The connections of one validator, in the order in which they came, and which of them holds its jobs.
#[derive(Debug, Default)]
struct ValidatorEntry {
    connections: Vec<Connection>,
    holder: Option<ConnectionId>,
}

/// The connections of every validator.
#[derive(Debug, Default)]
pub struct ValidatorConnections {
    validators: BTreeMap<ValidatorKey, ValidatorEntry>,
    /// When each validator last proved itself, or was heard on a connection where it had.
    proven: BTreeMap<ValidatorKey, Timestamp>,
    next: u64,
}

// === impl Connection, ValidatorEntry ===

impl Connection {
    fn beats(&self, now: Timestamp) -> bool {
        now.since(self.heard) < SILENT_AFTER
    }
}

impl ValidatorEntry {
    /// Decides who holds the jobs at `now`; with `proven_only` nobody who merely claims to be the validator.
    ///
    /// Proof goes before a claim. Of proven connections the newest that beats holds: the validator itself has come
    /// back. A claimed one holds until it closes or falls silent, because a newer claim may be a stranger's copy.
    fn settle(&mut self, proven_only: bool, now: Timestamp) -> Option<ConnectionId> {
        let eligible = || {
            self.connections
                .iter()
                .filter(|connection| !proven_only || connection.trust == Trust::Proven)
        };
        let held = eligible().find(|connection| Some(connection.id) == self.holder);
        let best =
            eligible().max_by_key(|connection| (connection.trust, connection.beats(now), connection.id));
        let stays = held
            .zip(best)
            .filter(|(held, best)| best.trust == Trust::Claimed && (held.beats(now) || !best.beats(now)));
        self.holder = match stays {
            Some((held, _)) => Some(held.id),
            None => best.map(|best| best.id),
        };
        self.holder
    }
}

// === impl ValidatorConnections ===

impl ValidatorConnections {
    /// A validator has connected.
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

    /// A connection has ended.
    pub fn disconnect(&mut self, validator: ValidatorKey, connection: ConnectionId) {
        if let Some(entry) = self.validators.get_mut(&validator) {
            entry.connections.retain(|open| open.id != connection);
            if entry.connections.is_empty() {
                self.validators.remove(&validator);
            }
        }
    }

    /// A frame has come over a connection.
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

    /// Whether a mere claim to be this validator is not enough: it has proven itself lately, so it can.
    pub fn demands_proof(&self, validator: ValidatorKey, now: Timestamp) -> bool {
        let proven = self.proven.get(&validator);
        proven.is_some_and(|proven| is_recent_proof(*proven, now))
    }

    /// The connection that gets the validator's jobs and reports about them, if there is one.
    pub fn holder(&mut self, validator: ValidatorKey, now: Timestamp) -> Option<ConnectionId> {
        let proven_only = self.demands_proof(validator, now);
        self.validators.get_mut(&validator)?.settle(proven_only, now)
    }

    /// When the connection that holds the validator's jobs was heard last, if there is one.
    pub fn last_frame_at(&mut self, validator: ValidatorKey, now: Timestamp) -> Option<Timestamp> {
        let holder = self.holder(validator, now)?;
        let connections = &self.validators.get(&validator)?.connections;
        connections
            .iter()
            .find(|connection| connection.id == holder)
            .map(|connection| connection.heard)
    }

    /// Every open connection of the validator.
    pub fn connections_of(&self, validator: ValidatorKey) -> impl Iterator<Item = ConnectionId> {
        let entry = self.validators.get(&validator);
        entry
            .into_iter()
            .flat_map(|entry| entry.connections.iter().map(|connection| connection.id))
    }

    /// How many validators are connected.
    pub fn validator_count(&self) -> usize {
        self.validators.len()
    }

    /// Which of the validator's unanswered jobs are to go over `connection` now, in order. They count as delivered.
    ///
    /// Nothing is due to a connection that does not hold the jobs.
    pub fn take_due(
        &mut self,
        validator: ValidatorKey,
        connection: ConnectionId,
        unanswered: &[JobId],
        now: Timestamp,
    ) -> Vec<JobId> {
        let Some(connection) = self.holding(validator, connection, now) else {
            return Vec::new();
        };
        // What has been answered meanwhile need not be remembered.
        let open: BTreeSet<_> = unanswered.iter().copied().collect();
        connection.delivered.retain(|job| open.contains(job));
        unanswered
            .iter()
            .copied()
            .filter(|job| connection.delivered.insert(*job))
            .collect()
    }

    /// Whether this one unanswered job is to go over `connection` now. It counts as delivered.
    pub fn take_if_due(
        &mut self,
        validator: ValidatorKey,
        connection: ConnectionId,
        job: JobId,
        now: Timestamp,
    ) -> bool {
        self.holding(validator, connection, now)
            .is_some_and(|connection| connection.delivered.insert(job))
    }

    /// The connection, if it holds the validator's jobs.
    fn holding(
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
    fn a_second_claim_takes_nothing_from_a_connection_that_beats() {
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
        // Once succeeded it does not come back while its successor beats.
        connections.record_frame(v, first, at(91));
        assert_eq!(connections.holder(v, at(119)), Some(second));
        assert_eq!(connections.holder(v, at(120)), Some(first));
        // Silence alone is no reason when nobody else speaks.
        assert_eq!(connections.holder(v, at(9999)), Some(first));
    }

    #[test]
    fn proof_goes_before_a_claim_for_as_long_as_it_is_recent_proof() {
        let (mut connections, v) = (ValidatorConnections::default(), validator(V));
        let copy = connections.connect(v, Trust::Claimed, at(0));
        assert!(!connections.demands_proof(v, at(0)));
        let real = connections.connect(v, Trust::Proven, at(1));
        assert_eq!(connections.holder(v, at(1)), Some(real));
        // Not even when the validator is silent or away.
        connections.record_frame(v, copy, at(500));
        assert_eq!(connections.holder(v, at(500)), Some(real));
        connections.disconnect(v, real);
        assert_eq!(connections.holder(v, at(500)), None);
        assert!(connections.demands_proof(v, at(500)) && !connections.demands_proof(validator(2), at(500)));
        // The validator that comes back holds at once, whatever became of its old connection.
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
        /// Whatever connects, speaks, leaves and asks: no connection is given a job twice, only the holder is given any,
        /// and a claim never takes over from a proven connection nor from one that beats.
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
                            prop_assert!(!moved || secs - heard >= 90, "a claim displaced a connection that beats");
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
