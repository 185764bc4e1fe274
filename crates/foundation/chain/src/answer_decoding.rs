//! Decoding of an endpoint's answers, with their lengths checked against their bytes first.
//!
//! A sequence states its length before its elements, and `scale_value` allocates memory for as many elements as stated.
//! An endpoint that states four thousand million would end the process. A first pass over the bytes allocates nothing
//! and fails where they end; after it, no length exceeds the bytes received.

use std::marker::PhantomData;

use subxt::dynamic::Value;
use subxt::ext::scale_decode::visitor::{DecodeAsTypeResult, IgnoreVisitor, decode_with_visitor};
use subxt::ext::scale_decode::{DecodeAsType, Error, IntoVisitor, TypeResolver, Visitor};

/// A value whose lengths were checked against its bytes.
#[derive(Debug)]
pub(crate) struct AnswerValue(pub(crate) Value);

/// Decodes an [`AnswerValue`].
pub(crate) struct BoundedVisitor<R>(PhantomData<R>);

impl IntoVisitor for AnswerValue {
    type AnyVisitor<R: TypeResolver> = BoundedVisitor<R>;

    fn into_visitor<R: TypeResolver>() -> BoundedVisitor<R> {
        BoundedVisitor(PhantomData)
    }
}

impl<R: TypeResolver> Visitor for BoundedVisitor<R> {
    type Value<'scale, 'resolver> = AnswerValue;
    type Error = Error;
    type TypeResolver = R;

    fn unchecked_decode_as_type(
        self,
        input: &mut &[u8],
        kind: R::TypeId,
        types: &R,
    ) -> DecodeAsTypeResult<Self, Result<AnswerValue, Error>> {
        let mut ahead = *input;
        let walked = decode_with_visitor(&mut ahead, kind.clone(), types, IgnoreVisitor::<R>::new());
        DecodeAsTypeResult::Decoded(match walked {
            Ok(()) => Value::decode_as_type(input, kind, types).map(AnswerValue),
            Err(error) => Err(error.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use subxt::ext::codec::{Compact, Decode, Encode};
    use subxt::metadata::Metadata;

    use super::*;

    /// The type of `SubtensorModule.Weights`' values, a list of pairs, and what decodes it.
    fn decode(bytes: &[u8]) -> Result<AnswerValue, String> {
        let mut file: &[u8] = include_bytes!("../../../../tests/vectors/finney-spec365.scale");
        let metadata = Metadata::decode(&mut file).map_err(|error| error.to_string())?;
        let pallet = metadata.pallet_by_name("SubtensorModule").ok_or("no pallet")?;
        let storage = pallet.storage().ok_or("no storage")?;
        let entry = storage.entry_by_name("Weights").ok_or("no entry")?;
        AnswerValue::decode_as_type(&mut &*bytes, entry.value_ty(), metadata.types())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_that_is_there_is_read() {
        let list = vec![(1_u16, 2_u16), (3, 4)];
        assert!(decode(&list.encode()).is_ok());
    }

    #[test]
    fn a_list_that_is_longer_than_its_bytes_takes_no_memory() {
        for length in [3_u32, 1 << 20, u32::MAX] {
            let mut bytes = Compact(length).encode();
            bytes.extend((1_u16, 2_u16).encode());
            assert!(decode(&bytes).is_err(), "{length}");
        }
    }
}
