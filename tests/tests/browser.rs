//! A browser that nobody here wrote, on the facilitator's real pages.

use muster_tests::{RunningSubnet, muster, program_from_env, python};
use serde_json::Value;

/// The folder that pictures of the pages are kept in, if somebody wants them.
const PICTURES: &str = "MUSTER_TEST_PICTURES";

#[test]
fn a_browser_does_on_the_pages_what_users_do() {
    let selenium = program_from_env("MUSTER_TEST_BROWSER_PYTHON").unwrap();
    let subnet = RunningSubnet::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let pictures = std::env::var_os(PICTURES).unwrap_or_else(|| folder.path().into());
    let ran = python(
        &selenium,
        "browser_uses_pages.py",
        &[
            muster().unwrap().to_str().unwrap(),
            subnet.folder().to_str().unwrap(),
            pictures.to_str().unwrap(),
        ],
    )
    .unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", subnet.log("facilitator"));
    let told: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert!(told["weight"].as_u64().unwrap() <= 150 * 1024, "{told}");
    assert_eq!(told["checked"].as_array().unwrap().len(), 14, "{told}");
}
