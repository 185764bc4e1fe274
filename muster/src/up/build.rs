//! The two programs that `up` needs beside itself: the local chain and the demo image's program.
//!
//! From a checkout, cargo builds them (and finds them built the next time). An installed `muster` has them beside itself.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use muster_protocol::ErrorCode;
use tokio::process::Command;

use crate::failure::{Failure, Result};
use crate::print;

const CHAIN: &str = "muster-devchain";
const HELLO: &str = "hello";
const HELLO_PACKAGE: &str = "muster-image-hello";
/// Linked statically, so that the image needs nothing but the program.
const STATIC_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Paths of the programs.
pub(crate) struct Programs {
    pub(crate) chain: PathBuf,
    pub(crate) hello: PathBuf,
}

/// Finds or builds them.
pub(crate) async fn programs() -> Result<Programs> {
    build()
        .await
        .map_err(|error| Failure::new(ErrorCode::BuildFailed, error))
}

async fn build() -> anyhow::Result<Programs> {
    let here = std::env::current_exe().context("cannot find out where muster lies")?;
    let beside = |name: &str| here.with_file_name(name);
    if beside(CHAIN).exists() && beside(HELLO).exists() {
        return Ok(Programs {
            chain: beside(CHAIN),
            hello: beside(HELLO),
        });
    }
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("no checkout")?;
    if !checkout.join("devchain/Cargo.toml").exists() {
        bail!(
            "neither {CHAIN} and {HELLO} beside {} nor the checkout {} is there",
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
    cargo(
        "the local chain",
        checkout,
        &chain_target,
        &["--manifest-path", "devchain/Cargo.toml", "--bin", CHAIN],
        None,
    )
    .await?;
    let flags = Some("-C target-feature=+crt-static");
    cargo(
        "the demo image",
        checkout,
        &static_target,
        &["-p", HELLO_PACKAGE, "--target", STATIC_TARGET],
        flags,
    )
    .await?;
    Ok(Programs {
        chain: chain_target.join("debug").join(CHAIN),
        hello: static_target.join(STATIC_TARGET).join("debug").join(HELLO),
    })
}

/// One build; its output appears only if there is something to do or something wrong.
async fn cargo(
    what: &str,
    checkout: &Path,
    target: &Path,
    args: &[&str],
    rustflags: Option<&str>,
) -> anyhow::Result<()> {
    print::problem(format_args!("building {what} (the first time takes minutes)"));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .arg("build")
        .arg("--quiet")
        .args(args)
        .arg("--target-dir")
        .arg(target)
        .current_dir(checkout);
    // What the cargo that runs us says of itself must not leak into another build: it would begin from nothing.
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_another_build(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    if let Some(flags) = rustflags {
        command.env("RUSTFLAGS", flags);
    }
    // Progress belongs beside the result, which may be JSON.
    command
        .stdout(std::process::Stdio::null())
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let status = command
        .status()
        .await
        .context("cannot run cargo; install Rust from the distribution or with rustup")?;
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
