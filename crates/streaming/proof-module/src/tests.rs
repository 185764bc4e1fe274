//! The check natively, and the committed module beside it.

mod committed_module;
mod exchange;
mod golden_proofs;

use muster_identity::Keypair;

use super::*;

#[test]
fn a_signature_is_checked_as_the_server_checks_it() {
    let keys = Keypair::from_seed([5; 32]);
    let signature = keys.sign(b"bytes");
    let key = keys.hotkey();
    let mut other = *signature.as_bytes();
    other[0] ^= 1;
    for (key, bytes, signature) in [
        (key, &b"bytes"[..], signature),
        (key, b"others", signature),
        (key, b"bytes", Signature::from_bytes(other)),
        (key, b"bytes", Signature::from_bytes([0; 64])),
        (Keypair::from_seed([6; 32]).hotkey(), b"bytes", signature),
    ] {
        let expected = muster_identity::verify(&key, bytes, &signature);
        assert_eq!(is_signed(&key, bytes, &signature), expected, "{bytes:?}");
    }
    assert!(is_signed(&key, b"bytes", &signature));
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
