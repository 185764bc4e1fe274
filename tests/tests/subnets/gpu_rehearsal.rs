//! The run of `bench/gpu` for a machine with a card, rehearsed on a processor: every part's own programs, small sizes.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::trusted_miner::engines::program;

const PARTS: [&str; 7] = [
    "machine",
    "trained",
    "billion",
    "cheats",
    "processor",
    "nvml",
    "grader",
];

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../bench/gpu")
        .join(name)
}

/// Runs the parts with these programs; returns the parsed lines by part, and the exit status.
fn rehearse(
    programs: &Path,
    out: &Path,
    more: &[&str],
) -> anyhow::Result<(BTreeMap<String, Value>, Option<i32>)> {
    let mut command = Command::new(script("run"));
    command
        .arg("--dry")
        .args(more)
        .args([programs, out])
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let ran = muster_tests::run(&mut command)?;
    let mut lines = BTreeMap::new();
    for line in ran.stdout.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| format!("{ran:?}"))?;
        let part = line
            .get("part")
            .and_then(Value::as_str)
            .context("the name of the part")?;
        lines.insert(part.to_owned(), line);
    }
    Ok((lines, ran.code))
}

#[test]
fn every_part_of_a_run_on_a_card_passes_on_a_processor() {
    let folder = tempfile::tempdir().unwrap();
    let (programs, out) = (folder.path().join("programs"), folder.path().join("out"));
    std::fs::create_dir(&programs).unwrap();
    symlink(program("muster-llm"), programs.join("muster-llm")).unwrap();
    let examples = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("debug/examples");
    symlink(examples.join("read_gpus"), programs.join("read_gpus")).unwrap();
    let (lines, status) = rehearse(&programs, &out, &[]).unwrap();
    // The prover needs a driver: what travels has it, this rehearsal does not.
    assert_eq!(status, Some(1), "{lines:#?}");
    for part in PARTS {
        let expected = if part == "grader" { "failed" } else { "passed" };
        assert_eq!(lines[part]["outcome"], expected, "{:#}", lines[part]);
    }
    let why = lines["grader"]["why"].as_str().unwrap();
    assert!(why.contains("muster-grader-cuda is not in"), "{why}");
    assert_eq!(lines["machine"]["missing"]["muster-grader-cuda"], "not there");
    let trained = &lines["trained"];
    assert_eq!(trained["same_likeliest"], trained["golden_tokens"], "{trained}");
    assert_eq!(trained["tokens_off"], 0, "{trained}");
    let entropy = lines["billion"]["mean_entropy_nats"].as_f64().unwrap();
    assert!((1.0..2.0).contains(&entropy), "{entropy}");
    assert_ne!(lines["cheats"]["engines"]["int4"]["tokens_off"], 0);
    assert!(lines["processor"]["tokens"].as_u64() > Some(0));
    let kept = std::fs::read_to_string(out.join("results.jsonl")).unwrap();
    assert_eq!(kept.lines().count(), 1 + PARTS.len());
    let calibration: Value =
        serde_json::from_slice(&std::fs::read(out.join("calibration.json")).unwrap()).unwrap();
    assert_eq!(calibration["machines"].as_array().unwrap().len(), 2);
    // Numbers of a processor do not get into the docs.
    let published = Command::new(script("publish")).arg(&out).output().unwrap();
    assert!(!published.status.success());
    assert!(String::from_utf8_lossy(&published.stderr).contains("rehearsal"));
}

#[test]
fn a_part_that_hangs_and_a_disk_that_is_full_cost_their_own_lines() {
    let folder = tempfile::tempdir().unwrap();
    let (programs, out) = (folder.path().join("programs"), folder.path().join("out"));
    std::fs::create_dir(&programs).unwrap();
    std::fs::create_dir(&out).unwrap();
    let hung = programs.join("muster-llm");
    std::fs::write(&hung, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    std::fs::set_permissions(&hung, std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/dev/full", out.join("results.jsonl")).unwrap();
    let (lines, status) = rehearse(&programs, &out, &["--limit-s", "1"]).unwrap();
    assert_eq!(status, Some(7), "{lines:#?}");
    for part in PARTS {
        let line = &lines[part];
        assert_ne!(line["outcome"], "passed", "{line}");
        assert!(line["why"].is_string(), "{line}");
    }
    assert_eq!(lines["trained"]["outcome"], "timed out");
}
