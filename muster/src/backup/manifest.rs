//! The manifest of a backup lists its files, so that a restore can tell a whole backup from a part of one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, ensure};
use muster_protocol::{Digest, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The format of backups that this program writes and reads.
pub(super) const FORMAT: &str = "muster-backup/1";

/// The store's place in a backup.
pub(super) const STORE: &str = "store.db";

/// The manifest's place in a backup.
const MANIFEST: &str = "backup.json";

/// The list of a backup's files, with the role and the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: String,
    pub(super) role: String,
    /// The version of the program that made the backup.
    pub(super) version: String,
    pub(super) made_at: Timestamp,
    /// Every file by its path in the backup.
    pub(super) files: BTreeMap<String, BackupFile>,
}

/// One file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackupFile {
    pub(super) bytes: u64,
    pub(super) sha256: Digest,
}

impl Manifest {
    /// The manifest of what lies in `folder`.
    pub(super) fn of(folder: &Path, role: &str, made_at: Timestamp) -> anyhow::Result<Self> {
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
    pub(super) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let beside = folder.join("backup.json.new");
        let written = || {
            let mut file = File::create(&beside)?;
            file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, folder.join(MANIFEST))?;
            File::open(folder)?.sync_all()
        };
        written().with_context(|| format!("cannot write the manifest in {}", folder.display()))
    }

    /// Reads the manifest of a backup.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(MANIFEST);
        let text = fs::read_to_string(&path).with_context(|| {
            format!(
                "{} cannot be read: the folder is no backup, or its making was interrupted",
                path.display()
            )
        })?;
        serde_json::from_str(&text).with_context(|| format!("{} cannot be understood", path.display()))
    }

    /// Checks that every file is there as it was written.
    pub(super) fn check(&self, folder: &Path) -> anyhow::Result<()> {
        let found = Self::of(folder, &self.role, self.made_at)?.files;
        for (path, file) in &self.files {
            ensure!(
                found.get(path) == Some(file),
                "{path} of the backup is missing or damaged: restore from another backup"
            );
        }
        Ok(())
    }
}

fn list(root: &Path, folder: &Path, files: &mut BTreeMap<String, BackupFile>) -> anyhow::Result<()> {
    let context = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.is_dir() {
            list(root, &path, files)?;
            continue;
        }
        let name = path.strip_prefix(root).unwrap_or(&path);
        if name == Path::new(MANIFEST) {
            continue;
        }
        let file = describe(&path).with_context(|| format!("cannot read {}", path.display()))?;
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
