//! The check natively, and the committed module beside it.

mod committed_module;
mod exchange;
mod golden_proofs;

use muster_identity::{Domain, Keypair, SigningMessage};

use super::*;

#[test]
fn a_signature_is_checked_as_the_server_checks_it() {
    let keys = Keypair::from_seed([5; 32]);
    const TAG: Domain = Domain::new("muster/test/1");
    let signed = SigningMessage::tagged(TAG, b"bytes");
    let (bytes, signature) = (signed.as_bytes(), keys.sign(&signed));
    let key = keys.hotkey();
    let mut other = *signature.as_bytes();
    other[0] ^= 1;
    for (key, bytes, signature) in [
        (key, bytes, signature),
        (key, b"others", signature),
        (key, bytes, Signature::from_bytes(other)),
        (key, bytes, Signature::from_bytes([0; 64])),
        (Keypair::from_seed([6; 32]).hotkey(), bytes, signature),
    ] {
        let expected = muster_identity::verify(&key, bytes, &signature);
        assert_eq!(is_signed(&key, bytes, &signature), expected, "{bytes:?}");
    }
    assert!(is_signed(&key, bytes, &signature));
}

#[test]
fn an_input_that_cannot_be_read_proves_nothing() {
    for input in [
        &b""[..],
        b"\x01\0\0",
        b"\xff\xff\xff\xff{}",
        b"\x02\0\0\0{}",
        &[0; 64],
    ] {
        assert!(check_input(input).defect.is_some(), "{input:?}");
    }
}
