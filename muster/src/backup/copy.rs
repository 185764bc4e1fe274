//! Copies of folders whose files come and go meanwhile. Only this user can read the copies.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Copies a file, or a folder with all that is in it. A file that is at `to` already with the same size, and is newer,
/// is left alone. Links are left out. A file that goes away meanwhile is no error; of a missing `from` nothing is
/// copied.
pub(super) fn copy_changed(from: &Path, to: &Path) -> io::Result<()> {
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
pub(super) fn make_private_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}
