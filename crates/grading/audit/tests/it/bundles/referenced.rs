//! Bundles about engines that draw by seeds of their own, whose answers another image scores.

use muster_audit::{
    AuditBundle, AuditOutcome, Calibration, CalibrationError, CalibrationLevel, FalseIds, ReplayError,
    SamplerEngine, SeededNumbers, Statistic, Verdict, check_evidence, replay,
};

use crate::bundles::support::{
    Given, Prompt, World, calibration, given, make_false, referenced, unseeded_calibration,
};

/// The measured answers of all engines, as answers of the world's engine.
fn engines() -> Calibration {
    let text = include_str!("../../../../../../tests/vectors/audit-engines-llama-cpp.json");
    Calibration {
        model: calibration().model,
        engine: calibration().engine,
        ..Calibration::parse(text).unwrap()
    }
}

/// The calibration with one alternative and fewer answers: enough for a verdict, and quick to replay.
fn shortened(mut calibration: Calibration) -> Calibration {
    calibration.alternatives.retain(|one| one.name == "smaller model");
    calibration
        .machines
        .iter_mut()
        .for_each(|run| run.answers.truncate(60));
    calibration
        .alternatives
        .iter_mut()
        .for_each(|one| one.answers.truncate(60));
    calibration
}

/// A world whose engine draws by the seeds of requests, which users leave out.
pub(crate) fn world(seed: u64) -> World {
    World {
        calibration: shortened(referenced(engines())),
        unseeded: Some(shortened(unseeded_calibration())),
        has_seeds: true,
        ..World::new("smaller model", seed)
    }
}

fn change(bundle: &AuditBundle, alter: impl Fn(&mut AuditBundle)) -> AuditBundle {
    let mut changed = bundle.clone();
    alter(&mut changed);
    changed
}

/// A bundle of own prompts with one fact changed that another image's scores rest on.
pub(crate) fn altered(bundle: &AuditBundle) -> Vec<AuditBundle> {
    let unseeded = |answer: usize| {
        move |bundle: &mut AuditBundle| {
            let outcome = &mut bundle.sessions[0].answers[answer].outcome;
            if let Some(AuditOutcome::Scored(scores)) = outcome.clone() {
                *outcome = Some(AuditOutcome::Unseeded(scores));
            }
            bundle.unseeded = None;
        }
    };
    vec![
        change(bundle, |bundle| {
            bundle.format = "muster/audit-bundle/2".to_owned()
        }),
        change(bundle, |bundle| {
            bundle.references[0].engine = bundle.calibration.engine
        }),
        change(bundle, |bundle| bundle.calibration.sampler = None),
        change(bundle, |bundle| {
            bundle.calibration.statistic = Statistic::Surprise
        }),
        change(bundle, |bundle| bundle.calibration.reference = None),
        change(bundle, |bundle| {
            bundle.calibration.format = "muster/audit-calibration/1".to_owned()
        }),
        change(bundle, |bundle| {
            bundle.unseeded.as_mut().unwrap().engine = bundle.references[0].engine;
        }),
        change(bundle, |bundle| {
            bundle.unseeded = Some(bundle.calibration.clone())
        }),
        change(bundle, unseeded(2)),
    ]
}

#[test]
fn a_cheaper_engine_is_convicted_by_prompts_that_name_its_seed() {
    for seed in 1..3 {
        let found = replay(&world(seed).bundle(&given(12, Prompt::Canary, |_| true)).to_text()).unwrap();
        assert_eq!(found.verdict, Verdict::Convicted, "{found:#?}");
        assert_eq!(found.tests.unseeded.unwrap().answers, 0);
        let honest = world(seed).bundle(&given(60, Prompt::Canary, |_| false));
        assert_eq!(replay(&honest.to_text()).unwrap().verdict, Verdict::Consistent);
    }
}

#[test]
fn answers_whose_seeds_nobody_knows_are_a_test_of_their_own_that_says_weak_at_most() {
    let found = replay(&world(1).bundle(&given(60, Prompt::User, |_| true)).to_text()).unwrap();
    assert_eq!(
        (found.verdict, found.quality_per_mille),
        (Verdict::Weak, 1_000),
        "{found:#?}"
    );
    assert_eq!((found.tests.all.answers, found.counts.scored), (0, 60));
    assert!(found.tests.unseeded.unwrap().alarm.is_some());
    // Beside honest answers to own prompts, too: whatever is written without a seed convicts nobody.
    let both: Vec<Given> = [
        given(20, Prompt::Canary, |_| false),
        given(60, Prompt::User, |_| true),
    ]
    .concat();
    let found = replay(&world(2).bundle(&both).to_text()).unwrap();
    assert_eq!(
        (found.verdict, found.discriminates),
        (Verdict::Weak, false),
        "{found:#?}"
    );
    let honest = replay(&world(3).bundle(&given(60, Prompt::User, |_| false)).to_text()).unwrap();
    assert_eq!(honest.verdict, Verdict::Consistent, "{honest:#?}");
    // Without a known version of the engine there are no seeds at all.
    let mut unknown = world(4);
    (unknown.calibration, unknown.unseeded) = (shortened(unseeded_calibration()), None);
    let found = replay(&unknown.bundle(&given(60, Prompt::Canary, |_| true)).to_text()).unwrap();
    assert_eq!(found.verdict, Verdict::Weak);
}

#[test]
fn another_image_and_its_sampler_are_part_of_the_evidence() {
    let bundle = world(1).bundle(&given(12, Prompt::Canary, |_| true));
    for (at, changed) in altered(&bundle).iter().enumerate() {
        let refused = replay(&changed.to_text()).unwrap_err();
        let is_named = matches!(refused, ReplayError::Format | ReplayError::References);
        assert!(is_named, "{at}: {refused:?}");
    }
    let plain = World::new("int4", 1).bundle(&given(12, Prompt::Canary, |_| true));
    let later = change(&plain, |bundle| {
        bundle.format = "muster/audit-bundle/6".to_owned()
    });
    assert!(matches!(
        replay(&later.to_text()).unwrap_err(),
        ReplayError::Format
    ));
}

#[test]
fn an_own_prompt_without_a_seed_has_no_margins() {
    let mut world = world(1);
    world.has_seeds = false;
    let bundle = world.bundle(&given(12, Prompt::Canary, |_| true));
    for refused in [
        replay(&bundle.to_text()).unwrap_err(),
        check_evidence(&bundle).unwrap_err(),
    ] {
        assert!(
            matches!(refused, ReplayError::Seed { sequence: 0, .. }),
            "{refused:?}"
        );
    }
}

#[test]
fn an_own_prompt_names_the_seed_of_its_position_and_no_field_twice() {
    let with = |blank: &'static str| {
        let mut world = world(1);
        world.blank = blank;
        replay(&world.bundle(&given(12, Prompt::Canary, |_| true)).to_text())
    };
    assert_eq!(with(r#""seed":null"#).unwrap().verdict, Verdict::Convicted);
    for chosen in [
        r#""seed":null,"seed":1234"#,
        r#""seed":1234,"seed":null"#,
        r#""more":{"seed":null},"seed":1234"#,
        r#""seed":null,"\u0073eed":1234"#,
    ] {
        let refused = with(chosen).unwrap_err();
        assert!(
            matches!(refused, ReplayError::Canary { sequence: 0, .. }),
            "{chosen}: {refused:?}"
        );
    }
    // One that was written into the list may have been looked for, whatever outcome the author states, and whether or
    // not the engine draws by it alone.
    let mut written = World {
        blank: r#""seed":1234"#,
        ..world(1)
    };
    let mut bundle = written.bundle(&given(12, Prompt::Canary, |_| true));
    let refused = |bundle: &AuditBundle| {
        let refused = replay(&bundle.to_text()).unwrap_err();
        assert!(
            matches!(refused, ReplayError::Canary { sequence: 0, .. }),
            "{refused:?}"
        );
    };
    refused(&bundle);
    make_false(&mut bundle, 0, FalseIds::Text);
    refused(&bundle);
    written = World {
        has_seeds: true,
        blank: r#""seed":1234"#,
        ..World::new("int4", 1)
    };
    refused(&written.bundle(&given(12, Prompt::Canary, |_| true)));
    written.blank = r#""seed":null"#;
    let left = written.bundle(&given(12, Prompt::Canary, |_| true));
    assert_eq!(replay(&left.to_text()).unwrap().verdict, Verdict::Convicted);
}

#[test]
fn a_seed_is_a_number_for_which_the_engine_draws_nothing_by_itself() {
    let seed = |engine: SamplerEngine, request: &str| engine.seed_in(&serde_json::from_str(request).unwrap());
    let (llama_cpp, vllm) = (SamplerEngine::LlamaCpp, SamplerEngine::Vllm);
    for engine in [llama_cpp, vllm] {
        assert_eq!(seed(engine, r#"{"seed":7}"#), Some(7));
        for random in [
            r#"{"seed":-1}"#,
            r#"{"seed":null}"#,
            r#"{"seed":7.5}"#,
            r#"{"seed":true}"#,
            r#"{"seed":18446744073709551615}"#,
            "{}",
        ] {
            assert_eq!(seed(engine, random), None, "{random}");
        }
    }
    assert_eq!(seed(llama_cpp, r#"{"seed":4294967294}"#), Some(4_294_967_294));
    assert_eq!(seed(llama_cpp, r#"{"seed":4294967295}"#), None);
    assert_eq!(seed(llama_cpp, r#"{"seed":-3}"#), None);
    assert_eq!(seed(vllm, r#"{"seed":4294967295}"#), Some(4_294_967_295));
    assert_eq!(seed(vllm, r#"{"seed":-3}"#), Some(-3));
}

#[test]
fn the_bundle_of_another_reference_reads_and_writes_the_same_bytes_and_convicts() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/vectors/audit-bundle-3.json"
    );
    if std::env::var_os("MUSTER_WRITE_GOLDEN").is_some() {
        let both: Vec<Given> = [
            given(8, Prompt::Canary, |_| true),
            given(3, Prompt::User, |_| true),
        ]
        .concat();
        let mut third = world(1);
        third.is_third_format = true;
        std::fs::write(path, third.bundle(&both).to_text()).unwrap();
    }
    let text = std::fs::read_to_string(path).unwrap();
    let bundle: AuditBundle = serde_json::from_str(&text).unwrap();
    assert_eq!(bundle.to_text(), text, "its digest names these bytes");
    assert_eq!(bundle.format, "muster/audit-bundle/3");
    let sampler = bundle.calibration.sampler.as_ref().unwrap();
    assert_eq!(
        (sampler.engine, sampler.version.as_str()),
        (SamplerEngine::LlamaCpp, "b11549")
    );
    let found = replay(&text).unwrap();
    assert_eq!(found.verdict, Verdict::Convicted, "{found:#?}");
    assert_eq!(found.tests.unseeded.unwrap().answers, 3);
}

#[test]
fn a_calibration_names_its_reference_exactly_if_its_format_says_so() {
    let text = |calibration: &Calibration| calibration.to_text();
    let whole = referenced(calibration());
    assert_eq!(Calibration::parse(&text(&whole)).unwrap(), whole);
    assert_eq!(
        Calibration::parse(&text(&unseeded_calibration())).unwrap(),
        unseeded_calibration()
    );
    let mut without = whole.clone();
    without.reference = None;
    assert!(matches!(
        Calibration::parse(&text(&without)),
        Err(CalibrationError::Reference)
    ));
    let mut without = whole;
    without.sampler = None;
    assert!(matches!(
        Calibration::parse(&text(&without)),
        Err(CalibrationError::Reference)
    ));
    let mut plain = calibration();
    assert!(!plain.to_text().contains("known_answers") && !plain.to_text().contains("sampler"));
    plain.sampler = referenced(calibration()).sampler;
    assert!(matches!(
        Calibration::parse(&text(&plain)),
        Err(CalibrationError::Reference)
    ));
}

#[test]
fn no_changed_byte_of_a_bundle_or_calibration_ends_the_replay_otherwise_than_by_a_verdict_or_a_reason() {
    let text = include_str!("../../../../../../tests/vectors/audit-bundle-3.json");
    let bundle: AuditBundle = serde_json::from_str(text).unwrap();
    let seeds = std::env::var("MUSTER_FUZZ_INPUTS")
        .ok()
        .and_then(|many| many.parse().ok());
    let mut numbers = SeededNumbers::new("muster/test-bytes/1", b"referenced");
    let letters = br#"0123456789",:[]{}-aeE"#;
    let mut read = 0;
    for _ in 0..seeds.unwrap_or(48_u32) {
        let newest = include_str!("../../../../../../tests/vectors/audit-bundle-5.json").to_owned();
        for whole in [text.to_owned(), newest, bundle.calibration.to_text()] {
            let mut changed = whole.into_bytes();
            for _ in 0..=numbers.below(3) {
                let at = numbers.below(changed.len());
                changed[at] = letters[numbers.below(letters.len())];
            }
            let changed = String::from_utf8(changed).unwrap();
            let replayed = replay(&changed).is_ok();
            let parsed =
                Calibration::parse(&changed).is_ok_and(|one| !one.level(&[]).eq(&CalibrationLevel::Two));
            read += u32::from(replayed || parsed);
        }
    }
    println!("{read} changed texts were still read");
}
