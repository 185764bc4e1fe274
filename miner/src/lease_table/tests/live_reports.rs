//! Reports of running programs on their way to validators of several versions.

use muster_protocol::job::{NonFiniteValue, ProgramReport};
use muster_protocol::wire::executor::JobMetrics;

use super::*;

#[test]
fn a_report_goes_to_each_validator_as_far_as_it_knows_its_parts() {
    let (mut book, now) = (open(), start());
    for (connection, muster, features) in [
        (ConnectionId(71), false, FeatureSet::NONE),
        (ConnectionId(72), true, FeatureSet::ours()),
        (ConnectionId(73), true, [Feature::Metrics].into_iter().collect()),
        (ConnectionId(74), true, FeatureSet::NONE),
    ] {
        let validator = validator();
        book.apply(
            Event::Joined {
                connection,
                validator,
                muster,
                features,
            },
            now,
        );
    }
    let audience = [71, 72, 73, 74].map(ConnectionId);
    let report = ProgramReport {
        epoch: Some(2),
        non_finite: [("loss".parse().unwrap(), NonFiniteValue::NaN)].into(),
        ..ProgramReport::default()
    };
    let message = |report: ProgramReport| {
        Box::new(MinerToValidator::MusterJobMetrics(Box::new(JobMetrics {
            job_uuid: attempt(1),
            at: now,
            report,
        })))
    };
    let mut known = report.clone();
    known.non_finite.clear();
    let effects = book.show_live(&audience, message(report.clone()));
    let live = |to: u64, report: ProgramReport| Effect::Live {
        to: vec![ConnectionId(to)],
        message: message(report),
    };
    assert_eq!(effects, [live(72, report), live(73, known.clone())]);
    let both = Effect::Live {
        to: vec![ConnectionId(72), ConnectionId(73)],
        message: message(known.clone()),
    };
    assert_eq!(book.show_live(&audience, message(known)), [both]);
}
