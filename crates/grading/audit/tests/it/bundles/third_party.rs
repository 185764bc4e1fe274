//! A program of another language, written from the documented format alone, comes to the same verdicts.

use std::path::PathBuf;
use std::process::Command;

use muster_audit::{
    AuditBundle, AuditOutcome, Calibration, CommittedList, FalseIds, KnownAnswer, LoggedClient, NoncePeriod,
    OpenedText, Origin, RevealedNonceKey, Statistic, UnprovenAnswer, UnusableReason, replay,
};
use muster_protocol::{Digest, MinerKey};
use muster_response_proof::StreamEnd;
use serde_json::{Value, json};

use crate::bundles::referenced;
use crate::bundles::support::{Given, Prompt, World, given, make_false};

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../tests/python/replay_audit.py"
);

/// Bundles whose verdicts, levels and counts differ.
fn bundles() -> Vec<AuditBundle> {
    let int4 = |seed| World::new("int4", seed);
    let mixed = |seed: u64| -> Vec<Given> {
        let prompt = [Prompt::Canary, Prompt::User, Prompt::Consenting];
        given(60, Prompt::User, |client| client % 3 != seed % 3)
            .into_iter()
            .enumerate()
            .map(|(at, one)| Given {
                prompt: prompt[at % 3],
                client: one.client % 20,
                ..one
            })
            .collect()
    };
    let mut drawn = int4(1);
    drawn.ppm = 400_000;
    let mut level_one = World::new("block skipped", 3);
    level_one.calibration.machines = level_one.calibration.machines.split_off(4);
    let mut with_others = int4(7);
    with_others.has_others = true;
    let mut with_words = int4(8);
    with_words.opens_words = true;
    let mut bent = int4(8);
    bent.opens_words = true;
    bent.more_fields = r#","temperature":0.25"#;
    let mut with_texts = int4(10);
    with_texts.opens_words = true;
    with_texts.alter_proof = |place, proof| {
        if place % 2 == 0 {
            proof.tokens = None;
        }
    };
    let mut level_zero = int4(1);
    level_zero.calibration.machines.truncate(1);
    let mut false_ids = with_words.bundle(&mixed(9));
    for number in (0..40).filter(|number| number % 3 == 0) {
        make_false(&mut false_ids, number, FalseIds::Text);
    }
    let first_alone = &mut false_ids.sessions[0].answers[41];
    first_alone.words = None;
    first_alone.outcome = Some(AuditOutcome::FalseIds(vec![Some(FalseIds::Prompt), None]));
    let mut surprise = int4(1);
    surprise.calibration.statistic = Statistic::Surprise;
    let mut unscored = int4(1).bundle(&given(12, Prompt::Canary, |_| true));
    for (at, answer) in unscored.sessions[0].answers.iter_mut().enumerate() {
        match (at % 3, &mut answer.outcome) {
            (0, _) => answer.outcome = Some(AuditOutcome::Unusable(UnusableReason::NoTokenIds)),
            (1, Some(AuditOutcome::Scored(scores))) => scores[1] = None,
            _ => {}
        }
    }
    let discriminates = [
        given(12, Prompt::User, |_| true),
        given(12, Prompt::Canary, |_| false),
    ]
    .concat();
    let mut with_keys = int4(1);
    with_keys.has_nonce_keys = true;
    let mut foreign = with_keys.bundle(&given(12, Prompt::Canary, |_| true));
    // With the key of a later block the nonces do not follow.
    let period = foreign.nonce_keys[1].period;
    foreign.nonce_keys[1] = RevealedNonceKey {
        period,
        ..with_keys.nonce_key(NoncePeriod(900)).1
    };
    let third_format = |seed| World {
        is_third_format: true,
        ..int4(seed)
    };
    let mut earlier = third_format(1).bundle(&given(12, Prompt::Canary, |_| true));
    earlier.format = "muster/audit-bundle/2".to_owned();
    earlier.commitments.clear();
    let mut missing = World::new("int4", 9);
    missing.bucket_answers = 2;
    missing.alter_proof = |place, proof| match place % 9 {
        2 => proof.tokens = None,
        4 => proof.end = StreamEnd::EngineSilent,
        6 => proof.end = StreamEnd::ClientGone,
        _ => {}
    };
    let mut with_missing = |prompt, is_third_format| {
        missing.is_third_format = is_third_format;
        let mut bundle = missing.bundle(&given(70, prompt, |_| false));
        let session = &mut bundle.sessions[0];
        for at in (0..70).step_by(5) {
            session.answers[at].cut = true;
            session.answers[at].beyond = !is_third_format && at % 3 == 0;
        }
        let unproven = |at: u64| UnprovenAnswer {
            bucket: 4_000 + at / 2,
            client: is_third_format.then(|| Digest::of(&(at / 6).to_be_bytes())),
            after: at,
        };
        session.unproven = (0..=70).map(unproven).collect();
        bundle
    };
    let mut unchecked = with_keys.bundle(&given(12, Prompt::User, |client| client % 2 == 0));
    unchecked.nonce_keys.pop();
    let mut second_format = third_format(9).bundle(&given(12, Prompt::Canary, |_| true));
    second_format.format = "muster/audit-bundle/2".to_owned();
    second_format.commitments.clear();
    vec![
        with_keys.bundle(&given(12, Prompt::Canary, |_| true)),
        bent.bundle(&given(12, Prompt::Canary, |_| true)),
        with_words.with_more_headers(with_words.bundle(&given(12, Prompt::Canary, |_| true))),
        with_keys.bundle(&mixed(4)),
        foreign,
        earlier,
        unchecked,
        int4(1).bundle(&given(12, Prompt::Canary, |_| true)),
        int4(2).bundle(&given(30, Prompt::Canary, |_| false)),
        int4(3).bundle(&given(12, Prompt::User, |_| true)),
        int4(4).bundle(&mixed(4)),
        int4(5).bundle(&mixed(5)),
        int4(6).bundle(&discriminates),
        drawn.bundle(&given(60, Prompt::User, |client| client % 2 == 0)),
        level_one.bundle(&given(14, Prompt::Canary, |_| true)),
        with_others.bundle(&given(12, Prompt::Canary, |_| true)),
        level_zero.bundle(&given(8, Prompt::Canary, |_| true)),
        with_missing(Prompt::User, false),
        with_missing(Prompt::User, true),
        with_missing(Prompt::Canary, false),
        third_format(4).bundle(&mixed(4)),
        second_format,
        surprise.bundle(&given(8, Prompt::Canary, |_| true)),
        unscored,
        referenced::world(1).bundle(&given(12, Prompt::Canary, |_| true)),
        referenced::world(2).bundle(&given(40, Prompt::User, |_| true)),
        referenced::world(3).bundle(&mixed(3)),
        false_ids,
        with_texts.bundle(&mixed(10)),
        with_words.bundle(&mixed(8)),
    ]
}

/// The part of a replay that the other program computes, too.
fn shared_part(mut replayed: Value) -> Value {
    let fields = replayed.as_object_mut().unwrap();
    for ours_alone in ["coldkey", "model", "exceeded", "off_rates", "draws"] {
        fields.remove(ours_alone).unwrap();
    }
    fields.remove("nonce_keys");
    fields.remove("own_keys");
    replayed
}

/// The outputs that the other program cannot compute: of the draws, then of the keys of nonces and of own prompts.
fn outputs(replayed: &Value) -> Value {
    let listed = |name: &str| replayed[name].as_array().cloned().unwrap_or_default();
    json!([listed("draws"), listed("nonce_keys"), listed("own_keys")].concat())
}

/// The bundle with one fact changed after everything was signed.
fn altered(bundle: &AuditBundle) -> Vec<AuditBundle> {
    let change = |alter: &dyn Fn(&mut AuditBundle)| {
        let mut changed = bundle.clone();
        alter(&mut changed);
        changed
    };
    vec![
        change(&|bundle| bundle.sessions[0].answers[2].earned += 1),
        change(&|bundle| drop(bundle.sessions[0].answers.remove(2))),
        change(&|bundle| bundle.buckets[0].shares[0].ppm += 1),
        change(&|bundle| {
            // The same number in both lists.
            let shown = bundle.sessions[0].answers[2].proof.clone();
            bundle.sessions[0].others.push(shown);
        }),
        change(&|bundle| bundle.buckets.swap(0, 1)),
        change(&|bundle| bundle.miners.clear()),
        change(&|bundle| bundle.miners.push(bundle.miners[0])),
        change(&|bundle| bundle.commitments.clear()),
        change(&|bundle| bundle.commitments[0].block_hash = Some(bundle.calibration.model)),
        change(&|bundle| bundle.commitments.push(bundle.commitments[0].clone())),
        change(&|bundle| bundle.commitments[0].key = None),
        change(&|bundle| bundle.commitments[0].lists.clear()),
        change(&|bundle| {
            if let CommittedList::Opened(opened) = &mut bundle.commitments[0].lists[0] {
                opened.length += 1;
            }
        }),
        change(&|bundle| {
            if let CommittedList::Opened(opened) = &mut bundle.commitments[0].lists[0] {
                opened.session = bundle.calibration.model;
            }
        }),
        change(&|bundle| "muster/audit-bundle/2".clone_into(&mut bundle.format)),
        change(&|bundle| bundle.miners.push(MinerKey(bundle.coldkey))),
        change(&|bundle| {
            let session = bundle.sessions[0].clone();
            bundle.sessions.push(session);
        }),
        change(&|bundle| {
            let unproven = UnprovenAnswer {
                bucket: 4_000,
                client: None,
                after: 99,
            };
            bundle.sessions[0].unproven.push(unproven);
        }),
        change(&|bundle| bundle.sessions[0].answers[2].client = None),
        change(&|bundle| bundle.sessions[0].answers[2].client = bundle.sessions[0].answers[3].client),
        change(&|bundle| {
            let Some(LoggedClient::Opened(opening)) = bundle.sessions[0].answers[2].client else {
                panic!("an audited answer shows its client");
            };
            bundle.sessions[0].answers[2].client = Some(LoggedClient::Sealed(opening.commitment()));
        }),
        change(&|bundle| "muster/audit-bundle/3".clone_into(&mut bundle.format)),
        change(&|bundle| {
            let unproven = UnprovenAnswer {
                bucket: 4_000,
                client: Some(Digest::of(b"gone")),
                after: 1,
            };
            bundle.sessions[0].unproven.push(unproven);
        }),
        change(&|bundle| {
            bundle.sessions[0].answers[2].cut = true;
            bundle.format = "muster/audit-bundle/2".to_owned();
        }),
    ]
}

/// A bundle with opened words of which one fact was changed.
fn altered_words(bundle: &AuditBundle) -> Vec<AuditBundle> {
    let place = |is: fn(&Origin) -> bool| {
        let mut answers = bundle.sessions[0].answers.iter();
        answers.position(|answer| is(&answer.origin)).unwrap()
    };
    let user = place(|origin| *origin == Origin::User);
    let consenting = place(|origin| *origin == Origin::Consenting);
    let canary = place(|origin| matches!(origin, Origin::Canary(_)));
    let change = |at: usize, alter: &dyn Fn(&mut Option<OpenedText>)| {
        let mut changed = bundle.clone();
        alter(&mut changed.sessions[0].answers[at].words);
        changed
    };
    let shown = bundle.sessions[0].answers[canary].words.clone();
    let request = |words: &mut Option<OpenedText>, request: Option<&str>| {
        words.as_mut().unwrap().request = request.map(str::to_owned);
    };
    let mut earlier = bundle.clone();
    earlier.format = "muster/audit-bundle/1".to_owned();
    let mut other_response = bundle.clone();
    make_false(&mut other_response, canary, FalseIds::Text);
    let mut without_false_ids = other_response.clone();
    let words = other_response.sessions[0].answers[canary].words.as_mut();
    words.unwrap().response = Some("e30=".to_owned());
    let outcome = &bundle.sessions[0].answers[canary].outcome;
    without_false_ids.sessions[0].answers[canary]
        .outcome
        .clone_from(outcome);
    let mut second = other_response.clone();
    second.sessions[0].answers[canary].words = None;
    second.format = "muster/audit-bundle/2".to_owned();
    let mut of_texts = World::new("int4", 1);
    of_texts.opens_words = true;
    of_texts.alter_proof = |_, proof| proof.tokens = None;
    let of_texts = of_texts.bundle(&given(6, Prompt::Canary, |_| true));
    let mut other_text = of_texts.clone();
    let words = other_text.sessions[0].answers[2].words.as_mut();
    words.unwrap().response = Some("e30=".to_owned());
    let mut no_outcome = of_texts.clone();
    no_outcome.sessions[0].answers[2].outcome = None;
    let mut of_a_user = of_texts;
    of_a_user.sessions[0].answers[2].origin = Origin::User;
    vec![
        other_text,
        no_outcome,
        of_a_user,
        other_response,
        without_false_ids,
        second,
        change(canary, &|words| words.as_mut().unwrap().output[0] += 1),
        change(canary, &|words| words.as_mut().unwrap().prompt.truncate(2)),
        change(canary, &|words| request(words, Some("e30="))),
        change(consenting, &|words| request(words, None)),
        change(consenting, &|words| request(words, Some("e30="))),
        change(user, &|words| *words = shown.clone()),
        earlier,
    ]
}

/// A bundle of own prompts of another image, of whose calibrations one exceeds a bound, or whose prompts name a number
/// for which the engine draws a seed by itself.
fn exceeding(bundle: &AuditBundle) -> Vec<AuditBundle> {
    let change = |alter: &dyn Fn(&mut AuditBundle, &mut Calibration)| {
        let mut changed = bundle.clone();
        let mut unseeded = changed.unseeded.take().unwrap();
        alter(&mut changed, &mut unseeded);
        changed.unseeded = Some(unseeded);
        changed
    };
    let known = |request: usize, output: usize| KnownAnswer {
        request: "x".repeat(request),
        prompt: vec![1],
        output: vec![2; output],
    };
    let mut without_seeds = referenced::world(1);
    without_seeds.has_seeds = false;
    vec![
        change(&|_, unseeded| unseeded.machines = vec![unseeded.machines[0].clone(); 65]),
        change(&|_, unseeded| unseeded.alternatives = vec![unseeded.alternatives[0].clone(); 17]),
        change(&|_, unseeded| {
            let answer = unseeded.machines[0].answers[0];
            unseeded.machines[0].answers = vec![answer; 16_385];
        }),
        change(&|_, unseeded| unseeded.alternatives[0].name = "x".repeat(257)),
        change(&|bundle, _| bundle.calibration.sampler.as_mut().unwrap().version = "x".repeat(257)),
        change(&|bundle, _| bundle.calibration.known_answers = vec![known(65_537, 1)]),
        change(&|bundle, _| bundle.calibration.known_answers = vec![known(2, 131_072)]),
        change(&|bundle, _| bundle.calibration.known_answers = vec![known(2, 1); 65]),
        without_seeds.bundle(&given(12, Prompt::Canary, |_| true)),
    ]
}

/// Texts of a bundle about another image that are no bundles any more after one field was set.
fn malformed_reference(bundle: &AuditBundle) -> Vec<String> {
    let set = |parent: &str, field: &str, value: Value| {
        let mut changed = json!(bundle);
        let fields = changed.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        fields.insert(field.to_owned(), value);
        changed.to_string()
    };
    let digest = bundle.calibration.engine;
    let answer = "/sessions/0/answers/0";
    let words = json!({"prompt": [1], "output": [1], "response": 1});
    vec![
        set("", "unseeded", json!([])),
        set("/unseeded", "machines", json!([[]])),
        set("/calibration", "reference", json!({"engine": digest})),
        set(
            "/calibration",
            "sampler",
            json!({"engine": "tgi", "version": "1"}),
        ),
        set("/calibration/sampler", "seeds", json!(1)),
        set("/calibration", "known_answers", json!(null)),
        set(
            "/calibration",
            "known_answers",
            json!([{"request": "{}", "prompt": [1], "output": [-1]}]),
        ),
        set(
            "/calibration",
            "known_answers",
            json!([{"request": "{}", "prompt": [1], "output": [1], "text": ""}]),
        ),
        set("/sessions/0", "unproven", json!(null)),
        set(
            "/sessions/0",
            "unproven",
            json!([{"bucket": 4_000, "client": digest, "after": -1}]),
        ),
        set(
            "/sessions/0",
            "unproven",
            json!([{"bucket": 4_000, "client": "", "after": 0}]),
        ),
        set(answer, "client", json!({"opened": digest})),
        set(answer, "client", json!({"sealed": ""})),
        set(answer, "beyond", json!(null)),
        set(answer, "cut", json!(1)),
        set(answer, "cut", json!(null)),
        set(answer, "words", words),
    ]
}

/// Texts that are no bundles any more after one change.
fn malformed(bundle: &AuditBundle) -> Vec<String> {
    let change = |alter: &dyn Fn(&mut Value)| {
        let mut changed = json!(bundle);
        alter(&mut changed);
        changed.to_string()
    };
    let set =
        |pointer: &str, value: Value| change(&|bundle| *bundle.pointer_mut(pointer).unwrap() = value.clone());
    let of_key = bundle.coldkey.to_string();
    let mistyped = of_key.replace(&of_key[20..21], if &of_key[20..21] == "a" { "b" } else { "a" });
    let answer = "/sessions/0/answers/0";
    let whole = json!(bundle).to_string();
    vec![
        // Answers out of order, two shares of one miner, a mistyped address.
        change(&|bundle| {
            bundle
                .pointer_mut("/sessions/0/answers")
                .unwrap()
                .as_array_mut()
                .unwrap()
                .swap(1, 2)
        }),
        change(&|bundle| {
            let shares = bundle
                .pointer_mut("/buckets/0/shares")
                .unwrap()
                .as_array_mut()
                .unwrap();
            shares.push(shares[0].clone());
        }),
        set("/coldkey", json!(mistyped)),
        set("/miners/0", json!("5")),
        set("/genesis", json!("sha256:00")),
        set(
            "/genesis",
            json!(bundle.genesis.to_string().replace("sha256:", "SHA256:")),
        ),
        set("/netuid", json!(-1)),
        set("/netuid", json!(65_536)),
        set("/netuid", json!(12.0)),
        set("/netuid", json!(true)),
        set("/model", json!("x".repeat(257))),
        set("/references", json!([])),
        set("/buckets/0/header", json!("AAAA")),
        set("/buckets/0/draw", json!("00")),
        set("/buckets/0/shares/0/ppm", json!("1000000")),
        set(&format!("{answer}/bucket"), json!(null)),
        set(&format!("{answer}/origin"), json!("somebody")),
        set(&format!("{answer}/outcome"), json!({"unusable": "for_no_reason"})),
        set(&format!("{answer}/outcome"), json!({"scored": [[[0]]]})),
        set(&format!("{answer}/path"), json!([1])),
        set("/sessions/0/attestation", json!({})),
        set("/calibration/statistic", json!("luck")),
        set("/calibration/machines/0/answers/0", json!([36, 1])),
        set("/calibration/machines/0/answers/0", json!([3, 1, 2, 1])),
        set("/calibration/machines/0/answers/0", json!([3])),
        change(&|bundle| drop(bundle.as_object_mut().unwrap().remove("sessions"))),
        change(&|bundle| {
            drop(
                bundle
                    .pointer_mut(answer)
                    .unwrap()
                    .as_object_mut()
                    .unwrap()
                    .remove("earned"),
            )
        }),
        json!([bundle]).to_string(),
        "{}".to_owned(),
        "null".to_owned(),
        whole[..whole.len() / 2].to_owned(),
    ]
}

#[test]
fn a_program_of_another_language_comes_to_the_same_verdicts() {
    let folder = std::env::temp_dir().join(format!("muster-audit-bundles-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let bundles = bundles();
    let mut texts: Vec<String> = bundles.iter().map(AuditBundle::to_text).collect();
    let replayed: Vec<Value> = texts.iter().map(|text| json!(replay(text).unwrap())).collect();
    let mut draws: Vec<Value> = replayed.iter().map(outputs).collect();
    let mut expected: Vec<Value> = replayed.into_iter().map(shared_part).collect();
    let last = bundles.len() - 1;
    let altered = [
        (0, altered(&bundles[0])),
        (last - 3, referenced::altered(&bundles[last - 3])),
        (last - 4, exceeding(&bundles[last - 4])),
        (last, altered_words(&bundles[last])),
    ];
    for (of, bundle) in altered
        .into_iter()
        .flat_map(|(of, all)| all.into_iter().map(move |one| (of, one)))
    {
        texts.push(bundle.to_text());
        assert!(replay(texts.last().unwrap()).is_err());
        draws.push(draws[of].clone());
        expected.push(json!("refused"));
    }
    let malformed = malformed(&bundles[0]).into_iter().map(|text| (0, text));
    let of_reference = malformed_reference(&bundles[last - 4]);
    for (of, text) in malformed.chain(of_reference.into_iter().map(|text| (last - 4, text))) {
        assert!(
            replay(&text).is_err(),
            "{}",
            text.chars().take(400).collect::<String>()
        );
        texts.push(text);
        draws.push(draws[of].clone());
        expected.push(json!("refused"));
    }
    let write = |name: String, text: &str| -> PathBuf {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let files = (0..)
        .zip(&texts)
        .map(|(at, text)| write(format!("{at}.json"), text));
    let files: Vec<PathBuf> = files.collect();
    let drawn = write("draws.json".to_owned(), &json!(draws).to_string());
    let mut program = Command::new("python3");
    program.args([PROGRAM, "--draws"]).arg(drawn).args(&files);
    let output = program.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(theirs.len(), expected.len());
    for (at, (theirs, ours)) in theirs.iter().zip(&expected).enumerate() {
        match ours.as_str() {
            Some(_) => assert!(theirs["refused"].is_string(), "bundle {at}: {theirs}"),
            None => assert_eq!(theirs, ours, "bundle {at}"),
        }
    }
    let distinct: std::collections::BTreeSet<_> = expected
        .iter()
        .filter_map(|one| one["verdict"].as_str())
        .collect();
    assert_eq!(distinct.len(), 5, "the bundles say something: {distinct:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}
