//! A backup as a folder: copies of files that come and go meanwhile, and a manifest by which a restoration
//! distinguishes a whole backup from a part of one.
//!
//! ```text
//! backup.json          role, time, and the size and SHA-256 of every file; written last
//! …                    the files, wherever the maker of the backup puts them
//! ```

mod copy;
mod manifest;

use std::io;
use std::path::PathBuf;

use thiserror::Error;

pub(crate) use copy::{copy_changed, make_private_folder};
pub(crate) use manifest::Manifest;

/// The reason why a backup cannot be written or is not taken.
#[derive(Debug, Error)]
pub(crate) enum BackupError {
    /// A file or a folder of the backup cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file or the folder.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The manifest cannot be written.
    #[error("cannot write the manifest in {}", folder.display())]
    Unwritable {
        /// The folder of the backup.
        folder: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// There is no manifest, which is written last.
    #[error("{} cannot be read: the folder is no backup, or its making was interrupted", path.display())]
    NoManifest {
        /// The place where the manifest lies in a backup.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The manifest is no manifest.
    #[error("{} cannot be understood", path.display())]
    Malformed {
        /// The manifest's file.
        path: PathBuf,
        /// The fault in its JSON.
        source: serde_json::Error,
    },
    /// The backup was made by a later program.
    #[error("{} has the format {format:?}, which this program does not know", folder.display())]
    UnknownFormat {
        /// The folder of the backup.
        folder: PathBuf,
        /// The format that its manifest names.
        format: String,
    },
    /// A file is not as it was written.
    #[error("{path} of the backup is missing or damaged: restore from another backup")]
    Damaged {
        /// The file's path in the backup.
        path: String,
    },
}
