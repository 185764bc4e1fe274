//! `cargo xtask soak`: the proofs that are too long for every run. Its steps stand upon those of `cargo xtask test`.

use std::process::{Command, ExitCode};

use clap::Args;

use super::{
    Run, choose,
    report::Outcome,
    run_steps,
    steps::{Lane::Main, STEPS, Step, run_nextest},
};
use crate::{tidy, workspace::Workspace};

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

#[rustfmt::skip]
const SOAK: &[Step] = &[
    Step { name: "soak-tests", about: "the tests that are ignored because they are long", needs: NEEDS, lane: Main, run: long_tests },
    Step { name: "soak-simulation", about: "the simulated subnet, twenty times as many schedules", needs: &["build"], lane: Main, run: simulation },
    Step { name: "soak-properties", about: "properties and seeded parsers, ten times as many inputs", needs: NEEDS, lane: Main, run: properties },
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
    run_steps(workspace, &choose(&all, named))
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
                    STEPS.iter().any(|other| other.name == *need),
                    "{} needs {need}",
                    step.name
                );
            }
        }
    }
}
