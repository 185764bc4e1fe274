//! Cheats and honest miners over many days, by the measured answers of images/llm's engines.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a failure of its test")]

use muster_audit::{
    Calibration, CalibrationLevel, CurvePoint, CurveSettings, DetectionSettings, accuse_honest, detect,
    draw_curve,
};

fn calibration() -> Calibration {
    Calibration::parse(include_str!(
        "../../../../../tests/vectors/audit-calibration.json"
    ))
    .unwrap()
}

fn point<'a>(points: &'a [CurvePoint], alternative: &str, share: u16) -> &'a CurvePoint {
    let named = |point: &&CurvePoint| point.alternative == alternative && point.share == share;
    points.iter().find(named).unwrap()
}

#[test]
fn no_honest_machine_is_accused_in_ten_thousand_days_of_miners() {
    for seed in 1..3 {
        for days in accuse_honest(&calibration(), 10_000, 50, seed) {
            assert_eq!(days.accused, 0, "{days:?}");
        }
    }
}

#[test]
fn four_bits_are_found_in_every_answer_and_in_a_tenth_of_them() {
    let points = draw_curve(&calibration(), &CurveSettings::default());
    let (always, tenth) = (point(&points, "int4", 1_000), point(&points, "int4", 100));
    assert!(always.most.unwrap() <= 5, "{always:?}");
    assert!(
        tenth.accused == tenth.trials && tenth.most.unwrap() <= 130,
        "{tenth:?}"
    );
    // Far more than the policy's 35 audited cheated answers would mean an audited share that is too small.
    for share in [1_000, 500, 300, 100, 50, 30] {
        for name in ["int4", "block skipped"] {
            let most = point(&points, name, share).most.unwrap();
            let product = u64::from(most) * u64::from(share) / 1_000;
            assert!(
                product <= muster_audit::DETECTION_ANSWERS,
                "{name} at {share}: {product}"
            );
        }
    }
    // Eight bits are nearer to the honest engines than these are to one another: they are not policed.
    assert_eq!(point(&points, "int8", 100).accused, 0);
}

#[test]
fn a_simulation_is_the_same_for_the_same_seed() {
    let settings = CurveSettings {
        trials: 20,
        ..CurveSettings::default()
    };
    let first = draw_curve(&calibration(), &settings);
    assert_eq!(draw_curve(&calibration(), &settings), first);
    let other = CurveSettings { seed: 2, ..settings };
    assert_ne!(draw_curve(&calibration(), &other), first);
}

#[test]
fn no_honest_machine_is_accused_by_the_replay_of_another_engine_or_without_a_seed() {
    for text in [
        include_str!("../../../../../tests/vectors/audit-engines.json"),
        include_str!("../../../../../tests/vectors/audit-engines-llama-cpp.json"),
        include_str!("../../../../../tests/vectors/audit-engines-surprise.json"),
    ] {
        let calibration = Calibration::parse(text).unwrap();
        assert_eq!(
            calibration.level(&calibration.tested_alternatives()),
            CalibrationLevel::Two
        );
        for days in accuse_honest(&calibration, 10_000, 50, 1) {
            assert_eq!(days.accused, 0, "{days:?}");
        }
    }
}

#[test]
fn every_gross_cheat_is_convicted_within_a_day_at_every_entropy() {
    let calibration =
        Calibration::parse(include_str!("../../../../../tests/vectors/audit-engines.json")).unwrap();
    let settings = DetectionSettings {
        resamples: 1,
        trials: 40,
        most_answers: 300,
        ..DetectionSettings::default()
    };
    for found in detect(&calibration, &settings) {
        let gross =
            ["block skipped", "smaller model", "fine-tune", "wrong sampler"].contains(&found.engine.as_str());
        if gross {
            assert!(
                found.conviction.median.is_some_and(|answers| answers <= 50),
                "{found:?}"
            );
        }
        if ["bf16 weights", "KV int8", "int8"].contains(&found.engine.as_str()) {
            assert_eq!(
                found.convicted, 0,
                "nearer than honest machines are to one another: {found:?}"
            );
        }
    }
}
