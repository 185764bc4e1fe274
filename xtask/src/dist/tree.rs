//! The files of the package of the programs, as they lie below `/usr`, and in the archive below its one folder.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use super::programs::Programs;
use crate::tool::{git_files, quietly};

/// The shells with a completion script: the name that `muster completions` knows, and the script's place.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/muster"),
    ("zsh", "share/zsh/vendor-completions/_muster"),
    ("fish", "share/fish/vendor_completions.d/muster.fish"),
];

/// The folder of programs that only `muster` calls.
pub(super) const LIBEXEC: &str = "libexec/muster";
/// The folder of the docs.
pub(super) const DOCS: &str = "share/doc/muster";
/// The folder of the man pages.
pub(super) const MAN: &str = "share/man/man1";

/// A folder with the files, each with its permissions.
pub(super) struct Tree {
    pub(super) root: PathBuf,
}

// === impl Tree ===

impl Tree {
    /// Puts the programs, the docs, the man pages and the completions into a folder below `staged`.
    pub(super) fn lay_out(checkout: &Path, programs: &Programs, staged: &Path) -> anyhow::Result<Self> {
        let root = staged.join("tree");
        let muster = root.join("bin/muster");
        install(&programs.muster, &muster, 0o755)?;
        for companion in &programs.companions {
            let name = companion.file_name().context("a program without a name")?;
            install(companion, &root.join(LIBEXEC).join(name), 0o755)?;
        }
        for doc in git_files(checkout, &["docs"])? {
            let inside = doc.strip_prefix("docs").unwrap_or(&doc);
            install(&checkout.join(&doc), &root.join(DOCS).join(inside), 0o644)?;
        }
        for name in ["README.md", "SECURITY.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            install(
                &checkout.join(name),
                &root.join(DOCS).join("about").join(name),
                0o644,
            )?;
        }
        let man = root.join(MAN);
        fs::create_dir_all(&man).with_context(|| format!("make {}", man.display()))?;
        quietly(Command::new(&muster).arg("man-pages").arg(&man))?;
        for (shell, place) in SHELLS {
            // The script calls the program by the name that it was made with.
            let mut completions = Command::new(&muster);
            completions.arg0("muster").args(["completions", shell]);
            write(&root.join(place), quietly(&mut completions)?.as_bytes())?;
        }
        Ok(Self { root })
    }
}

/// Copies a file, makes the folders of the copy, and sets its permissions.
pub(super) fn install(from: &Path, to: &Path, mode: u32) -> anyhow::Result<()> {
    let contents = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    write(to, &contents)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
        .with_context(|| format!("set the permissions of {}", to.display()))
}

/// Writes a file that everybody may read, and makes its folders.
pub(super) fn write(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    fs::write(path, contents).with_context(|| format!("write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
        .with_context(|| format!("set the permissions of {}", path.display()))
}
