//! The file store: metadata and bytes together, written in an order in which a crash at any point loses no
//! acknowledged byte.
//!
//! An upload is cut into segments of 8 MiB. A segment is acknowledged, by an answer or by
//! `Upload-Offset`, once its object and its row are durable. A crash loses only the bytes in memory.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use muster_http::rate_limit::RateLimiter;
use muster_process::SharedClock;
use muster_protocol::{Digest, Timestamp};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::catalogue::{FileCatalogue, FileContent, FileList, StoredFile};
use crate::error::FileError;
use crate::object_storage::{ObjectStorage, StorageError};
use crate::settings::Settings;
use crate::signed_urls::{FileAccess, FileId, UrlGrant, UrlKey};
use crate::upload_plan::WriteRequest;
use crate::upload_segments::{SegmentWriter, delete_object, exceeded_error, overtaken_error};

/// The age before which an object without a file is not deleted, because its upload may still be running.
const GRACE: Duration = Duration::from_secs(3_600);
/// Objects of a replaced upload that are deleted at one time.
const DELETIONS: usize = 8;
/// The longest name of a file, in characters.
const LONGEST_NAME: usize = 255;

/// The announcement of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewFile {
    /// The name that its owner gives it.
    pub name: String,
    /// Its size in bytes, if it is known.
    pub size: Option<u64>,
    /// The largest accepted size in bytes, if `size` is not known.
    pub max_size: Option<u64>,
    /// The digest that the content must have, if it is known.
    pub sha256: Option<Digest>,
}

/// The outcome of a request to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// A part is durable; the next one begins at this byte.
    Part(u64),
    /// The file is complete.
    Whole(FileContent),
}

/// The file store of one facilitator.
#[derive(Clone)]
pub struct FileService {
    catalogue: FileCatalogue,
    storage: ObjectStorage,
    key: UrlKey,
    settings: Settings,
    clock: SharedClock,
    /// Requests to the signed URLs of each account.
    requests: Arc<Mutex<RateLimiter<String>>>,
}

// === impl FileService ===

impl FileService {
    /// A file store of these parts. All replicas must use the same `key`.
    pub fn new(
        catalogue: FileCatalogue,
        storage: ObjectStorage,
        key: UrlKey,
        settings: Settings,
        clock: SharedClock,
    ) -> Self {
        let requests = RateLimiter::new(settings.requests_per_minute);
        Self {
            catalogue,
            storage,
            key,
            settings,
            clock,
            requests: Arc::new(Mutex::new(requests)),
        }
    }

    /// Announces a file of an account.
    ///
    /// # Errors
    /// The name or the size is not allowed, the account's quota is used up, or the store failed.
    pub async fn create(&self, account: &str, new: NewFile) -> Result<StoredFile, FileError> {
        let length = new.name.chars().count();
        if !(1..=LONGEST_NAME).contains(&length) || new.name.chars().any(char::is_control) {
            return Err(FileError::Name);
        }
        let limit = self.settings.max_file();
        let bounds = self.settings.bounds();
        let bound = match new.size {
            Some(size) => size,
            None => new.max_size.unwrap_or(limit).min(limit),
        };
        if bound > limit {
            return Err(FileError::TooLarge { limit });
        }
        let now = self.clock.now();
        let file = StoredFile {
            id: FileId::from_uuid(Uuid::new_v4()),
            account: account.to_owned(),
            name: new.name,
            bound,
            declared: new.size,
            promised: new.sha256,
            uploading: None,
            content: None,
            created_at: now,
            expires_at: now.plus(self.settings.retention()),
        };
        match self.catalogue.create(&file, bounds).await? {
            None => Ok(file),
            Some(exceeded) => Err(exceeded_error(exceeded, bounds)),
        }
    }

    /// A file of an account.
    ///
    /// # Errors
    /// The account has no such file, or the store failed.
    pub async fn show(&self, account: &str, id: FileId) -> Result<StoredFile, FileError> {
        let file = self.catalogue.file(id).await?;
        file.filter(|file| file.account == account)
            .ok_or(FileError::NotFound)
    }

    /// The files of an account, newest first.
    ///
    /// # Errors
    /// The store failed.
    pub async fn list(&self, account: &str, limit: u32, offset: u64) -> Result<FileList, FileError> {
        Ok(self.catalogue.list_files(account, limit, offset).await?)
    }

    /// Removes a file of an account. The next sweep deletes its bytes.
    ///
    /// # Errors
    /// The account has no such file, or the store failed.
    pub async fn remove(&self, account: &str, id: FileId) -> Result<(), FileError> {
        if self.catalogue.remove(account, id).await? {
            Ok(())
        } else {
            Err(FileError::NotFound)
        }
    }

    /// The URL below `base` that permits the access to a file, and its expiry.
    pub fn url(&self, access: FileAccess, file: &StoredFile, base: &str) -> (String, Timestamp) {
        let grant = UrlGrant::expiring_after(access, file.id, self.clock.now(), self.settings.url_lifetime());
        (self.key.url(base, &grant), grant.until)
    }

    /// Checks a signed URL and finds its file.
    ///
    /// # Errors
    /// The URL does not permit the access, the file is gone, or its account's URLs are used too often.
    pub async fn find_permitted(
        &self,
        access: FileAccess,
        id: FileId,
        expires: &str,
        signature: &str,
    ) -> Result<StoredFile, FileError> {
        let now = self.clock.now();
        // A wrong signature costs no look-up.
        self.key.check(access, id, expires, signature, now)?;
        let file = self.catalogue.file(id).await?.ok_or(FileError::NotFound)?;
        let counted = self.requests.lock().take(file.account.clone(), now);
        counted.map_err(|wait| FileError::Throttled {
            wait_s: wait.as_secs().saturating_add(1),
        })?;
        Ok(file)
    }

    /// Writes a request's bytes to a file.
    ///
    /// # Errors
    /// The request does not fit the file, the connection broke (the received bytes are kept), the content has another
    /// digest than announced, another upload took over, or a store failed.
    pub async fn write<E: Display>(
        &self,
        file: &StoredFile,
        request: WriteRequest,
        body: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<WriteOutcome, FileError> {
        let plan = file.state().plan(request)?;
        let upload = match file.uploading {
            Some((upload, _)) if !plan.start_over => upload,
            replaced => {
                let upload = Uuid::new_v4();
                if !self.catalogue.begin_upload(file.id, upload).await? {
                    return Err(FileError::NotFound);
                }
                if let Some((replaced, _)) = replaced {
                    self.delete_segments(replaced).await?;
                }
                upload
            }
        };
        let mut writer = SegmentWriter {
            catalogue: &self.catalogue,
            storage: &self.storage,
            clock: &self.clock,
            bounds: self.settings.bounds(),
            wait_s: self.settings.sweep_s,
            file,
            upload,
            at: plan.start,
            pieces: Vec::new(),
            held: 0,
            hasher: plan.start_over.then(Sha256::new),
        };
        let received = writer.receive(&plan, body).await;
        if let Err(
            FileError::TooMuch | FileError::Quota { .. } | FileError::Full | FileError::AwaitsDeletion { .. },
        ) = &received
            && plan.start_over
        {
            self.abandon(file, upload).await?;
        }
        received?;
        if !plan.last {
            return Ok(WriteOutcome::Part(writer.at));
        }
        let sha256 = match writer.hasher.take() {
            Some(hasher) => Digest::from_bytes(hasher.finalize().into()),
            None => self.digest(upload).await?,
        };
        let content = FileContent {
            upload,
            size: writer.at,
            sha256,
        };
        self.finish(file, content).await
    }

    /// Discards an unfinished upload and its bytes.
    async fn abandon(&self, file: &StoredFile, upload: Uuid) -> Result<(), FileError> {
        self.catalogue.abandon(file.id, upload).await?;
        self.delete_segments(upload).await
    }

    /// Deletes the durable segments of an upload that no file has any more. A request that still writes to it deletes
    /// its own last segment.
    async fn delete_segments(&self, upload: Uuid) -> Result<(), FileError> {
        let segments = self.catalogue.segments(upload).await?;
        let deletions = segments.into_iter().map(|segment| {
            let (catalogue, storage) = (self.catalogue.clone(), self.storage.clone());
            async move { delete_object(&catalogue, &storage, &segment.object).await }
        });
        stream::iter(deletions)
            .buffer_unordered(DELETIONS)
            .try_collect::<()>()
            .await
    }

    async fn finish(&self, file: &StoredFile, content: FileContent) -> Result<WriteOutcome, FileError> {
        if let Some(promised) = file.promised.filter(|promised| *promised != content.sha256) {
            self.abandon(file, content.upload).await?;
            return Err(FileError::Mismatch {
                promised: promised.hex(),
                found: content.sha256.hex(),
            });
        }
        let expires_at = self.clock.now().plus(self.settings.retention());
        if self.catalogue.publish(file.id, content, expires_at).await? {
            Ok(WriteOutcome::Whole(content))
        } else {
            Err(overtaken_error(&self.catalogue, file.id).await?)
        }
    }

    /// The digest of an upload whose first bytes came with an earlier request.
    async fn digest(&self, upload: Uuid) -> Result<Digest, FileError> {
        let mut hasher = Sha256::new();
        for segment in self.catalogue.segments(upload).await? {
            hasher.update(self.storage.get(&segment.object, 0..segment.len).await?);
        }
        Ok(Digest::from_bytes(hasher.finalize().into()))
    }

    /// The bytes `first..end` of a content, one segment at a time.
    ///
    /// # Errors
    /// The metadata cannot be read.
    pub async fn read(
        &self,
        content: &FileContent,
        first: u64,
        end: u64,
    ) -> Result<impl Stream<Item = Result<Bytes, StorageError>> + Send + use<>, FileError> {
        let segments = self.catalogue.segments(content.upload).await?;
        let wanted: Vec<_> = segments
            .into_iter()
            .filter_map(|segment| {
                let from = first.max(segment.start);
                let to = end.min(segment.start.saturating_add(segment.len));
                (from < to).then(|| (segment.object, from - segment.start..to - segment.start))
            })
            .collect();
        let storage = self.storage.clone();
        Ok(stream::iter(wanted).then(move |(object, range)| {
            let storage = storage.clone();
            async move { storage.get(&object, range).await }
        }))
    }

    /// Removes expired files and unused objects. Returns the numbers of both.
    ///
    /// # Errors
    /// A store failed. The next sweep continues.
    pub async fn sweep(&self) -> Result<(u64, u64), FileError> {
        let now = self.clock.now();
        let mut expired = 0;
        loop {
            let removed = self.catalogue.expire(now).await?;
            if removed == 0 {
                break;
            }
            expired += removed;
        }
        let before = Timestamp::from_micros(
            now.micros()
                .saturating_sub(i64::try_from(GRACE.as_micros()).unwrap_or(i64::MAX)),
        );
        let mut removed = 0;
        loop {
            let garbage = self.catalogue.unused_objects(before).await?;
            if garbage.is_empty() {
                return Ok((expired, removed));
            }
            for object in garbage {
                delete_object(&self.catalogue, &self.storage, &object).await?;
                removed += 1;
            }
        }
    }

    /// The pause between two sweeps.
    pub const fn sweep_interval(&self) -> Duration {
        self.settings.sweep_interval()
    }
}
