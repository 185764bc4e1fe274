//! `cargo xtask test`: every check and every test, in two lanes of steps, and what came of them in the last line.
//!
//! A failing step does not stop the run: the user sees everything at once.

mod console;
mod daemon;
mod deny;
mod docker;
mod install;
mod lanes;
mod postgres;
mod process;
mod python;
mod report;
mod services;
pub(crate) mod soak;
mod steps;
mod summary;

use std::{
    ffi::OsString,
    process::{Command, ExitCode, ExitStatus},
    sync::OnceLock,
};

use anyhow::bail;
use clap::Args;

use crate::workspace::Workspace;
use console::Console;
use process::Interrupt;
use python::Interpreters;
use report::{Outcome, Report};
use services::{POSTGRES, Services};
use steps::{STEPS, Step};

#[derive(Args)]
pub(crate) struct Options {
    /// Run only these steps and what they need (comma separated)
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    only: Vec<String>,
    /// List the steps and run none
    #[arg(long)]
    list: bool,
}

/// The state that all steps share.
struct SharedState {
    workspace: Workspace,
    interrupt: Interrupt,
    services: OnceLock<Services>,
    interpreters: OnceLock<Interpreters>,
}

impl SharedState {
    fn new(workspace: Workspace, interrupt: Interrupt) -> Self {
        Self {
            workspace,
            interrupt,
            services: OnceLock::new(),
            interpreters: OnceLock::new(),
        }
    }
}

/// One step's view of the run.
struct Run<'run> {
    workspace: &'run Workspace,
    interrupt: &'run Interrupt,
    console: Console,
    shared: &'run SharedState,
}

impl<'run> Run<'run> {
    fn new(shared: &'run SharedState, console: Console) -> Self {
        Self {
            workspace: &shared.workspace,
            interrupt: &shared.interrupt,
            console,
            shared,
        }
    }

    /// Runs a check: its exit status is its outcome.
    fn check(&self, command: &mut Command) -> anyhow::Result<Outcome> {
        self.interrupt.check(&self.console, command)
    }

    /// Runs a command and returns all that it printed.
    fn listen(&self, command: &mut Command) -> anyhow::Result<(ExitStatus, String)> {
        self.interrupt.listen(&self.console, command)
    }

    /// Keeps the services until the end of the run. There is one such step, so nothing is kept already.
    fn keep_services(&self, services: Services) {
        let _ = self.shared.services.set(services);
    }

    /// Keeps the clients' interpreters for the steps that need them.
    fn keep_interpreters(&self, interpreters: Interpreters) {
        let _ = self.shared.interpreters.set(interpreters);
    }

    /// The variables by which tests find services and clients.
    fn variables(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        let postgres = self.shared.services.get().and_then(Services::postgres);
        let interpreters = self.shared.interpreters.get().into_iter().flatten();
        postgres
            .map(|url| (POSTGRES, url.into()))
            .into_iter()
            .chain(interpreters.map(|(variable, python)| (*variable, python.into())))
    }
}

/// Runs the chosen steps; fails if any of them did. The last line printed is the result in plain words.
pub(crate) fn run(workspace: Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if options.list {
        for step in STEPS {
            println!("{:<15} {}", step.name, step.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
    check_names(&options.only, &known)?;
    let all: Vec<&Step> = STEPS.iter().collect();
    let named = |step: &Step| options.only.is_empty() || options.only.iter().any(|name| name == step.name);
    run_steps(workspace, &choose(&all, named))
}

/// Runs steps with the services they start; the last line printed is the result.
fn run_steps(workspace: Workspace, steps: &[&Step]) -> anyhow::Result<ExitCode> {
    let shared = SharedState::new(workspace, Interrupt::install()?);
    let report = lanes::run(&shared, steps);
    // Services stop before the last line: nothing may be printed after it.
    drop(shared);
    print!("{report}");
    Ok(crate::exit_code(report.passed()))
}

/// Fails if one of the names is no step.
fn check_names(only: &[String], known: &[&str]) -> anyhow::Result<()> {
    match only.iter().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => bail!("there is no step `{unknown}`; there are {}", known.join(", ")),
        None => Ok(()),
    }
}

/// The named steps and what they need, in the order of the list.
fn choose<'steps>(all: &[&'steps Step], named: impl Fn(&Step) -> bool) -> Vec<&'steps Step> {
    // A need stands above its step, so one pass from below finds the needs of needs.
    let mut chosen: Vec<&Step> = Vec::new();
    for step in all.iter().rev() {
        if named(step) || chosen.iter().any(|above| above.needs.contains(&step.name)) {
            chosen.push(step);
        }
    }
    chosen.reverse();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str]) -> Vec<&'static str> {
        let all: Vec<&Step> = STEPS.iter().collect();
        let chosen = choose(&all, |step| only.is_empty() || only.contains(&step.name));
        chosen.into_iter().map(|step| step.name).collect()
    }

    #[test]
    fn all_steps_run_unless_some_are_named() {
        assert_eq!(names(&[]).len(), STEPS.len());
        assert_eq!(names(&["tidy", "fmt"]), ["fmt", "tidy"]);
    }

    #[test]
    fn a_step_brings_what_it_needs() {
        let names = names(&["nextest"]);
        for need in [
            "install", "clients", "services", "build", "devchain", "images", "nextest",
        ] {
            assert!(names.contains(&need), "{need} is missing from {names:?}");
        }
        assert!(!names.contains(&"clippy"));
    }

    #[test]
    fn an_unknown_step_is_an_error_that_lists_the_known_ones() {
        let error = check_names(&["nexttest".to_owned()], &["nextest", "docs"])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no step `nexttest`") && error.contains("nextest,"),
            "{error}"
        );
    }

    #[test]
    fn needs_stand_above_their_steps() {
        for (place, step) in STEPS.iter().enumerate() {
            for need in step.needs {
                let found = STEPS.iter().position(|other| other.name == *need);
                assert!(
                    found.is_some_and(|found| found < place),
                    "{} needs {need}",
                    step.name
                );
            }
        }
    }
}
