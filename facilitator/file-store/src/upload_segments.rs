//! Writes the body of one request as durable segments.

use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use muster_process::SharedClock;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::catalogue::{AppendOutcome, ExceededBound, FileBounds, FileCatalogue, Segment, StoredFile};
use crate::error::FileError;
use crate::object_storage::ObjectStorage;
use crate::signed_urls::FileId;
use crate::upload_plan::WritePlan;

/// The bytes of a segment, which is also the memory of one upload or download.
const SEGMENT: usize = 8 * 1024 * 1024;
/// The pause in a body after which its sender counts as gone.
const STALL: Duration = Duration::from_secs(60);

/// The running write of one request.
pub(crate) struct SegmentWriter<'a> {
    pub(crate) catalogue: &'a FileCatalogue,
    pub(crate) storage: &'a ObjectStorage,
    pub(crate) clock: &'a SharedClock,
    /// The bounds on files together, in bytes.
    pub(crate) bounds: FileBounds,
    /// Seconds until the next sweep has deleted unused objects.
    pub(crate) wait_s: u64,
    pub(crate) file: &'a StoredFile,
    pub(crate) upload: Uuid,
    /// The offset of the next segment.
    pub(crate) at: u64,
    /// The bytes in memory, which are not durable yet.
    pub(crate) pieces: Vec<Bytes>,
    /// The number of bytes in memory.
    pub(crate) held: usize,
    /// The digest of everything so far; `None` if the request does not begin with the first byte.
    pub(crate) hasher: Option<Sha256>,
}

// === impl SegmentWriter ===

impl SegmentWriter<'_> {
    /// Receives a body, as far as it arrives.
    pub(crate) async fn receive<E: Display>(
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
                    tracing::debug!(file = %self.file.id, %error, "an upload was interrupted");
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
                self.flush().await?;
            }
        };
        self.flush().await?;
        if whole && plan.expected.is_none_or(|expected| expected == taken) {
            Ok(())
        } else {
            Err(FileError::Broken { offset: self.at })
        }
    }

    /// Makes the bytes in memory durable, as one segment.
    async fn flush(&mut self) -> Result<(), FileError> {
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
        let bounds = self.bounds;
        let (account, now) = (self.file.account.as_str(), self.clock.now());
        let recorded = self
            .catalogue
            .record_object(account, self.upload, &segment, bounds, now);
        if !recorded.await? {
            return Err(FileError::AwaitsDeletion { wait_s: self.wait_s });
        }
        self.storage.put(&segment.object, pieces).await?;
        let appended = self.catalogue.append(self.file, self.upload, &segment, bounds);
        match appended.await? {
            AppendOutcome::Appended => {
                self.at += segment.len;
                Ok(())
            }
            AppendOutcome::Overtaken => {
                delete_object(self.catalogue, self.storage, &segment.object).await?;
                Err(overtaken_error(self.catalogue, self.file.id).await?)
            }
            AppendOutcome::Exceeds(exceeded) => {
                delete_object(self.catalogue, self.storage, &segment.object).await?;
                Err(exceeded_error(exceeded, bounds))
            }
        }
    }
}

/// Deletes an object and then its row: a sweep finds a row without an object, but never an object without a row.
pub(crate) async fn delete_object(
    catalogue: &FileCatalogue,
    storage: &ObjectStorage,
    object: &str,
) -> Result<(), FileError> {
    storage.delete(object).await?;
    catalogue.delete_object_row(object).await?;
    Ok(())
}

/// The error for a file that would exceed one of the bounds.
pub(crate) const fn exceeded_error(exceeded: ExceededBound, bounds: FileBounds) -> FileError {
    match exceeded {
        ExceededBound::Account => FileError::Quota {
            quota: bounds.account,
        },
        ExceededBound::All => FileError::Full,
        ExceededBound::Files => FileError::TooManyFiles { limit: bounds.files },
    }
}

/// The error for an upload that another one has replaced, with the offset of the other one.
pub(crate) async fn overtaken_error(catalogue: &FileCatalogue, id: FileId) -> Result<FileError, FileError> {
    let file = catalogue.file(id).await?.ok_or(FileError::NotFound)?;
    let offset = file.state().offset();
    Ok(FileError::Overtaken { offset })
}
