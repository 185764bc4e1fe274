//! Every known strategy wins at most what its formula states. These bounds are pinned: a change of the rules that lets
//! an attacker win more fails here.

#![expect(clippy::panic, reason = "helpers of tests fail as tests do")]

use muster_simulation::{Settings, Strategy, StrategyOutcome, draw, known_strategies, simulate};

const SETTINGS: Settings = Settings {
    epochs: 40,
    miners: 9,
    executors: 8,
    organic: 10,
    seed: 1,
};

fn outcome(outcomes: &[StrategyOutcome], name: &str) -> StrategyOutcome {
    let found = outcomes.iter().find(|outcome| outcome.strategy.contains(name));
    found.unwrap_or_else(|| panic!("no strategy {name}")).clone()
}

#[test]
fn no_strategy_wins_more_than_its_formula() {
    let outcomes = simulate(&SETTINGS, &known_strategies());
    for outcome in &outcomes {
        assert!(outcome.holds(), "{outcome:?}");
    }
    let pay = |name| outcome(&outcomes, name).pay;
    assert_eq!(pay("honest"), 1_000);
    assert!(
        (1_010..=1_030).contains(&pay("washing, 2 %")),
        "{}",
        pay("washing, 2 %")
    );
    assert!(
        (1_070..=1_090).contains(&pay("washing, 10 %")),
        "{}",
        pay("washing, 10 %")
    );
    assert!(
        (1_190..=1_205).contains(&pay("washing, 30 %")),
        "{}",
        pay("washing, 30 %")
    );
    assert!((1_190..=1_205).contains(&pay("stalling")), "{}", pay("stalling"));
    assert!(pay("refusing") < 200, "{}", pay("refusing"));
    assert!(pay("rents for announced") < 700, "{}", pay("rents for announced"));
    assert!(draw(&outcomes).contains("≤ 1.000"));
}

#[test]
fn the_same_seed_gives_the_same_table_and_another_one_the_same_bounds() {
    let honest = &known_strategies()[..6];
    assert_eq!(simulate(&SETTINGS, honest), simulate(&SETTINGS, honest));
    for seed in 2..5 {
        let small = Settings {
            seed,
            epochs: 120,
            miners: 5,
            executors: 4,
            ..SETTINGS
        };
        for outcome in simulate(&small, &known_strategies()) {
            assert!(outcome.holds(), "seed {seed}: {outcome:?}");
        }
    }
}

#[test]
fn strategies_are_read_from_a_file_and_unknown_fields_are_refused() {
    let read: Vec<Strategy> =
        serde_json::from_str(r#"[{"name": "mine", "colluder": 100, "bound": 1090}]"#).unwrap();
    assert_eq!((read[0].colluder, read[0].bound(&SETTINGS, 1_000)), (100, 1_090));
    assert!(serde_json::from_str::<Strategy>(r#"{"nam": "mine"}"#).is_err());
}
