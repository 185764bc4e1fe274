//! Encoding and decoding of a text in the chain's commitments, where a miner states its manifest and a validator the
//! address of its pages. Pure.

use subxt::dynamic::Value;
use subxt::ext::scale_value::ValueDef;

use crate::error::ChainError;
use crate::scale_value::{bytes, field, items};

/// The most bytes in one raw field.
const MAX_RAW: usize = 128;

/// The chain's structure for one text. Each length is a variant of its own: `Raw0` to `Raw128`.
pub(crate) fn encode(text: &str) -> Result<Value, ChainError> {
    if text.len() > MAX_RAW {
        return Err(ChainError::CommitmentTooLong {
            size: text.len(),
            limit: MAX_RAW,
        });
    }
    let raw = Value::unnamed_variant(format!("Raw{}", text.len()), [Value::from_bytes(text)]);
    Ok(Value::named_composite([(
        "fields",
        Value::unnamed_composite([raw]),
    )]))
}

/// The text of a registration's first raw field; `None` if the field holds something else.
pub(crate) fn decode(registration: &Value) -> Option<String> {
    let mut fields = items(field(field(registration, "info")?, "fields")?)?;
    // A bounded sequence may come as a structure of one field around the sequence.
    if let [only] = fields
        && let Some(inner) = items(only)
    {
        fields = inner;
    }
    let ValueDef::Variant(variant) = &fields.first()?.value else {
        return None;
    };
    if !variant.name.starts_with("Raw") && variant.name != "BigRaw" {
        return None;
    }
    let raw = match variant.values.values().next() {
        Some(value) => raw_bytes(value)?,
        None => Vec::new(),
    };
    String::from_utf8(raw).ok()
}

/// Bytes, also where there is only one of them.
fn raw_bytes(value: &Value) -> Option<Vec<u8>> {
    bytes(value).or_else(|| crate::scale_value::number(value).map(|byte| vec![byte]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_survives_the_chain() {
        for text in ["", "x", "<M:C2;L3>", &"y".repeat(128)] {
            let registration =
                Value::named_composite([("block", Value::u128(1)), ("info", encode(text).unwrap())]);
            assert_eq!(decode(&registration).as_deref(), Some(text));
        }
        assert!(matches!(
            encode(&"y".repeat(129)),
            Err(ChainError::CommitmentTooLong { size: 129, .. })
        ));
    }

    #[test]
    fn other_commitments_are_no_text() {
        let hash = Value::unnamed_variant("Sha256", [Value::from_bytes([7; 32])]);
        let info = Value::named_composite([("fields", Value::unnamed_composite([hash]))]);
        assert_eq!(decode(&Value::named_composite([("info", info)])), None);
        assert_eq!(decode(&Value::u128(1)), None);
    }
}
