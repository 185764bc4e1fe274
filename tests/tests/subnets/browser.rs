//! A browser that nobody here wrote walks through the pages of one subnet: those of users, and those of the operators
//! of a validator and of a miner.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use muster_testbed::wait_for;
use muster_tests::{IMAGES_OF_TESTS, RunningSubnet, free_address, muster, program_from_env, python, run};
use serde_json::{Value, json};

use super::operators::OperatedRole;

/// The folder for pictures of the pages, if somebody wants them.
const PICTURES: &str = "MUSTER_TEST_PICTURES";

/// A process that ends when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Enrolls an executor that may do all that the subnet's own may, and starts it.
fn start_executor(subnet: &RunningSubnet) -> Running {
    let folder = subnet.folder();
    let config = folder.join("enrolled-executor.toml");
    let (work_dir, membership) = (folder.join("enrolled-work"), folder.join("membership.json"));
    let facilitator = subnet.field("facilitator").unwrap();
    let text = format!(
        "work_dir = {work_dir:?}\nstop_grace_s = 1\n[standing]\nmembership = {membership:?}\ncapacity = 1\n\
         [transfer]\nallow = [{facilitator:?}]\n{IMAGES_OF_TESTS}"
    );
    std::fs::write(&config, text).unwrap();
    let invited = run(Command::new(muster().unwrap())
        .args(["miner", "--config"])
        .arg(folder.join("config/miner.toml"))
        .arg("--enrol"))
    .unwrap();
    let executor = |args: &[&str]| {
        let mut command = Command::new(muster().unwrap());
        command.args(["executor", "--config"]).arg(&config).args(args);
        command
    };
    let enrolled = run(&mut executor(&[
        "--name",
        "box-1",
        "--enrol",
        invited.stdout.trim(),
    ]))
    .unwrap();
    assert_eq!(enrolled.code, Some(0), "{enrolled:?}");
    let log = std::fs::File::create(folder.join("logs/enrolled.log")).unwrap();
    let mut command = executor(&["--persistent"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Running(command.spawn().unwrap())
}

/// Has the validator grade the miner's executors, so that it states something about them.
fn grade(subnet: &RunningSubnet) {
    let graded = wait_for("a batch", || {
        let graded = subnet.muster(&["grade", "run"])?;
        anyhow::Ok((!graded.stderr.contains("no miner announces an executor")).then_some(graded))
    });
    let graded = graded.unwrap();
    assert_eq!(graded.code, Some(0), "{graded:?}\n{}", subnet.log("validator"));
}

#[test]
fn a_browser_does_on_the_pages_what_users_do() {
    walk(std::env::var_os(PICTURES).map(PathBuf::from).as_deref());
}

/// `cargo xtask soak`: every page in every pair of a size and a scheme.
#[test]
#[ignore = "soak: four readings of thirty pages take minutes, so `cargo xtask soak` runs it"]
fn pages_are_whole_in_each_size_and_scheme() {
    let pictures = tempfile::tempdir().unwrap();
    walk(Some(pictures.path()));
    let made = std::fs::read_dir(pictures.path()).unwrap().count();
    // Both operators sign in on pages of one name.
    assert_eq!(made, 4 * (14 + 16 - 1), "a picture of each look");
}

/// Has a browser use the pages of one subnet. A folder for pictures has each page read in every size and scheme.
fn walk(pictures: Option<&Path>) {
    let selenium = program_from_env("MUSTER_TEST_BROWSER_PYTHON").unwrap();
    let persistent = free_address().unwrap().to_string();
    let subnet = RunningSubnet::start_with(&["--executors", "1", "--persistent", &persistent]).unwrap();
    let _executor = start_executor(&subnet);
    for code in ["0", "3"] {
        let args = ["job", "run", subnet.demo_image(), "--", "probe", "exit", code];
        subnet.muster(&args).unwrap();
    }
    grade(&subnet);
    let operated = |name| {
        let role = OperatedRole::of(&subnet, name);
        json!({ "url": role.url, "token": role.token })
    };
    let arguments = json!({
        "muster": muster().unwrap(),
        "folder": subnet.folder(),
        "validator": operated("validator"),
        "miner": operated("miner"),
        "pictures": pictures,
    });
    let ran = python(&selenium, "browser_uses_pages.py", &[&arguments.to_string()]).unwrap();
    let logs = ["facilitator", "validator", "miner"].map(|role| subnet.log(role));
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", logs.join("\n"));
    let told: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert!(told["weight"].as_u64().unwrap() <= 150 * 1024, "{told}");
    assert_eq!(told["checked"].as_array().unwrap().len(), 14, "{told}");
    assert_eq!(told["operators"].as_array().unwrap().len(), 16, "{told}");
}
