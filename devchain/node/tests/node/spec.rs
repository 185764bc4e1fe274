//! Specifications: what is read, and how everything that is wrong is reported at once.

use crate::support::options;
use muster_devchain::node::Node;
use muster_devchain::spec::Spec;
use muster_devchain_store::Store;
use serde_json::{Value, json};
use sp_core::H256;

const ALICE: &str = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
const BOB: &str = "5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty";

fn genesis_hash(spec: &Value) -> H256 {
    let config = Spec::parse(&spec.to_string()).unwrap().genesis().unwrap();
    Node::open(&config, Store::temporary().unwrap(), options())
        .unwrap()
        .genesis()
}

/// Every line of complaint about a specification holds its part of `expected`, in order.
#[track_caller]
fn wrong(spec: &Value, expected: &[&str]) {
    let problems = match Spec::parse(&spec.to_string()) {
        Ok(spec) => spec.genesis().err().unwrap(),
        Err(problems) => problems,
    };
    let lines = problems.lines();
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.contains(part), "{line:?} does not say {part:?}");
    }
}

#[test]
fn the_default_can_be_printed_and_read() {
    let spec = Spec::development().unwrap();
    let text = serde_json::to_string_pretty(&spec).unwrap();
    assert_eq!(Spec::parse(&text).unwrap(), spec);
    spec.genesis().unwrap();
}

#[test]
fn absent_fields_of_a_specification_have_defaults() {
    assert_eq!(Spec::parse("{}").unwrap(), Spec::default());
    let spec = Spec::parse(r#"{"subnets":[{"netuid":3,"tempo":7}]}"#).unwrap();
    let subnet = &spec.subnets[0];
    assert_eq!(
        (
            subnet.netuid,
            subnet.tempo,
            subnet.commit_reveal,
            subnet.max_allowed_uids
        ),
        (3, 7, false, 256)
    );
    spec.genesis().unwrap();
}

#[test]
fn another_specification_is_another_chain() {
    let spec = json!({ "subnets": [{ "netuid": 1 }], "balances": { ALICE: 1000 } });
    assert_eq!(genesis_hash(&spec), genesis_hash(&spec));
    for (place, value) in [
        ("/subnets/0/tempo", json!(21)),
        ("/subnets/0/netuid", json!(2)),
        ("/balances", json!({})),
    ] {
        let mut other = spec.clone();
        match other.pointer_mut(place) {
            Some(field) => *field = value,
            None => other["subnets"][0]["tempo"] = value,
        }
        assert_ne!(genesis_hash(&other), genesis_hash(&spec), "{place}");
    }
}

#[test]
fn malformed_specifications_are_refused() {
    for text in ["", "{", "[]", "7", "\u{feff}{}", "{\"subnets\":", "nul"] {
        let problems = Spec::parse(text).unwrap_err();
        assert!(problems.lines()[0].starts_with("not "), "{text:?}: {problems}");
    }
    assert!(Spec::parse(&"[".repeat(100_000)).is_err());
}

#[test]
fn all_that_cannot_be_read_is_said_at_once() {
    wrong(
        &json!({
            "subnets": [{ "netuid": 1, "temp": 3 }, { "tempo": 3 }, { "netuid": 70_000 }],
            "neurons": [{ "netuid": 1, "hotkey": ALICE }],
            "balances": { ALICE: -1 },
            "stake_threshold": "much",
            "extra": 1,
        }),
        &[
            "balances",
            "extra: unknown field",
            "neurons[0]: missing field `coldkey`",
            "stake_threshold",
            "subnets[0]: unknown field `temp`",
            "subnets[1]: missing field `netuid`",
            "subnets[2]",
        ],
    );
    wrong(&json!({ "subnets": {} }), &["subnets: invalid type"]);
}

#[test]
fn all_that_does_not_fit_is_said_at_once() {
    let neuron = |netuid: u16, hotkey: &str, coldkey: &str| json!({ "netuid": netuid, "hotkey": hotkey, "coldkey": coldkey });
    wrong(
        &json!({
            "subnets": [
                { "netuid": 0 },
                { "netuid": 1, "max_allowed_uids": 1 },
                { "netuid": 1, "tempo": 0 },
                { "netuid": 5000, "mechanisms": 0, "max_allowed_uids": 0 },
                { "netuid": 2 },
            ],
            "balances": { ALICE: 499, BOB: 1000, "5xyz": 1000 },
            "neurons": [
                neuron(1, ALICE, BOB),
                neuron(1, ALICE, BOB),
                neuron(7, ALICE, BOB),
                neuron(2, "nonsense", BOB),
                neuron(2, ALICE, ALICE),
            ],
        }),
        &[
            "subnets[0]: netuid 0 is the root network",
            "subnets[2]: netuid 1 occurs twice",
            "subnets[2]: tempo 0",
            "subnets[3]: netuid 5000 is not below",
            "subnets[3]: max_allowed_uids 0",
            "subnets[3]: mechanisms 0",
            "balances.5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY: 499 rao",
            "balances.5xyz: \"5xyz\" is not an ss58 address",
            "neurons[1]: the hotkey is on subnet 1 already",
            "neurons[2]: there is no subnet 7",
            "neurons[3].hotkey: \"nonsense\" is not an ss58 address",
            "neurons[4]: the hotkey belongs to another coldkey",
        ],
    );
    wrong(
        &json!({ "balances": { ALICE: u64::MAX, BOB: 1000 } }),
        &["the sum of all balances is too large"],
    );
}
