//! All that an operator looks at of one bundle: the verdict, the evidence as it grew, and the calibration's power.

use serde::Serialize;

use crate::detection_curve::{CurvePoint, CurveSettings, draw_curve};
use crate::e_process::{ALARM, CONFIRMATION};
use crate::replay::{ReplayedBundle, replay_with_evidence};
use crate::replay_error::ReplayError;
use crate::roc::{RocCurve, RocSettings, draw_roc};
use crate::test_evidence::EvidenceCurve;

/// The simulation of answers to the alarm: fewer miners than `muster audit curve` simulates, because somebody waits.
const CURVE: CurveSettings = CurveSettings {
    shares: &[1_000, 300, 100, 30],
    trials: 50,
    most_answers: 1_000,
    seed: 1,
};

/// The report about a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    /// The replay with its verdict.
    pub replayed: ReplayedBundle,
    /// The mean evidence at which a test alarms.
    pub alarm: u64,
    /// The mean evidence at which fresh answers confirm an alarm.
    pub confirmation: u64,
    /// The evidence of each test with answers.
    #[serde(rename = "wealth")]
    pub evidence: Vec<EvidenceCurve>,
    /// The audited answers to the alarm, by the bundle's calibration.
    pub curve: Vec<CurvePoint>,
    /// The shares of cheats and of honest miners that reach each threshold, by the bundle's calibration.
    pub roc: Vec<RocCurve>,
}

/// Replays the text of a bundle and simulates its calibration. It takes seconds.
///
/// # Errors
/// The text is no bundle, or something in it does not follow from what was signed.
pub fn report_bundle(text: &str) -> Result<AuditReport, ReplayError> {
    let (replayed, bundle, evidence) = replay_with_evidence(text)?;
    let whole = |evidence: u128| u64::try_from(evidence).unwrap_or(u64::MAX);
    Ok(AuditReport {
        replayed,
        alarm: whole(ALARM),
        confirmation: whole(CONFIRMATION),
        evidence,
        curve: draw_curve(&bundle.calibration, &CURVE),
        roc: draw_roc(&bundle.calibration, &RocSettings::default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixed_point::log2;
    use crate::replay::replay;

    const BUNDLE: &str = include_str!("../../../../tests/vectors/audit-bundle.json");

    #[test]
    fn the_evidence_of_a_conviction_passes_the_alarm_where_the_test_says() {
        let report = report_bundle(BUNDLE).unwrap();
        assert_eq!(report.replayed, replay(BUNDLE).unwrap());
        let alarm = (log2(report.alarm) * 1_000) >> 32;
        for (curve, test) in report
            .evidence
            .iter()
            .zip([report.replayed.tests.all, report.replayed.tests.public])
        {
            assert_eq!(curve.points.len(), test.answers);
            let passed = curve.points.iter().find(|point| point.log2 >= alarm).unwrap();
            assert_eq!(Some(passed.answer), test.alarm, "{}", curve.test);
        }
        let tested = |point: &&CurvePoint| {
            point.share == 1_000 && report.replayed.alternatives.contains(&point.alternative)
        };
        let medians: Vec<_> = report
            .curve
            .iter()
            .filter(tested)
            .map(|point| point.median)
            .collect();
        assert!(
            !medians.is_empty() && medians.iter().all(Option::is_some),
            "{medians:?}"
        );
        assert_eq!(report.roc.len(), report.curve.len() / CURVE.shares.len());
    }
}
