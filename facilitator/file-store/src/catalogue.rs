//! The metadata of files, in tables of the facilitator's database. The facilitator's migrations create them, because a
//! database has one sequence of migrations.
//!
//! A segment's row is written before its object, and marked once the object is durable. So every object has a row, and
//! unused objects are found in the database alone. `uploads` changes a file's upload and its segments, and
//! `stored_bytes` counts the room that the objects take.

mod stored_bytes;
mod uploads;

use muster_protocol::{Digest, Timestamp};
use muster_store::columns::{to_signed, to_unsigned};
use muster_store::{During as _, StoreError, json};
use sqlx::AnyPool;
use uuid::Uuid;

use crate::signed_urls::FileId;
use crate::upload_plan::FileState;

/// The value of a column without a number.
const NONE: i64 = -1;
/// The most rows that one query of a sweep returns.
const BATCH: i64 = 1_000;

/// The metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// The file's id, which is part of its URLs.
    pub id: FileId,
    /// The account that owns the file.
    pub account: String,
    /// The name that its owner gave it.
    pub name: String,
    /// The largest allowed size in bytes.
    pub bound: u64,
    /// The size in bytes that its owner declared.
    pub declared: Option<u64>,
    /// The digest that its owner announced.
    pub promised: Option<Digest>,
    /// The unfinished upload: its id and the number of its durable bytes.
    pub uploading: Option<(Uuid, u64)>,
    /// The content that readers get.
    pub content: Option<FileContent>,
    /// The time of its announcement.
    pub created_at: Timestamp,
    /// The time of its deletion.
    pub expires_at: Timestamp,
}

/// A finished upload, which readers get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileContent {
    /// The id of the upload.
    pub upload: Uuid,
    /// The size in bytes.
    pub size: u64,
    /// The digest of the whole content.
    pub sha256: Digest,
}

/// A durable piece of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The name of its object.
    pub object: String,
    /// Its offset in the file.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The bounds on files together. The view `used_bytes` counts the bytes that they bound: files, and the blocks of jobs'
/// checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBounds {
    /// Bytes of one account's files and blocks.
    pub account: u64,
    /// Bytes of the files and blocks of all accounts.
    pub all: u64,
    /// Files of one account.
    pub files: u64,
}

/// A bound that one more file, or one more segment, would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceededBound {
    /// The bound on the account's files and blocks.
    Account,
    /// The bound on the files and blocks of all accounts.
    All,
    /// The bound on the number of the account's files.
    Files,
}

/// The outcome of adding a segment to an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// The segment is part of the upload.
    Appended,
    /// The upload was replaced, or another request has already written this offset.
    Overtaken,
    /// The segment would exceed a bound.
    Exceeds(ExceededBound),
}

/// One page of an account's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileList {
    /// The number of all files of the account.
    pub count: u64,
    /// The files of this page, newest first.
    pub files: Vec<StoredFile>,
}

/// The tables of files. Clones share the connections.
#[derive(Clone, Debug)]
pub struct FileCatalogue {
    pool: AnyPool,
}

muster_store::row! {
    struct FileRow {
        id: String,
        account: String,
        name: String,
        bound: i64,
        declared: i64,
        promised: String,
        uploading: String,
        received: i64,
        content: String,
        size: i64,
        sha256: String,
        created_at: i64,
        expires_at: i64,
    }
}

// === impl FileCatalogue ===

impl FileCatalogue {
    /// The tables in the database of `pool`, whose schema must be up to date.
    pub const fn new(pool: AnyPool) -> Self {
        Self { pool }
    }

    /// Announces a file. Returns the bound that its declared bytes would exceed, if there is one.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn create(
        &self,
        file: &StoredFile,
        bounds: FileBounds,
    ) -> Result<Option<ExceededBound>, StoreError> {
        let statement = "INSERT INTO files (id, account, name, bound, declared, promised, uploading, received, content, size, \
                         sha256, held, created_at, expires_at) \
                         SELECT CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS BIGINT), CAST($5 AS BIGINT), \
                         CAST($6 AS TEXT), '', 0, '', -1, '', CAST($7 AS BIGINT), CAST($8 AS BIGINT), CAST($9 AS BIGINT) \
                         WHERE CAST($7 AS BIGINT) + (SELECT COALESCE(CAST(SUM(bytes) AS BIGINT), 0) FROM used_bytes \
                         WHERE account = CAST($2 AS TEXT)) <= CAST($10 AS BIGINT) \
                         AND CAST($7 AS BIGINT) + (SELECT COALESCE(CAST(SUM(bytes) AS BIGINT), 0) FROM used_bytes) \
                         <= CAST($11 AS BIGINT) \
                         AND (SELECT COUNT(*) FROM files WHERE account = CAST($2 AS TEXT)) < CAST($12 AS BIGINT)";
        let done = sqlx::query(statement)
            .bind(file.id.to_string())
            .bind(file.account.as_str())
            .bind(file.name.as_str())
            .bind(to_signed(file.bound))
            .bind(file.declared.map_or(NONE, to_signed))
            .bind(file.promised.map(|digest| digest.hex()).unwrap_or_default())
            .bind(to_signed(file.declared.unwrap_or_default()))
            .bind(file.created_at.micros())
            .bind(file.expires_at.micros())
            .bind(to_signed(bounds.account))
            .bind(to_signed(bounds.all))
            .bind(to_signed(bounds.files))
            .execute(&self.pool)
            .await
            .during("announce a file")?;
        if done.rows_affected() == 1 {
            return Ok(None);
        }
        let statement = "SELECT (SELECT COALESCE(CAST(SUM(bytes) AS BIGINT), 0) FROM used_bytes WHERE account = $1), \
                         (SELECT COUNT(*) FROM files WHERE account = $1)";
        let (used, count): (i64, i64) = sqlx::query_as(statement)
            .bind(file.account.as_str())
            .fetch_one(&self.pool)
            .await
            .during("sum up an account's files")?;
        let own = to_unsigned(used).saturating_add(file.declared.unwrap_or_default());
        Ok(Some(if to_unsigned(count) >= bounds.files {
            ExceededBound::Files
        } else if own > bounds.account {
            ExceededBound::Account
        } else {
            ExceededBound::All
        }))
    }

    /// The file with this id; `None` if there is none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn file(&self, id: FileId) -> Result<Option<StoredFile>, StoreError> {
        let statement = "SELECT id, account, name, bound, declared, promised, uploading, received, content, size, sha256, \
                         created_at, expires_at FROM files WHERE id = $1";
        let row: Option<FileRow> = sqlx::query_as(statement)
            .bind(id.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("read a file")?;
        row.map(FileRow::into_file).transpose()
    }

    /// An account's files, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn list_files(&self, account: &str, limit: u32, offset: u64) -> Result<FileList, StoreError> {
        let (count,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM files WHERE account = $1")
            .bind(account)
            .fetch_one(&self.pool)
            .await
            .during("count files")?;
        let statement = "SELECT id, account, name, bound, declared, promised, uploading, received, content, size, sha256, \
                         created_at, expires_at FROM files WHERE account = $1 ORDER BY created_at DESC, id DESC \
                         LIMIT $2 OFFSET $3";
        let rows: Vec<FileRow> = sqlx::query_as(statement)
            .bind(account)
            .bind(i64::from(limit))
            .bind(to_signed(offset))
            .fetch_all(&self.pool)
            .await
            .during("list files")?;
        let files = rows
            .into_iter()
            .map(FileRow::into_file)
            .collect::<Result<_, _>>()?;
        Ok(FileList {
            count: to_unsigned(count),
            files,
        })
    }

    /// Removes an account's file. A sweep deletes its bytes later. Returns `false` if the account has no such file.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn remove(&self, account: &str, id: FileId) -> Result<bool, StoreError> {
        let done = sqlx::query("DELETE FROM files WHERE id = $1 AND account = $2")
            .bind(id.to_string())
            .bind(account)
            .execute(&self.pool)
            .await
            .during("delete a file")?;
        Ok(done.rows_affected() == 1)
    }

    /// Removes expired files, a bounded number of them, and returns how many.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn expire(&self, now: Timestamp) -> Result<u64, StoreError> {
        let statement =
            "DELETE FROM files WHERE id IN (SELECT id FROM files WHERE expires_at <= $1 LIMIT $2)";
        let done = sqlx::query(statement)
            .bind(now.micros())
            .bind(BATCH)
            .execute(&self.pool)
            .await
            .during("delete expired files")?;
        Ok(done.rows_affected())
    }

    /// Objects from before `before` that never became durable, or that belong to no file.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn unused_objects(&self, before: Timestamp) -> Result<Vec<String>, StoreError> {
        let statement = "SELECT object FROM file_segments AS s WHERE s.created_at < $1 AND (s.durable = 0 OR NOT EXISTS \
                         (SELECT 1 FROM files AS f WHERE f.content = s.upload OR f.uploading = s.upload)) LIMIT $2";
        let rows: Vec<(String,)> = sqlx::query_as(statement)
            .bind(before.micros())
            .bind(BATCH)
            .fetch_all(&self.pool)
            .await
            .during("look for unused objects")?;
        Ok(rows.into_iter().map(|(object,)| object).collect())
    }
}

// === impl StoredFile, FileRow ===

impl StoredFile {
    /// The facts that decisions about uploads need.
    pub fn state(&self) -> FileState {
        FileState {
            bound: self.bound,
            declared: self.declared,
            received: self.uploading.map(|(_, received)| received),
            size: self.content.map(|content| content.size),
        }
    }
}

impl FileRow {
    fn into_file(self) -> Result<StoredFile, StoreError> {
        let digest = |what, text: &str| -> Result<Option<Digest>, StoreError> {
            if text.is_empty() {
                return Ok(None);
            }
            let mut bytes = [0; 32];
            hex::decode_to_slice(text, &mut bytes).map_err(|error| StoreError::corrupt(what, error))?;
            Ok(Some(Digest::from_bytes(bytes)))
        };
        let upload = |what, text: &str| -> Result<Option<Uuid>, StoreError> {
            (!text.is_empty()).then(|| json::parse(what, text)).transpose()
        };
        let content = match (
            upload("files.content", &self.content)?,
            digest("files.sha256", &self.sha256)?,
        ) {
            (Some(upload), Some(sha256)) => Some(FileContent {
                upload,
                size: to_unsigned(self.size),
                sha256,
            }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(StoreError::corrupt("files.content", "half of a content"));
            }
        };
        let uploading = upload("files.uploading", &self.uploading)?;
        Ok(StoredFile {
            id: json::parse("files.id", &self.id)?,
            account: self.account,
            name: self.name,
            bound: to_unsigned(self.bound),
            declared: u64::try_from(self.declared).ok(),
            promised: digest("files.promised", &self.promised)?,
            uploading: uploading.map(|upload| (upload, to_unsigned(self.received))),
            content,
            created_at: Timestamp::from_micros(self.created_at),
            expires_at: Timestamp::from_micros(self.expires_at),
        })
    }
}
