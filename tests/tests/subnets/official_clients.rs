//! The official Bittensor clients, each in an environment of its own, do on our local chain what they do on the public
//! one; and what they did is looked for in the chain's storage, without any client.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of this helper is the test's failure, on its line"
)]

use std::path::Path;

use muster_tests::{RunningChain, program_from_env, python};
use serde_json::{Value, json};

/// `twox_128` of the pallet's name, then of the item's, as the storage's keys begin.
const PALLET: &str = "0x658faa385070e074c85bf6b568cf0555";
const WEIGHTS: &str = "a1e7036061f484bc3048a64b64e35ec4";
const KEYS: &str = "9f99a2ce711f3a31b2fc05604c93f179";
const TIMELOCKED_COMMITS: &str = "119e1c428ff5c7c6dac4c888a10d1443";

/// Bob's account, `//Bob`.
const BOB: &str = "0x8eaf04151687736326c9fea17e25fc5287613693c912909cb226aa4794f26a48";

/// Runs a client's script on a fresh chain and looks at what it left.
fn uses_the_chain(interpreter: &Path, script: &str) {
    let chain = RunningChain::start(&["--block-time-ms", "250"]).unwrap();
    let ran = python(interpreter, script, &[chain.url()]).unwrap();
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.lines().count() > 15, "{}", ran.stdout);

    let stored = |key: String| chain.call("state_getStorage", json!([key])).unwrap();
    // Netuid and uid are stored as they are, the lower byte first.
    assert_eq!(stored(format!("{PALLET}{KEYS}01000100")), BOB);
    assert!(
        stored(format!("{PALLET}{KEYS}01000200")).is_string(),
        "the neuron that the client registered"
    );
    // Two pairs of uid and weight after their number: uid 0 has half of what uid 1 has, which has the most.
    let row = stored(format!("{PALLET}{WEIGHTS}01000000"));
    let row = row.as_str().unwrap();
    let half = row
        .strip_prefix("0x080000")
        .and_then(|rest| rest.strip_suffix("0100ffff"));
    assert!(matches!(half, Some("ff7f" | "0080")), "{row}");
    assert_eq!(
        stored(format!("{PALLET}{WEIGHTS}01000100")),
        Value::Null,
        "Bob has no permit"
    );
    let commits = chain
        .call(
            "state_getKeysPaged",
            json!([format!("{PALLET}{TIMELOCKED_COMMITS}"), 10]),
        )
        .unwrap();
    assert!(!commits.as_array().unwrap().is_empty(), "the timelocked commit");
}

#[test]
fn bittensor_11_uses_the_local_chain() {
    let python = program_from_env("MUSTER_TEST_BITTENSOR_PYTHON").unwrap();
    uses_the_chain(&python, "bittensor11_uses_devchain.py");
}

#[test]
fn bittensor_10_uses_the_local_chain() {
    let python = program_from_env("MUSTER_TEST_BITTENSOR10_PYTHON").unwrap();
    uses_the_chain(&python, "bittensor10_uses_devchain.py");
}
