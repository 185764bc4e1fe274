//! The repository's own commands: `cargo xtask arrows | features | tidy | test | soak | budget | bench | fleets | fuzz | ptx | libcuda |
//! wasm | sbom | dist | installed`.
//!
//! The commands check the rules that a reviewer would otherwise have to remember. xtask uses no code of ours, so
//! that it still runs when they do not compile. Each command is a file or a folder with its tests at the foot.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool speaks to its user"
)]

mod arrows;
mod bench;
mod build_plan;
mod cache;
mod cuda;
mod dist;
mod features;
mod fleets;
mod fuzz;
mod installed;
mod sbom;
mod test;
mod tidy;
mod tool;
mod uv;
mod wasm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "The repository's own commands"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check that a crate uses only what its folder may use (the rules are in xtask/src/arrows/table.rs)
    Arrows,
    /// Check that third-party crates have the same features in every build, so that each is compiled once
    Features,
    /// Check sizes, names, sentences, the purposes of crates, the wire hash, error pages, ADR numbers, forbidden words
    Tidy {
        /// Rewrite the wire hash in docs/protocol.md and the table of crates in docs/architecture.md
        #[arg(long)]
        fix: bool,
    },
    /// Run every check and every test, with the services they need
    Test(test::Options),
    /// Run the proofs that are too long for every run: long tests, many schedules, many inputs, fuzzing
    Soak(test::soak::Options),
    /// Run both commands of the README from an empty target folder, and print their cost and its ratio
    Budget(test::budget::Options),
    /// Measure, and write the tables of bench/results and docs/performance.md; without a name, list the benches
    Bench {
        /// Programs below bench/src/bin/, or `all`
        names: Vec<String>,
    },
    /// Start a real Kubernetes with three nodes on this machine, and run the tests of its engine against it
    Fleets(fleets::Options),
    /// Fuzz every parser of peers' and users' bytes with libFuzzer
    Fuzz(fuzz::Options),
    /// Compile the CUDA prover's kernels to the PTX that is committed, and report their registers
    Ptx,
    /// Make a libcuda without a device, which the CUDA prover is linked with, and print its folder
    Libcuda,
    /// Compile the module that checks proofs in a page, which is committed
    Wasm,
    /// Write a bill of materials (CycloneDX) for each program below target/sbom, and hold it against its lockfile
    Sbom,
    /// Make a release: archive, Debian packages, images of containers, bills of materials, checksums
    Dist(dist::Options),
    /// Try the packages of a release in a bare Debian: install, use, upgrade, go back, remove
    Installed(installed::Options),
}

fn main() -> ExitCode {
    match dispatch(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::load()?;
    match command {
        Command::Arrows => arrows::run(&workspace),
        Command::Features => features::run(&workspace),
        Command::Tidy { fix } => tidy::run(&workspace, fix),
        Command::Test(options) => test::run(workspace, &options),
        Command::Soak(options) => test::soak::run(workspace, &options),
        Command::Budget(options) => test::budget::run(&workspace, &options),
        Command::Bench { names } => bench::run(&workspace, &names),
        Command::Fleets(options) => fleets::run(&workspace, &options),
        Command::Fuzz(options) => fuzz::run(&workspace, &options),
        Command::Ptx => cuda::ptx(&workspace),
        Command::Libcuda => cuda::print_stand_in(&workspace),
        Command::Wasm => wasm::run(&workspace),
        Command::Sbom => sbom::run(&workspace),
        Command::Dist(options) => dist::run(&workspace, &options),
        Command::Installed(options) => installed::run(&workspace, &options),
    }
}

/// The exit code of a check.
fn exit_code(passed: bool) -> ExitCode {
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The patience of all tests of Muster (tests/testbed/src/wait.rs): this program uses none of our crates.
#[cfg(test)]
fn test_patience() -> std::time::Duration {
    let seconds = std::env::var("MUSTER_TEST_PATIENCE");
    std::time::Duration::from_secs(seconds.map_or(240, |seconds| seconds.parse().unwrap()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Arguments;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_names_every_command() {
        let help = Arguments::command().render_help().to_string();
        for name in [
            "arrows",
            "features",
            "tidy",
            "test",
            "soak",
            "budget",
            "bench",
            "fleets",
            "fuzz",
            "ptx",
            "libcuda",
            "wasm",
            "sbom",
            "dist",
            "installed",
            "help",
        ] {
            assert!(help.contains(name), "{name} is missing from:\n{help}");
        }
    }
}
