//! sr25519 signatures as texts. `muster-identity` makes and checks them.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The text is not a signature of 64 bytes; holds the expected form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a signature is 64 bytes, written as {0}")]
pub struct SignatureError(&'static str);

/// The 64 bytes of an sr25519 signature, not yet checked against anything.
///
/// ComputeHorde writes signatures in three ways; serde uses the commonest, `0x` and hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature([u8; 64]);

impl Signature {
    /// Wraps a raw signature.
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        Self(bytes)
    }

    /// The raw signature.
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }

    /// `0x` and hex: the miner and validator protocol, receipts, a validator's greeting to its facilitator.
    pub fn to_prefixed_hex(&self) -> String {
        format!("0x{}", hex::encode(self.0))
    }

    /// Hex without a prefix: a user's login.
    pub fn to_bare_hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Standard base64 with padding: the signature of a job.
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.0)
    }

    /// Reads hex with or without `0x`, as ComputeHorde's own verifier does.
    pub fn from_hex(text: &str) -> Result<Self, SignatureError> {
        let mut bytes = [0; 64];
        hex::decode_to_slice(text.strip_prefix("0x").unwrap_or(text), &mut bytes)
            .map_err(|_| SignatureError("128 hex digits, with or without 0x"))?;
        Ok(Self(bytes))
    }

    /// Reads standard base64.
    pub fn from_base64(text: &str) -> Result<Self, SignatureError> {
        let bytes = STANDARD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Self)
            .ok_or(SignatureError("standard base64 with padding"))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_prefixed_hex())
    }
}

impl serde::Serialize for Signature {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_prefixed_hex())
    }
}

impl<'de> serde::Deserialize<'de> for Signature {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(d)?;
        Self::from_hex(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_texts_of_one_signature() {
        let signature = Signature::from_bytes([7; 64]);
        assert_eq!(Signature::from_hex(&signature.to_prefixed_hex()), Ok(signature));
        assert_eq!(Signature::from_hex(&signature.to_bare_hex()), Ok(signature));
        assert_eq!(Signature::from_base64(&signature.to_base64()), Ok(signature));
        assert!(Signature::from_hex("0x00").is_err());
        assert!(Signature::from_base64("AAAA").is_err());
    }
}
