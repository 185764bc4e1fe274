//! Why a store cannot be opened, read or written.

use std::path::PathBuf;

/// Why a store cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder cannot be made.
    #[error("making the folder {} failed", folder.display())]
    Folder {
        /// The folder of the store.
        folder: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Another process has the store.
    #[error("another node uses this folder; stop it, or give this one a folder of its own")]
    InUse,
    /// The file is no store or is damaged.
    #[error(
        "the store is damaged ({0}); restore the folder from a copy, or begin a new chain in an empty one"
    )]
    Damaged(String),
    /// The file is of another version of this program.
    #[error("the store was written by another version of this program; begin a new chain in an empty folder")]
    Layout,
    /// A block does not follow the last one.
    #[error("block {found} does not follow what is kept, which ends before {expected}")]
    Order {
        /// The number that is due.
        expected: u32,
        /// The number that came.
        found: u32,
    },
    /// The disk refuses.
    #[error("using the disk failed; is it full?")]
    Io(#[from] std::io::Error),
    /// The database refuses.
    #[error("the database refused")]
    Database(#[source] Box<redb::Error>),
}

impl From<redb::Error> for Error {
    fn from(error: redb::Error) -> Self {
        #[expect(clippy::wildcard_enum_match_arm, reason = "not our enum, and it grows")]
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            redb::Error::Corrupted(what) => Self::Damaged(what),
            redb::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Self::Damaged(error.to_string())
            }
            redb::Error::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Self::Damaged("the file ends too early".into())
            }
            redb::Error::Io(error) => Self::Io(error),
            redb::Error::UpgradeRequired(_) => Self::Layout,
            other => Self::Database(Box::new(other)),
        }
    }
}

macro_rules! through_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for Error {
            fn from(error: redb::$error) -> Self {
                redb::Error::from(error).into()
            }
        }
    )*};
}
through_redb!(
    DatabaseError,
    TransactionError,
    TableError,
    StorageError,
    CommitError,
    SetDurabilityError
);
