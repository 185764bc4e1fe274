//! Our own package for Python, `clients/python`: its wheel by itself, and against a running subnet.

#![expect(clippy::unwrap_used, reason = "sections of a test fail as tests do")]

use std::path::{Path, PathBuf};
use std::process::Command;

use muster_testbed::patience;
use muster_tests::{RunningSubnet, muster, program_from_env, run};
use serde_json::Value;

/// The package's folder.
const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/python");

/// Builds the wheel into a folder, and returns its path.
pub(crate) fn build_wheel(python: &Path, into: &Path) -> PathBuf {
    let mut build = Command::new(python);
    build
        .args(["-m", "hatchling", "build", "--target", "wheel", "--directory"])
        .arg(into)
        .current_dir(PACKAGE);
    let built = run(&mut build).unwrap();
    assert_eq!(built.code, Some(0), "{}\n{}", built.stdout, built.stderr);
    let mut wheels = std::fs::read_dir(into)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    wheels
        .find(|path| path.extension().is_some_and(|end| end == "whl"))
        .unwrap()
}

/// Runs a file of the package's tests against its wheel.
fn pytest(file: &str, variables: &[(&str, &str)]) {
    let python = program_from_env("MUSTER_TEST_CLIENT_PYTHON").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let wheel = build_wheel(&python, folder.path());
    let mut tests = Command::new(python);
    tests
        .args([
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--durations=5",
            "-rs",
            file,
        ])
        .current_dir(PACKAGE)
        // Python imports from a wheel as it lies there.
        .env("PYTHONPATH", wheel)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HOME", folder.path())
        .env("MUSTER_TEST_PATIENCE", patience().as_secs().to_string())
        .envs(variables.iter().copied());
    let ran = run(&mut tests).unwrap();
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains(" passed"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("skipped"), "{}", ran.stdout);
}

#[test]
fn the_python_package_is_typed_up_to_date_and_reads_what_peers_say() {
    pytest("tests/test_package.py", &[]);
}

pub(crate) fn the_python_package_runs_jobs_moves_files_and_proves_answers(subnet: &RunningSubnet) {
    let made = subnet.muster(&[
        "keys",
        "new",
        "python",
        "--rights",
        "jobs,chat,files,read,keys",
        "--json",
    ]);
    let made: Value = serde_json::from_str(&made.unwrap().stdout).unwrap();
    let facilitator = format!("http://{}", subnet.field("facilitator").unwrap());
    let kept = tempfile::tempdir().unwrap();
    let record = kept.path().join("answer.json");
    let variables = [
        ("MUSTER_FACILITATOR", facilitator.as_str()),
        ("MUSTER_API_KEY", made.get("key").and_then(Value::as_str).unwrap()),
        ("MUSTER_TEST_IMAGE", subnet.demo_image()),
        ("MUSTER_TEST_RECORD", record.to_str().unwrap()),
    ];
    pytest("tests/test_subnet.py", &variables);
    // The record that the package has written, as the command checks it.
    let mut verify = Command::new(muster().unwrap());
    let verified = run(verify.args(["proof", "verify"]).arg(&record)).unwrap();
    assert_eq!(verified.code, Some(0), "{}\n{}", verified.stdout, verified.stderr);
}
