//! The verdicts of whole bundles, made of measured answers.

use muster_audit::{AuditOutcome, CalibrationLevel, FalseIds, UnusableReason, Verdict, replay};

use muster_identity::Keypair;
use muster_protocol::Digest;

use crate::bundles::support::{Given, Prompt, World, given, make_false};

fn verdict(world: &World, given: &[Given]) -> Verdict {
    replay(&world.bundle(given).to_text()).unwrap().verdict
}

#[test]
fn the_bundle_of_the_documentation_convicts_in_every_release() {
    let text = include_str!("../../../../../../tests/vectors/audit-bundle.json");
    if std::env::var_os("MUSTER_WRITE_GOLDEN").is_some() {
        let mut world = World::new("int4", 1);
        let key = |uri| Keypair::from_uri(uri).unwrap();
        (world.validator, world.miner, world.coldkey) =
            (key("//Auditor"), key("//Cheat"), key("//CheatOwner"));
        (world.genesis, world.netuid) = (Digest::from_bytes([0xab; 32]), 1);
        let bundle = world.bundle(&given(8, Prompt::Canary, |_| true));
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../tests/vectors/audit-bundle.json"
        );
        std::fs::write(file, bundle.to_text()).unwrap();
    }
    let found = replay(text).unwrap();
    assert_eq!(found.verdict, Verdict::Convicted);
    assert_eq!((found.counts.logged, found.tests.public.alarm), (8, Some(3)));
}

#[test]
fn a_miner_that_always_answers_with_four_bits_is_convicted_by_a_dozen_canaries() {
    let world = World::new("int4", 1);
    let found = replay(&world.bundle(&given(12, Prompt::Canary, |_| true)).to_text()).unwrap();
    assert_eq!(found.verdict, Verdict::Convicted, "{found:#?}");
    assert_eq!((found.quality_per_mille, found.level), (0, CalibrationLevel::Two));
    assert!(found.tests.public.alarm.unwrap() <= 4);
    assert!(
        !found.alternatives.contains(&"int8".to_owned()),
        "bf16 is too near to it"
    );
    // Off rates by entropy, beside those of docs/llm/margins.md: 9.07 % at 1.5 to 3 nats, 11.23 % above.
    let [.., medium, high] = found.off_rates.as_slice() else {
        unreachable!("four bins")
    };
    assert!(medium.low < 90_700_000 && 90_700_000 < medium.high, "{medium:?}");
    assert!(high.low < 112_300_000 && 112_300_000 < high.high, "{high:?}");
}

#[test]
fn a_miner_that_cheats_in_a_tenth_of_its_answers_is_convicted() {
    for seed in 1..4 {
        let world = World::new("int4", seed);
        let answers = given(240, Prompt::Canary, |client| client % 10 == 3);
        assert_eq!(verdict(&world, &answers), Verdict::Convicted, "seed {seed}");
    }
}

#[test]
fn honest_engines_of_three_roundings_are_consistent() {
    for seed in 1..4 {
        let world = World::new("int4", seed);
        let found = replay(&world.bundle(&given(150, Prompt::Canary, |_| false)).to_text()).unwrap();
        assert_eq!(found.verdict, Verdict::Consistent, "{found:#?}");
        assert_eq!(found.quality_per_mille, 1_000);
    }
}

#[test]
fn users_answers_raise_suspicion_only_and_discrimination_halves_the_quality() {
    let world = World::new("int4", 1);
    let users = given(12, Prompt::User, |_| true);
    assert_eq!(verdict(&world, &users), Verdict::Suspect);
    let consenting = given(12, Prompt::Consenting, |_| true);
    assert_eq!(
        verdict(&world, &consenting),
        Verdict::Suspect,
        "nothing that a client signed says that it consents, or that it is one"
    );
    let mixed = [
        given(12, Prompt::User, |_| true),
        given(12, Prompt::Canary, |_| false),
    ]
    .concat();
    let found = replay(&world.bundle(&mixed).to_text()).unwrap();
    assert_eq!((found.verdict, found.discriminates), (Verdict::Suspect, true));
    assert_eq!(found.quality_per_mille, 500);
}

#[test]
fn an_honest_miners_appeal_by_fresh_answers_succeeds() {
    let world = World::new("int4", 1);
    let answers = given(60, Prompt::Canary, |client| client < 3);
    assert_eq!(
        verdict(&world, &answers),
        Verdict::Suspect,
        "the alarm stands, nothing confirms it"
    );
}

#[test]
fn the_second_machine_has_to_agree() {
    let world = World::new("int4", 1);
    let mut bundle = world.bundle(&given(12, Prompt::Canary, |_| true));
    let honest = world.bundle(&given(12, Prompt::Canary, |_| false));
    for (answer, honest) in bundle.sessions[0]
        .answers
        .iter_mut()
        .zip(&honest.sessions[0].answers)
    {
        let (Some(AuditOutcome::Scored(scores)), Some(AuditOutcome::Scored(other))) =
            (&mut answer.outcome, &honest.outcome)
        else {
            unreachable!("all are scored")
        };
        // As many tokens as the proof states, none of them off.
        let agreed = other[0].as_ref().unwrap()[0];
        scores[1] = scores[0].as_ref().map(|tokens| vec![agreed; tokens.len()]);
    }
    assert_eq!(replay(&bundle.to_text()).unwrap().verdict, Verdict::Suspect);
}

#[test]
fn answers_that_nobody_scored_count_for_the_miner() {
    let world = World::new("int4", 1);
    let mut bundle = world.bundle(&given(12, Prompt::Canary, |_| true));
    let answers = &mut bundle.sessions[0].answers;
    for answer in answers.iter_mut().skip(2) {
        answer.outcome = Some(AuditOutcome::Unusable(UnusableReason::BeyondContext));
    }
    let found = replay(&bundle.to_text()).unwrap();
    assert_eq!(found.verdict, Verdict::Consistent);
    assert_eq!((found.counts.scored, found.counts.unscored), (2, 10));
    for answer in &mut bundle.sessions[0].answers {
        answer.outcome = None;
    }
    let found = replay(&bundle.to_text()).unwrap().verdict;
    assert_eq!(found.to_string(), "unproven(no scored answers)");
}

#[test]
fn one_client_cannot_fill_the_test() {
    let world = World::new("int4", 1);
    let of_one: Vec<Given> = given(40, Prompt::User, |client| client < 4)
        .into_iter()
        .map(|one| Given { client: 7, ..one })
        .collect();
    let found = replay(&world.bundle(&of_one).to_text()).unwrap();
    assert_eq!((found.counts.audited, found.counts.beyond_client), (40, 36));
    assert_eq!(found.counts.scored, 4);
}

#[test]
fn only_drawn_answers_are_judged() {
    let mut world = World::new("int4", 1);
    world.ppm = 250_000;
    let found = replay(&world.bundle(&given(200, Prompt::User, |_| true)).to_text()).unwrap();
    assert!((25..80).contains(&found.counts.audited), "{:?}", found.counts);
    assert_eq!(found.counts.logged, 200);
    assert_eq!(found.counts.scored, found.counts.audited);
    // Own prompts are audited whether they are drawn or not.
    let found = replay(&world.bundle(&given(40, Prompt::Canary, |_| true)).to_text()).unwrap();
    assert_eq!(found.counts.audited, 40);
}

#[test]
fn a_calibration_of_two_machines_convicts_gross_cheats_only() {
    let level_one = |cheat| {
        let mut world = World::new(cheat, 1);
        world.calibration.machines = world.calibration.machines.split_off(4);
        world
    };
    let skipped = level_one("block skipped");
    let found = replay(&skipped.bundle(&given(14, Prompt::Canary, |_| true)).to_text()).unwrap();
    assert_eq!(
        (found.level, found.verdict),
        (CalibrationLevel::One, Verdict::Convicted)
    );
    let mut none = World::new("int4", 1);
    none.calibration.machines.truncate(1);
    let found = replay(&none.bundle(&given(12, Prompt::Canary, |_| true)).to_text()).unwrap();
    assert_eq!(found.verdict.to_string(), "unproven(no calibration)");
}

#[test]
fn false_ids_convict_as_fast_as_anything_can_whatever_their_tokens_would_score() {
    let world = World::new("int4", 1);
    // The tokens that such a miner states are the honest engine's.
    let mut bundle = world.bundle(&given(12, Prompt::Canary, |_| false));
    assert_eq!(replay(&bundle.to_text()).unwrap().verdict, Verdict::Consistent);
    for number in 0..12 {
        make_false(&mut bundle, number, FalseIds::Text);
    }
    let found = replay(&bundle.to_text()).unwrap();
    assert_eq!(found.verdict, Verdict::Convicted, "{found:#?}");
    assert_eq!((found.tests.public.alarm, found.counts.false_ids), (Some(3), 12));
    assert_eq!((found.counts.scored, found.counts.unscored), (12, 0));
    // One reference alone makes no convict.
    for answer in &mut bundle.sessions[0].answers {
        answer.outcome = Some(AuditOutcome::FalseIds(vec![Some(FalseIds::Text), None]));
    }
    assert_eq!(replay(&bundle.to_text()).unwrap().verdict, Verdict::Suspect);
}

#[test]
fn false_ids_of_users_make_a_suspect_and_one_answer_makes_nothing() {
    let world = World::new("int4", 2);
    let mut bundle = world.bundle(&given(12, Prompt::User, |_| false));
    make_false(&mut bundle, 3, FalseIds::Prompt);
    assert_eq!(replay(&bundle.to_text()).unwrap().verdict, Verdict::Consistent);
    for number in 0..12 {
        make_false(&mut bundle, number, FalseIds::Prompt);
    }
    assert_eq!(replay(&bundle.to_text()).unwrap().verdict, Verdict::Suspect);
}

#[test]
fn false_ids_in_a_tenth_of_the_answers_convict() {
    let world = World::new("int4", 3);
    let mut bundle = world.bundle(&given(240, Prompt::Canary, |_| false));
    for number in (0..240).filter(|number| number % 10 == 3) {
        make_false(&mut bundle, number, FalseIds::End);
    }
    assert_eq!(replay(&bundle.to_text()).unwrap().verdict, Verdict::Convicted);
}
