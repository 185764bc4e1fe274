//! The wheel of the package for Python.

use std::path::Path;

use anyhow::{Context, ensure};

use super::{
    tree::{install, write},
    version::Version,
};
use crate::{
    tool::{git_files, quietly},
    uv::{installer, uv},
};

/// The package's folder in the checkout.
const PACKAGE: &str = "clients/python";

/// Builds `muster_client-VERSION-py3-none-any.whl`. Its build tool comes from the package index.
pub(super) fn make(checkout: &Path, version: &Version, into: &Path) -> anyhow::Result<()> {
    let staged = tempfile::tempdir().context("make a folder for the package for Python")?;
    for file in git_files(checkout, &[PACKAGE])? {
        let inside = file.strip_prefix(PACKAGE).unwrap_or(&file);
        install(&checkout.join(&file), &staged.path().join(inside), 0o644)?;
    }
    for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
        install(&checkout.join(license), &staged.path().join(license), 0o644)?;
    }
    let project = staged.path().join("pyproject.toml");
    let text = std::fs::read_to_string(&project).context("read the package's pyproject.toml")?;
    write(&project, versioned(&text, version)?.as_bytes())?;
    // One commit gives the same bytes: the build tool takes the time of its entries from this variable.
    quietly(
        uv(&installer()?, "build")
            .args(["--wheel", "--no-create-gitignore", "--out-dir"])
            .arg(into)
            .arg(staged.path())
            .env("SOURCE_DATE_EPOCH", version.epoch.to_string()),
    )
    .map(drop)
}

/// The project file with the release's version in the place of the workspace's.
fn versioned(project: &str, version: &Version) -> anyhow::Result<String> {
    let before = format!("\nversion = \"{}\"\n", version.release);
    ensure!(
        project.contains(&before),
        "{PACKAGE}/pyproject.toml has another version than the workspace, {}",
        version.release
    );
    Ok(project.replacen(&before, &format!("\nversion = \"{}\"\n", version.python()), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_has_the_version_of_the_workspace() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let version = Version::of(checkout).unwrap();
        let project = std::fs::read_to_string(checkout.join(PACKAGE).join("pyproject.toml")).unwrap();
        let versioned = versioned(&project, &version).unwrap();
        assert!(versioned.contains(&version.python()));
    }
}
