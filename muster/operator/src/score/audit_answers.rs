//! `muster audit replay` and `muster audit curve`: the sums of spot checks as text.

use std::fmt::Write as _;

use comfy_table::Table;
use muster_audit::{
    AdoptionForecast, BILLION, Calibration, CellCounts, CurvePoint, CurveSettings, Detection,
    DetectionSettings, ENTROPY_BINS, ENTROPY_EDGES, HonestDays, MedianRange, MissingOutcome, RateInterval,
    ReplayedBundle, TestOutcome, accuse_honest, detect, draw_curve, replay,
};
use serde_json::json;

use crate::score::{AuditCurve, Result, check_digest, lay_out, read};

/// The meaning of an interval, beside every table of rates.
const INTERVAL_WORDS: &str = "In 95 of 100 measurements such an interval holds the rate, if tokens err \
                              independently of one another. It says nothing about rarer errors.";

/// The meaning of the ranges beside medians.
const MEDIAN_WORDS: &str = "Medians over miners, and in brackets the range of 95 of 100 medians if the measured answers \
                            are drawn again.";

/// The verdict of a bundle's text, computed again.
///
/// # Errors
/// The text is no bundle, not the one with the digest that is asked for, or does not follow from what was signed.
pub fn replay_bundle(text: &str, digest: Option<&str>, as_json: bool) -> Result<String> {
    check_digest(text, digest)?;
    let replayed = replay(text)?;
    Ok(match as_json {
        true => format!("{:#}\n", json!(replayed)),
        false => describe(&replayed),
    })
}

fn describe(replayed: &ReplayedBundle) -> String {
    let counts = &replayed.counts;
    let mut text = format!(
        "{}\ncoldkey {}, model {}: {}\nquality {} of 1000, calibration of level {}\n",
        replayed.bundle,
        replayed.coldkey,
        replayed.model,
        replayed.verdict,
        replayed.quality_per_mille,
        json!(replayed.level).as_str().unwrap_or_default(),
    );
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "{} answers in the log, {} audited, {} of them beyond four of a client and day, {} scored, {} not scored",
        counts.logged, counts.audited, counts.beyond_client, counts.scored, counts.unscored
    );
    if counts.false_ids > 0 {
        let _ = writeln!(
            text,
            "{} of the scored answers state false ids, which is the author's word: a replay cannot tokenize",
            counts.false_ids
        );
    }
    let _ = match &replayed.nonces {
        None => writeln!(text, "nonces: the bundle shows no key, so they are not checked"),
        Some(nonces) => writeln!(
            text,
            "nonces: {} follow from the revealed keys, {} do not and are not tested, {} have no key yet",
            nonces.derived, nonces.foreign, nonces.unchecked
        ),
    };
    let _ = writeln!(text, "tested against: {}", list(&replayed.alternatives));
    for exceeded in &replayed.exceeded {
        let _ = writeln!(
            text,
            "not tested against {}: honest answers of {} resemble it (mean ratio up to {}.{:03})",
            exceeded.alternative,
            exceeded.machine,
            exceeded.upper_per_mille / 1_000,
            exceeded.upper_per_mille % 1_000
        );
    }
    let tests = &replayed.tests;
    for (name, test) in [
        ("all", &tests.all),
        ("public", &tests.public),
        ("users'", &tests.private),
    ] {
        let _ = writeln!(text, "{name} answers: {}", describe_test(test));
    }
    if let Some(test) = &tests.unseeded {
        let _ = writeln!(text, "answers whose seeds nobody knows: {}", describe_test(test));
    }
    if let Some(missing) = &replayed.missing {
        let _ = writeln!(text, "missing answers: {}", describe_missing(missing));
    }
    if let Some(adoption) = &replayed.adoption {
        let _ = writeln!(text, "other validators: {}", describe_adoption(*adoption));
    }
    if replayed.discriminates {
        text.push_str("users are served worse than the validator's own prompts\n");
    }
    let _ = write!(
        text,
        "{}\n{INTERVAL_WORDS}\n",
        rate_table([("this bundle", replayed.off_rates.clone())])
    );
    text
}

fn describe_adoption(adoption: AdoptionForecast) -> String {
    let AdoptionForecast {
        positions,
        chosen,
        convicts,
    } = adoption;
    if convicts {
        format!("with the same scores of {chosen} of {positions} own prompts they adopt a conviction")
    } else {
        format!("with the same scores of the {positions} own prompts they adopt no conviction")
    }
}

fn describe_test(test: &TestOutcome) -> String {
    match test.alarm {
        None => format!("no alarm in {}", test.answers),
        Some(alarm) => format!(
            "an alarm after {alarm} of {}; the second reference raises {}, and later answers {}",
            test.answers,
            if test.rescored { "one too" } else { "none" },
            if test.fresh {
                "confirm it"
            } else {
                "do not confirm it"
            },
        ),
    }
}

fn describe_missing(missing: &MissingOutcome) -> String {
    let causes = &missing.missing;
    let found = format!(
        "{} of {} ({} own prompts without token ids, {} broken off, {} cut, {} without a proof)",
        causes.total(),
        missing.answers,
        causes.no_token_ids,
        causes.broken_off,
        causes.cut,
        causes.unproven
    );
    match missing.alarm {
        None => format!("{found}; no alarm"),
        Some(alarm) => format!("{found}; an alarm after {alarm}, which makes a suspect"),
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    }
}

/// Simulates cheats and honest miners by the answers of a calibration.
///
/// # Errors
/// The file cannot be read, or is no calibration.
pub fn run_curve(args: &AuditCurve) -> Result<String> {
    let calibration = Calibration::parse(&read(&args.file)?)?;
    let settings = CurveSettings {
        trials: args.trials,
        most_answers: args.most_answers,
        seed: args.seed,
        ..CurveSettings::default()
    };
    let tested = calibration.tested_alternatives();
    let level = calibration.level(&tested);
    let points = draw_curve(&calibration, &settings);
    let honest = accuse_honest(&calibration, args.miner_days, args.answers_a_day, args.seed);
    let detections = detect(
        &calibration,
        &DetectionSettings {
            most_answers: args.most_answers,
            seed: args.seed,
            ..DetectionSettings::default()
        },
    );
    let rates = engine_rates(&calibration);
    if args.json {
        let exceeded = calibration.exceeded_premises();
        let body = json!({
            "level": level, "exceeded": exceeded, "cheats": points, "honest": honest, "detections": detections,
            "off_rates": rates.iter().map(|(name, rates)| json!({ "engine": name, "rates": rates })).collect::<Vec<_>>(),
        });
        return Ok(format!("{body:#}\n"));
    }
    let mut text = format!(
        "calibration of level {}\n",
        json!(level).as_str().unwrap_or_default()
    );
    for premise in calibration.exceeded_premises() {
        let _ = writeln!(
            text,
            "not tested against {}: too near to {}",
            premise.alternative, premise.machine
        );
    }
    let _ = write!(
        text,
        "\nAudited answers until the alarm:\n{}\n\nAlarm and conviction of miners that always cheat, by entropy:\n{}\n\
         {MEDIAN_WORDS}\n\nHonest miners:\n{}\n\nTokens off by entropy:\n{}\n{INTERVAL_WORDS}\n",
        curve_table(&points),
        detection_table(&detections),
        honest_table(&honest),
        rate_table(rates),
    );
    Ok(text)
}

/// The off rates of all machines and alternatives.
fn engine_rates(calibration: &Calibration) -> Vec<(&str, Vec<RateInterval>)> {
    let rates = |answers: &[CellCounts]| -> Vec<RateInterval> {
        let sum = CellCounts::sum(answers);
        let rate = |entropy| RateInterval::of(sum.at_least(entropy, 1).into(), sum.tokens(entropy).into());
        (0..ENTROPY_BINS).map(rate).collect()
    };
    let machines = calibration.machines.iter();
    let machines = machines.map(|run| (run.machine.as_str(), rates(&run.answers)));
    let alternatives = calibration.alternatives.iter();
    let alternatives = alternatives.map(|one| (one.name.as_str(), rates(&one.answers)));
    machines.chain(alternatives).collect()
}

fn curve_table(points: &[CurvePoint]) -> Table {
    let header = ["engine", "share", "accused", "median", "95 of 100", "tokens", ""];
    let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
    let rows = points.iter().map(|point| {
        [
            point.alternative.clone(),
            format!("{}.{} %", point.share / 10, point.share % 10),
            format!("{} of {}", point.accused, point.trials),
            number(point.median),
            number(point.most),
            number(point.median_tokens),
            String::new(),
        ]
    });
    lay_out(header, rows)
}

fn detection_table(detections: &[Detection]) -> Table {
    let header = [
        "engine",
        "nats",
        "tokens off",
        "alarm, answers",
        "conviction, answers",
        "conviction, tokens",
        "",
    ];
    let rows = detections.iter().map(|found| {
        [
            found.engine.clone(),
            entropy_words(found.entropy),
            interval(&found.off),
            range_words(found.alarm, 1),
            range_words(found.conviction, 1),
            range_words(found.conviction, found.tokens_an_answer),
            String::new(),
        ]
    });
    lay_out(header, rows)
}

/// Such as `0.5 to 1.5`; `all` for no bin.
fn entropy_words(entropy: Option<usize>) -> String {
    let nats = |edge: &u32| format!("{}.{}", edge / 1_000, edge % 1_000 / 100);
    let Some(bin) = entropy else {
        return "all".to_owned();
    };
    let low = bin
        .checked_sub(1)
        .and_then(|below| ENTROPY_EDGES.get(below))
        .map(nats);
    match (low, ENTROPY_EDGES.get(bin).map(nats)) {
        (None, None) => "all".to_owned(),
        (None, Some(high)) => format!("below {high}"),
        (Some(low), Some(high)) => format!("{low} to {high}"),
        (Some(low), None) => format!("{low} and more"),
    }
}

/// Such as `7 (6 to 9)`, each number times `factor`; `-` for one that was not reached.
fn range_words(range: MedianRange, factor: u32) -> String {
    let number = |number: Option<u32>| {
        number.map_or("-".to_owned(), |number| number.saturating_mul(factor).to_string())
    };
    match (range.low, range.median, range.high) {
        (None, None, None) => "-".to_owned(),
        (low, median, high) => format!("{} ({} to {})", number(median), number(low), number(high)),
    }
}

fn honest_table(days: &[HonestDays]) -> Table {
    let header = ["answers of", "miner-days", "audited a day", "accused", ""];
    let rows = days.iter().map(|of_machine| {
        [
            of_machine.machine.clone(),
            of_machine.miner_days.to_string(),
            of_machine.answers_a_day.to_string(),
            of_machine.accused.to_string(),
            String::new(),
        ]
    });
    lay_out(header, rows)
}

fn rate_table<'a>(engines: impl IntoIterator<Item = (&'a str, Vec<RateInterval>)>) -> Table {
    let [first, second, third] = ENTROPY_EDGES.map(|edge| format!("{}.{}", edge / 1_000, edge % 1_000 / 100));
    let columns = [
        format!("below {first} nats"),
        format!("{first} to {second}"),
        format!("{second} to {third}"),
        format!("{third} and more"),
    ];
    let mut header = vec!["engine".to_owned()];
    header.extend(columns);
    header.push(String::new());
    let rows = engines.into_iter().map(|(name, rates)| {
        let mut row = vec![name.to_owned()];
        row.extend(rates.iter().map(interval));
        row.push(String::new());
        row
    });
    lay_out(header, rows)
}

/// Such as `5.04 % (3.51 to 7.19) of 575`.
fn interval(rate: &RateInterval) -> String {
    if rate.trials == 0 {
        return "no tokens".to_owned();
    }
    let measured = rate.events.saturating_mul(BILLION) / rate.trials;
    format!(
        "{} % ({} to {}) of {}",
        hundredths(measured),
        hundredths(rate.low),
        hundredths(rate.high.saturating_add(BILLION / 10_000 - 1)),
        rate.trials
    )
}

/// Per cent with two digits behind the point, rounded down, of a number in billionths.
fn hundredths(billionths: u64) -> String {
    let hundredths = billionths / (BILLION / 10_000);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::ScoreToolError;

    #[test]
    fn rates_are_shown_with_their_intervals() {
        assert_eq!(
            interval(&RateInterval::of(29, 575)),
            "5.04 % (3.50 to 7.20) of 575"
        );
        assert_eq!(interval(&RateInterval::of(0, 96)), "0.00 % (0.00 to 4.00) of 96");
        assert_eq!(interval(&RateInterval::of(0, 0)), "no tokens");
        let shown = rate_table([("int4", vec![RateInterval::of(1, 10); 4])]).to_string();
        assert!(
            shown.contains("1.5 to 3.0") && shown.contains("10.00 %"),
            "{shown}"
        );
    }

    #[test]
    fn entropies_and_ranges_are_words() {
        let words: Vec<String> = [None, Some(0), Some(1), Some(3)].map(entropy_words).into();
        assert_eq!(words, ["all", "below 0.5", "0.5 to 1.5", "3.0 and more"]);
        let range = |low, median, high| MedianRange { low, median, high };
        assert_eq!(range_words(range(Some(6), Some(7), None), 128), "896 (768 to -)");
        assert_eq!(range_words(range(None, None, None), 128), "-");
    }

    #[test]
    fn the_results_of_tests_are_words() {
        let mut test = TestOutcome {
            answers: 12,
            ..TestOutcome::default()
        };
        assert_eq!(describe_test(&test), "no alarm in 12");
        test.alarm = Some(3);
        test.rescored = true;
        let shown = describe_test(&test);
        assert!(
            shown.starts_with("an alarm after 3 of 12") && shown.contains("do not confirm"),
            "{shown}"
        );
    }

    #[test]
    fn a_bundle_is_replayed_and_described() {
        let bundle = include_str!("../../../../tests/vectors/audit-bundle.json");
        let shown = replay_bundle(bundle, None, false).unwrap();
        for expected in [
            "model tiny: convicted",
            "8 answers in the log, 8 audited",
            "not tested against int8: honest answers of bf16",
            "all answers: an alarm after 3 of 8; the second reference raises one too",
        ] {
            assert!(shown.contains(expected), "{expected}: {shown}");
        }
        let digest = shown.lines().next();
        let as_json = replay_bundle(bundle, digest, true).unwrap();
        assert!(as_json.contains("\"verdict\": \"convicted\""), "{as_json}");
        let altered = bundle.replace("\"netuid\":1", "\"netuid\":2");
        let error = replay_bundle(&altered, None, false).unwrap_err();
        assert!(matches!(error, ScoreToolError::Bundle(_)), "{error}");
    }

    #[test]
    fn missing_answers_are_described_with_their_causes() {
        let bundle = include_str!("../../../../tests/vectors/audit-bundle-missing.json");
        let shown = replay_bundle(bundle, None, false).unwrap();
        let expected = "missing answers: 15 of 20 (4 own prompts without token ids, 4 broken off, 4 cut, 3 without a \
                        proof); an alarm after 18, which makes a suspect";
        assert!(shown.contains(expected), "{shown}");
    }

    #[test]
    fn other_texts_are_refused() {
        let error = replay_bundle("{}", None, false).unwrap_err();
        assert!(matches!(error, ScoreToolError::Bundle(_)), "{error}");
        let error = replay_bundle("{}", Some("sha256:0"), false).unwrap_err();
        assert!(matches!(error, ScoreToolError::OtherDigest { .. }), "{error}");
        assert!(matches!(
            Calibration::parse("{}").map_err(ScoreToolError::from),
            Err(ScoreToolError::Calibration(_))
        ));
    }
}
