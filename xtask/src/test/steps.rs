//! The steps, cheapest first: a missing comma should not wait for a build.
//!
//! Two steps run at a time, one of each lane: a build has parts that keep one core busy, and what has a target folder
//! of its own, or compiles nothing, goes on beside it.

use std::{io::IsTerminal, process::Command};

use super::{
    Pace, Run, SLOW_PATIENCE, budget, build,
    child_process::on_path,
    deny, examples, install, python,
    report::{Counts, Outcome},
    runner_summary,
    services::Services,
    tested::{self, CUDA, DEVCHAIN, LLM},
};
use crate::{cuda, tidy, workspace::Workspace};

/// One line of the report.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Steps that must have run before it; they stand above it.
    pub(super) needs: &'static [&'static str],
    pub(super) lane: Lane,
    pub(super) run: fn(&Run<'_>) -> anyhow::Result<Outcome>,
}

/// The sequence of steps that a step belongs to. A lane runs one step at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// The workspace at the root, in sight of the user.
    Main,
    /// Steps that compile little or have a target folder of their own; their output is shown when they have ended.
    Side,
}

use Lane::{Main, Side};

/// The step of the workspace's tests, which `--slow` bounds.
pub(super) const TESTS: &str = "nextest";

#[rustfmt::skip]
pub(super) const STEPS: &[Step] = &[
    Step { name: "install", about: "the programs that the tests need, from apt where possible", needs: &[], lane: Main, run: install::run },
    Step { name: "clients", about: "the Python clients nobody here wrote", needs: &["install"], lane: Side, run: clients },
    Step { name: "fmt", about: "cargo fmt --check, in every workspace", needs: &[], lane: Main, run: fmt },
    Step { name: "arrows", about: "crates use only what their folders may use", needs: &[], lane: Main, run: |run| own(run, &["arrows"]) },
    Step { name: "features", about: "third-party crates have one set of features, so each is compiled once", needs: &[], lane: Main, run: |run| own(run, &["features"]) },
    Step { name: "plans", about: "cargo plans no more units and programs than xtask/budget.toml says", needs: &[], lane: Main, run: budget::check_plans },
    Step { name: "tidy", about: "sizes, names, sentences, links, purposes, deadlines of tests, error pages, ADRs, words", needs: &[], lane: Main, run: |run| own(run, &["tidy"]) },
    Step { name: "deny", about: "licences, advisories and sources of dependencies, in every lockfile", needs: &["install"], lane: Side, run: deny::run },
    Step { name: "build", about: "everything in the workspace, without a warning of the compiler or of clippy", needs: &[], lane: Main, run: build },
    Step { name: "images", about: "the job images, static", needs: &[], lane: Main, run: images },
    Step { name: "devchain", about: "the local chain, a workspace of its own in the same target folder", needs: &[], lane: Main, run: devchain },
    Step { name: "llm", about: "the language model engine, static and optimised, a workspace of its own", needs: &[], lane: Side, run: llm },
    Step { name: "llm-tests", about: "the engine's own tests and lints, if its sources changed", needs: &["clients", "llm"], lane: Side, run: |run| tested::run_if_changed(run, &LLM, llm_tests) },
    Step { name: "devchain-tests", about: "devchain's own tests and lints, if its sources changed", needs: &["devchain"], lane: Side, run: |run| tested::run_if_changed(run, &DEVCHAIN, devchain_tests) },
    Step { name: "cuda-tests", about: "the CUDA prover's kernels on the processor and its lints, if its sources changed", needs: &[], lane: Side, run: |run| tested::run_if_changed(run, &CUDA, cuda_tests) },
    Step { name: "services", about: "PostgreSQL and a Docker engine", needs: &["install"], lane: Main, run: services },
    Step { name: TESTS, about: "all tests of the workspace", needs: &["install", "clients", "services", "build", "images", "devchain", "llm"], lane: Main, run: nextest },
    Step { name: "started", about: "the tests started no more subnets and containers than xtask/budget.toml says", needs: &[TESTS], lane: Main, run: budget::check_started },
    Step { name: "doctests", about: "the examples in the documentation", needs: &[], lane: Main, run: doctests },
];

/// The compiler flags of a program that runs in an image without a base: no loader, no libraries.
const STATIC: &str = "-C target-feature=+crt-static";

fn fmt(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut here = run.workspace.cargo();
    here.args(["fmt", "--all", "--check"]);
    let mut devchain = run.workspace.devchain_cargo();
    devchain.args(["fmt", "--all", "--check"]);
    let mut llm = run.workspace.llm_cargo();
    llm.args(["fmt", "--check"]);
    let mut cuda = run.workspace.cargo();
    cuda.args([
        "fmt",
        "--manifest-path",
        "images/grader-cuda/Cargo.toml",
        "--check",
    ]);
    every(run, vec![here, devchain, llm, cuda])
}

/// Another command of xtask, as a child so that it counts and prints like every other step.
fn own(run: &Run<'_>, arguments: &[&str]) -> anyhow::Result<Outcome> {
    let mut command = Command::new(std::env::current_exe()?);
    run.check(command.args(arguments).current_dir(run.workspace.root()))
}

fn build(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut cargo = run.workspace.cargo();
    cargo.args(["build", "--workspace", "--all-targets"]);
    build::run(run, vec![cargo])
}

/// The selection of the programs of images: all of them, for a named target, so that the flags reach the image's own
/// code and not the build scripts of this machine.
pub(super) fn image_arguments(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let folder = workspace.root().join("images");
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut arguments = ["--bins", "--examples", "--target", &target]
        .map(str::to_owned)
        .to_vec();
    for package in workspace.metadata("Cargo.toml")?.packages {
        if package.manifest_path.starts_with(&folder) {
            arguments.extend(["--package".to_owned(), package.name.to_string()]);
        }
    }
    Ok(arguments)
}

fn images(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut cargo = run.workspace.cargo();
    cargo
        .arg("build")
        .args(image_arguments(run.workspace)?)
        .env("RUSTFLAGS", STATIC);
    build::run(run, vec![cargo])
}

fn devchain(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut cargo = run.workspace.devchain_cargo();
    cargo.args(["build", "--bin", "muster-devchain"]);
    build::run(run, vec![cargo])
}

fn llm(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut cargo = run.workspace.llm_cargo();
    // The engines of `muster up --demo audits`, and of the tests that have miners cheat with them.
    cargo.args([
        "build",
        "--release",
        "--bin",
        "muster-llm",
        "--example",
        "cheating_llm",
    ]);
    build::run(run, vec![cargo])
}

/// Cargo for the CUDA prover with a libcuda to link with, or why there is none. Every step makes its own: a step may
/// run alone.
fn with_stub(run: &Run<'_>) -> anyhow::Result<Result<Command, Outcome>> {
    for compiler in ["gcc", "g++"] {
        if !on_path(compiler) {
            let why = format!(
                "{compiler} is not installed, which makes a libcuda to link with and compiles the kernels"
            );
            return Ok(Err(Outcome::Skipped(why)));
        }
    }
    Ok(Ok(run.workspace.cuda_cargo(&cuda::stub(run.workspace)?)))
}

/// The kernels are compiled for this processor too: what is built, checked and tested is one build.
const EMULATOR: [&str; 2] = ["--features", "emulator"];

pub(super) fn cuda_tests(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let (mut lints, tests) = match (with_stub(run)?, with_stub(run)?) {
        (Ok(lints), Ok(tests)) => (lints, tests),
        (Err(skipped), _) | (_, Err(skipped)) => return Ok(skipped),
    };
    lints.args(["build", "--all-targets"]).args(EMULATOR);
    both(build::run(run, vec![lints])?, || {
        tests_with(run, tests, &EMULATOR, Ignored::StayIgnored)
    })
}

/// The lints of a workspace, and its tests if they pass.
fn both(lints: Outcome, tests: impl FnOnce() -> anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
    match lints {
        Outcome::Passed => tests(),
        Outcome::Failed(_) | Outcome::Skipped(_) | Outcome::Tests { .. } => Ok(lints),
    }
}

fn services(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let group = run.shared.services_group.as_ref().map(|group| &group.0);
    let bounded = run.shared.slow_group.as_ref().map(|group| &group.0);
    let (services, outcome) = Services::start(&run.console, group, bounded);
    run.keep_services(services);
    run.begin_tally()?;
    Ok(outcome)
}

fn clients(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let (interpreters, outcome) = python::prepare(run);
    run.keep_interpreters(interpreters);
    Ok(outcome)
}

/// The step of the soak that makes the environment of the programs that train.
pub(super) fn trainers(run: &Run<'_>) -> anyhow::Result<Outcome> {
    run.keep_interpreters(python::prepare_trainers(run)?);
    Ok(Outcome::Passed)
}

/// Cargo at the root with everything by which the tests find what runs beside them.
fn test_cargo(run: &Run<'_>) -> Command {
    let mut cargo = run.workspace.cargo();
    cargo.envs(run.variables()).envs(run.workspace.shared_variables());
    cargo
}

/// Some tests of the workspace, as `arguments` chooses them.
pub(super) fn run_nextest(run: &Run<'_>, arguments: impl FnOnce(&mut Command)) -> anyhow::Result<Outcome> {
    let mut cargo = test_cargo(run);
    cargo.args(NEXTEST);
    arguments(&mut cargo);
    count_nextest(run, cargo)
}

const NEXTEST: [&str; 4] = ["nextest", "run", "--workspace", "--no-fail-fast"];

fn nextest(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let outcome = run_nextest(run, |cargo| match run.shared.pace {
        Pace::Full => {}
        Pace::Slow => {
            cargo
                .args(["--profile", "slow"])
                .env("MUSTER_TEST_PATIENCE", SLOW_PATIENCE);
        }
    })?;
    if let Outcome::Tests { counts, .. } = &outcome
        && counts.skipped > 0
    {
        for reason in tidy::ignored_tests(run.workspace)? {
            run.console.print(format_args!("skipped: {reason}"));
        }
    }
    Ok(outcome)
}

pub(super) fn devchain_tests(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut lints = run.workspace.devchain_cargo();
    lints.args(["build", "--workspace", "--all-targets"]);
    both(build::run(run, vec![lints])?, || {
        tests_with(run, run.workspace.devchain_cargo(), &[], Ignored::StayIgnored)
    })
}

pub(super) fn llm_tests(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut cargo = run.workspace.llm_cargo();
    cargo.envs(run.variables());
    // Its tests against other people's programs are ignored where those are not at hand, so that nobody counts them as
    // passed.
    let peers = run.variables().any(|(name, _)| name == LLM_PEERS);
    let ignored = if peers || std::env::var_os(LLM_PEERS).is_some() {
        Ignored::Run
    } else {
        run.console.print(format_args!(
            "skipped: the tests against OpenAI's client and llama.cpp, {LLM_PEERS} is not set"
        ));
        Ignored::StayIgnored
    };
    let mut lints = run.workspace.llm_cargo();
    lints.args(["build", "--all-targets"]);
    both(build::run(run, vec![lints])?, || {
        tests_with(run, cargo, &[], ignored)
    })
}

const LLM_PEERS: &str = "MUSTER_TEST_OPENAI_PYTHON";

/// The treatment of ignored tests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ignored {
    StayIgnored,
    Run,
}

fn doctests(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut cargo = run.workspace.cargo();
    // With the features of the whole workspace, or third-party crates would be compiled once more.
    cargo.args([
        "test",
        "--doc",
        "--no-fail-fast",
        "--package",
        "muster-feature-set",
    ]);
    // rustdoc reads a whole crate to find out that it has no example.
    for package in examples::packages(run.workspace)? {
        cargo.args(["--package", &package]);
    }
    counted(run, cargo, runner_summary::libtest)
}

/// All tests of a workspace but its doctests, built with these features.
fn tests_with(
    run: &Run<'_>,
    mut cargo: Command,
    features: &[&str],
    ignored: Ignored,
) -> anyhow::Result<Outcome> {
    cargo.args(NEXTEST).args(features);
    if ignored == Ignored::Run {
        cargo.args(["--run-ignored", "all"]);
    }
    count_nextest(run, cargo)
}

fn count_nextest(run: &Run<'_>, cargo: Command) -> anyhow::Result<Outcome> {
    if !on_path("cargo-nextest") {
        return Ok(Outcome::Failed(
            "cargo-nextest is not installed: cargo install --locked cargo-nextest".to_owned(),
        ));
    }
    counted(run, cargo, runner_summary::nextest)
}

fn counted(run: &Run<'_>, mut cargo: Command, parse: fn(&str) -> Option<Counts>) -> anyhow::Result<Outcome> {
    // Its output goes through us, so it cannot see the terminal itself.
    if std::io::stderr().is_terminal() {
        cargo.env("CARGO_TERM_COLOR", "always");
    }
    let (status, output) = run.listen(&mut cargo)?;
    Ok(judge(status.success(), &status.to_string(), parse(&output)))
}

/// A runner that fails without a failed test, or prints nothing at all, has failed in another way.
fn judge(success: bool, status: &str, counts: Option<Counts>) -> Outcome {
    let error = match counts {
        None => Some(format!("no summary, {status}")),
        Some(counts) => (!success && counts.failed == 0).then(|| status.to_owned()),
    };
    Outcome::Tests {
        counts: counts.unwrap_or_default(),
        error,
    }
}

/// Runs all of them, even after one has failed.
fn every(run: &Run<'_>, commands: Vec<Command>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::Passed;
    for mut command in commands {
        if let failed @ Outcome::Failed(_) = run.check(&mut command)? {
            outcome = failed;
        }
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(outcome: Outcome) -> Option<String> {
        let Outcome::Tests { error, .. } = outcome else {
            panic!("it counts tests")
        };
        error
    }

    #[test]
    fn failed_tests_are_no_second_failure() {
        let failed = Counts {
            passed: 4,
            failed: 1,
            skipped: 0,
        };
        assert_eq!(error_of(judge(false, "exit status: 100", Some(failed))), None);
    }

    #[test]
    fn a_runner_that_fails_without_a_failed_test_is_one() {
        let passed = Counts {
            passed: 4,
            failed: 0,
            skipped: 0,
        };
        assert_eq!(error_of(judge(true, "exit status: 0", Some(passed))), None);
        assert_eq!(
            error_of(judge(false, "exit status: 101", Some(passed))).unwrap(),
            "exit status: 101"
        );
        assert_eq!(
            error_of(judge(false, "exit status: 101", None)).unwrap(),
            "no summary, exit status: 101"
        );
        assert!(
            error_of(judge(true, "exit status: 0", None)).is_some(),
            "nothing ran"
        );
    }
}
