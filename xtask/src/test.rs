//! `cargo xtask test`: every check and every test, in two lanes of steps, and what came of them in the last line.
//!
//! A failing step does not stop the run: the user sees everything at once.

pub(crate) mod budget;
mod build;
mod cgroup;
mod child_process;
mod console;
mod daemon;
mod deny;
mod docker;
mod examples;
mod install;
mod lanes;
mod postgres;
mod python;
mod report;
mod runner_summary;
mod services;
pub(crate) mod soak;
mod started_count;
mod steps;
mod tested;

use std::{
    cell::Cell,
    ffi::OsString,
    process::{Command, ExitCode, ExitStatus},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;

use crate::workspace::Workspace;
use build::Compiled;
use cgroup::{Cgroup, RemovedGroup};
use child_process::Interrupt;
use console::Console;
use python::Interpreters;
use report::{Cost, Outcome, Report};
use services::{POSTGRES, Services};
use started_count::Tally;
use steps::{STEPS, Step};

#[derive(Args)]
pub(crate) struct Options {
    /// Run only these steps and what they need (comma separated)
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    only: Vec<String>,
    /// List the steps and run none
    #[arg(long)]
    list: bool,
    /// Run the workspace's tests on half a core, with their roles, PostgreSQL and an engine of their own
    #[arg(long, conflicts_with = "only")]
    slow: bool,
}

/// The speed at which the workspace's tests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Full,
    /// In a control group of half a core, with four times the patience.
    Slow,
}

/// The bound of [`Pace::Slow`], in thousandths of a core.
const SLOW_MILLICORES: u64 = 500;
/// The patience of the test bed at [`Pace::Slow`], in seconds: four times its own.
const SLOW_PATIENCE: &str = "960";

/// The state that all steps share.
struct SharedState {
    workspace: Workspace,
    interrupt: Interrupt,
    pace: Pace,
    // Groups go from below: the services end first, then their group, then those above it.
    services: OnceLock<Services>,
    /// The control group of the services, where this user may make one.
    services_group: Option<RemovedGroup>,
    /// The group that is bounded to [`SLOW_MILLICORES`].
    slow_group: Option<RemovedGroup>,
    /// The group of the whole run.
    group: Option<RemovedGroup>,
    interpreters: Mutex<Interpreters>,
    tally: OnceLock<Tally>,
    /// The processor time of containers before the run.
    containers_before: Duration,
    compiled: Mutex<Compiled>,
}

impl SharedState {
    /// Makes the control groups. Without the right to make them nothing is measured, and nothing can be bounded.
    fn new(workspace: Workspace, interrupt: Interrupt, pace: Pace) -> anyhow::Result<Self> {
        let name = format!("muster-suite-{}", std::process::id());
        let (group, slow_group) = match pace {
            Pace::Full => (Cgroup::make_below_own(&name).ok(), None),
            // The newer interface bounds no group below one that has processes.
            Pace::Slow => {
                let group = Cgroup::make(&name).context("half a core is a control group's bound")?;
                let slow = group.child("slow")?;
                slow.bound(SLOW_MILLICORES)?;
                (Some(group), Some(slow))
            }
        };
        let around = slow_group.as_ref().or(group.as_ref());
        let services_group = around.and_then(|around| around.child("services").ok());
        Ok(Self {
            workspace,
            interrupt,
            pace,
            services: OnceLock::new(),
            services_group: services_group.map(RemovedGroup),
            slow_group: slow_group.map(RemovedGroup),
            group: group.map(RemovedGroup),
            interpreters: Mutex::default(),
            tally: OnceLock::new(),
            containers_before: cgroup::used_by_containers().unwrap_or_default(),
            compiled: Mutex::default(),
        })
    }

    /// A control group for a step. Only the tests of the workspace are bounded: what they run is built before.
    fn group_of(&self, step: &str) -> Option<Cgroup> {
        let slow = self.slow_group.as_ref().filter(|_| step == steps::TESTS);
        slow.or(self.group.as_ref())?.0.child(step).ok()
    }

    /// The processor time of PostgreSQL and of all containers since the run began.
    fn used_by_services(&self) -> Duration {
        let containers = cgroup::used_by_containers().unwrap_or_default();
        let databases = self.services_group.as_ref().and_then(|group| group.0.used());
        containers.saturating_sub(self.containers_before) + databases.unwrap_or_default()
    }

    /// The cost of the whole run so far.
    fn cost_so_far(&self, wall: Duration) -> Cost {
        let containers = cgroup::used_by_containers().unwrap_or_default();
        let used = self.group.as_ref().and_then(|group| group.0.used());
        Cost {
            wall,
            processor: used.map(|used| used + containers.saturating_sub(self.containers_before)),
            compiled: *locked(&self.compiled),
            subnets: self.tally.get().map_or(0, Tally::subnets),
            containers: self.tally.get().map_or(0, Tally::containers),
        }
    }
}

/// The contents, also after another thread has panicked with them.
fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One step's view of the run.
struct Run<'run> {
    workspace: &'run Workspace,
    interrupt: &'run Interrupt,
    console: Console,
    shared: &'run SharedState,
    /// The control group of its commands.
    group: Option<&'run Cgroup>,
    compiled: Cell<Compiled>,
}

impl<'run> Run<'run> {
    fn new(shared: &'run SharedState, console: Console, group: Option<&'run Cgroup>) -> Self {
        Self {
            workspace: &shared.workspace,
            interrupt: &shared.interrupt,
            console,
            shared,
            group,
            compiled: Cell::default(),
        }
    }

    /// The units that the step has compiled.
    fn compiled(&self) -> Compiled {
        self.compiled.get()
    }

    fn add_compiled(&self, compiled: Compiled) {
        self.compiled.set(self.compiled.get().plus(compiled));
        let mut all = locked(&self.shared.compiled);
        *all = all.plus(compiled);
    }

    /// Runs a check: its exit status is its outcome.
    fn check(&self, command: &mut Command) -> anyhow::Result<Outcome> {
        self.interrupt.check(&self.console, self.group, command)
    }

    /// Runs a command and hears its stdout line by line.
    fn read_stdout(&self, command: &mut Command, hear: impl FnMut(&str)) -> anyhow::Result<ExitStatus> {
        self.interrupt
            .read_stdout(&self.console, self.group, command, hear)
    }

    /// Runs a command and returns all that it printed.
    fn listen(&self, command: &mut Command) -> anyhow::Result<(ExitStatus, String)> {
        self.interrupt.listen(&self.console, self.group, command)
    }

    /// Keeps the services until the end of the run. There is one such step, so nothing is kept already.
    fn keep_services(&self, services: Services) {
        let _ = self.shared.services.set(services);
    }

    /// Begins to count what tests start.
    fn begin_tally(&self) -> anyhow::Result<()> {
        let engine = self.shared.services.get().and_then(Services::engine);
        // There is one such step, so nothing is counted already.
        let _ = self.shared.tally.set(Tally::begin(engine)?);
        Ok(())
    }

    /// Keeps the clients' interpreters for the steps that need them.
    fn keep_interpreters(&self, interpreters: Interpreters) {
        locked(&self.shared.interpreters).extend(interpreters);
    }

    /// The variables by which tests find services and clients.
    fn variables(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        let postgres = self.shared.services.get().and_then(Services::postgres);
        let engine = self.shared.services.get().and_then(Services::engine);
        let interpreters = locked(&self.shared.interpreters).clone();
        let named = [
            postgres.map(|url| (POSTGRES, url.into())),
            engine.map(|address| ("DOCKER_HOST", address.into())),
            self.shared.tally.get().map(Tally::variable),
        ];
        named.into_iter().flatten().chain(
            interpreters
                .into_iter()
                .map(|(variable, python)| (variable, python.into())),
        )
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
    if options.slow {
        return run_steps(
            workspace,
            &choose(&all, |step| step.name == steps::TESTS),
            Pace::Slow,
        );
    }
    let named = |step: &Step| options.only.is_empty() || options.only.iter().any(|name| name == step.name);
    run_steps(workspace, &choose(&all, named), Pace::Full)
}

/// Runs steps with the services they start; the last line printed is the result.
fn run_steps(workspace: Workspace, steps: &[&Step], pace: Pace) -> anyhow::Result<ExitCode> {
    let shared = SharedState::new(workspace, Interrupt::install()?, pace)?;
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
        assert!(!names.contains(&"doctests"));
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
