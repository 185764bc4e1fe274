//! The programs that come with this one: beside it in a folder of builds, or in `../libexec/muster` of an installation.

use std::path::{Path, PathBuf};

/// The folder of companions, from the folder of an installed program.
const INSTALLED: &str = "../libexec/muster";

/// The program `name` that came with this process's program, and `None` where it is missing.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    find_for(&std::env::current_exe().ok()?, name)
}

/// The program `name` that came with the program at `program`.
#[must_use]
pub fn find_for(program: &Path, name: &str) -> Option<PathBuf> {
    let beside = program.with_file_name(name);
    let installed = program.with_file_name(INSTALLED).join(name);
    [beside, installed]
        .into_iter()
        .find(|path| path.is_file())?
        .canonicalize()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_companion_is_beside_its_program_or_in_libexec() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (bin, libexec) = (root.join("bin"), root.join("libexec/muster"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&libexec).unwrap();
        let program = bin.join("muster");
        assert_eq!(find_for(&program, "hold"), None);
        std::fs::write(libexec.join("hold"), "").unwrap();
        assert_eq!(find_for(&program, "hold"), Some(libexec.join("hold")));
        std::fs::write(bin.join("hold"), "").unwrap();
        assert_eq!(find_for(&program, "hold"), Some(bin.join("hold")));
    }
}
