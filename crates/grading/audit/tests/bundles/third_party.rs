//! A program of another language, written from the documented format alone, comes to the same verdicts.

use std::path::PathBuf;
use std::process::Command;

use muster_audit::{
    AuditBundle, AuditOutcome, NoncePeriod, OpenedWords, Origin, RevealedNonceKey, Statistic, UnusableReason,
    replay,
};
use serde_json::{Value, json};

use crate::support::{Given, Prompt, World, given};

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
    let mut level_zero = int4(1);
    level_zero.calibration.machines.truncate(1);
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
    let mut unchecked = with_keys.bundle(&given(12, Prompt::User, |client| client % 2 == 0));
    unchecked.nonce_keys.pop();
    vec![
        with_keys.bundle(&given(12, Prompt::Canary, |_| true)),
        with_keys.bundle(&mixed(4)),
        foreign,
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
        surprise.bundle(&given(8, Prompt::Canary, |_| true)),
        unscored,
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
    replayed
}

/// The outputs that the other program cannot compute: of the draws, then of the keys of nonces.
fn outputs(replayed: &Value) -> Value {
    let listed = |name: &str| replayed[name].as_array().cloned().unwrap_or_default();
    json!([listed("draws"), listed("nonce_keys")].concat())
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
    let change = |at: usize, alter: &dyn Fn(&mut Option<OpenedWords>)| {
        let mut changed = bundle.clone();
        alter(&mut changed.sessions[0].answers[at].words);
        changed
    };
    let shown = bundle.sessions[0].answers[canary].words.clone();
    let request = |words: &mut Option<OpenedWords>, request: Option<&str>| {
        words.as_mut().unwrap().request = request.map(str::to_owned);
    };
    let mut earlier = bundle.clone();
    earlier.format = "muster/audit-bundle/1".to_owned();
    vec![
        change(canary, &|words| words.as_mut().unwrap().output[0] += 1),
        change(canary, &|words| words.as_mut().unwrap().prompt.truncate(2)),
        change(canary, &|words| request(words, Some("e30="))),
        change(consenting, &|words| request(words, None)),
        change(consenting, &|words| request(words, Some("e30="))),
        change(user, &|words| *words = shown.clone()),
        earlier,
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
    for bundle in [altered(&bundles[0]), altered_words(bundles.last().unwrap())].concat() {
        texts.push(bundle.to_text());
        assert!(replay(texts.last().unwrap()).is_err());
        let is_first =
            bundle.validator == bundles[0].validator && bundle.buckets.len() == bundles[0].buckets.len();
        let of = if is_first { 0 } else { bundles.len() - 1 };
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
