//! The archive for machines without Debian's packages.

use std::{path::Path, process::Command};

use anyhow::Context;

use super::{tree::Tree, version::Version};
use crate::tool::quietly;

/// Packs the tree into `muster-VERSION-PROCESSOR-linux.tar.gz`, whose one folder has the same name.
pub(super) fn make(tree: &Tree, version: &Version, into: &Path) -> anyhow::Result<()> {
    let name = format!("muster-{version}-{}-linux", std::env::consts::ARCH);
    let tar = tempfile::NamedTempFile::new().context("make a file for the archive")?;
    // Names in order, one time and no owner: two runs give the same bytes.
    quietly(
        Command::new("tar")
            .args(["--create", "--format=gnu", "--sort=name", "--numeric-owner"])
            .args(["--owner=0", "--group=0", "--mode=go+rX,u+rw,go-w"])
            .arg(format!("--mtime=@{}", version.epoch))
            .arg(format!("--transform=s,^\\.,{name},"))
            .arg("--file")
            .arg(tar.path())
            .arg("--directory")
            .arg(&tree.root)
            .arg("."),
    )?;
    let archive = into.join(format!("{name}.tar.gz"));
    let file = std::fs::File::create(&archive).with_context(|| format!("make {}", archive.display()))?;
    let status = Command::new("gzip")
        .args(["--no-name", "-9", "--stdout"])
        .arg(tar.path())
        .stdout(file)
        .status()
        .context("start gzip")?;
    anyhow::ensure!(status.success(), "gzip ended with {status}");
    Ok(())
}
