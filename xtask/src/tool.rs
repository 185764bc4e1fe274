//! Programs of the cargo ecosystem that a command needs: each compiled once, without optimisation, into the user's
//! cache.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};

use crate::{cache, workspace::Workspace};

/// The program `name` of the crate of the same name, in this version; `say` is told before it is compiled.
///
/// # Errors
/// The program does not compile, or there is no place to keep it.
pub(crate) fn install(
    workspace: &Workspace,
    name: &str,
    version: &str,
    say: impl FnOnce(&str),
) -> anyhow::Result<PathBuf> {
    let folder = cache::make_once("tools", &format!("{name}-{version}"), |folder| {
        say(&format!("cargo install {name} {version}"));
        let mut cargo = workspace.cargo();
        cargo
            .args([
                "install",
                "--quiet",
                "--locked",
                "--debug",
                "--no-default-features",
                name,
                "--version",
                version,
                "--root",
            ])
            .arg(folder)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env_remove("CARGO_TARGET_DIR");
        quietly(&mut cargo).map(drop)
    });
    let folder = folder.with_context(|| format!("install {name} {version}"))?;
    Ok(folder.join("bin").join(name))
}

/// Runs a command quietly and returns its output, which is in the error if it fails.
pub(crate) fn quietly(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {name}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{name} ended with {}:\n{stdout}{stderr}",
        output.status
    );
    Ok(stdout)
}
