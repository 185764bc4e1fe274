//! No text that a key signs for another purpose has the form of a login's nonce, and no nonce has the form of another
//! text: a facilitator that asks for a login gets no signature that is of use elsewhere.

use muster_identity::{Domain, SigningMessage};
use muster_protocol::job::JobTerms;
use muster_protocol::login::NonceText;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::muster::ChallengeNonce;
use muster_protocol::wire::signing::{
    decode_from_validator, facilitator_challenge, full_request_digest, full_request_object_digest,
    streaming_ready, validator_auth,
};
use muster_protocol::{AttemptId, Hotkey, MinerKey, Receipt, ValidatorKey};
use proptest::prelude::*;
use serde_json::{Map, Value};

const VECTORS: &str = include_str!("../../../../../tests/vectors/wire.json");
const PYTHON: &str = include_str!("../../../../../tests/vectors/python.json");
const DOMAIN: Domain = Domain::new("muster/response-proof/1");
const DOCUMENT: Domain = Domain::new("muster/capacity/1");

fn is_nonce(bytes: &[u8]) -> bool {
    let unwrapped = bytes
        .strip_prefix(b"<Bytes>")
        .and_then(|rest| rest.strip_suffix(b"</Bytes>"))
        .unwrap_or(bytes);
    str::from_utf8(unwrapped).is_ok_and(|text| text.parse::<NonceText>().is_ok())
}

/// The bytes of a call to a pallet as the chain's library signs them: the call, the era, the nonce, the tip, the
/// versions of the runtime and of its transactions, the genesis hash, and the hash of a block.
fn extrinsic_payload(call: &[u8], spec_version: u32, genesis: [u8; 32], block: [u8; 32]) -> Vec<u8> {
    [
        call,
        b"00",
        b"0",
        b"0",
        &spec_version.to_le_bytes(),
        &1_u32.to_le_bytes(),
        &genesis,
        &block,
    ]
    .concat()
}

/// Every signed text of the golden vectors, which ComputeHorde's own code made.
fn golden_texts() -> serde_json::Result<Vec<String>> {
    let mut texts = Vec::new();
    for vectors in [VECTORS, PYTHON] {
        let all: Map<String, Value> = serde_json::from_str(vectors)?;
        texts.extend(all.values().filter_map(|value| value.as_str().map(str::to_owned)));
    }
    Ok(texts)
}

#[test]
fn no_golden_text_of_computehorde_is_a_nonce() {
    let texts = golden_texts().unwrap();
    assert!(texts.len() > 20);
    for text in texts {
        assert!(!is_nonce(text.as_bytes()), "{text}");
    }
    let all: Map<String, Value> = serde_json::from_str(VECTORS).unwrap();
    let job: UserJobRequest = serde_json::from_value(all["V2JobRequest"].clone()).unwrap();
    assert!(!is_nonce(&job.signed_digest()));
    let receipt: Receipt = serde_json::from_value(all["Receipt_started"].clone()).unwrap();
    assert!(!is_nonce(&receipt.payload.signed_bytes()));
    let python: Map<String, Value> = serde_json::from_str(PYTHON).unwrap();
    let frame = python["V0JobRequest_signed"].as_str().unwrap();
    let covered = decode_from_validator(frame).unwrap().signature.unwrap().1;
    assert!(!is_nonce(&covered));
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof!["[0-9a-f]{32}:[0-9A-Za-z]{1,16}:[A-Za-z0-9_-]{43,86}", ".{0,120}"]
}

proptest! {
    /// The peer chooses what it can: texts, numbers and bytes in each form.
    #[test]
    fn no_other_signed_form_is_a_nonce(
        text in any_text(), key: [u8; 32], other: [u8; 32], number: i64, port: u16, spec in 1_u32..100_000,
    ) {
        let (validator, miner) = (ValidatorKey(Hotkey::from_bytes(key)), MinerKey(Hotkey::from_bytes(other)));
        let attempt: AttemptId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let body = Value::String(text.clone());
        let forms = [
            validator_auth(validator, miner, number),
            key.to_vec(),
            facilitator_challenge(&ChallengeNonce::from_bytes(key), validator),
            streaming_ready(attempt, &text, port, &text),
            full_request_digest(number, &body).to_vec(),
            full_request_object_digest(number, &body).to_vec(),
            JobTerms::default().digest(&[7; 64]).to_vec(),
            SigningMessage::tagged(DOMAIN, text.as_bytes()).as_bytes().to_vec(),
            SigningMessage::statement(DOMAIN, text.as_bytes()).as_bytes().to_vec(),
            SigningMessage::document(DOCUMENT, [("rows", body)]).as_bytes().to_vec(),
            extrinsic_payload(text.as_bytes(), spec, key, other),
        ];
        for form in forms {
            prop_assert!(!is_nonce(&form), "{form:?}");
        }
    }

    /// A bound login is of no other domain, and is itself no nonce.
    #[test]
    fn a_bound_login_is_no_nonce(nonce in "[0-9a-f]{32}:[0-9A-Za-z]{1,16}:[A-Za-z0-9_-]{43,86}") {
        let parsed: NonceText = nonce.parse().unwrap();
        let host = muster_protocol::login::LoginHost::new("a.example", None).unwrap();
        let bound = SigningMessage::bound_login(&host, &parsed);
        prop_assert!(!is_nonce(bound.as_bytes()));
        prop_assert!(is_nonce(SigningMessage::login(&parsed).as_bytes()));
    }
}
