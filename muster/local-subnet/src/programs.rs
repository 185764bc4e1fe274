//! The programs that `up` needs beside itself: the local chain and those of the images.
//!
//! An installed `muster` came with them. A `muster` in the target folder of a checkout has cargo build them (and finds
//! them built the next time). Any other `muster` reports where it looks.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use muster_process::{SharedClock, companion};
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
/// The file by which a checkout is known.
const CHECKOUT_MARK: &str = "devchain/Cargo.toml";
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
        // Beside a `muster` in its target folder lie programs of the same names that are not linked statically.
        let (target, checkout) = match target_folder(&here, find_checkout(&here), demo.is_some()) {
            Ok(found) => found,
            Err(error) => {
                let installed = find_installed(&here, demo.is_some());
                ensure!(
                    !is_audits || installed.is_none(),
                    "`muster up --demo audits` builds a language model engine, which is not installed: run `cargo run -- \
                     up --demo audits` in a checkout"
                );
                return installed.ok_or(error);
            }
        };
        let mut programs = build(&checkout, &target, demo.is_some(), clock).await?;
        if is_audits {
            programs.model = Some(build_model(&checkout, &target, clock).await?);
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

/// The programs that came with `muster`, if all of them are there.
fn find_installed(muster: &Path, demo: bool) -> Option<Programs> {
    let installed = |name: &str| companion::find_for(muster, name);
    let cheat = if demo {
        Some(CheatPrograms {
            grader: installed(CHEATING_GRADER)?,
            engine: installed(SWAPPING_ENGINE)?,
        })
    } else {
        None
    };
    Some(Programs {
        chain: installed(CHAIN)?,
        hello: installed(HELLO)?,
        grader: installed(GRADER)?,
        cheat,
        model: None,
    })
}

/// The checkout that `muster` can build from: the one that cargo runs it for, or the one that it lies in. No path is
/// compiled in, so that two builds of a commit are equal wherever they are made.
#[must_use]
pub fn find_checkout(muster: &Path) -> Option<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let is_checkout = |folder: &&Path| folder.join(CHECKOUT_MARK).exists();
    let around = |path: &Path| path.ancestors().find(is_checkout).map(Path::to_owned);
    manifest.as_deref().and_then(around).or_else(|| around(muster))
}

/// The target folder into which the programs are built (two folders above `muster`, as `target/debug/muster` lies), and
/// the checkout.
///
/// # Errors
/// `muster` was copied out of a target folder, or there is no checkout. The error lists where the programs were
/// looked for.
fn target_folder(muster: &Path, checkout: Option<PathBuf>, demo: bool) -> anyhow::Result<(PathBuf, PathBuf)> {
    let target = muster.parent().and_then(Path::parent);
    let is_target = |folder: &&Path| TARGET_MARKS.iter().any(|mark| folder.join(mark).exists());
    match (target.filter(is_target), checkout) {
        (Some(target), Some(checkout)) => Ok((target.to_owned(), checkout)),
        (Some(_) | None, Some(_) | None) => bail!(
            "`muster up` needs the programs {}. They are neither in {} nor in ../libexec/muster beside it, and {} is no \
             build of a checkout that could build them. Install the package `muster`, or run `cargo run -- up` in a \
             checkout.",
            needed(demo).join(", "),
            muster.parent().unwrap_or(muster).display(),
            muster.display(),
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
        let checkout = Some(checkout);
        let error = target_folder(&muster, checkout.clone(), true)
            .unwrap_err()
            .to_string();
        for word in [CHAIN, HELLO, GRADER, SWAPPING_ENGINE, &bin.display().to_string()] {
            assert!(error.contains(word), "{word} is missing from {error}");
        }
        for mark in TARGET_MARKS {
            let mark = folder.path().join("usr").join(mark);
            std::fs::write(&mark, "").unwrap();
            let (found, _) = target_folder(&muster, checkout.clone(), true).unwrap();
            assert_eq!(found, folder.path().join("usr"));
            assert!(
                target_folder(&muster, None, true).is_err(),
                "the checkout is gone"
            );
            std::fs::remove_file(mark).unwrap();
        }
    }

    #[test]
    fn installed_programs_are_taken_only_if_all_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let (bin, libexec) = (folder.path().join("bin"), folder.path().join("libexec/muster"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&libexec).unwrap();
        let muster = bin.join("muster");
        for name in needed(false) {
            assert!(find_installed(&muster, false).is_none());
            std::fs::write(libexec.join(name), "").unwrap();
        }
        assert!(find_installed(&muster, false).is_some());
        assert!(find_installed(&muster, true).is_none());
    }
}
