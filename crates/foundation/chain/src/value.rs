//! Reading decoded SCALE values by field name. Chains wrap numbers and accounts in structures of their own; the wrapping
//! is looked through, so that only names have to stay.

use muster_protocol::Hotkey;
use subxt::dynamic::Value;
use subxt::ext::scale_value::{Composite, Primitive, ValueDef};

/// A named field of a structure.
pub(crate) fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match &value.value {
        ValueDef::Composite(Composite::Named(fields)) => fields
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value),
        ValueDef::Composite(Composite::Unnamed(_))
        | ValueDef::Variant(_)
        | ValueDef::BitSequence(_)
        | ValueDef::Primitive(_) => None,
    }
}

/// What stands in an `Option`: `Some(None)` for a `None`, `None` for something that is no option.
pub(crate) fn option(value: &Value) -> Option<Option<&Value>> {
    match &value.value {
        ValueDef::Variant(variant) if variant.name == "None" => Some(None),
        ValueDef::Variant(variant) if variant.name == "Some" => variant.values.values().next().map(Some),
        ValueDef::Variant(_) | ValueDef::Composite(_) | ValueDef::BitSequence(_) | ValueDef::Primitive(_) => {
            None
        }
    }
}

/// The elements of a sequence, an array or a tuple.
pub(crate) fn items(value: &Value) -> Option<&[Value]> {
    match &value.value {
        ValueDef::Composite(Composite::Unnamed(items)) => Some(items),
        ValueDef::Composite(Composite::Named(_))
        | ValueDef::Variant(_)
        | ValueDef::BitSequence(_)
        | ValueDef::Primitive(_) => None,
    }
}

/// A number, however deeply wrapped.
pub(crate) fn number<N: TryFrom<u128>>(value: &Value) -> Option<N> {
    match &unwrapped(value).value {
        ValueDef::Primitive(Primitive::U128(number)) => N::try_from(*number).ok(),
        ValueDef::Primitive(
            Primitive::Bool(_)
            | Primitive::Char(_)
            | Primitive::String(_)
            | Primitive::I128(_)
            | Primitive::U256(_)
            | Primitive::I256(_),
        )
        | ValueDef::Composite(_)
        | ValueDef::Variant(_)
        | ValueDef::BitSequence(_) => None,
    }
}

/// A truth value.
pub(crate) fn flag(value: &Value) -> Option<bool> {
    unwrapped(value).as_bool()
}

/// An account: 32 bytes, however deeply wrapped.
pub(crate) fn account(value: &Value) -> Option<Hotkey> {
    bytes(value)?.try_into().ok().map(Hotkey::from_bytes)
}

/// A sequence of bytes, however deeply wrapped.
pub(crate) fn bytes(value: &Value) -> Option<Vec<u8>> {
    items(unwrapped(value))?.iter().map(number).collect()
}

/// The value inside structures of one field. A sequence of one element looks the same, and nothing here is one.
fn unwrapped(value: &Value) -> &Value {
    let inner = match &value.value {
        ValueDef::Composite(Composite::Named(fields)) => match fields.as_slice() {
            [(_, only)] => only,
            _ => return value,
        },
        ValueDef::Composite(Composite::Unnamed(items)) => match items.as_slice() {
            [only] => only,
            _ => return value,
        },
        ValueDef::Variant(_) | ValueDef::BitSequence(_) | ValueDef::Primitive(_) => return value,
    };
    unwrapped(inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn wrapping_is_looked_through() {
        let wrapped = Value::named_composite([("bits", Value::unnamed_composite([Value::u128(7)]))]);
        assert_eq!(number::<u16>(&wrapped), Some(7));
        assert_eq!(number::<u8>(&Value::u128(256)), None);
        assert_eq!(number::<u8>(&Value::bool(true)), None);
        assert_eq!(
            account(&Value::unnamed_composite([Value::from_bytes([3; 32])])),
            Some(Hotkey::from_bytes([3; 32]))
        );
        assert_eq!(account(&Value::from_bytes([3; 31])), None);
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
            crate::client::decode_anything(&value);
        }
    }

    #[test]
    fn fields_are_found_by_name_and_options_told_apart() {
        let value = Value::named_composite([("a", Value::u128(1)), ("b", Value::bool(true))]);
        assert_eq!(field(&value, "b").and_then(flag), Some(true));
        assert!(field(&value, "c").is_none());
        assert_eq!(option(&Value::unnamed_variant("None", [])), Some(None));
        assert_eq!(
            option(&Value::unnamed_variant("Some", [value.clone()])),
            Some(Some(&value))
        );
        assert_eq!(option(&value), None);
    }
}
