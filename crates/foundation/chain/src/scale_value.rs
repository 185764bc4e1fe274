//! Reads decoded SCALE values by field name. Chains wrap numbers and accounts in structures of their own; these
//! functions look through the wrapping, so that only names have to stay the same.

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

/// The content of an `Option`: `Some(None)` for a `None`, and `None` for a value that is not an option.
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

/// The value inside structures of one field. A sequence of one element looks the same, and no value here is one.
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
