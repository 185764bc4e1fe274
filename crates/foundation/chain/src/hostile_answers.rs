//! A property of every decoder of answers: none of them panics, whatever an endpoint sends.

use muster_protocol::{BlockNumber, Netuid};
use proptest::prelude::*;
use subxt::dynamic::Value;

use crate::chain_reader::weights_row;
use crate::hyperparameters::Hyperparameters;
use crate::metagraph::Metagraph;
use crate::{commitment_text, weights};

/// Runs every decoder of answers on a value.
fn decode_anything(value: &Value) {
    let _ = Metagraph::from_value(Netuid(1), BlockNumber(1), value);
    let _ = Hyperparameters::from_value(value, None);
    let _ = weights_row(value);
    let _ = commitment_text::decode(value);
    let _ = weights::decode_beacon(value);
    let _ = weights::decode_commits(value);
}

/// Any shape of a value, three levels deep, with the field names that the decoders look for.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<u128>().prop_map(Value::u128),
        any::<i128>().prop_map(Value::i128),
        any::<bool>().prop_map(Value::bool),
        ".{0,4}".prop_map(Value::string),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::from_bytes),
    ];
    let names = proptest::sample::select(vec![
        "hotkeys",
        "coldkeys",
        "axons",
        "tempo",
        "total_stake",
        "active",
        "last_step",
        "ip",
        "port",
        "ip_type",
        "info",
        "fields",
        "public_key",
        "genesis_time",
        "period",
        "weights_version",
        "Some",
        "None",
        "Raw7",
    ]);
    leaf.prop_recursive(4, 60, 8, move |inner| {
        let many = proptest::collection::vec(inner.clone(), 0..6);
        let named = proptest::collection::vec((names.clone(), inner.clone()), 0..8);
        prop_oneof![
            many.clone().prop_map(Value::unnamed_composite),
            named.prop_map(Value::named_composite),
            (names.clone(), many).prop_map(|(name, values)| Value::unnamed_variant(name, values)),
        ]
    })
}

proptest! {
    #[test]
    fn no_decoder_panics_at_an_answer(value in anything()) {
        decode_anything(&value);
    }
}
