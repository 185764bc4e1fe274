//! The steps, cheapest first: a missing comma should not wait for a build.
//!
//! Two steps run at a time, one of each lane. Cargo builds a workspace under one lock, and a test run often waits for
//! a clock: one lane alone left two cores idle for more than a third of the time. `llm-tests` keeps every core busy for
//! many minutes, so it stands where it runs beside compilers and not beside `nextest`, whose jobs have time limits.

use std::{io::IsTerminal, process::Command};

use super::{
    Run, deny, install,
    process::on_path,
    python,
    report::{Counts, Outcome},
    services::Services,
    summary,
};
use crate::{cuda, tidy};

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
    /// Everything with a target folder of its own; its output is shown when a step has ended.
    Side,
}

use Lane::{Main, Side};

#[rustfmt::skip]
pub(super) const STEPS: &[Step] = &[
    Step { name: "install", about: "the programs that the tests need, from apt where possible", needs: &[], lane: Main, run: install::run },
    Step { name: "clients", about: "the Python clients nobody here wrote", needs: &["install"], lane: Side, run: clients },
    Step { name: "fmt", about: "cargo fmt --check, in every workspace", needs: &[], lane: Main, run: fmt },
    Step { name: "arrows", about: "crates use only what their folders may use", needs: &[], lane: Main, run: |run| own(run, &["arrows"]) },
    Step { name: "features", about: "third-party crates have one set of features, so each is compiled once", needs: &[], lane: Main, run: |run| own(run, &["features"]) },
    Step { name: "tidy", about: "sizes, names, sentences, purposes, wire hash, error pages, ADRs, words", needs: &[], lane: Main, run: |run| own(run, &["tidy"]) },
    Step { name: "deny", about: "licences, advisories and sources of dependencies, in every lockfile", needs: &["install"], lane: Side, run: deny::run },
    Step { name: "build", about: "everything in the workspace but the benches, which clippy checks", needs: &[], lane: Main, run: build },
    Step { name: "images", about: "the job images, static", needs: &[], lane: Main, run: images },
    Step { name: "devchain", about: "the local chain, a workspace of its own", needs: &[], lane: Main, run: devchain },
    Step { name: "llm", about: "the language model engine, static, a workspace of its own", needs: &[], lane: Side, run: llm },
    Step { name: "cuda", about: "the CUDA prover, against a libcuda without a device, a workspace of its own", needs: &[], lane: Side, run: cuda },
    Step { name: "llm-tests", about: "the engine's own tests, OpenAI's client and llama.cpp among them", needs: &["clients", "llm"], lane: Side, run: llm_tests },
    Step { name: "clippy", about: "no warnings, tests included", needs: &[], lane: Main, run: clippy },
    Step { name: "devchain-clippy", about: "no warnings in devchain", needs: &["devchain"], lane: Side, run: devchain_clippy },
    Step { name: "llm-clippy", about: "no warnings in the language model engine", needs: &["llm"], lane: Side, run: llm_clippy },
    Step { name: "cuda-clippy", about: "no warnings in the CUDA prover", needs: &["cuda"], lane: Side, run: cuda_clippy },
    Step { name: "docs", about: "documentation without warnings", needs: &[], lane: Main, run: docs },
    Step { name: "services", about: "PostgreSQL and a Docker engine", needs: &["install"], lane: Main, run: services },
    Step { name: "nextest", about: "all tests of the workspace", needs: &["install", "clients", "services", "build", "images", "devchain", "llm"], lane: Main, run: nextest },
    Step { name: "doctests", about: "the examples in the documentation", needs: &[], lane: Main, run: doctests },
    Step { name: "devchain-tests", about: "devchain's own tests", needs: &["devchain"], lane: Side, run: devchain_tests },
    Step { name: "cuda-tests", about: "the CUDA prover's kernels on the processor, against the golden vectors", needs: &["cuda"], lane: Side, run: cuda_tests },
];

const FUZZ: &str = "fuzz/Cargo.toml";
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
    let mut all = vec![here, devchain, llm, cuda];
    if run.workspace.root().join(FUZZ).exists() {
        let mut fuzz = run.workspace.cargo();
        fuzz.args(["fmt", "--manifest-path", FUZZ, "--check"]);
        all.push(fuzz);
    }
    every(run, all)
}

/// Another command of xtask, as a child so that it counts and prints like every other step.
fn own(run: &Run<'_>, arguments: &[&str]) -> anyhow::Result<Outcome> {
    let mut command = Command::new(std::env::current_exe()?);
    run.check(command.args(arguments).current_dir(run.workspace.root()))
}

fn build(run: &Run<'_>) -> anyhow::Result<Outcome> {
    run.check(
        run.workspace
            .cargo()
            .args(["build", "--workspace", "--all-targets"])
            // Each bench links the whole subnet, and no test runs one.
            .args(["--exclude", "muster-bench"]),
    )
}

fn images(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let folder = run.workspace.root().join("images");
    let metadata = run.workspace.metadata("Cargo.toml")?;
    let mut cargo = run.workspace.cargo();
    // Named, so that the flags reach the image's own code and not the build scripts of this machine.
    cargo.args([
        "build",
        "--bins",
        "--examples",
        "--target",
        &format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
    ]);
    cargo
        .arg("--target-dir")
        .arg(run.workspace.images_target())
        .env("RUSTFLAGS", STATIC);
    for package in metadata
        .packages
        .iter()
        .filter(|package| package.manifest_path.starts_with(&folder))
    {
        cargo.args(["--package", package.name.as_str()]);
    }
    run.check(&mut cargo)
}

fn devchain(run: &Run<'_>) -> anyhow::Result<Outcome> {
    run.check(run.workspace.devchain_cargo().arg("build"))
}

fn llm(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let (mut tests, mut optimised) = (run.workspace.llm_cargo(), run.workspace.llm_cargo());
    tests.args(["build", "--all-targets"]);
    // The engines of `muster up --demo audits`, and of the tests that have miners cheat with them.
    optimised.args([
        "build",
        "--release",
        "--bin",
        "muster-llm",
        "--example",
        "cheating_llm",
    ]);
    every(run, vec![tests, optimised])
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

fn cuda(run: &Run<'_>) -> anyhow::Result<Outcome> {
    match with_stub(run)? {
        Ok(mut cargo) => run.check(cargo.args(["build", "--all-targets"]).args(EMULATOR)),
        Err(skipped) => Ok(skipped),
    }
}

fn cuda_clippy(run: &Run<'_>) -> anyhow::Result<Outcome> {
    match with_stub(run)? {
        Ok(mut cargo) => {
            let (arguments, lints) = CLIPPY.split_at(3);
            run.check(cargo.args(arguments).args(EMULATOR).args(lints))
        }
        Err(skipped) => Ok(skipped),
    }
}

fn cuda_tests(run: &Run<'_>) -> anyhow::Result<Outcome> {
    match with_stub(run)? {
        Ok(cargo) => tests_with(run, cargo, &EMULATOR, Ignored::StayIgnored),
        Err(skipped) => Ok(skipped),
    }
}

fn clippy(run: &Run<'_>) -> anyhow::Result<Outcome> {
    run.check(run.workspace.cargo().args(CLIPPY))
}

fn devchain_clippy(run: &Run<'_>) -> anyhow::Result<Outcome> {
    run.check(run.workspace.devchain_cargo().args(CLIPPY))
}

fn llm_clippy(run: &Run<'_>) -> anyhow::Result<Outcome> {
    run.check(run.workspace.llm_cargo().args(CLIPPY))
}

const CLIPPY: [&str; 6] = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];

fn docs(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut cargo = run.workspace.cargo();
    run.check(
        cargo
            .args(["doc", "--no-deps", "--workspace"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

fn services(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let (services, outcome) = Services::start(&run.console);
    run.keep_services(services);
    Ok(outcome)
}

fn clients(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let (interpreters, outcome) = python::prepare(run);
    run.keep_interpreters(interpreters);
    Ok(outcome)
}

/// Cargo at the root with everything by which the tests find what runs beside them.
fn test_cargo(run: &Run<'_>) -> Command {
    let mut cargo = run.workspace.cargo();
    cargo.envs(run.variables()).envs(run.workspace.shared_variables());
    cargo
}

/// Some tests of the workspace, as `arguments` chooses them.
pub(super) fn run_nextest(run: &Run<'_>, arguments: impl FnOnce(&mut Command)) -> anyhow::Result<Outcome> {
    if !on_path("cargo-nextest") {
        return Ok(Outcome::Failed(
            "cargo-nextest is not installed: cargo install --locked cargo-nextest".to_owned(),
        ));
    }
    let mut cargo = test_cargo(run);
    cargo.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    arguments(&mut cargo);
    counted(run, cargo, summary::nextest)
}

fn nextest(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let outcome = all_tests(run, test_cargo(run), Ignored::StayIgnored)?;
    if let Outcome::Tests { counts, .. } = &outcome
        && counts.skipped > 0
    {
        for reason in tidy::ignored_tests(run.workspace)? {
            run.console.say(format_args!("skipped: {reason}"));
        }
    }
    Ok(outcome)
}

fn devchain_tests(run: &Run<'_>) -> anyhow::Result<Outcome> {
    all_tests(run, run.workspace.devchain_cargo(), Ignored::StayIgnored)
}

fn llm_tests(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let mut cargo = run.workspace.llm_cargo();
    cargo.envs(run.variables());
    // Its tests against other people's programs are ignored where those are not at hand, so that nobody counts them as
    // passed.
    let peers = run.variables().any(|(name, _)| name == LLM_PEERS);
    let ignored = if peers || std::env::var_os(LLM_PEERS).is_some() {
        Ignored::Run
    } else {
        run.console.say(format_args!(
            "skipped: the tests against OpenAI's client and llama.cpp, {LLM_PEERS} is not set"
        ));
        Ignored::StayIgnored
    };
    all_tests(run, cargo, ignored)
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
    cargo.args(["test", "--doc", "--workspace", "--no-fail-fast"]);
    counted(run, cargo, summary::libtest)
}

/// All tests of a workspace but its doctests.
fn all_tests(run: &Run<'_>, cargo: Command, ignored: Ignored) -> anyhow::Result<Outcome> {
    tests_with(run, cargo, &[], ignored)
}

/// All tests of a workspace built with these features.
fn tests_with(
    run: &Run<'_>,
    mut cargo: Command,
    features: &[&str],
    ignored: Ignored,
) -> anyhow::Result<Outcome> {
    if on_path("cargo-nextest") {
        cargo
            .args(["nextest", "run", "--workspace", "--no-fail-fast"])
            .args(features);
        if ignored == Ignored::Run {
            cargo.args(["--run-ignored", "all"]);
        }
        return counted(run, cargo, summary::nextest);
    }
    run.console.say(format_args!(
        "cargo-nextest is not installed (cargo install --locked cargo-nextest): running cargo test instead,\n\
         without .config/nextest.toml: no test is stopped after five minutes"
    ));
    cargo.args([
        "test",
        "--workspace",
        "--lib",
        "--bins",
        "--tests",
        "--no-fail-fast",
    ]);
    cargo.args(features).args(["--", "--test-threads=2"]);
    if ignored == Ignored::Run {
        cargo.arg("--include-ignored");
    }
    counted(run, cargo, summary::libtest)
}

fn counted(run: &Run<'_>, mut cargo: Command, parse: fn(&str) -> Option<Counts>) -> anyhow::Result<Outcome> {
    // Its output goes through us, so it cannot see the terminal itself.
    if std::io::stderr().is_terminal() {
        cargo.env("CARGO_TERM_COLOR", "always");
    }
    let (status, output) = run.listen(&mut cargo)?;
    Ok(judge(status.success(), &status.to_string(), parse(&output)))
}

/// A runner that fails without a failed test, or says nothing at all, has failed in another way.
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
