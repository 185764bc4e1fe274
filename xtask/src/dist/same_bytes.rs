//! Whether a commit gives the same program in two folders.

use std::{fs, path::Path};

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::programs::build_small_program;
use crate::{tool::check_out, workspace::Workspace};

/// Builds one small program of the newest commit in two folders, and returns the digests of both.
pub(crate) fn build_twice(workspace: &Workspace) -> anyhow::Result<[String; 2]> {
    let (first, second) = (temporary("a")?, temporary("another-name")?);
    Ok([
        digest(workspace, first.path())?,
        digest(workspace, second.path())?,
    ])
}

fn temporary(name: &str) -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix(name).tempdir();
    folder.context("make a folder for a checkout")
}

fn digest(workspace: &Workspace, folder: &Path) -> anyhow::Result<String> {
    check_out(workspace.root(), "HEAD", folder)?;
    let program = build_small_program(workspace, folder)?;
    let bytes = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
    Ok(hex::encode(Sha256::digest(bytes)))
}
