//! The rules by which files of a job get their owners and their permission bits.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::Path;

use nix::unistd::geteuid;

use crate::docker_engine::{ContainerEngine, EngineError};
use crate::image_user::OwnerIds;

const SET_IDS: u32 = 0o6_000;

/// By which rules files get their owner and their permission bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerRules {
    /// The first user and group of the engine's containers on this machine; `None` where this process may not give
    /// files away: then everybody may use them.
    pub(super) first: Option<OwnerIds>,
    /// Whether the bits that lend a file's owner are kept. A disk of the job's own gives them no effect.
    pub(super) keeps_set_ids: bool,
}

// === impl OwnerRules ===

impl OwnerRules {
    pub(super) async fn of(engine: &ContainerEngine, keeps_set_ids: bool) -> Result<Self, EngineError> {
        let first = match geteuid().is_root() {
            true => engine.first_ids().await?,
            false => None,
        };
        Ok(Self { first, keeps_set_ids })
    }

    /// Gives a folder and everything in it to a user. Its permission bits stay where its owner can change.
    pub(super) fn give(self, folder: &Path, user: OwnerIds) -> io::Result<()> {
        let mine = OwnerIds::default();
        if self.first.is_some_and(|first| user.shifted(first) == Some(mine)) {
            return Ok(());
        }
        let mut waiting = vec![folder.to_owned()];
        while let Some(path) = waiting.pop() {
            let found = match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            let mode = found.permissions().mode() & 0o7777;
            if found.is_symlink() {
                self.own_link(&path, user)?;
            } else {
                self.own(&path, user, mode, found.is_dir())?;
            }
            if found.is_dir() {
                for entry in fs::read_dir(&path)? {
                    waiting.push(entry?.path());
                }
            }
        }
        Ok(())
    }

    /// Gives a file or a folder its owner and its permission bits.
    pub(super) fn own(self, path: &Path, owner: OwnerIds, mode: u32, is_folder: bool) -> io::Result<()> {
        let mode = if is_folder || self.keeps_set_ids {
            mode
        } else {
            mode & !SET_IDS
        };
        let mode = match self.first {
            Some(_) => mode,
            // The owner that the image names is somebody else here.
            None if is_folder || mode & 0o111 != 0 => mode | 0o777,
            None => mode | 0o666,
        };
        self.own_link(path, owner)?;
        // After the owner: a change of the owner takes bits away.
        fs::set_permissions(path, Permissions::from_mode(mode))
    }

    pub(super) fn own_link(self, path: &Path, owner: OwnerIds) -> io::Result<()> {
        let Some(first) = self.first else {
            return Ok(());
        };
        let owner = owner
            .shifted(first)
            .ok_or_else(|| io::Error::other("the engine's users end before this owner"))?;
        lchown(path, Some(owner.user), Some(owner.group))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    const OWNED: OwnerRules = OwnerRules {
        first: Some(OwnerIds { user: 0, group: 0 }),
        keeps_set_ids: true,
    };

    #[test]
    fn folders_of_a_job_are_given_to_its_user_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        let (volume, outside) = (folder.path().join("volume"), folder.path().join("outside"));
        fs::create_dir_all(volume.join("inner")).unwrap();
        for file in [&outside, &volume.join("inner/x")] {
            fs::write(file, "x").unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o640)).unwrap();
        }
        symlink(&outside, volume.join("link")).unwrap();
        let user = OwnerIds {
            user: 1000,
            group: 1001,
        };
        let traits = |path: &Path| {
            let found = fs::symlink_metadata(path).unwrap();
            (found.uid(), found.mode() & 0o777)
        };
        OWNED.give(&volume, OwnerIds::default()).unwrap();
        assert_eq!(
            traits(&volume.join("inner/x")),
            (0, 0o640),
            "it is root's already"
        );
        OWNED.give(&volume, user).unwrap();
        OWNED.give(&folder.path().join("missing"), user).unwrap();
        assert_eq!(traits(&volume.join("inner/x")), (1000, 0o640));
        assert_eq!((traits(&volume).0, traits(&volume.join("link")).0), (1000, 1000));
        assert_eq!(traits(&outside), (0, 0o640));
        let widened = OwnerRules {
            first: None,
            keeps_set_ids: true,
        };
        widened.give(&volume, user).unwrap();
        assert_eq!(traits(&volume.join("inner/x")), (1000, 0o666));
        assert_eq!(
            (traits(&volume.join("inner")).1, traits(&outside).1),
            (0o777, 0o640)
        );
    }
}
