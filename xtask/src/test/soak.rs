//! `cargo xtask soak`: the proofs that are too long for every run. Its steps stand upon those of `cargo xtask test`.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use clap::Args;

use super::{
    Pace, Run, choose, install,
    report::Outcome,
    run_steps,
    steps::{Lane::Main, STEPS, Step, cuda_tests, devchain_tests, llm_tests, run_nextest, trainers},
    tested::{CUDA, DEVCHAIN, LLM, run_and_record},
};
use crate::{dist, tidy, tool::quietly, workspace::Workspace};

#[derive(Args)]
pub(crate) struct Options {
    /// Run only these steps and what they need (comma separated)
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    only: Vec<String>,
    /// List the steps and run none
    #[arg(long)]
    list: bool,
}

/// The needs of a test of the workspace.
const NEEDS: &[&str] = &[
    "install", "clients", "services", "build", "images", "devchain", "llm",
];
/// The needs of the long tests, some of which train.
const LONG_NEEDS: &[&str] = &[
    "install", FAILOVER, "clients", TRAINERS, "services", "build", "images", "devchain", "llm",
];
const FAILOVER: &str = "soak-failover";
const TRAINERS: &str = "soak-trainers";

#[rustfmt::skip]
const SOAK: &[Step] = &[
    Step { name: "soak-devchain", about: "devchain's own tests and lints, written down in xtask/tested.toml", needs: &["devchain"], lane: Main, run: |run| run_and_record(run, &DEVCHAIN, devchain_tests) },
    Step { name: "soak-llm", about: "the engine's own tests and lints, written down in xtask/tested.toml", needs: &["clients", "llm"], lane: Main, run: |run| run_and_record(run, &LLM, llm_tests) },
    Step { name: "soak-cuda", about: "the CUDA prover's tests and lints, written down in xtask/tested.toml", needs: &[], lane: Main, run: |run| run_and_record(run, &CUDA, cuda_tests) },
    Step { name: "soak-docs", about: "documentation without warnings", needs: &[], lane: Main, run: docs },
    Step { name: FAILOVER, about: "etcd, Patroni and HAProxy, for the test of a database that fails over", needs: &["install"], lane: Main, run: install::run_long },
    Step { name: TRAINERS, about: "PyTorch with two trainers, for the tests that train", needs: &["install"], lane: Main, run: trainers },
    Step { name: "soak-tests", about: "the tests that are ignored because they are long", needs: LONG_NEEDS, lane: Main, run: long_tests },
    Step { name: "soak-simulation", about: "the simulated subnet, twenty times as many schedules", needs: &["build"], lane: Main, run: simulation },
    Step { name: "soak-properties", about: "properties and seeded parsers, ten times as many inputs", needs: NEEDS, lane: Main, run: properties },
    Step { name: "soak-slow", about: "all tests of the workspace on half a core, at most 100 minutes", needs: &["install"], lane: Main, run: slowly },
    Step { name: "soak-same-bytes", about: "one small program of the newest commit, built in two folders", needs: &[], lane: Main, run: same_bytes },
    Step { name: "soak-packages", about: "packages of the last release and of this commit in a bare Debian, there and back", needs: &["install"], lane: Main, run: packages },
    Step { name: "soak-fuzz", about: "every parser for a minute, guided by coverage", needs: &["install"], lane: Main, run: fuzz },
];

/// Schedules of the simulation; a run of all tests has 1,200.
const SCHEDULES: &str = "40000";
/// Cases of a property that names no number of its own: ten times proptest's 256.
const CASES: &str = "2560";
/// Inputs of a seeded parser: ten times those of a run of all tests.
const INPUTS: &str = "100000";
/// Seconds of libFuzzer for each parser.
const SECONDS: &str = "60";

/// Runs the chosen steps. The last line printed is the result in plain words.
pub(crate) fn run(workspace: Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if options.list {
        for step in SOAK {
            println!("{:<15} {}", step.name, step.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let all: Vec<&Step> = STEPS.iter().chain(SOAK).collect();
    let named = |step: &Step| {
        let known = SOAK.iter().any(|soak| soak.name == step.name);
        known && (options.only.is_empty() || options.only.iter().any(|name| name == step.name))
    };
    let known: Vec<&str> = SOAK.iter().map(|step| step.name).collect();
    super::check_names(&options.only, &known)?;
    run_steps(workspace, &choose(&all, named), Pace::Full)
}

fn long_tests(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let names = tidy::soak_tests(run.workspace)?;
    if names.is_empty() {
        return Ok(Outcome::Failed(
            "no test has a reason that begins with `soak:`".to_owned(),
        ));
    }
    let filter = format!("test(/(^|::)({})$/)", names.join("|"));
    run_nextest(run, |cargo| {
        cargo
            .args(["--profile", "soak", "--run-ignored", "only", "-E"])
            .arg(&filter);
    })
}

fn simulation(run: &Run<'_>) -> anyhow::Result<Outcome> {
    run_nextest(run, |cargo| {
        cargo
            .args(["--profile", "soak", "-E", "binary(simulation)"])
            .env("MUSTER_SIMULATION_SEEDS", SCHEDULES);
    })
}

fn properties(run: &Run<'_>) -> anyhow::Result<Outcome> {
    run_nextest(run, |cargo| {
        cargo
            .args(["--profile", "soak", "-E", "not package(muster-tests)"])
            .env("PROPTEST_CASES", CASES)
            .env("MUSTER_FUZZ_INPUTS", INPUTS);
    })
}

fn docs(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut cargo = run.workspace.cargo();
    run.check(
        cargo
            .args(["doc", "--no-deps", "--workspace"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// The suite once more on half a core, as a machine that is slow and busy runs it.
fn slowly(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut slow = Command::new(std::env::current_exe()?);
    slow.args(["test", "--slow"]);
    run.check(slow.current_dir(run.workspace.root()))
}

fn same_bytes(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let [first, second] = dist::build_twice(run.workspace)?;
    Ok(if first == second {
        Outcome::Passed
    } else {
        Outcome::Failed(format!("two folders gave {first} and {second}"))
    })
}

/// An upgrade from the last release's packages to those of this commit, and the way back, under a job of ten minutes.
fn packages(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let root = run.workspace.root();
    let mut last = Command::new("git");
    last.current_dir(root)
        .args(["tag", "--list", "v*", "--merged", "HEAD^", "--sort=-creatordate"]);
    let tags = quietly(&mut last)?;
    let folder = tempfile::tempdir()?;
    let (checkout, before, after) = (
        folder.path().join("checkout"),
        folder.path().join("before"),
        folder.path().join("after"),
    );
    let program = std::env::current_exe()?;
    let make = |from: &Path, into: &Path| {
        let mut dist = Command::new(&program);
        dist.current_dir(from)
            .args(["dist", "--development", "--only", "packages", "--into"])
            .arg(into);
        dist
    };
    let mut installed = Command::new(&program);
    installed
        .current_dir(root)
        .args(["installed", "--job-s", "600", "--packages"])
        .arg(&after);
    if let Some(tag) = tags.lines().next() {
        let mut clone = Command::new("git");
        clone.args(["clone", "--quiet", "--branch", tag]).arg(root);
        quietly(clone.arg(&checkout))?;
        // The release's own commands make its packages.
        let mut dist = run.workspace.cargo();
        dist.current_dir(&checkout)
            .args(["xtask", "dist", "--development", "--only", "packages", "--into"])
            .arg(&before)
            .env("CARGO_TARGET_DIR", checkout.join("target"));
        let made = run.check(&mut dist)?;
        if !matches!(made, Outcome::Passed) {
            return Ok(made);
        }
        installed.arg("--before").arg(&before);
    }
    let made = run.check(&mut make(root, &after))?;
    if !matches!(made, Outcome::Passed) {
        return Ok(made);
    }
    run.check(&mut installed)
}

fn fuzz(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut fuzz = Command::new(std::env::current_exe()?);
    fuzz.args(["fuzz", "--seconds", SECONDS]);
    run.check(fuzz.current_dir(run.workspace.root()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_need_of_the_soak_is_a_step() {
        for step in SOAK {
            for need in step.needs {
                assert!(
                    STEPS.iter().chain(SOAK).any(|other| other.name == *need),
                    "{} needs {need}",
                    step.name
                );
            }
        }
    }
}
