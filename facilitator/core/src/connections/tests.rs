//! The choice of the connection that holds the jobs, and the delivery over it.

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
