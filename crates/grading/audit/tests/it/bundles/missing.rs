//! Answers that are missing by the miner's fault, in whole bundles.

use muster_audit::{AuditBundle, MissingOutcome, MissingTally, ReplayError, UnprovenAnswer, Verdict, replay};
use muster_protocol::Digest;
use muster_response_proof::StreamEnd;

use crate::bundles::support::{Given, Prompt, World, given};

/// The bundle of the documentation.
const DOCUMENTED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../tests/vectors/audit-bundle-missing.json"
);

/// A bundle of honest answers in buckets of their own, so that each is an event of its own.
fn world() -> World {
    let mut world = World::new("int4", 1);
    world.bucket_answers = 1;
    world
}

fn honest(world: &World, prompt: Prompt, answers: u64) -> AuditBundle {
    world.bundle(&given(answers, prompt, |_| false))
}

fn missing_of(bundle: &AuditBundle) -> MissingOutcome {
    replay(&bundle.to_text()).unwrap().missing.unwrap()
}

/// An answer without a proof that is not beyond the first four of its client.
fn unproven(bucket: u64, after: u64) -> UnprovenAnswer {
    UnprovenAnswer {
        bucket,
        client: None,
        after,
    }
}

#[test]
fn the_bundle_of_the_documentation_accuses_by_missing_answers_in_every_release() {
    if std::env::var_os("MUSTER_WRITE_GOLDEN").is_some() {
        std::fs::write(DOCUMENTED, example().to_text()).unwrap();
    }
    let text = std::fs::read_to_string(DOCUMENTED).unwrap();
    let found = replay(&text).unwrap();
    assert_eq!(
        found.bundle.to_string(),
        "sha256:457ec84f1f076a4f32b1f9d515774fb82c531237807f35b44ad1abb6daa0d629"
    );
    let bundle: AuditBundle = serde_json::from_str(&text).unwrap();
    assert_eq!(bundle.to_text(), text, "the text is canonical");
    assert_eq!(
        (found.verdict, found.quality_per_mille),
        (Verdict::Suspect, 1_000)
    );
    let missing = found.missing.unwrap();
    assert_eq!((missing.answers, missing.alarm), (20, Some(18)));
    let expected = MissingTally {
        no_token_ids: 4,
        broken_off: 4,
        cut: 4,
        unproven: 3,
    };
    assert_eq!(missing.missing, expected);
    assert_eq!(found.tests.all.alarm, None, "the answers that came are honest");
}

/// The bundle of the documentation: five of twenty answers are whole.
fn example() -> AuditBundle {
    let mut world = world();
    world.alter_proof = |place, proof| match place {
        4..8 => proof.tokens = None,
        8..10 => proof.end = StreamEnd::EngineFailed,
        10..12 => proof.end = StreamEnd::EngineSilent,
        12..16 => proof.end = StreamEnd::ClientGone,
        _ => {}
    };
    let mut bundle = honest(&world, Prompt::Canary, 17);
    let session = &mut bundle.sessions[0];
    for answer in &mut session.answers[12..16] {
        answer.cut = true;
    }
    session.unproven = vec![unproven(4_016, 16), unproven(4_017, 17), unproven(4_018, 17)];
    bundle
}

#[test]
fn each_cause_counts_and_an_alarm_makes_a_suspect() {
    // Signatures are random, so the bundle of the documentation has other ones.
    let text = example().to_text();
    let documented = std::fs::read_to_string(DOCUMENTED).unwrap();
    let (found, documented) = (replay(&text).unwrap(), replay(&documented).unwrap());
    assert_eq!(found.missing, documented.missing);
    assert_eq!(
        (found.verdict, found.tests, found.counts),
        (documented.verdict, documented.tests, documented.counts)
    );
}

#[test]
fn honest_bundles_have_no_missing_answers_and_a_gone_client_says_nothing() {
    let whole = missing_of(&honest(&world(), Prompt::User, 60));
    assert_eq!((whole.answers, whole.missing.total(), whole.alarm), (60, 0, None));
    let mut gone = world();
    gone.alter_proof = |_, proof| proof.end = StreamEnd::ClientGone;
    let missing = missing_of(&honest(&gone, Prompt::User, 30));
    assert_eq!((missing.answers, missing.alarm), (0, None));
    // A user's answer without ids is whole: the client did not ask for them.
    let mut without_ids = world();
    without_ids.alter_proof = |_, proof| proof.tokens = None;
    assert_eq!(
        missing_of(&honest(&without_ids, Prompt::User, 30))
            .missing
            .total(),
        0
    );
    assert_eq!(
        missing_of(&honest(&without_ids, Prompt::Canary, 30))
            .missing
            .no_token_ids,
        30
    );
}

#[test]
fn missing_answers_never_convict_and_cost_quality_beyond_two_hundred_answers() {
    let mut bundle = honest(&world(), Prompt::Canary, 250);
    let session = &mut bundle.sessions[0];
    session.unproven = (0..50).map(|at| unproven(4_000 + at * 5, at * 5)).collect();
    let found = replay(&bundle.to_text()).unwrap();
    let missing = found.missing.unwrap();
    assert_eq!((missing.answers, missing.missing.unproven), (300, 50));
    assert!(missing.alarm.is_some());
    // 166 of 1,000 are missing: four thousandths for each above ten.
    assert_eq!((found.verdict, found.quality_per_mille), (Verdict::Suspect, 500));
    // A conviction by scores stands.
    let mut bundle = world().bundle(&given(20, Prompt::Canary, |_| true));
    bundle.sessions[0].unproven = (0..20).map(|at| unproven(4_000 + at, at)).collect();
    let found = replay(&bundle.to_text()).unwrap();
    assert!(found.missing.unwrap().alarm.is_some());
    assert_eq!((found.verdict, found.quality_per_mille), (Verdict::Convicted, 0));
}

#[test]
fn a_miner_that_answers_nothing_is_a_suspect_without_a_scored_answer_and_without_a_calibration() {
    let mut world = world();
    world.calibration.machines.truncate(1);
    let mut bundle = honest(&world, Prompt::Canary, 1);
    bundle.sessions[0].answers[0].outcome = None;
    bundle.sessions[0].unproven = (0..20).map(|at| unproven(4_001 + at, 1)).collect();
    let found = replay(&bundle.to_text()).unwrap();
    assert_eq!(
        (found.verdict, found.quality_per_mille),
        (Verdict::Suspect, 1_000)
    );
}

#[test]
fn a_broken_machine_is_one_event_and_one_client_fills_no_test() {
    let mut bundle = honest(&world(), Prompt::User, 30);
    bundle.sessions[0].unproven = (0..40).map(|_| unproven(4_029, 30)).collect();
    let missing = missing_of(&bundle);
    assert_eq!((missing.missing.unproven, missing.alarm), (1, None));
    // In the third format a replay counts the clients that the bundle names.
    let mut world = world();
    world.is_third_format = true;
    let mut bundle = honest(&world, Prompt::User, 30);
    let one = |at| UnprovenAnswer {
        client: Some(Digest::of(b"one")),
        ..unproven(4_000 + at, at)
    };
    bundle.sessions[0].unproven = (0..30).map(one).collect();
    assert_eq!(missing_of(&bundle).missing.unproven, 4);
    let of_one: Vec<Given> = given(30, Prompt::User, |_| false)
        .into_iter()
        .map(|one| Given { client: 7, ..one })
        .collect();
    assert_eq!(missing_of(&world.bundle(&of_one)).answers, 4);
    // Since then the validator has counted them.
    let mut bundle = self::world().bundle(&of_one);
    for answer in &mut bundle.sessions[0].answers[4..] {
        answer.beyond = true;
    }
    assert_eq!(missing_of(&bundle).answers, 4);
}

#[test]
fn earlier_formats_show_no_missing_answers() {
    let replayed_as = |format: &str, bundle: &AuditBundle| {
        let mut earlier = bundle.clone();
        earlier.format = format.to_owned();
        earlier.commitments.clear();
        replay(&earlier.to_text())
    };
    let mut third = world();
    third.is_third_format = true;
    let bundle = honest(&third, Prompt::User, 12);
    for format in ["muster/audit-bundle/1", "muster/audit-bundle/2"] {
        assert_eq!(replayed_as(format, &bundle).unwrap().missing, None);
        assert!(matches!(
            replayed_as(format, &example()),
            Err(ReplayError::Format)
        ));
    }
}

#[test]
fn an_answer_without_a_proof_stands_behind_answers_that_there_are_in_order() {
    let refused = |unproven: Vec<UnprovenAnswer>| {
        let mut bundle = honest(&world(), Prompt::User, 3);
        bundle.sessions[0].unproven = unproven;
        matches!(replay(&bundle.to_text()), Err(ReplayError::Unproven { place: 0 }))
    };
    assert!(refused(vec![unproven(4_000, 4)]));
    assert!(refused(vec![unproven(4_001, 2), unproven(4_000, 1)]));
    assert!(!refused(vec![unproven(4_001, 2), unproven(4_000, 3)]));
}
