//! The module that is committed, in a browser: it must find of every golden proof what these sources find.

use std::io::Write as _;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::golden_proofs::{GoldenProof, answer, golden_proofs};
use crate::check_input;

/// The Python interpreter that has selenium.
const VARIABLE: &str = "MUSTER_TEST_BROWSER_PYTHON";
const MODULE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../users/page-layout/assets/proof.wasm"
);
const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../tests/python/browser_runs_proof_module.py"
);
/// Inputs that differ from a golden one at random places. A place decides more often than not whether a text can be
/// decoded at all.
const ALTERED: u64 = 300;

/// The result of the check by these sources, as the module would tell it.
fn found_here(input: &[u8]) -> String {
    serde_json::to_string(&check_input(input)).unwrap()
}

/// The results of the committed module in Chromium.
fn found_in_browser(inputs: &[&[u8]]) -> Vec<String> {
    let python = std::env::var(VARIABLE)
        .unwrap_or_else(|_| panic!("this test needs {VARIABLE}, which `cargo xtask test` sets"));
    let module = std::fs::read(MODULE).unwrap();
    let asked = json!({
        "module": STANDARD.encode(module),
        "inputs": inputs.iter().map(|input| STANDARD.encode(input)).collect::<Vec<_>>(),
    });
    let mut script = Command::new(python)
        .arg(SCRIPT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The script reads everything before it writes anything.
    let mut stdin = script.stdin.take().unwrap();
    stdin.write_all(asked.to_string().as_bytes()).unwrap();
    drop(stdin);
    let ran = script.wait_with_output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// Copies of an answer's input with one byte changed, left out or put in, at places that follow from a fixed seed.
fn altered_inputs() -> Vec<Vec<u8>> {
    let whole = answer().shown().bytes();
    let mut drawn = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        drawn ^= drawn << 13;
        drawn ^= drawn >> 7;
        drawn ^= drawn << 17;
        usize::try_from(drawn % u64::try_from(below).unwrap()).unwrap()
    };
    let mut altered = Vec::new();
    for _ in 0..ALTERED {
        let mut input = whole.clone();
        let (place, bit) = (4 + draw(input.len() - 4), draw(8));
        match draw(4) {
            0 => drop(input.remove(place)),
            1 => input.insert(place, whole[4 + draw(whole.len() - 4)]),
            _ => input[place] ^= 1 << bit,
        }
        altered.push(input);
    }
    altered
}

#[test]
fn these_sources_find_the_defect_of_every_golden_proof() {
    for GoldenProof { name, input, defect } in golden_proofs() {
        let found = check_input(&input).defect;
        match (defect, &found) {
            (None, None) => {}
            (Some(words), Some(found)) if found.contains(words) => {}
            (None | Some(_), None | Some(_)) => panic!("{name}: found {found:?}, expected {defect:?}"),
        }
    }
}

#[test]
fn the_committed_module_finds_in_chromium_what_these_sources_find() {
    let golden = golden_proofs();
    let altered = altered_inputs();
    let golden = golden
        .iter()
        .map(|golden| (golden.name.as_str(), golden.input.as_slice()));
    let altered = altered.iter().map(|input| ("an altered input", input.as_slice()));
    let (names, inputs): (Vec<_>, Vec<_>) = golden.chain(altered).unzip();
    let found = found_in_browser(&inputs);
    assert_eq!(found.len(), inputs.len());
    for ((name, input), found) in names.iter().zip(&inputs).zip(&found) {
        let expected = found_here(input);
        assert_eq!(
            *found,
            expected,
            "{name}: the committed module is of other sources; `cargo xtask wasm` compiles it: {}",
            STANDARD.encode(input)
        );
    }
}
