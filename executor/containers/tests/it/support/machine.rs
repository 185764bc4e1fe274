//! The machine under the tests: its engine, its programs, and static programs of this checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use muster_containers::ContainerEngine;

/// The engine of this machine.
///
/// # Panics
/// None answers: a test that could not run did not pass.
pub(crate) async fn engine() -> ContainerEngine {
    match ContainerEngine::connect("").await {
        Ok(engine) => engine,
        Err(error) => panic!("this test needs a Docker engine, which `cargo xtask test` installs: {error}"),
    }
}

/// Polls until `ready` returns true.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut ready: impl FnMut() -> F) {
    muster_testbed::until(what, async || ready().await.then_some(())).await;
}

/// Fails the test unless a program of Debian is installed.
pub(crate) fn require(program: &str) {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|folder| folder.join(program).is_file())
    });
    assert!(
        found,
        "this test needs {program}, which `cargo xtask test` installs"
    );
}

/// Builds a static program of this checkout. Only the first call takes time, because cargo finds the program built
/// afterwards.
pub(crate) fn build_static(package: &str, binary: &str) -> anyhow::Result<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .context("no target folder")?;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "-p",
            package,
            "--target",
            &triple,
            "--target-dir",
        ])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()?;
    ensure!(status.success(), "{package} does not build");
    Ok(target.join(triple).join("debug").join(binary))
}
