//! The manifest of a backup lists its files, so that a restore can distinguish a whole backup from a part of one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;

use muster_protocol::{Digest, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::backup::folder::BackupError;

/// The format of backups that this program writes and reads.
pub(crate) const FORMAT: &str = "muster-backup/1";

/// The manifest's place in a backup.
const MANIFEST: &str = "backup.json";

/// The list of a backup's files, with the role and the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// [`FORMAT`], if this program knows the backup.
    pub format: String,
    /// The name of the role whose state it is.
    pub role: String,
    /// The version of the program that made the backup.
    pub version: String,
    /// When its files had been copied.
    pub made_at: Timestamp,
    /// Every file by its path in the backup.
    pub files: BTreeMap<String, BackupFile>,
}

/// One file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackupFile {
    /// The size in bytes, as it was copied.
    pub bytes: u64,
    /// The SHA-256 of its content.
    pub sha256: Digest,
}

impl Manifest {
    /// The manifest of what lies in `folder`.
    ///
    /// # Errors
    /// [`BackupError::Unreadable`], of the first file or folder that cannot be read.
    pub(crate) fn of(folder: &Path, role: &str, made_at: Timestamp) -> Result<Self, BackupError> {
        let mut files = BTreeMap::new();
        list(folder, folder, &mut files)?;
        Ok(Self {
            format: FORMAT.to_owned(),
            role: role.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            made_at,
            files,
        })
    }

    /// Writes the manifest into its folder. Until then, the folder is no backup.
    ///
    /// # Errors
    /// [`BackupError::Unwritable`], if the disk is full or the folder is not ours.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), BackupError> {
        let beside = folder.join("backup.json.new");
        let written = || {
            let mut file = File::create(&beside)?;
            file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, folder.join(MANIFEST))?;
            File::open(folder)?.sync_all()
        };
        written().map_err(|source| BackupError::Unwritable {
            folder: folder.to_owned(),
            source,
        })
    }

    /// Reads the manifest of a backup.
    ///
    /// # Errors
    /// There is none, or this program does not know it.
    pub(crate) fn read(folder: &Path) -> Result<Self, BackupError> {
        let path = folder.join(MANIFEST);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(BackupError::NoManifest { path, source }),
        };
        let manifest: Self =
            serde_json::from_str(&text).map_err(|source| BackupError::Malformed { path, source })?;
        if manifest.format == FORMAT {
            return Ok(manifest);
        }
        Err(BackupError::UnknownFormat {
            folder: folder.to_owned(),
            format: manifest.format,
        })
    }

    /// Checks that every file is there as it was written.
    ///
    /// # Errors
    /// [`BackupError::Damaged`] for the first one that is not, or the folder cannot be read.
    pub(crate) fn check(&self, folder: &Path) -> Result<(), BackupError> {
        let found = Self::of(folder, &self.role, self.made_at)?.files;
        let damaged = self
            .files
            .iter()
            .find(|(path, file)| found.get(*path) != Some(*file));
        match damaged {
            Some((path, _)) => Err(BackupError::Damaged { path: path.clone() }),
            None => Ok(()),
        }
    }
}

fn list(root: &Path, folder: &Path, files: &mut BTreeMap<String, BackupFile>) -> Result<(), BackupError> {
    let unreadable = |path: &Path, source| BackupError::Unreadable {
        path: path.to_owned(),
        source,
    };
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
        let path = entry.map_err(|error| unreadable(folder, error))?.path();
        if path.is_dir() {
            list(root, &path, files)?;
            continue;
        }
        let name = path.strip_prefix(root).unwrap_or(&path);
        if name == Path::new(MANIFEST) {
            continue;
        }
        let file = describe(&path).map_err(|error| unreadable(&path, error))?;
        files.insert(name.to_string_lossy().into_owned(), file);
    }
    Ok(())
}

fn describe(path: &Path) -> std::io::Result<BackupFile> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut bytes = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(buffer.get(..read).unwrap_or_default());
        bytes += u64::try_from(read).unwrap_or_default();
    }
    Ok(BackupFile {
        bytes,
        sha256: Digest::from_bytes(hasher.finalize().into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup() -> (tempfile::TempDir, Manifest) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(folder.path().join("deep/file"), "one").unwrap();
        let manifest = Manifest::of(folder.path(), "miner", Timestamp::from_secs(1)).unwrap();
        manifest.write(folder.path()).unwrap();
        (folder, manifest)
    }

    #[test]
    fn a_backups_manifest_is_read_back_whole() {
        let (folder, manifest) = backup();
        assert_eq!(Manifest::read(folder.path()).unwrap(), manifest);
        assert_eq!(manifest.files.keys().collect::<Vec<_>>(), ["deep/file"]);
        manifest.check(folder.path()).unwrap();
    }

    #[test]
    fn a_changed_and_a_missing_file_are_named() {
        let (folder, manifest) = backup();
        let file = folder.path().join("deep/file");
        let is_refused = || {
            let error = manifest.check(folder.path()).unwrap_err();
            matches!(error, BackupError::Damaged { path } if path == "deep/file")
        };
        fs::write(&file, "two").unwrap();
        assert!(is_refused());
        fs::remove_file(&file).unwrap();
        assert!(is_refused());
    }

    #[test]
    fn a_folder_without_a_known_manifest_is_no_backup() {
        let (folder, manifest) = backup();
        let file = folder.path().join(MANIFEST);
        let later = Manifest {
            format: "muster-backup/2".to_owned(),
            ..manifest
        };
        later.write(folder.path()).unwrap();
        let read = || Manifest::read(folder.path()).unwrap_err();
        assert!(matches!(read(), BackupError::UnknownFormat { .. }));
        fs::write(&file, "{").unwrap();
        assert!(matches!(read(), BackupError::Malformed { .. }));
        fs::remove_file(&file).unwrap();
        assert!(matches!(read(), BackupError::NoManifest { .. }));
    }
}
