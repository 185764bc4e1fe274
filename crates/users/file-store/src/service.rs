//! Files as a whole: metadata and bytes together, in an order that a process may be killed at any point of.
//!
//! What arrives is cut into segments of [`SEGMENT`] bytes. A segment is acknowledged, by an answer or by `Upload-Offset`,
//! once its object is durable and its row says so; a process that dies loses what it held in memory and nothing else.

use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use muster_process::SharedClock;
use muster_protocol::{Digest, Timestamp};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::catalogue::{AppendOutcome, FileCatalogue, FileContent, FileList, Segment, StoredFile};
use crate::error::FileError;
use crate::grant::{FileAccess, FileId, UrlGrant, UrlKey};
use crate::settings::Settings;
use crate::storage::{ObjectStorage, StorageError};
use crate::write_plan::{WritePlan, WriteRequest};

/// Bytes of a segment: what one upload or download holds in memory.
pub const SEGMENT: usize = 8 * 1024 * 1024;
/// A sender that sends nothing for so long is gone.
const STALL: Duration = Duration::from_secs(60);
/// An object without a file may still be on its way for so long.
const GRACE: Duration = Duration::from_secs(3_600);
const LONGEST_NAME: usize = 255;

/// What somebody announces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewFile {
    /// What it is to be called.
    pub name: String,
    /// Its bytes, if they are known.
    pub size: Option<u64>,
    /// Where they are not: the most that are taken.
    pub max_size: Option<u64>,
    /// What is uploaded is held against it.
    pub sha256: Option<Digest>,
}

/// What an upload came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// A part; the next one begins there.
    Part(u64),
    /// The file is whole.
    Whole(FileContent),
}

/// The file store.
#[derive(Clone)]
pub struct FileService {
    catalogue: FileCatalogue,
    storage: ObjectStorage,
    key: UrlKey,
    settings: Settings,
    clock: SharedClock,
}

/// What an upload has at hand.
struct SegmentWriter<'a> {
    service: &'a FileService,
    file: &'a StoredFile,
    upload: Uuid,
    /// Where the next segment begins.
    at: u64,
    pieces: Vec<Bytes>,
    held: usize,
    /// Of everything so far; only where it is known from the first byte on.
    hasher: Option<Sha256>,
}

// === impl FileService ===

impl FileService {
    /// Joins its parts. `key` must be the same for all replicas.
    pub fn new(
        catalogue: FileCatalogue,
        storage: ObjectStorage,
        key: UrlKey,
        settings: Settings,
        clock: SharedClock,
    ) -> Self {
        Self {
            catalogue,
            storage,
            key,
            settings,
            clock,
        }
    }

    /// Announces a file of an account.
    ///
    /// # Errors
    /// Its name, its size, the account's quota, the store.
    pub async fn create(&self, account: &str, new: NewFile) -> Result<StoredFile, FileError> {
        let length = new.name.chars().count();
        if !(1..=LONGEST_NAME).contains(&length) || new.name.chars().any(char::is_control) {
            return Err(FileError::Name);
        }
        let limit = self.settings.max_file();
        let quota = self.settings.quota();
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
            expires_at: now.plus(self.settings.keep()),
        };
        if self.catalogue.create(&file, quota).await? {
            Ok(file)
        } else {
            Err(FileError::Quota { quota })
        }
    }

    /// A file of an account.
    ///
    /// # Errors
    /// There is none, or the store failed.
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
        Ok(self.catalogue.files_of(account, limit, offset).await?)
    }

    /// Removes a file of an account; its bytes go with the next collection.
    ///
    /// # Errors
    /// There is none, or the store failed.
    pub async fn remove(&self, account: &str, id: FileId) -> Result<(), FileError> {
        if self.catalogue.remove(account, id).await? {
            Ok(())
        } else {
            Err(FileError::NotFound)
        }
    }

    /// The URL below `base` that permits one access with one file, and when it ends.
    pub fn url(&self, access: FileAccess, file: &StoredFile, base: &str) -> (String, Timestamp) {
        let grant = UrlGrant::lasting(access, file.id, self.clock.now(), self.settings.url_life());
        (self.key.url(base, &grant), grant.until)
    }

    /// The file that a signed URL permits a access with.
    ///
    /// # Errors
    /// The URL permits nothing, or the file is gone.
    pub async fn find_permitted(
        &self,
        access: FileAccess,
        id: FileId,
        expires: &str,
        signature: &str,
    ) -> Result<StoredFile, FileError> {
        self.key.check(access, id, expires, signature, self.clock.now())?;
        self.catalogue.file(id).await?.ok_or(FileError::NotFound)
    }

    /// Takes bytes in.
    ///
    /// # Errors
    /// The request does not fit the file, the connection broke (what came is kept), the content is not what was promised,
    /// another upload took over, or a store failed.
    pub async fn write<E: Display>(
        &self,
        file: &StoredFile,
        asked: WriteRequest,
        body: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<WriteOutcome, FileError> {
        let plan = file.state().plan(asked)?;
        let upload = match file.uploading {
            Some((upload, _)) if !plan.anew => upload,
            Some(_) | None => {
                let upload = Uuid::new_v4();
                if !self.catalogue.begin_upload(file.id, upload).await? {
                    return Err(FileError::NotFound);
                }
                upload
            }
        };
        let mut writer = SegmentWriter {
            service: self,
            file,
            upload,
            at: plan.start,
            pieces: Vec::new(),
            held: 0,
            hasher: plan.anew.then(Sha256::new),
        };
        let took = writer.take(&plan, body).await;
        if let Err(FileError::TooMuch | FileError::Quota { .. }) = &took
            && plan.anew
        {
            self.catalogue.abandon(file.id, upload).await?;
        }
        took?;
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

    async fn finish(&self, file: &StoredFile, content: FileContent) -> Result<WriteOutcome, FileError> {
        if let Some(promised) = file.promised.filter(|promised| *promised != content.sha256) {
            self.catalogue.abandon(file.id, content.upload).await?;
            return Err(FileError::Mismatch {
                promised: promised.hex(),
                found: content.sha256.hex(),
            });
        }
        let expires_at = self.clock.now().plus(self.settings.keep());
        if self.catalogue.publish(file.id, content, expires_at).await? {
            Ok(WriteOutcome::Whole(content))
        } else {
            Err(self.overtaken(file.id).await?)
        }
    }

    /// Where the upload is that came between.
    async fn overtaken(&self, id: FileId) -> Result<FileError, FileError> {
        let file = self.catalogue.file(id).await?.ok_or(FileError::NotFound)?;
        let offset = file.state().offset();
        Ok(FileError::Overtaken { offset })
    }

    /// Of an upload whose beginning another process took in.
    async fn digest(&self, upload: Uuid) -> Result<Digest, FileError> {
        let mut hasher = Sha256::new();
        for segment in self.catalogue.segments(upload).await? {
            hasher.update(self.storage.get(&segment.object, 0..segment.len).await?);
        }
        Ok(Digest::from_bytes(hasher.finalize().into()))
    }

    /// Bytes `first..end` of a content, a segment at a time.
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

    /// Removes files whose time is over, and objects that no file needs; says how many of each.
    ///
    /// # Errors
    /// A store failed; the next collection goes on.
    pub async fn sweep(&self) -> Result<(u64, u64), FileError> {
        let now = self.clock.now();
        let expired = self.catalogue.expire(now).await?;
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
                // In this order: a row whose object is gone is looked at again, an object without a row never.
                self.storage.delete(&object).await?;
                self.catalogue.forget(&object).await?;
                removed += 1;
            }
        }
    }

    /// Between two collections.
    pub const fn sweep_every(&self) -> Duration {
        self.settings.sweep_every()
    }
}

// === impl SegmentWriter ===

impl SegmentWriter<'_> {
    /// Takes a body in, as far as it comes.
    async fn take<E: Display>(
        &mut self,
        plan: &WritePlan,
        body: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<(), FileError> {
        let mut body = pin!(body);
        let mut taken: u64 = 0;
        let whole = loop {
            let piece = match tokio::time::timeout(STALL, body.next()).await {
                Ok(Some(Ok(piece))) => piece,
                Ok(None) => break true,
                Ok(Some(Err(error))) => {
                    tracing::debug!(file = %self.file.id, %error, "an upload broke off");
                    break false;
                }
                Err(_) => {
                    tracing::debug!(file = %self.file.id, "an upload stalled");
                    break false;
                }
            };
            taken = taken.saturating_add(piece.len() as u64);
            if taken > plan.limit {
                return Err(FileError::TooMuch);
            }
            self.held += piece.len();
            self.pieces.push(piece);
            if self.held >= SEGMENT {
                self.keep().await?;
            }
        };
        self.keep().await?;
        if whole && plan.expected.is_none_or(|expected| expected == taken) {
            Ok(())
        } else {
            Err(FileError::Broken { offset: self.at })
        }
    }

    /// Makes what is held durable.
    async fn keep(&mut self) -> Result<(), FileError> {
        if self.held == 0 {
            return Ok(());
        }
        let pieces = std::mem::take(&mut self.pieces);
        let segment = Segment {
            object: format!("{}/{:016x}-{}", self.upload, self.at, Uuid::new_v4().simple()),
            start: self.at,
            len: std::mem::take(&mut self.held) as u64,
        };
        if let Some(hasher) = &mut self.hasher {
            for piece in &pieces {
                hasher.update(piece);
            }
        }
        let FileService {
            catalogue,
            storage,
            settings,
            clock,
            ..
        } = self.service;
        catalogue
            .note_object(self.upload, &segment.object, segment.start, clock.now())
            .await?;
        storage.put(&segment.object, pieces).await?;
        let quota = settings.quota();
        match catalogue.append(self.file, self.upload, &segment, quota).await? {
            AppendOutcome::Appended => {
                self.at += segment.len;
                Ok(())
            }
            AppendOutcome::Overtaken => Err(self.service.overtaken(self.file.id).await?),
            AppendOutcome::OverQuota => Err(FileError::Quota { quota }),
        }
    }
}
