//! The official library opens timelocked weights that were sealed here, and the reverse.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use std::process::Command;

use muster_chain::Uid;
use muster_chain::timelock::{Beacon, WeightsPayload, envelope, open, seal};
use muster_protocol::Hotkey;

/// A Python with `bittensor` installed. `cargo xtask test` sets it.
const PYTHON: &str = "MUSTER_TEST_BITTENSOR_PYTHON";
/// Quicknet's signature of round 1000, which anyone can fetch from drand.
const ROUND: u64 = 1000;
const SIGNATURE: &str =
    "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39";

/// Runs `script` with `arguments`; what it printed, from hexadecimal.
fn python(script: &str, arguments: &[&str]) -> Vec<u8> {
    let python = std::env::var(PYTHON)
        .expect("this test needs MUSTER_TEST_BITTENSOR_PYTHON, which `cargo xtask test` sets");
    let home = tempfile::tempdir().unwrap();
    let ran = Command::new(python)
        .args(["-c", script])
        .args(arguments)
        .env("HOME", home.path())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    hex::decode(String::from_utf8(ran.stdout).unwrap().trim()).unwrap()
}

/// Another secret in every run, so that many ciphertexts are tried.
fn seed() -> [u8; 32] {
    let folder = tempfile::tempdir().unwrap();
    let mut seed = [7; 32];
    let name = folder.path().to_string_lossy().into_owned();
    for (place, byte) in seed.iter_mut().zip(name.bytes().rev()) {
        *place = byte;
    }
    seed
}

fn payload(neurons: u16) -> WeightsPayload {
    WeightsPayload {
        hotkey: Hotkey::from_bytes([9; 32]),
        weights: (0..neurons).map(|uid| (Uid(uid), 65_535 - uid)).collect(),
        version_key: 11,
    }
}

#[test]
fn the_official_library_opens_ours() {
    let script = "
import sys, bittensor_core as core
print(bytes(core.decrypt_with_signature(bytes.fromhex(sys.argv[1]), sys.argv[2])).hex())
";
    for neurons in [0, 1, 256] {
        let message = payload(neurons).encode();
        let sealed = seal(&Beacon::quicknet(), ROUND, &message, seed()).unwrap();
        let whole = hex::encode(envelope(&sealed, ROUND));
        let opened = python(script, &[&whole, SIGNATURE]);
        assert_eq!(opened, message);
    }
}

#[test]
fn fresh_payloads_of_the_official_library_are_opened() {
    let script = "
import sys, bittensor_core as core
whole, _ = core.encrypt_at_round(bytes.fromhex(sys.argv[1]), int(sys.argv[2]))
print(bytes(core.inner_ciphertext(whole)).hex())
";
    let payload = payload(256);
    let sealed = python(script, &[&hex::encode(payload.encode()), &ROUND.to_string()]);
    let opened = open(&sealed, &hex::decode(SIGNATURE).unwrap()).unwrap();
    assert_eq!(WeightsPayload::decode(&opened), Ok(payload));
}
