//! The image of a real executor for the nodes: this checkout's program, and the libraries that it is linked with.
//!
//! No image of a distribution is at hand where these tests run; docs/operations/kubernetes/Dockerfile is for those who
//! have one.

use std::{
    fs,
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
/// Certificates of authorities, without which a TLS client does not start.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Puts the root of the image into a folder below `folder`. The program was built before.
pub(super) fn stage(workspace: &Workspace, folder: &Path) -> anyhow::Result<PathBuf> {
    let root = folder.join("executor");
    let installed = root.join(&PROGRAM[1..]);
    for (from, to) in [
        (workspace.target().join("debug/muster"), installed.clone()),
        (PathBuf::from(SHELL), root.join(&SHELL[1..])),
    ] {
        copy(&from, &to)?;
        let libraries = quietly(Command::new("ldd").arg(&from))?;
        for library in linked(&libraries) {
            copy(Path::new(library), &root.join(library.trim_start_matches('/')))?;
        }
    }
    // Debug information is most of it, and each container has a copy of all.
    quietly(Command::new("strip").arg(&installed))?;
    if Path::new(AUTHORITIES).exists() {
        copy(Path::new(AUTHORITIES), &root.join(&AUTHORITIES[1..]))?;
    }
    fs::create_dir_all(root.join("tmp"))?;
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
