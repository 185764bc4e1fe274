//! Who gets which job when: a pure account of the validators' connections and of what went over each.
//!
//! A job is due to its validator's newest connection until the validator has said anything about it. It goes over one
//! connection once; a new connection gets what is still unanswered again, and validators take a job they know as a repetition.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_protocol::{JobId, Timestamp, ValidatorKey};

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

/// One connection of a validator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(u64);

#[derive(Debug)]
struct Link {
    id: LinkId,
    delivered: BTreeSet<JobId>,
}

/// The connections of every validator, the newest last.
#[derive(Debug, Default)]
pub struct Desk {
    links: BTreeMap<ValidatorKey, Vec<Link>>,
    next: u64,
}

// === impl Desk ===

impl Desk {
    /// A validator has connected; deliveries go to this connection from now on.
    pub fn connect(&mut self, validator: ValidatorKey) -> LinkId {
        let id = LinkId(self.next);
        self.next = self.next.saturating_add(1);
        let delivered = BTreeSet::new();
        self.links
            .entry(validator)
            .or_default()
            .push(Link { id, delivered });
        id
    }

    /// A connection has ended; the newest of those that remain takes over.
    pub fn disconnect(&mut self, validator: ValidatorKey, link: LinkId) {
        if let Some(links) = self.links.get_mut(&validator) {
            links.retain(|open| open.id != link);
            if links.is_empty() {
                self.links.remove(&validator);
            }
        }
    }

    /// The connection that gets the validator's jobs.
    pub fn current(&self, validator: ValidatorKey) -> Option<LinkId> {
        self.links
            .get(&validator)
            .and_then(|links| links.last())
            .map(|link| link.id)
    }

    /// How many validators are connected.
    pub fn validators(&self) -> usize {
        self.links.len()
    }

    /// Which of the validator's unanswered jobs are to go over `link` now, in order. They count as delivered.
    ///
    /// Nothing is due to a connection that a newer one has replaced.
    pub fn due(&mut self, validator: ValidatorKey, link: LinkId, unanswered: &[JobId]) -> Vec<JobId> {
        let newest = self
            .links
            .get_mut(&validator)
            .and_then(|links| links.last_mut())
            .filter(|newest| newest.id == link);
        let Some(newest) = newest else { return Vec::new() };
        // What has been answered meanwhile need not be remembered.
        let open: BTreeSet<_> = unanswered.iter().copied().collect();
        newest.delivered.retain(|job| open.contains(job));
        unanswered
            .iter()
            .copied()
            .filter(|job| newest.delivered.insert(*job))
            .collect()
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

    #[test]
    fn a_job_goes_over_a_connection_once_and_again_over_the_next() {
        let mut desk = Desk::default();
        let first = desk.connect(validator(1));
        assert_eq!(desk.due(validator(1), first, &[job(1), job(2)]), [job(1), job(2)]);
        assert_eq!(desk.due(validator(1), first, &[job(1), job(2), job(3)]), [job(3)]);
        desk.disconnect(validator(1), first);
        let second = desk.connect(validator(1));
        assert_eq!(desk.due(validator(1), second, &[job(2)]), [job(2)]);
    }

    #[test]
    fn a_second_connection_replaces_the_first_until_it_ends() {
        let mut desk = Desk::default();
        let first = desk.connect(validator(1));
        let second = desk.connect(validator(1));
        assert_eq!(desk.current(validator(1)), Some(second));
        assert!(desk.due(validator(1), first, &[job(1)]).is_empty());
        assert_eq!(desk.due(validator(1), second, &[job(1)]), [job(1)]);
        desk.disconnect(validator(1), second);
        assert_eq!(desk.current(validator(1)), Some(first));
        assert_eq!(desk.due(validator(1), first, &[job(1)]), [job(1)]);
    }

    #[test]
    fn another_validators_connection_gets_nothing() {
        let mut desk = Desk::default();
        let link = desk.connect(validator(1));
        assert!(desk.due(validator(2), link, &[job(1)]).is_empty());
        desk.disconnect(validator(2), link);
        assert_eq!(desk.current(validator(1)), Some(link));
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
        /// Whatever connects, leaves and asks: no connection is given a job twice, and only the newest is given any.
        #[test]
        fn one_delivery_a_connection(actions in proptest::collection::vec((0_u8..4, 0_usize..6, 0_u128..5), 0..120)) {
            let mut desk = Desk::default();
            let mut open: Vec<LinkId> = Vec::new();
            let mut given: BTreeSet<(LinkId, JobId)> = BTreeSet::new();
            let unanswered: Vec<_> = (0..5).map(job).collect();
            for (action, which, count) in actions {
                let chosen = (!open.is_empty()).then(|| open[which % open.len()]);
                match (action, chosen) {
                    (0, _) => open.push(desk.connect(validator(1))),
                    (1, Some(link)) => {
                        desk.disconnect(validator(1), link);
                        open.retain(|other| *other != link);
                    }
                    (_, Some(link)) => {
                        let upto = usize::try_from(count).unwrap();
                        // Jobs are only ever added here: an answered job is never unanswered again.
                        let pending = &unanswered[..unanswered.len().min(upto.max(4))];
                        for job in desk.due(validator(1), link, pending) {
                            prop_assert_eq!(desk.current(validator(1)), Some(link));
                            prop_assert!(given.insert((link, job)));
                        }
                    }
                    (_, None) => {}
                }
                prop_assert_eq!(desk.current(validator(1)), open.last().copied());
            }
        }
    }
}
