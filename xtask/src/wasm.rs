//! The module that checks proofs in a page: compiled of `muster-proof-module`, and committed, so that no build needs
//! the target of browsers.

use std::fs;
use std::process::{Command, ExitCode};

use crate::tidy::proof_module;
use crate::workspace::Workspace;
use anyhow::{Context, ensure};

/// The module, as pages load it.
pub(crate) const MODULE: &str = "crates/users/page-layout/assets/proof.wasm";
/// The sources that the module was made of, each with its digest.
pub(crate) const SOURCES_DIGEST: &str = "crates/users/page-layout/assets/proof.wasm.sources";
/// The crate of the module.
pub(crate) const PACKAGE: &str = "muster-proof-module";
const TARGET: &str = "wasm32-unknown-unknown";
/// Pages load the module with the first proof, over slow lines too.
const MOST_BYTES: usize = 512 * 1024;

/// `cargo xtask wasm`: compiles the module.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let (root, target) = (workspace.root(), workspace.target().join("wasm"));
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))?;
    // The module draws nothing at random, and names no folder of this machine.
    let flags = [
        "--cfg".to_owned(),
        "getrandom_backend=\"unsupported\"".to_owned(),
        format!("--remap-path-prefix={home}=cargo"),
        format!("--remap-path-prefix={}=muster", root.display()),
    ];
    let status = Command::new("cargo")
        .args([
            "build",
            "--locked",
            "--profile",
            "wasm",
            "--target",
            TARGET,
            "--package",
            PACKAGE,
        ])
        .current_dir(root)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .status()
        .context("start cargo")?;
    ensure!(
        status.success(),
        "the module does not compile; without its target: rustup target add {TARGET}"
    );
    let made = fs::read(target.join(TARGET).join("wasm/muster_proof_module.wasm"))?;
    ensure!(
        made.len() <= MOST_BYTES,
        "the module has {} bytes, and {MOST_BYTES} are the most",
        made.len()
    );
    fs::write(root.join(MODULE), &made).context("write the module")?;
    let sources = proof_module::read_sources(root)?;
    fs::write(root.join(SOURCES_DIGEST), sources).context("write the list of sources")?;
    println!("wrote {MODULE}, {} bytes", made.len());
    Ok(ExitCode::SUCCESS)
}
