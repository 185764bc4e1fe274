//! The image of a real executor for the nodes: this checkout's program, this machine's Docker engine, and the libraries
//! that they are linked with.
//!
//! No image of a distribution is at hand where these tests run; docs/operations/kubernetes/Dockerfile is for those who
//! have one.

use std::{
    fs, iter,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use crate::{tool::quietly, workspace::Workspace};

/// The image's name on each node.
pub(super) const EXECUTOR: &str = "muster/executor:1";
/// The program in it.
pub(super) const PROGRAM: &str = "/usr/local/bin/muster";
/// The shell by which a persistent executor enrolls.
const SHELL: &str = "/bin/sh";
/// The programs of an engine inside a pod, as the packages of `docs/operations/kubernetes/Dockerfile` have them: the
/// first process of the container, the engine with its own, its command for people, and those of disks of a fixed size.
const ENGINE: [&str; 9] = [
    "/usr/bin/tini",
    "/usr/sbin/dockerd",
    "/usr/bin/containerd",
    "/usr/bin/containerd-shim-runc-v2",
    "/usr/sbin/runc",
    "/usr/bin/docker",
    "/sbin/mkfs.ext4",
    "/bin/mount",
    "/bin/umount",
];
/// Settings of `mkfs.ext4`.
const SETTINGS: &str = "/etc/mke2fs.conf";
/// Certificates of authorities, without which a TLS client does not start.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Puts the root of the image into a folder below `folder`. The program was built before. `engine` adds a Docker
/// engine.
pub(super) fn stage(workspace: &Workspace, folder: &Path, engine: bool) -> anyhow::Result<PathBuf> {
    let root = folder.join("executor");
    let installed = root.join(&PROGRAM[1..]);
    let engine: &[&str] = if engine { &ENGINE } else { &[] };
    let of_the_machine = iter::once(&SHELL).chain(engine);
    let of_the_machine = of_the_machine.map(|path| (PathBuf::from(path), root.join(&path[1..])));
    for (from, to) in
        iter::once((workspace.target().join("debug/muster"), installed.clone())).chain(of_the_machine)
    {
        copy(&from, &to)?;
        let libraries = quietly(Command::new("ldd").arg(&from))?;
        for library in linked(&libraries) {
            copy(Path::new(library), &root.join(library.trim_start_matches('/')))?;
        }
    }
    // Debug information is most of it, and each container has a copy of all.
    quietly(Command::new("strip").arg(&installed))?;
    for file in [AUTHORITIES, SETTINGS] {
        if Path::new(file).exists() {
            copy(Path::new(file), &root.join(&file[1..]))?;
        }
    }
    for folder in ["tmp", "run", "var"] {
        fs::create_dir_all(root.join(folder))?;
    }
    // As in Debian.
    symlink("/run", root.join("var/run")).context("link /var/run")?;
    Ok(root)
}

/// Copies what a path leads to.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let folder = to.parent().context("a file without a folder")?;
    fs::create_dir_all(folder)?;
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    Ok(())
}

/// The files in what `ldd` prints: `libc.so.6 => /lib/libc.so.6 (0x…)`, and the loader, which has a path alone.
fn linked(printed: &str) -> impl Iterator<Item = &str> {
    printed.lines().filter_map(|line| {
        let named = line.split_once("=>").map_or(line, |(_, path)| path);
        let path = named.split_whitespace().next()?;
        path.starts_with('/').then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_and_the_loader_are_read_from_what_ldd_prints() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibm.so.6 => /lib/libm.so.6 (0x00007f)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibx.so => not found\n";
        let found: Vec<_> = linked(printed).collect();
        assert_eq!(found, ["/lib/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
