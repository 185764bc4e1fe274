//! Errors of a store, named by the operation that failed.

use std::sync::Arc;

use muster_process::Coded;
use muster_protocol::ErrorCode;
use sqlx::migrate::MigrateError;

/// The operation of a write that has no connection yet.
pub(crate) const BEGIN: &str = "begin a transaction";

/// A store that cannot be used, or an operation on it that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL names neither SQLite nor PostgreSQL; the text says what is wrong with it.
    #[error("store url: {0}; write `sqlite:PATH` or `postgres://USER@HOST/DATABASE`")]
    Url(&'static str),
    /// A SQLite file or its folder cannot be made.
    #[error("cannot make the store {store}")]
    File {
        /// The store's URL without secrets.
        store: String,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// There is no SQLite file, and this command makes none.
    #[error(
        "there is no store at {path}, and none was made: name the configuration with which the role runs with --config, or \
         start the role first",
        path = path.display()
    )]
    Missing {
        /// The whole path of the SQLite file.
        path: std::path::PathBuf,
    },
    /// Other users of this machine may use a SQLite file, which holds secrets.
    #[error("other users may use the store {path} (mode {mode:o}), which holds secrets; run `chmod 600` on it and on the files beside it whose names begin the same", path = path.display())]
    Exposed {
        /// The SQLite file, as the URL names it.
        path: std::path::PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// The engine does not answer, or the file is not a database.
    #[error("cannot open the store {store}")]
    Open {
        /// The store's URL without secrets.
        store: String,
        /// The engine's reason.
        source: sqlx::Error,
    },
    /// A migration failed.
    #[error("cannot migrate the store")]
    Migrate(#[source] MigrateError),
    /// A newer version of this program has migrated the store.
    #[error(
        "the store is of a newer version of this program: it is at migration {found}, and this version knows {known}; start \
         the newer version, or bring back the copy from before the upgrade with `muster restore`"
    )]
    Newer {
        /// The newest migration of the store.
        found: i64,
        /// The newest migration that this program knows.
        known: i64,
    },
    /// A statement failed.
    #[error("store: cannot {operation}")]
    Query {
        /// The operation, as in "cannot insert a job".
        operation: &'static str,
        /// The engine's reason.
        source: sqlx::Error,
    },
    /// The commit that this write shared with others failed.
    #[error("store: cannot {operation}, since the commit failed")]
    Commit {
        /// The operation of this write.
        operation: &'static str,
        /// The engine's reason, the same for all writes of the transaction.
        source: Arc<sqlx::Error>,
    },
    /// The connection was lost after the commit was asked for and before its answer: the write may be durable. The
    /// store shows whether it is; nothing here repeats it.
    #[error(
        "store: the connection was lost while the database was asked to {operation}, so it may be done or not; look before \
         you repeat it"
    )]
    Unknown {
        /// The operation of this write.
        operation: &'static str,
        /// The loss, the same for all writes of the transaction.
        source: Arc<sqlx::Error>,
    },
    /// Another process has opened a store that has a single writer.
    #[error("store: another process has taken it over; stop one of the two, or give each a store of its own")]
    Superseded,
    /// The lease on the store ran out before the database took its renewal: another process may lead by now.
    #[error(
        "store: the database has not renewed this process's lease on the store in time, so it leads no longer"
    )]
    LeaseLost,
    /// The clock of this machine differs from the others', so this process does not begin to lead.
    #[error(
        "the clock of this machine differs from that of {from} by {offset_ms} ms: more than {bound_ms} ms are refused; set \
         the clock, for example by `timedatectl set-ntp true`"
    )]
    ClockDiffers {
        /// The other clock: the database's, or that of the newest block.
        from: &'static str,
        /// This machine's clock minus the other one, in milliseconds.
        offset_ms: i64,
        /// The bound, in milliseconds.
        bound_ms: i64,
    },
    /// A row holds a value that this program cannot have written.
    #[error("store: {what} cannot be read back; the row was changed by hand or by another version")]
    Corrupt {
        /// The table and column.
        what: &'static str,
        /// Why the value cannot be read.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl StoreError {
    /// A value of a row that does not parse.
    pub fn corrupt(what: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Corrupt {
            what,
            source: source.into(),
        }
    }

    /// The error of an operation that was given up because no answer came.
    pub fn no_answer(operation: &'static str) -> Self {
        Self::Query {
            operation,
            source: sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()),
        }
    }

    /// Whether a change may be made although its caller got this error: the connection was lost before the answer. A
    /// statement outside a transaction counts, since it commits by itself.
    pub fn leaves_open(&self) -> bool {
        match self {
            Self::Unknown { .. } => true,
            // Nothing was asked for before the transaction began.
            Self::Query { operation, source } => *operation != BEGIN && lost_connection(source),
            Self::Url(_)
            | Self::File { .. }
            | Self::Missing { .. }
            | Self::Exposed { .. }
            | Self::Open { .. }
            | Self::Migrate(_)
            | Self::Newer { .. }
            | Self::Commit { .. }
            | Self::Superseded
            | Self::LeaseLost
            | Self::ClockDiffers { .. }
            | Self::Corrupt { .. } => false,
        }
    }

    /// Whether the engine refused a value: it is too long for a field, or holds what a field cannot hold. The store
    /// itself goes on, and the same write fails again.
    pub fn is_refused_value(&self) -> bool {
        match self {
            Self::Query { source, .. } => refuses_value(source),
            Self::Commit { source, .. } => refuses_value(source),
            Self::Unknown { .. }
            | Self::LeaseLost
            | Self::ClockDiffers { .. }
            | Self::Url(_)
            | Self::File { .. }
            | Self::Missing { .. }
            | Self::Exposed { .. }
            | Self::Open { .. }
            | Self::Migrate(_)
            | Self::Newer { .. }
            | Self::Superseded
            | Self::Corrupt { .. } => false,
        }
    }
}

/// The error of a commit that failed: unknown if its answer did not come, since the engine may have made it.
pub(crate) fn commit_error(operation: &'static str, source: Arc<sqlx::Error>) -> StoreError {
    if lost_connection(&source) {
        StoreError::Unknown { operation, source }
    } else {
        StoreError::Commit { operation, source }
    }
}

/// Whether the engine's answer did not come. PostgreSQL's class 57 (operator intervention) and class 08 end the session
/// at any moment, maybe after a commit.
fn lost_connection(error: &sqlx::Error) -> bool {
    if matches!(
        error,
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed
    ) {
        return true;
    }
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code.len() == 5 && (code.starts_with("57") || code.starts_with("08")))
}

/// SQLite's `SQLITE_TOOBIG`, and PostgreSQL's classes 22 (data exception) and 54 (program limit exceeded).
fn refuses_value(error: &sqlx::Error) -> bool {
    if matches!(error, sqlx::Error::Encode(_)) {
        return true;
    }
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| {
        let is_of_class = |class: &str| code.len() == 5 && code.starts_with(class);
        code == "18" || is_of_class("22") || is_of_class("54")
    })
}

impl Coded for StoreError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Missing { .. } => ErrorCode::NoStoreHere,
            Self::Unknown { .. } => ErrorCode::OutcomeUnknown,
            Self::Superseded | Self::LeaseLost => ErrorCode::NotLeading,
            Self::ClockDiffers { .. } => ErrorCode::ClockDiffers,
            Self::Url(_)
            | Self::File { .. }
            | Self::Exposed { .. }
            | Self::Open { .. }
            | Self::Migrate(_)
            | Self::Newer { .. }
            | Self::Query { .. }
            | Self::Commit { .. }
            | Self::Corrupt { .. } => ErrorCode::StoreFailed,
        })
    }
}

/// Names the operation that a statement was part of: `query.execute(&pool).await.during("insert a job")?`.
pub trait During<T> {
    /// `operation` completes the sentence "cannot …".
    ///
    /// # Errors
    /// The error of `self`, with its operation.
    fn during(self, operation: &'static str) -> Result<T, StoreError>;
}

impl<T> During<T> for Result<T, sqlx::Error> {
    fn during(self, operation: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Query { operation, source })
    }
}
