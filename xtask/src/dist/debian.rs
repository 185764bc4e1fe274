//! The Debian packages: `muster` with the programs, and one for each role with its unit, user and configuration.

mod role_packages;

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use self::role_packages::{ROLES, RolePackage};
use super::{
    tree::{DOCS, MAN, Tree, install, write},
    version::Version,
};
use crate::tool::quietly;

const MAINTAINER: &str = "Muster maintainers <maintainers@muster.invalid>";

/// The control fields of a package.
struct Control<'a> {
    package: &'a str,
    architecture: &'a str,
    depends: String,
    recommends: &'a str,
    about: &'a str,
    description: &'a str,
}

/// Builds all packages into a folder, and returns their paths.
pub(super) fn make(
    checkout: &Path,
    tree: &Tree,
    version: &Version,
    glibc: &str,
    into: &Path,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut packages = vec![programs(checkout, tree, version, glibc, into)?];
    for role in &ROLES {
        packages.push(role_package(checkout, role, version, into)?);
    }
    Ok(packages)
}

/// Has lintian look at the packages, where it is installed. The programs of a development build are not stripped, which
/// it refuses.
pub(super) fn lint(packages: &[PathBuf]) -> anyhow::Result<()> {
    if Command::new("lintian").arg("--version").output().is_err() {
        println!("lintian is not installed, and looked at nothing");
        return Ok(());
    }
    let mut lintian = Command::new("lintian");
    lintian
        .args(["--allow-root", "--fail-on", "error,warning"])
        .args(packages);
    quietly(&mut lintian).map(drop)
}

fn programs(
    checkout: &Path,
    tree: &Tree,
    version: &Version,
    glibc: &str,
    into: &Path,
) -> anyhow::Result<PathBuf> {
    let root = tempfile::tempdir().context("make a folder for a package")?;
    quietly(
        Command::new("cp")
            .arg("--archive")
            .arg(&tree.root)
            .arg(root.path().join("usr")),
    )?;
    let man = root.path().join("usr").join(MAN);
    for page in fs::read_dir(&man).with_context(|| format!("read {}", man.display()))? {
        quietly(Command::new("gzip").args(["--no-name", "-9"]).arg(page?.path()))?;
    }
    // Debian has the text of one licence in common, and the other one in the package's own copyright file.
    fs::remove_file(root.path().join("usr").join(DOCS).join("about/LICENSE-APACHE"))?;
    fs::remove_file(root.path().join("usr").join(DOCS).join("about/LICENSE-MIT"))?;
    install(
        &checkout.join("packaging/lintian/muster"),
        &root.path().join("usr/share/lintian/overrides/muster"),
        0o644,
    )?;
    let control = Control {
        package: "muster",
        architecture: "amd64",
        depends: format!("libc6 (>= {glibc}), libgcc-s1 (>= 3.0), ca-certificates"),
        recommends: "docker.io | docker-ce",
        about: "compute subnet for Bittensor-style chains: the programs",
        description: "The command of users, operators and every role, and the programs that it\n\
                      starts: \"muster up\" is a whole subnet on this machine. The roles of a real\n\
                      subnet are services of the packages muster-facilitator, muster-validator,\n\
                      muster-miner and muster-executor.",
    };
    pack(checkout, root.path(), &control, version, into)
}

fn role_package(
    checkout: &Path,
    role: &RolePackage,
    version: &Version,
    into: &Path,
) -> anyhow::Result<PathBuf> {
    let root = tempfile::tempdir().context("make a folder for a package")?;
    let package = role.package();
    for (path, text) in role.files(&checkout.join("packaging"))? {
        write(&root.path().join(path), text.as_bytes())?;
    }
    let debian = root.path().join("DEBIAN");
    write(
        &debian.join("conffiles"),
        format!("/{}\n", role.configuration()).as_bytes(),
    )?;
    for (name, script) in role.scripts(&checkout.join("packaging"))? {
        let path = debian.join(name);
        write(&path, script.as_bytes())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let control = Control {
        package: &package,
        architecture: "all",
        depends: format!("muster (= {version}), {}", role.depends),
        recommends: "",
        about: role.about,
        description: role.description,
    };
    pack(checkout, root.path(), &control, version, into)
}

/// Adds the files that every package has, and packs the folder.
fn pack(
    checkout: &Path,
    root: &Path,
    control: &Control<'_>,
    version: &Version,
    into: &Path,
) -> anyhow::Result<PathBuf> {
    let docs = root.join("usr/share/doc").join(control.package);
    install(
        &checkout.join("packaging/copyright"),
        &docs.join("copyright"),
        0o644,
    )?;
    let changelog = docs.join("changelog");
    write(
        &changelog,
        format!(
            "{} ({version}) unstable; urgency=medium\n\n  * The changes are the commits of the repository.\n\n -- \
             {MAINTAINER}  {}\n",
            control.package,
            mail_date(version.epoch)?
        )
        .as_bytes(),
    )?;
    quietly(Command::new("gzip").args(["--no-name", "-9"]).arg(&changelog))?;
    quietly(
        Command::new("chmod")
            .args(["--recursive", "u+rwX,go+rX,go-w"])
            .arg(root),
    )?;
    if root.join("etc").exists() {
        // Only root reads it until its role has a user.
        let mut private = Command::new("find");
        private
            .arg(root.join("etc"))
            .args(["-type", "f", "-exec", "chmod", "600", "{}", "+"]);
        quietly(&mut private)?;
    }
    let installed = installed_kib(root)?;
    write(
        &root.join("DEBIAN/control"),
        control_text(control, version, installed).as_bytes(),
    )?;
    write(&root.join("DEBIAN/md5sums"), md5sums(root)?.as_bytes())?;
    let package = into.join(format!(
        "{}_{version}_{}.deb",
        control.package, control.architecture
    ));
    quietly(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .arg(root)
            .arg(&package)
            .env("SOURCE_DATE_EPOCH", version.epoch.to_string()),
    )?;
    Ok(package)
}

fn control_text(control: &Control<'_>, version: &Version, installed_kib: u64) -> String {
    let mut text = format!(
        "Package: {}\nVersion: {version}\nArchitecture: {}\nMaintainer: {MAINTAINER}\nInstalled-Size: \
         {installed_kib}\nDepends: {}\n",
        control.package, control.architecture, control.depends
    );
    if !control.recommends.is_empty() {
        text += &format!("Recommends: {}\n", control.recommends);
    }
    text += "Section: net\nPriority: optional\n";
    text += &format!("Description: {}\n", control.about);
    for line in control.description.lines() {
        text += &format!(" {line}\n");
    }
    text
}

/// The date of a changelog's entry (RFC 5322).
fn mail_date(epoch: u64) -> anyhow::Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", &format!("--date=@{epoch}")])
        .env("LC_ALL", "C");
    Ok(quietly(&mut date)?.trim().to_owned())
}

/// The size of the files as dpkg counts it: each rounded up to a KiB.
fn installed_kib(root: &Path) -> anyhow::Result<u64> {
    let mut kib = 0;
    for file in files(root)? {
        kib += fs::symlink_metadata(root.join(file))?.len().div_ceil(1024);
    }
    Ok(kib)
}

fn md5sums(root: &Path) -> anyhow::Result<String> {
    let mut sums = String::new();
    for file in files(root)? {
        if file.starts_with("etc/") {
            // Their sums are in dpkg's own list of configuration files.
            continue;
        }
        let printed = quietly(Command::new("md5sum").arg(root.join(&file)))?;
        let sum = printed
            .split_whitespace()
            .next()
            .context("md5sum prints no sum")?;
        writeln!(sums, "{sum}  {file}")?;
    }
    Ok(sums)
}

/// The files of a package, relative and in order, without those for dpkg itself.
fn files(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut find = Command::new("find");
    find.current_dir(root)
        .args(["usr", "etc", "-type", "f"])
        .stderr(std::process::Stdio::null());
    let found = find.output().context("start find")?;
    let mut files: Vec<String> = String::from_utf8(found.stdout)?
        .lines()
        .map(str::to_owned)
        .collect();
    files.sort();
    Ok(files)
}
