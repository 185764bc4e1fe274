//! Every known strategy wins at most what its formula states, and validators stay within theirs. These bounds are
//! pinned: a change of the rules that lets an attacker win more fails here.

#![expect(clippy::panic, reason = "helpers of tests fail as tests do")]

use muster_simulation::{
    Settings, Strategy, StrategyOutcome, draw, known_strategies, simulate, simulate_validators,
};

/// The defaults of `muster simulate`.
const DEFAULTS: Settings = Settings {
    epochs: 60,
    miners: 20,
    executors: 4,
    organic: 10,
    job_secs: 600,
    worlds: 4,
    validators: 8,
    seed: 1,
};

fn outcome(outcomes: &[StrategyOutcome], name: &str) -> StrategyOutcome {
    let found = outcomes.iter().find(|outcome| outcome.strategy.contains(name));
    found.unwrap_or_else(|| panic!("no strategy {name}")).clone()
}

#[test]
fn the_default_simulation_is_within_its_bounds_and_finds_what_is_documented() {
    let outcomes = simulate(&DEFAULTS, &known_strategies());
    assert_eq!(outcomes.len(), known_strategies().len());
    for outcome in &outcomes {
        assert!(outcome.holds(), "{outcome:?}");
    }
    let within = |name: &str, from: u64, to: u64| {
        let found = outcome(&outcomes, name);
        assert!((from..=to).contains(&found.pay), "{from} to {to}: {found:?}");
    };
    within("honest", 997, 1_003);
    within("half of the GPUs", 960, 1_003);
    within("a million", 990, 1_005);
    within("rents for announced", 0, 0);
    within("announces more", 0, 0);
    within("one probe in sixteen", 700, 1_005);
    within("one probe in four", 0, 500);
    within("planned absence", 960, 1_020);
    within("one hardware, four hotkeys", 1_000, 1_060);
    within("ten sessions", 0, 0);
    within("four sessions", 200, 300);
    within("rents once in eight", 900, 1_000);
    within("9 times the price", 770, 778);
    within("6 times the price", 1_155, 1_167);
    within("washing, 2 %", 1_012, 1_018);
    within("washing, 10 %", 1_075, 1_082);
    within("washing, 30 %", 1_190, 1_204);
    within("excused absence of half, 10 %", 1_200, 1_800);
    within("stalling every job", 1_000, 1_020);
    within("refusing three offers in ten", 0, 400);
    within("refusing everything, little", 990, 1_003);
    within("no audits", 1_045, 1_055);
    within("found out", 520, 530);
    assert!(draw(&outcomes).contains("≤ 1.000"));
}

#[test]
#[ignore = "soak: twenty runs of the default simulation take minutes"]
fn twenty_seeds_stay_within_the_bounds() {
    for seed in 2..22 {
        let settings = Settings { seed, ..DEFAULTS };
        for outcome in simulate(&settings, &known_strategies()) {
            assert!(outcome.holds(), "seed {seed}: {outcome:?}");
        }
    }
}

#[test]
fn small_and_large_miners_stay_within_the_bounds() {
    for seed in 1..3 {
        for (epochs, miners, executors) in [(60, 5, 4), (40, 9, 4), (40, 16, 4), (30, 6, 16)] {
            let settings = Settings {
                seed,
                epochs,
                miners,
                executors,
                worlds: 2,
                ..DEFAULTS
            };
            for outcome in simulate(&settings, &known_strategies()) {
                assert!(outcome.holds(), "{settings:?}: {outcome:?}");
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_table() {
    let settings = Settings {
        epochs: 30,
        worlds: 2,
        ..DEFAULTS
    };
    let some = &known_strategies()[..9];
    assert_eq!(simulate(&settings, some), simulate(&settings, some));
    assert_ne!(
        simulate(&settings, some),
        simulate(&Settings { seed: 2, ..settings }, some)
    );
}

#[test]
fn weights_of_validators_lie_within_the_formula_and_copying_wins_at_most_what_others_lose() {
    for seed in 1..4 {
        let outcomes = simulate_validators(&Settings { seed, ..DEFAULTS });
        assert_eq!(outcomes.len(), 4);
        for outcome in &outcomes {
            assert!(outcome.holds(), "seed {seed}: {outcome:?}");
        }
        let of = |name: &str| {
            let found = outcomes.iter().find(|outcome| outcome.scenario.contains(name));
            found.unwrap_or_else(|| panic!("no scenario {name}")).clone()
        };
        // With gathered statements and all receipts, everybody finds the same weights to the last bit.
        let same = of("all receipts seen");
        assert_eq!((same.distance, same.distance_bound), (0, 0));
        let apart = of("own probes only");
        assert!(apart.trust < 995 && apart.copier > 1_000, "{apart:?}");
        let unseen = of("gathered, 2 % of receipts unseen");
        assert!(
            unseen.distance > 0 && unseen.distance < 20_000,
            "the target is 0.02: {unseen:?}"
        );
        for stable in [same, unseen] {
            assert!((995..=1_005).contains(&stable.copier), "{stable:?}");
        }
    }
}

#[test]
fn strategies_are_read_from_a_file_and_unknown_fields_are_refused() {
    let read: Vec<Strategy> =
        serde_json::from_str(r#"[{"name": "mine", "colluder": 100, "bound": 1090}]"#).unwrap();
    assert_eq!((read[0].colluder, read[0].bound), (100, Some(1_090)));
    let tried = simulate(&DEFAULTS, &read);
    assert_eq!((tried[0].bound, tried[0].holds()), (1_090, true));
    assert!(serde_json::from_str::<Strategy>(r#"{"nam": "mine"}"#).is_err());
}

#[test]
fn a_formula_that_is_too_low_is_seen() {
    let strategy = Strategy {
        colluder: 100,
        bound: Some(1_050),
        ..Strategy::default()
    };
    let outcomes = simulate(&DEFAULTS, &[strategy]);
    assert!(!outcomes[0].holds(), "{outcomes:?}");
}
