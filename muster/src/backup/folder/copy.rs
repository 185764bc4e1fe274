//! Copies of folders whose files come and go meanwhile. Only this user can read the copies.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Copies a file, or a folder with all that is in it. A file that is at `to` already with the same size, and is newer,
/// is left alone. Links are left out. A file that goes away meanwhile is no error; of a missing `from` nothing is
/// copied.
///
/// # Errors
/// A file or a folder cannot be read or written.
pub(crate) fn copy_changed(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(from) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if metadata.is_dir() {
        make_private_folder(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_changed(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if !metadata.is_file() {
        return Ok(());
    }
    let copied = fs::metadata(to).ok();
    let same = copied.is_some_and(|copied| {
        let is_newer = match (metadata.modified(), copied.modified()) {
            (Ok(source), Ok(copy)) => copy > source,
            (Err(_), _) | (_, Err(_)) => false,
        };
        copied.len() == metadata.len() && is_newer
    });
    if same {
        return Ok(());
    }
    let mut source = match File::open(from) {
        Ok(source) => source,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if let Some(folder) = to.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_private_folder(folder)?;
    }
    let mut target = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(to)?;
    io::copy(&mut source, &mut target)?;
    target.sync_all()
}

/// Makes a folder with its parents, if it is missing, with access for this user alone.
///
/// # Errors
/// It cannot be made.
pub(crate) fn make_private_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_folder_is_copied_for_this_user_alone_and_without_links() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("a/to"));
        fs::create_dir_all(from.join("deep")).unwrap();
        fs::write(from.join("deep/file"), "one").unwrap();
        symlink("/etc/hostname", from.join("link")).unwrap();
        copy_changed(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("deep/file")).unwrap(), "one");
        assert!(!to.join("link").exists());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&to), mode(&to.join("deep/file"))), (0o700, 0o600));
    }

    #[test]
    fn a_second_pass_copies_what_has_changed_and_misses_nothing_that_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("grows"), "one").unwrap();
        fs::write(from.join("goes"), "one").unwrap();
        copy_changed(&from, &to).unwrap();
        fs::write(from.join("grows"), "one and two").unwrap();
        fs::remove_file(from.join("goes")).unwrap();
        copy_changed(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("grows")).unwrap(), "one and two");
        assert_eq!(fs::read_to_string(to.join("goes")).unwrap(), "one");
        copy_changed(&folder.path().join("nowhere"), &to).unwrap();
    }
}
