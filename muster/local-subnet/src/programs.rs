//! The programs that `up` needs beside itself: the local chain and those of the images.
//!
//! An installed `muster` has them beside itself. A `muster` in the target folder of its checkout has cargo build them
//! (and finds them built the next time). Any other `muster` reports where it looks.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use muster_process::SharedClock;
use muster_protocol::ErrorCode;

use muster_terminal::failure::{Failure, Result};

use crate::cargo_build::{cargo, finish};

const CHAIN: &str = "muster-devchain";
const HELLO: &str = "hello";
const HELLO_PACKAGE: &str = "muster-image-hello";
const GRADER: &str = "muster-grader";
const GRADER_PACKAGE: &str = "muster-image-grader";
/// Example programs of the grader's package, for the demonstration only.
const CHEATING_GRADER: &str = "cheating_grader";
const SWAPPING_ENGINE: &str = "swapping_engine";
/// The language model engine, and its example program that cheats.
const ENGINE: &str = "muster-llm";
const CHEATING_ENGINE: &str = "cheating_llm";
/// The files by which cargo marks a target folder. It writes the first one only into a folder that it has made itself.
const TARGET_MARKS: [&str; 2] = ["CACHEDIR.TAG", ".rustc_info.json"];

/// A demonstration of `muster up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Demonstration {
    /// A job, a graded batch with a cheat, a chat, a weight on the chain.
    Subnet,
    /// A model that one miner serves honestly and the other one with cheaper weights, and the spot checks that find
    /// the difference.
    Audits,
}

/// Paths of the programs.
pub struct Programs {
    /// The local chain.
    pub chain: PathBuf,
    /// The program of the demo image.
    pub hello: PathBuf,
    /// The program of the grader's image.
    pub grader: PathBuf,
    /// Only for a demonstration.
    pub cheat: Option<CheatPrograms>,
    /// Only for the demonstration of spot checks.
    pub model: Option<ModelPrograms>,
}

/// Paths of the language model engines for the demonstration of spot checks.
pub struct ModelPrograms {
    /// The whitelisted engine, which chooses by the seed of its request.
    pub engine: PathBuf,
    /// The engine that answers with cheaper weights.
    pub cheating_engine: PathBuf,
    /// The folder of the model.
    pub folder: PathBuf,
    /// The calibration: margins of honest machines and of cheaper engines of the model.
    pub calibration: PathBuf,
}

/// Paths of the programs with which an executor of the demonstration cheats.
pub struct CheatPrograms {
    /// A grader that does an eighth of the work.
    pub grader: PathBuf,
    /// A Docker engine that runs one image for another.
    pub engine: PathBuf,
}

/// Finds or builds them.
pub async fn find_or_build(demo: Option<Demonstration>, clock: &SharedClock) -> Result<Programs> {
    let found = async {
        let here = std::env::current_exe().context("cannot find out where muster lies")?;
        // The model lies in the checkout.
        let is_audits = demo == Some(Demonstration::Audits);
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .context("no checkout")?;
        // Beside a `muster` in its target folder lie programs of the same names that are not linked statically.
        let target = match target_folder(&here, checkout, demo.is_some()) {
            Ok(target) => target,
            Err(error) => {
                let installed = find_beside(&here, demo.is_some()).filter(|_| !is_audits);
                return installed.ok_or(error);
            }
        };
        let mut programs = build(checkout, &target, demo.is_some(), clock).await?;
        if is_audits {
            programs.model = Some(build_model(checkout, &target, clock).await?);
        }
        Ok(programs)
    };
    found
        .await
        .map_err(|error: anyhow::Error| Failure::new(ErrorCode::BuildFailed, error))
}

fn needed(demo: bool) -> Vec<&'static str> {
    let cheat = [CHEATING_GRADER, SWAPPING_ENGINE].into_iter().filter(|_| demo);
    [CHAIN, HELLO, GRADER].into_iter().chain(cheat).collect()
}

/// The programs in the folder of `muster` itself, if all of them are there.
fn find_beside(muster: &Path, demo: bool) -> Option<Programs> {
    let beside = |name: &str| muster.with_file_name(name);
    needed(demo)
        .iter()
        .all(|name| beside(name).exists())
        .then(|| Programs {
            chain: beside(CHAIN),
            hello: beside(HELLO),
            grader: beside(GRADER),
            cheat: demo.then(|| CheatPrograms {
                grader: beside(CHEATING_GRADER),
                engine: beside(SWAPPING_ENGINE),
            }),
            model: None,
        })
}

/// The target folder into which the programs are built: two folders above `muster`, as `target/debug/muster` lies.
///
/// # Errors
/// `muster` was copied out of a target folder, or its checkout is gone. The error lists where the programs were
/// looked for.
fn target_folder(muster: &Path, checkout: &Path, demo: bool) -> anyhow::Result<PathBuf> {
    let target = muster.parent().and_then(Path::parent);
    let is_target = |folder: &&Path| TARGET_MARKS.iter().any(|mark| folder.join(mark).exists());
    match target.filter(is_target) {
        Some(target) if checkout.join("devchain/Cargo.toml").exists() => Ok(target.to_owned()),
        Some(_) | None => bail!(
            "`muster up` needs the programs {}. They are not in {}, and {} is no build of the checkout {} that could \
             build them. Run `cargo run -- up` in a checkout, or copy the programs there (`target/debug` and \
             `target/*-linux-gnu/debug` hold them after `cargo run -- up --demo`).",
            needed(demo).join(", "),
            muster.parent().unwrap_or(muster).display(),
            muster.display(),
            checkout.display()
        ),
    }
}

async fn build(checkout: &Path, target: &Path, demo: bool, clock: &SharedClock) -> anyhow::Result<Programs> {
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);

    // One target folder for all: cargo compiles a third-party crate once that several of them use in the same way.
    let mut chain = cargo(checkout, target);
    chain.args(["--manifest-path", "devchain/Cargo.toml", "--bin", CHAIN]);
    finish(chain, "the local chain", clock).await?;

    let mut images = cargo(checkout, target);
    // Linked statically, so that the image needs nothing but the program. The target is named so that the flags reach
    // the program and not the build scripts of this machine.
    images
        .args(["--package", HELLO_PACKAGE, "--package", GRADER_PACKAGE])
        .args(["--target", &machine, "--bins"])
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    if demo {
        images.args(["--example", CHEATING_GRADER, "--example", SWAPPING_ENGINE]);
    }
    finish(images, "the programs of the images", clock).await?;

    let built = target.join(machine).join("debug");
    Ok(Programs {
        chain: target.join("debug").join(CHAIN),
        hello: built.join(HELLO),
        grader: built.join(GRADER),
        cheat: demo.then(|| CheatPrograms {
            grader: built.join("examples").join(CHEATING_GRADER),
            engine: built.join("examples").join(SWAPPING_ENGINE),
        }),
        model: None,
    })
}

async fn build_model(checkout: &Path, target: &Path, clock: &SharedClock) -> anyhow::Result<ModelPrograms> {
    let folder = checkout.join("images/llm/model");
    let calibration = checkout.join("tests/vectors/audit-calibration.json");
    ensure!(
        folder.is_dir() && calibration.is_file(),
        "`muster up --demo audits` needs the model and the calibration of a checkout: {} has none",
        checkout.display()
    );
    let llm_target = target.join("llm");
    // The workspace names its machine, and links statically, by itself.
    let mut engines = cargo(&checkout.join("images/llm"), &llm_target);
    // Without optimisation an answer takes a hundred times as long.
    engines.args(["--release", "--bin", ENGINE, "--example", CHEATING_ENGINE]);
    finish(engines, "the language model engine", clock).await?;
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = llm_target.join(machine).join("release");
    Ok(ModelPrograms {
        engine: built.join(ENGINE),
        cheating_engine: built.join("examples").join(CHEATING_ENGINE),
        folder,
        calibration,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_muster_builds_nothing_and_says_where_it_looked() {
        let folder = tempfile::tempdir().unwrap();
        let (bin, checkout) = (folder.path().join("usr/bin"), folder.path().join("checkout"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(checkout.join("devchain")).unwrap();
        std::fs::write(checkout.join("devchain/Cargo.toml"), "").unwrap();
        let muster = bin.join("muster");
        let error = target_folder(&muster, &checkout, true).unwrap_err().to_string();
        for word in [CHAIN, HELLO, GRADER, SWAPPING_ENGINE, &bin.display().to_string()] {
            assert!(error.contains(word), "{word} is missing from {error}");
        }
        for mark in TARGET_MARKS {
            let mark = folder.path().join("usr").join(mark);
            std::fs::write(&mark, "").unwrap();
            let found = target_folder(&muster, &checkout, true).unwrap();
            assert_eq!(found, folder.path().join("usr"));
            std::fs::remove_file(mark).unwrap();
        }
    }

    #[test]
    fn installed_programs_are_taken_only_if_all_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let muster = folder.path().join("muster");
        for name in needed(false) {
            assert!(find_beside(&muster, false).is_none());
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert!(find_beside(&muster, false).is_some());
        assert!(find_beside(&muster, true).is_none());
    }
}
