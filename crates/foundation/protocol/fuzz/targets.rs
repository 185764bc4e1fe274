//! Fuzz targets: one function per parser, each with the property that must hold besides not panicking.
//!
//! Used by `cargo xtask fuzz` (coverage-guided, `fuzz/` at the root) and by `tests/it/fuzz.rs` (a fixed number of
//! seeded inputs).

use muster_protocol::login::NonceText;
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::facilitator::{FromFacilitator, ToFacilitator};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::wire::{decode, encode, signing};
use muster_protocol::{
    Digest, ExecutorToken, Hotkey, JobId, Manifest, Receipt, Signature, Timestamp, canonical, rest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A parser under test.
pub(crate) type Target = fn(&str);

/// Every parser of this crate.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("validator_to_miner", message::<ValidatorToMiner>),
    ("miner_to_validator", message::<MinerToValidator>),
    ("miner_to_executor", message::<MinerToExecutor>),
    ("executor_to_miner", message::<ExecutorToMiner>),
    ("to_facilitator", message::<ToFacilitator>),
    ("from_facilitator", message::<FromFacilitator>),
    ("receipt", message::<Receipt>),
    ("create_job", message::<rest::CreateJob>),
    ("signed_frame", signed_frame),
    ("texts", texts),
    ("canonical", canonical_json),
];

/// A message that was read can be written, and reading the result gives the same bytes again.
fn message<M: DeserializeOwned + Serialize>(input: &str) {
    if let Ok(message) = decode::<M>(input) {
        let written = encode(&message);
        let again = decode::<M>(&written)
            .unwrap_or_else(|error| panic!("we cannot read our own frame: {error}\n{written}"));
        assert_eq!(encode(&again), written, "a second reading differs");
    }
}

/// The signature never covers itself.
fn signed_frame(input: &str) {
    if let Ok(frame) = signing::decode_from_validator(input)
        && let Some((_, covered)) = frame.signature
    {
        let covered: serde_json::Value = serde_json::from_slice(&covered).unwrap();
        assert!(covered.get("validator_signature").is_none());
    }
}

/// A type with one text form only keeps it.
fn texts(input: &str) {
    if let Ok(id) = input.parse::<JobId>() {
        assert_eq!(id.to_string(), input);
    }
    if let Ok(key) = input.parse::<Hotkey>() {
        assert_eq!(key.to_string().parse(), Ok(key));
    }
    if let Ok(token) = input.parse::<ExecutorToken>() {
        assert_eq!(token.to_string(), input);
    }
    if let Ok(time) = input.parse::<Timestamp>() {
        assert_eq!(time.to_string().parse(), Ok(time));
    }
    if let Ok(digest) = input.parse::<Digest>() {
        assert_eq!(digest.to_string(), input);
    }
    if let Ok(signature) = Signature::from_hex(input) {
        assert_eq!(Signature::from_hex(&signature.to_prefixed_hex()), Ok(signature));
    }
    if let Ok(nonce) = input.parse::<NonceText>() {
        assert_eq!(nonce.to_string(), input);
        assert!((78..=136).contains(&input.len()) && input.is_ascii());
        assert!(serde_json::from_str::<serde_json::Value>(input).is_err());
    }
    if let Some(manifest) = Manifest::from_commitment(input) {
        let written = manifest.to_commitment();
        assert_eq!(
            Manifest::from_commitment(&written).map(|m| m.to_commitment()),
            Some(written)
        );
    }
}

/// The canonical text is JSON of the same value, in ASCII.
fn canonical_json(input: &str) {
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(input) {
        for text in [
            canonical::sorted_spaced(&value),
            canonical::sorted_compact(&value),
        ] {
            assert!(text.is_ascii());
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(&text).unwrap(),
                value,
                "{text}"
            );
        }
    }
}
