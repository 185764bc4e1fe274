//! `cargo xtask dist`: everything that a release is downloaded as. An archive, Debian packages, images of containers,
//! the package for Python, bills of materials, and the checksums of all of them.
//!
//! One commit gives the same programs, archive and packages in every folder: paths are mapped to names, and every file
//! has the commit's time.

mod archive;
mod debian;
mod images;
mod programs;
mod same_bytes;
mod tree;
mod version;
mod wheel;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use sha2::{Digest, Sha256};

pub(crate) use self::same_bytes::build_twice;
use self::{programs::Programs, tree::Tree, version::Version};
use crate::{sbom, tool::quietly, workspace::Workspace};

/// The file of the checksums.
const SUMS: &str = "SHA256SUMS";

#[derive(Args)]
pub(crate) struct Options {
    /// Make only these (comma separated); the programs are built in any case
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// Put the programs of a development build into the packages: minutes instead of an hour, for trying a package
    #[arg(long)]
    development: bool,
    /// The folder of what is made [default: dist in the target folder]
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
}

/// A part of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The archive of the programs, the docs, the man pages and the completions
    Archive,
    /// The Debian packages
    Packages,
    /// An image of a container for each role, from the packages and a minimal Debian
    Images,
    /// The package for Python
    Wheel,
    /// The bills of materials
    Sboms,
}

/// Makes the parts of a release, and says their sizes.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let wanted = |part: Part| options.only.is_empty() || options.only.contains(&part);
    let version = Version::of(workspace.root())?;
    let mut status = Command::new("git");
    status
        .current_dir(workspace.root())
        .args(["status", "--porcelain"]);
    ensure!(
        options.development || quietly(&mut status)?.is_empty(),
        "a release is made from a commit, and files of this checkout are not committed: commit or remove them, or give \
         --development"
    );
    let into = options
        .into
        .clone()
        .unwrap_or_else(|| workspace.target().join("dist"));
    let programs = Programs::build(workspace, options.development)?;
    let staged = tempfile::tempdir().context("make a folder for the files of the packages")?;
    let tree = Tree::lay_out(workspace.root(), &programs, staged.path())?;
    if into.exists() {
        let is_release = into.join(SUMS).exists() || fs::read_dir(&into)?.next().is_none();
        ensure!(
            is_release,
            "{} holds other things than a release: name a folder that is new or empty",
            into.display()
        );
        fs::remove_dir_all(&into).with_context(|| format!("remove {}", into.display()))?;
    }
    fs::create_dir_all(&into).with_context(|| format!("make {}", into.display()))?;
    println!("version {version}, glibc {} or newer", programs.glibc);
    println!("{}", programs.sizes()?);
    if wanted(Part::Archive) {
        archive::make(&tree, &version, &into)?;
    }
    if wanted(Part::Packages) || wanted(Part::Images) {
        let packages = debian::make(workspace.root(), &tree, &version, &programs.glibc, &into)?;
        if !options.development {
            debian::lint(&packages)?;
        }
        if wanted(Part::Images) {
            images::make(&packages, &version, &into)?;
        }
    }
    if wanted(Part::Wheel) {
        wheel::make(workspace.root(), &version, &into)?;
    }
    if wanted(Part::Sboms) {
        ensure!(
            sbom::run(workspace)? == ExitCode::SUCCESS,
            "the bills of materials have faults"
        );
        copy_bills(&workspace.target().join("sbom"), &into)?;
    }
    write_checksums(&into)?;
    quietly(Command::new("ls").arg("-l").arg(&into)).map(|listed| println!("{listed}"))?;
    Ok(ExitCode::SUCCESS)
}

fn copy_bills(from: &Path, into: &Path) -> anyhow::Result<()> {
    for bill in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let bill = bill?;
        fs::copy(bill.path(), into.join(bill.file_name())).context("copy a bill of materials")?;
    }
    Ok(())
}

/// Writes `SHA256SUMS`, which `sha256sum --check` reads.
fn write_checksums(folder: &Path) -> anyhow::Result<()> {
    let mut names: Vec<_> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()?;
    names.sort();
    let mut sums = String::new();
    for name in names {
        let mut file = fs::File::open(folder.join(&name))?;
        let mut hash = Sha256::new();
        std::io::copy(&mut file, &mut hash)?;
        writeln!(
            sums,
            "{}  {}",
            hex::encode(hash.finalize()),
            name.to_string_lossy()
        )?;
    }
    fs::write(folder.join(SUMS), sums).context("write the checksums")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_sha256sum() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b"), "abc").unwrap();
        fs::write(folder.path().join("a"), "").unwrap();
        write_checksums(folder.path()).unwrap();
        let checked = Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let printed = String::from_utf8(checked.stdout).unwrap();
        assert!(checked.status.success(), "{printed}");
        assert_eq!(printed, "a: OK\nb: OK\n");
    }
}
