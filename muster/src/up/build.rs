//! The programs that `up` needs beside itself: the local chain and those of the images.
//!
//! From a checkout, cargo builds them (and finds them built the next time). An installed `muster` has them beside
//! itself.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use muster_process::SharedClock;
use muster_protocol::ErrorCode;
use tokio::process::Command;

use crate::failure::{Failure, Result};
use crate::print;

const CHAIN: &str = "muster-devchain";
const HELLO: &str = "hello";
const HELLO_PACKAGE: &str = "muster-image-hello";
const GRADER: &str = "muster-grader";
const GRADER_PACKAGE: &str = "muster-image-grader";
/// Example programs of the grader's package, for the demonstration only.
const CHEATING_GRADER: &str = "cheating_grader";
const SWAPPING_ENGINE: &str = "swapping_engine";
/// A build that takes longer than this has something to do, or waits for another one; people want to know.
const SILENCE: Duration = Duration::from_secs(2);

/// Paths of the programs.
pub(crate) struct Programs {
    pub(crate) chain: PathBuf,
    pub(crate) hello: PathBuf,
    pub(crate) grader: PathBuf,
    /// Only for the demonstration.
    pub(crate) cheat: Option<CheatPrograms>,
}

/// Paths of the programs with which an executor of the demonstration cheats.
pub(crate) struct CheatPrograms {
    /// A grader that does an eighth of the work.
    pub(crate) grader: PathBuf,
    /// A Docker engine that runs one image for another.
    pub(crate) engine: PathBuf,
}

/// Finds or builds them.
pub(crate) async fn programs(demo: bool, clock: &SharedClock) -> Result<Programs> {
    build(demo, clock)
        .await
        .map_err(|error| Failure::new(ErrorCode::BuildFailed, error))
}

async fn build(demo: bool, clock: &SharedClock) -> anyhow::Result<Programs> {
    let here = std::env::current_exe().context("cannot find out where muster lies")?;
    let beside = |name: &str| here.with_file_name(name);
    let needed = [CHAIN, HELLO, GRADER]
        .into_iter()
        .chain([CHEATING_GRADER, SWAPPING_ENGINE].into_iter().filter(|_| demo))
        .collect::<Vec<_>>();
    if needed.iter().all(|name| beside(name).exists()) {
        return Ok(Programs {
            chain: beside(CHAIN),
            hello: beside(HELLO),
            grader: beside(GRADER),
            cheat: demo.then(|| CheatPrograms {
                grader: beside(CHEATING_GRADER),
                engine: beside(SWAPPING_ENGINE),
            }),
        });
    }
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("no checkout")?;
    if !checkout.join("devchain/Cargo.toml").exists() {
        bail!(
            "neither the programs {} beside {} nor the checkout {} is there",
            needed.join(", "),
            here.display(),
            checkout.display()
        );
    }
    // `target/debug/muster` lies two folders below the target folder that this build came from.
    let target = here
        .parent()
        .and_then(Path::parent)
        .context("muster lies outside a target folder")?;
    let chain_target =
        std::env::var_os("MUSTER_DEVCHAIN_TARGET_DIR").map_or_else(|| target.join("devchain"), PathBuf::from);
    let static_target = target.join("static");
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);

    let mut chain = cargo(checkout, &chain_target);
    chain.args(["--manifest-path", "devchain/Cargo.toml", "--bin", CHAIN]);
    finish(chain, "the local chain", clock).await?;

    let mut hello = cargo(checkout, &static_target);
    // Linked statically, so that the image needs nothing but the program. The target is named so that the flags reach
    // the program and not the build scripts of this machine.
    hello
        .args(["--package", HELLO_PACKAGE, "--package", GRADER_PACKAGE])
        .args(["--target", &machine, "--bins"])
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    if demo {
        hello.args(["--example", CHEATING_GRADER, "--example", SWAPPING_ENGINE]);
    }
    finish(hello, "the programs of the images", clock).await?;

    let built = static_target.join(machine).join("debug");
    Ok(Programs {
        chain: chain_target.join("debug").join(CHAIN),
        hello: built.join(HELLO),
        grader: built.join(GRADER),
        cheat: demo.then(|| CheatPrograms {
            grader: built.join("examples").join(CHEATING_GRADER),
            engine: built.join("examples").join(SWAPPING_ENGINE),
        }),
    })
}

/// A build into `target`, as if nobody's build had started us.
fn cargo(checkout: &Path, target: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["build", "--quiet", "--target-dir"])
        .arg(target)
        .current_dir(checkout);
    // The variables of the cargo that runs us must not leak into another build: it would begin from nothing.
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_another_build(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    // Our stdout is for the result, which may be JSON.
    command
        .stdout(Stdio::null())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Waits for a build; says so if it takes long.
async fn finish(mut command: Command, what: &str, clock: &SharedClock) -> anyhow::Result<()> {
    const MISSING: &str = "cannot run cargo; install Rust from the distribution or with rustup";
    let mut build = command.spawn().context(MISSING)?;
    let status = tokio::select! {
        status = build.wait() => status?,
        () = clock.sleep(SILENCE) => {
            print::problem(format_args!("building {what}, or waiting for another build; the first time takes minutes"));
            build.wait().await?
        }
    };
    if !status.success() {
        bail!("cargo could not build {what} ({status})");
    }
    Ok(())
}

fn of_another_build(variable: &str) -> bool {
    const PREFIXES: [&str; 5] = [
        "CARGO_PKG_",
        "CARGO_MANIFEST",
        "CARGO_PRIMARY",
        "CARGO_CRATE",
        "CARGO_BIN",
    ];
    ["CARGO_TARGET_DIR", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"].contains(&variable)
        || PREFIXES.iter().any(|prefix| variable.starts_with(prefix))
}
