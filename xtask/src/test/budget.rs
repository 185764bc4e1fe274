//! The bar of the suite: how much it plans to compile and link, and how much it starts. Times differ between machines,
//! so they are shown and never refused; the counts are the same everywhere.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Deserialize;

use super::{
    Run,
    cgroup::{self, Cgroup, RemovedGroup},
    child_process::Stopwatch,
    report::{Outcome, Time},
};
use crate::{
    build_plan::{identities, read_graph},
    workspace::Workspace,
};

const FILE: &str = "xtask/budget.toml";

/// The most of each that a run may plan or start.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Budget {
    /// Calls of the compiler from an empty target folder.
    units: usize,
    /// Programs that are linked, tests among them.
    programs: usize,
    /// Subnets that tests and demonstrations start.
    subnets: usize,
    /// Containers that the engine of the tests starts.
    containers: usize,
}

impl Budget {
    fn read(root: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(root.join(FILE)).with_context(|| format!("read {FILE}"))?;
        toml::from_str(&text).with_context(|| format!("{FILE} has other keys than the budget"))
    }
}

/// The builds of the suite that share the root's target folder, or whose programs it always needs: the folder of the
/// workspace, and the selection.
const BUILDS: &[(&str, &[&str])] = &[
    (".", &["--workspace", "--all-targets"]),
    ("devchain", &["--bin", "muster-devchain"]),
    (
        "images/llm",
        &["--release", "--bin", "muster-llm", "--example", "cheating_llm"],
    ),
];

/// The counts of cargo's plans. A unit that two builds need in the same way is compiled once; one that differs in a
/// feature, a level or anything below it is compiled twice, and counts twice.
fn planned(workspace: &Workspace) -> anyhow::Result<(usize, usize)> {
    let mut units = BTreeMap::new();
    let mut add = |folder: &str, selection: &[&str]| -> anyhow::Result<()> {
        let mut cargo = workspace.cargo();
        cargo.current_dir(workspace.root().join(folder));
        let graph = read_graph(&mut cargo, "Cargo.toml", selection)?;
        for (identity, unit) in identities(&graph).into_iter().zip(&graph.units) {
            if !unit.is_script_run() {
                units.insert(identity, unit.is_program());
            }
        }
        Ok(())
    };
    for (folder, selection) in BUILDS {
        add(folder, selection)?;
    }
    let images = super::steps::image_arguments(workspace)?;
    add(".", &images.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok((
        units.len(),
        units.values().filter(|is_program| **is_program).count(),
    ))
}

/// The step before the builds: fails if they would compile or link more than the budget has.
pub(super) fn check_plans(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let budget = Budget::read(run.workspace.root())?;
    let (units, programs) = planned(run.workspace)?;
    Ok(judge(
        run,
        &[
            ("units", units, budget.units),
            ("programs", programs, budget.programs),
        ],
    ))
}

/// The step after the tests: fails if they started more than the budget has.
pub(super) fn check_started(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let Some(tally) = run.shared.tally.get() else {
        return Ok(Outcome::Failed(
            "nothing was counted: the services did not start".to_owned(),
        ));
    };
    let budget = Budget::read(run.workspace.root())?;
    Ok(judge(
        run,
        &[
            ("subnets", tally.subnets(), budget.subnets),
            ("containers", tally.containers(), budget.containers),
        ],
    ))
}

/// Compares counts with the most of each.
fn judge(run: &Run<'_>, counts: &[(&str, usize, usize)]) -> Outcome {
    for (what, count, most) in counts {
        run.console.print(format_args!("{what}: {count}, at most {most}"));
    }
    let over: Vec<String> = counts
        .iter()
        .filter(|(_, count, most)| count > most)
        .map(|(what, count, most)| format!("{count} {what} where {FILE} has {most}"))
        .collect();
    if over.is_empty() {
        return Outcome::Passed;
    }
    Outcome::Failed(format!(
        "{}; if that is worth its cost, change the budget in the same commit and say why",
        over.join(", ")
    ))
}

#[derive(Args)]
pub(crate) struct Options {
    /// Measure the first command only
    #[arg(long)]
    first: bool,
}

/// `cargo xtask budget`: both commands of the README from an empty target folder, with their cost and its ratio.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let target = tempfile::Builder::new()
        .prefix("muster-budget-")
        .tempdir_in(workspace.root().parent().unwrap_or(workspace.root()))
        .context("make an empty target folder")?;
    let group = RemovedGroup(
        Cgroup::make(&format!("muster-budget-{}", std::process::id()))
            .context("the processor time of a command is that of its control group")?,
    );
    let measure = |name: &'static str, arguments: &[&str]| {
        let mut cargo = workspace.cargo();
        cargo.args(arguments).env("CARGO_TARGET_DIR", target.path());
        measure(&group.0, name, &mut cargo)
    };
    let first = measure("first", &["run", "--", "up", "--demo"])?;
    if options.first {
        println!("{first}");
        return Ok(crate::exit_code(first.is_success));
    }
    let second = measure("second", &["run", "--quiet", "--package", "xtask", "--", "test"])?;
    println!("{first}\n{second}");
    let ratio = second.processor_s / first.processor_s;
    println!("ratio of the second command's processor time to the first one's: {ratio:.2}");
    Ok(crate::exit_code(first.is_success && second.is_success))
}

/// The cost of one command.
struct Measured {
    name: &'static str,
    wall: Time,
    processor_s: f64,
    is_success: bool,
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            name,
            wall,
            processor_s,
            is_success,
        } = self;
        let minutes = processor_s / 60.0;
        let failed = if *is_success { "" } else { ", FAILED" };
        write!(
            f,
            "{name} command: {wall} of wall time, {minutes:.1} min of processor time{failed}"
        )
    }
}

fn measure(group: &Cgroup, name: &'static str, command: &mut Command) -> anyhow::Result<Measured> {
    let group = RemovedGroup(group.child(name)?);
    let containers = cgroup::used_by_containers().unwrap_or_default();
    let watch = Stopwatch::start();
    let mut child = command.spawn().context("start cargo")?;
    group.0.adopt(child.id())?;
    let status = child.wait().context("wait for cargo")?;
    let wall = watch.elapsed();
    let used = group
        .0
        .used()
        .context("read the processor time of a control group")?;
    let containers = cgroup::used_by_containers()
        .unwrap_or_default()
        .saturating_sub(containers);
    ensure!(
        !used.is_zero(),
        "the command used no time, so its group did not have it"
    );
    Ok(Measured {
        name,
        wall: Time(wall),
        processor_s: (used + containers).as_secs_f64(),
        is_success: status.success(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::{Pace, SharedState, child_process::Interrupt, console::Console};

    fn judged(counts: &[(&str, usize, usize)]) -> Outcome {
        let shared = SharedState::new(Workspace::load().unwrap(), Interrupt::default(), Pace::Full).unwrap();
        judge(&Run::new(&shared, Console::kept(), None), counts)
    }

    #[test]
    fn a_second_subnet_and_a_crate_that_is_compiled_twice_fail() {
        assert!(matches!(
            judged(&[("subnets", 3, 3), ("units", 9, 9)]),
            Outcome::Passed
        ));
        let Outcome::Failed(why) = judged(&[("subnets", 4, 3), ("units", 9, 9)]) else {
            panic!("it is over the budget")
        };
        assert!(
            why.starts_with("4 subnets where xtask/budget.toml has 3;"),
            "{why}"
        );
        assert!(matches!(judged(&[("units", 10, 9)]), Outcome::Failed(_)));
    }

    #[test]
    fn the_budget_of_the_repository_is_read() {
        let budget = Budget::read(Workspace::load().unwrap().root()).unwrap();
        assert!(budget.programs < budget.units, "{budget:?}");
    }
}
