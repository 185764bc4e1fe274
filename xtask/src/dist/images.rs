//! An image of a container for each role: Debian's minimal root, the package `muster`, and the role that it starts.
//!
//! The root is debootstrap's `minbase`; the licence of each of its packages is in `/usr/share/doc` of the image.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use super::version::Version;
use crate::tool::{debootstrap, quietly};

/// The image that the roles' images begin with.
const BASE: &str = "muster";
const ROLES: [&str; 4] = ["facilitator", "validator", "miner", "executor"];
/// The number of the user and the group of a role in its image.
const USER: u32 = 10_000;

/// Builds the images at the Docker engine of this machine, tags them with the version, and saves them in one file.
pub(super) fn make(packages: &[PathBuf], version: &Version, into: &Path) -> anyhow::Result<()> {
    ensure!(
        nix::unistd::Uid::effective().is_root(),
        "images need root: debootstrap makes their file system"
    );
    // A tag of Docker has no tilde.
    let tag = version.to_string().replace('~', "-");
    let work = tempfile::tempdir().context("make a folder for the images")?;
    let root = work.path().join("root");
    lay_out(&root, packages.first().context("no package of the programs")?)?;
    let tar = work.path().join("root.tar");
    quietly(
        Command::new("tar")
            .args(["--create", "--numeric-owner", "--file"])
            .arg(&tar)
            .arg("--directory")
            .arg(&root)
            .arg("."),
    )?;
    let base = format!("{BASE}:{tag}");
    quietly(
        Command::new("docker")
            .args(["import", "--change", "ENTRYPOINT [\"muster\"]"])
            .arg(&tar)
            .arg(&base),
    )?;
    let mut names = vec![base.clone()];
    for role in ROLES {
        let name = format!("muster-{role}:{tag}");
        let folder = work.path().join(role);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("Dockerfile"), dockerfile(&base, role))?;
        quietly(
            Command::new("docker")
                .args(["build", "--quiet", "--tag", &name])
                .arg(&folder),
        )?;
        names.push(name);
    }
    let saved = into.join(format!("muster-images-{version}-{}.tar", std::env::consts::ARCH));
    quietly(
        Command::new("docker")
            .arg("save")
            .arg("--output")
            .arg(&saved)
            .args(&names),
    )?;
    // The engine leaves it to its own user.
    fs::set_permissions(&saved, fs::Permissions::from_mode(0o644))?;
    quietly(Command::new("gzip").args(["--no-name", "-6"]).arg(&saved))?;
    println!("images at this machine's engine: {}", names.join(", "));
    Ok(())
}

/// Makes the file system of all images in the folder `root`.
fn lay_out(root: &Path, programs: &Path) -> anyhow::Result<()> {
    debootstrap(root, "ca-certificates")?;
    fs::copy(programs, root.join("muster.deb")).context("copy the package into the root")?;
    quietly(
        Command::new("chroot")
            .arg(root)
            .args(["dpkg", "--install", "/muster.deb"]),
    )?;
    quietly(Command::new("chroot").arg(root).args(["apt-get", "clean"]))?;
    fs::remove_file(root.join("muster.deb"))?;
    quietly(
        Command::new("find")
            .arg(root.join("var/lib/apt/lists"))
            .args(["-type", "f", "-delete"]),
    )?;
    for role in ROLES {
        let state = root.join(format!("var/lib/muster/{role}"));
        fs::create_dir_all(&state)?;
        if role != "executor" {
            std::os::unix::fs::chown(&state, Some(USER), Some(USER))?;
        }
    }
    add_line(
        &root.join("etc/passwd"),
        &format!("muster:x:{USER}:{USER}:Muster:/var/lib/muster:/usr/sbin/nologin"),
    )?;
    add_line(&root.join("etc/group"), &format!("muster:x:{USER}:"))?;
    Ok(())
}

/// A role's image adds nothing but what is started, and as whom.
fn dockerfile(base: &str, role: &str) -> String {
    let mut text = format!("FROM {base}\n");
    if role != "executor" {
        let _ = writeln!(text, "USER {USER}:{USER}");
    }
    let _ = writeln!(text, "WORKDIR /var/lib/muster/{role}");
    let _ = writeln!(text, "VOLUME /var/lib/muster/{role}");
    let _ = writeln!(text, "ENTRYPOINT [\"muster\", \"{role}\"]");
    let _ = writeln!(text, "CMD [\"--config\", \"/etc/muster/{role}.toml\"]");
    text
}

fn add_line(path: &Path, line: &str) -> anyhow::Result<()> {
    let mut text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    text.push_str(line);
    text.push('\n');
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_but_the_executor_has_a_user_without_rights() {
        for role in ROLES {
            let text = dockerfile("muster:1", role);
            assert_eq!(text.contains("USER 10000"), role != "executor", "{text}");
            assert!(
                text.contains(&format!("ENTRYPOINT [\"muster\", \"{role}\"]")),
                "{text}"
            );
        }
    }
}
