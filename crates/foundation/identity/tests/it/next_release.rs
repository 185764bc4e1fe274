//! Signatures that compute-horde 0.0.27 made: receipts of each kind, whole requests, a login. All are valid, and none
//! is valid for another text.

use muster_identity::{FrameSignature, Keypair, verify, verify_frame, verify_receipt};
use muster_protocol::login::NonceText;
use muster_protocol::wire::decode;
use muster_protocol::wire::signing::decode_from_validator;
use muster_protocol::{Receipt, Signature, Timestamp, ValidatorKey};
use serde_json::{Map, Value};

fn vectors() -> serde_json::Result<Map<String, Value>> {
    serde_json::from_str(include_str!("../../../../../tests/vectors/python.json"))
}

#[test]
fn receipts_of_each_kind_are_signed_by_both() {
    let vectors = vectors().unwrap();
    let now: Timestamp = "2026-01-21T13:00:00Z".parse().unwrap();
    for name in ["receipt_started", "receipt_accepted", "receipt_finished"] {
        let receipt: Receipt = decode(vectors[name].as_str().unwrap()).unwrap();
        verify_receipt(receipt.clone(), now).unwrap();
        let mut swapped = receipt;
        std::mem::swap(&mut swapped.validator_signature, &mut swapped.miner_signature);
        assert!(verify_receipt(swapped, now).is_err(), "{name}");
    }
}

#[test]
fn whole_requests_are_signed_unknown_fields_included() {
    let vectors = vectors().unwrap();
    let validator = ValidatorKey(Keypair::from_uri("//Validator").unwrap().hotkey());
    for name in [
        "V0InitialJobRequest_signed",
        "V0JobRequest_signed",
        "V0JobRequest_future",
    ] {
        let frame = vectors[name].as_str().unwrap();
        let signature = verify_frame(&decode_from_validator(frame).unwrap(), validator).unwrap();
        assert!(matches!(signature, FrameSignature::Valid), "{name}");
        let altered = frame.replacen("always_on.test", "always_on.llm.a6000", 1);
        assert!(
            verify_frame(&decode_from_validator(&altered).unwrap(), validator).is_err(),
            "{name}"
        );
    }
}

#[test]
fn a_login_is_signed_over_its_nonce() {
    let vectors = vectors().unwrap();
    let user = Keypair::from_uri("//User").unwrap().hotkey();
    let nonce = vectors["login_nonce"].as_str().unwrap();
    let signature = Signature::from_hex(vectors["login_signature"].as_str().unwrap()).unwrap();
    assert!(verify(&user, nonce.as_bytes(), &signature));
    assert!(!verify(&user, format!("{nonce}x").as_bytes(), &signature));
    // The vector's last part stands for a signature and is shorter than any.
    assert!(nonce.parse::<NonceText>().is_err());
}
