//! Folders that belong to this process's user alone: made with that mode, closed where others may read them, and
//! refused where others may have written.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The usual place of a folder that all processes of a role on this machine share: below `/var/lib/muster` for root,
/// where nobody else can make folders, and `/var/tmp/muster-NAME` for another user.
pub fn usual_place(name: &str) -> PathBuf {
    if nix::unistd::geteuid().is_root() {
        Path::new("/var/lib/muster").join(name)
    } else {
        PathBuf::from(format!("/var/tmp/muster-{name}"))
    }
}

/// Makes a folder with its parents, for this user alone. A folder that is there already must be a folder (no link),
/// must belong to this user, and others must not have been able to write there: their files could steer this process.
/// One that others may only read is closed to them.
///
/// # Errors
/// The folder cannot be made, or it is not this user's alone; the text says which command mends that.
pub fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    check(folder)
}

/// Checks a folder that exists, as [`create`] does.
///
/// # Errors
/// It is a link, belongs to another user, or others may write there.
pub fn check(folder: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    let own = nix::unistd::geteuid().as_raw();
    let shown = folder.display();
    let fault = if !found.is_dir() {
        format!("{shown} is a link or a file; it must be a folder")
    } else if found.uid() != own {
        format!(
            "{shown} belongs to user {}; run: chown -R {own} {shown}",
            found.uid()
        )
    } else if found.mode() & 0o022 != 0 {
        format!(
            "other users may write into {shown} (mode {:o}); look at what is in there, then run: chmod 700 {shown}",
            found.mode() & 0o777
        )
    } else if found.mode() & 0o077 != 0 {
        tracing::info!(folder = %shown, "closed to other users, who could read it");
        return fs::set_permissions(folder, Permissions::from_mode(0o700));
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, fault))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_folder_of_this_user_alone_is_used() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        create(&folder).unwrap();
        create(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        for readable in [0o750, 0o701, 0o755] {
            fs::set_permissions(&folder, Permissions::from_mode(readable)).unwrap();
            create(&folder).unwrap();
            assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        }
        for wide in [0o770, 0o702, 0o1777] {
            fs::set_permissions(&folder, Permissions::from_mode(wide)).unwrap();
            let error = create(&folder).unwrap_err().to_string();
            assert!(error.contains("chmod 700"), "{error}");
        }
        let link = parent.path().join("link");
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        symlink(&folder, &link).unwrap();
        assert!(create(&link).unwrap_err().to_string().contains("is a link"));
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&folder, Some(65_532), None).unwrap();
            assert!(create(&folder).unwrap_err().to_string().contains("chown"));
        }
    }
}
