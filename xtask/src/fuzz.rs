//! `cargo xtask fuzz`: coverage-guided fuzzing of every parser with libFuzzer. The stable compiler is enough: the
//! counters are LLVM's own pass, and nothing is sanitised, because the parsers hold no unsafe code.
//!
//! The inputs that reached new code are kept below the target folder, so that the next run goes on from there.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, bail, ensure};
use clap::Args;

use crate::workspace::Workspace;

/// The variable by which the fuzzing program learns its parser.
const TARGET: &str = "MUSTER_FUZZ_TARGET";

/// Counters in each branch and comparison, and the checks that only development builds have.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions=on -Coverflow-checks=on";

/// Golden frames, as first inputs of the parsers of messages.
const VECTORS: [&str; 2] = ["tests/vectors/wire.json", "tests/vectors/python.json"];

#[derive(Args)]
pub(crate) struct Options {
    /// Seconds for each parser
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Parsers; all of them if none is named
    names: Vec<String>,
}

/// Fuzzes one parser after the other; fails if an input breaks one.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let program = build(workspace)?;
    let all = list(&program)?;
    if let Some(unknown) = options.names.iter().find(|name| !all.contains(name)) {
        bail!("there is no parser {unknown}; there are: {}", all.join(", "));
    }
    let chosen: Vec<&String> = all
        .iter()
        .filter(|name| options.names.is_empty() || options.names.contains(name))
        .collect();
    let mut broken = Vec::new();
    for name in &chosen {
        let folder = workspace.target().join("fuzz/runs").join(name);
        let (summary, held) = fuzz_one(workspace, &program, name, &folder, options.seconds)?;
        println!("{name:<22} {summary}");
        if !held {
            broken.push(name.as_str());
        }
    }
    println!(
        "fuzz: {} parsers, {} s each, {} broken{}",
        chosen.len(),
        options.seconds,
        broken.len(),
        if broken.is_empty() {
            String::new()
        } else {
            format!(": {}", broken.join(", "))
        }
    );
    Ok(crate::exit_code(broken.is_empty()))
}

fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let (target, machine) = (
        workspace.target().join("fuzz"),
        format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
    );
    // The machine is named so that build scripts and macros are compiled without the counters.
    let mut cargo = workspace.cargo();
    cargo
        .args([
            "build",
            "--locked",
            "--profile",
            "fuzz",
            "--package",
            "muster-fuzz",
        ])
        .args(["--features", "libfuzzer", "--bin", "parsers"])
        .args(["--target", &machine])
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", FLAGS);
    ensure!(
        cargo.status()?.success(),
        "the parsers do not compile for libFuzzer (it needs g++)"
    );
    Ok(target.join(machine).join("fuzz/parsers"))
}

/// The names of all parsers.
fn list(program: &Path) -> anyhow::Result<Vec<String>> {
    // The program ends within its first input, which libFuzzer takes for a crash and keeps in the current folder.
    let printed = Command::new(program)
        .env_remove(TARGET)
        .current_dir(program.parent().context("the fuzzing program has no folder")?)
        .output()
        .context("list the parsers")?;
    let names: Vec<String> = String::from_utf8(printed.stdout)?
        .lines()
        .map(str::to_owned)
        .collect();
    ensure!(!names.is_empty(), "the fuzzing program names no parser");
    Ok(names)
}

/// Runs one parser; the last figures of libFuzzer, and whether every input was taken or refused.
fn fuzz_one(
    workspace: &Workspace,
    program: &Path,
    name: &str,
    folder: &Path,
    seconds: u32,
) -> anyhow::Result<(String, bool)> {
    let (corpus, broken) = (folder.join("inputs"), folder.join("broken"));
    for folder in [&corpus, &broken] {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    write_seeds(workspace.root(), &corpus)?;
    let ran = Command::new(program)
        .env(TARGET, name)
        .arg(format!("-max_total_time={seconds}"))
        .args([
            "-max_len=65536",
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
        ])
        .arg(format!("-artifact_prefix={}/", broken.display()))
        .arg(&corpus)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {}", program.display()))?;
    let printed = String::from_utf8_lossy(&ran.stderr);
    if ran.status.success() {
        return Ok((figures(&printed), true));
    }
    println!("{printed}");
    Ok((format!("BROKEN: the input lies in {}", broken.display()), false))
}

fn write_seeds(root: &Path, corpus: &Path) -> anyhow::Result<()> {
    for file in VECTORS {
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("read {file}"))?;
        let vectors: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text)?;
        for (name, vector) in &vectors {
            if let Some(frame) = vector.as_str() {
                fs::write(corpus.join(format!("golden-{}", name.replace('/', "-"))), frame)?;
            }
        }
    }
    Ok(())
}

/// The runs and the coverage of `#1234 DONE cov: 56 ft: 78 …`.
fn figures(printed: &str) -> String {
    let line = printed
        .lines()
        .rfind(|line| line.contains("DONE"))
        .unwrap_or_default();
    let mut words = line.split_whitespace();
    let runs = words.next().unwrap_or("#0").trim_start_matches('#').to_owned();
    let coverage = words.skip_while(|word| *word != "cov:").nth(1).unwrap_or("0");
    format!("{runs} inputs, {coverage} branches")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libfuzzers_last_line_becomes_figures() {
        let printed =
            "INFO: Seed: 1\n#2\tINITED cov: 3 ft: 3\n#1048\tDONE   cov: 57 ft: 80 corp: 9\nstat::x: 1\n";
        assert_eq!(figures(printed), "1048 inputs, 57 branches");
        assert_eq!(figures(""), "0 inputs, 0 branches");
    }
}
