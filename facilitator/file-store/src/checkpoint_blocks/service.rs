//! The store of blocks: tables, objects and signed URLs together.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use muster_checkpoints::{BLOCK_BYTES, CheckpointManifest};
use muster_http::rate_limit::RateLimiter;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::job::{CheckpointTerms, KeptCheckpoint, StoredStream};
use muster_protocol::rest::JobCheckpointsView;
use muster_protocol::wire::checkpoints::{CheckpointGrant, OutputGrant, ResumeOrder};
use muster_protocol::{Digest, JobId, Timestamp, ValidatorKey};
use muster_store::StoreError;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::checkpoint_blocks::block_grant::{BlockAccess, BlockGrant, BlockQuery, HeldGrant};
use crate::checkpoint_blocks::catalogue::{
    Announcement, AttemptBound, BlockBounds, BlockCatalogue, NewBlock,
};
use crate::checkpoint_blocks::upload_permits::{PACE_BYTES, PACE_WINDOW, RECEIVE_LIMIT, UploadPermits};
use crate::{ObjectStorage, Settings, StorageError, UrlKey};

/// The time until the URLs expire that a job's validator gets. They end earlier: the validator's with its job, and an
/// executor's, which is narrowed to an attempt, with that attempt.
const JOB_GRANT: Duration = Duration::from_secs(400 * 24 * 3_600);

/// How long a block stays that no kept checkpoint names, since it was used last.
const GRACE: Duration = Duration::from_secs(3_600);

// No sweep drops a block that is being written.
const _: () = assert!(RECEIVE_LIMIT.as_secs() < GRACE.as_secs() / 2);

/// The bytes of a stream that are in memory for one reader of it.
const STREAM_PIECE_BYTES: u64 = 1 << 20;

/// The wait of a client whose block is being dropped.
const BUSY_SECS: u64 = 2;

/// A request about blocks that is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum BlockStoreError {
    /// The URL permits nothing, or not this.
    #[error("the URL does not permit this: it has expired, or was not signed for these blocks")]
    NotPermitted,
    /// The job has ended.
    #[error("the job has ended; its executors keep no more checkpoints")]
    Ended,
    /// The attempt that the URL was narrowed to has ended.
    #[error("the attempt has ended; its executor keeps no more checkpoints and reads none")]
    AttemptEnded,
    /// There is no such block.
    #[error("there is no such block")]
    NotFound,
    /// The content has another digest than the block's name.
    #[error("the content has the SHA-256 {0}, which is not the name of the block")]
    OtherContent(Digest),
    /// The body came too slowly.
    #[error(
        "the block came too slowly: it must bring {} KiB in {} s and be whole in {} s; send it again over a faster line",
        PACE_BYTES / 1024, PACE_WINDOW.as_secs(), RECEIVE_LIMIT.as_secs()
    )]
    TooSlow,
    /// The body is longer than a block.
    #[error("a block has at most {BLOCK_BYTES} bytes")]
    TooLong,
    /// The connection broke before the block was whole.
    #[error("the block did not arrive whole: {0}; send it again")]
    Broken(String),
    /// The block is being dropped at this moment.
    #[error("the block is being dropped at this moment; send it again in {BUSY_SECS} s")]
    BeingDropped,
    /// The account has no room.
    #[error("the account's files and checkpoints take as much room as they may")]
    Full,
    /// The attempt has no room.
    #[error(
        "the blocks of this attempt take the {} MiB that those of one attempt may; the facilitator's operator sets \
         files.quota_mib and files.attempt_percent", .0 / (1024 * 1024)
    )]
    AttemptFull(u64),
    /// The account's URLs are used too often.
    #[error("too many requests; try again in {0} s")]
    Throttled(u64),
    /// The stated length of a stream does not fit its list of blocks, or the room of its account.
    #[error(
        "the executor states an output of {0} bytes, which its list of blocks or the account's room does not allow"
    )]
    FalseLength(u64),
    /// The checkpoint that a job wants to begin from is not kept.
    #[error("job {0} keeps no checkpoint {1}; `muster job checkpoints {0}` lists those that it keeps")]
    NoCheckpoint(JobId, u32),
    /// The database fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The object store fails.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// The blocks of all jobs of a facilitator.
#[derive(Clone)]
pub struct CheckpointService {
    catalogue: BlockCatalogue,
    storage: ObjectStorage,
    key: UrlKey,
    settings: Settings,
    pub(crate) clock: SharedClock,
    requests: Arc<Mutex<RateLimiter<String>>>,
    /// Bounds the blocks in memory.
    pub(crate) uploads: UploadPermits,
}

/// A request that a URL permits.
#[derive(Clone, Debug)]
pub(crate) struct PermittedRequest {
    /// The job whose blocks it is about.
    pub(crate) job: JobId,
    /// The account that they count towards.
    pub(crate) account: String,
    held: HeldGrant,
}

fn object(job: &str, block: &str) -> String {
    format!("blocks/{job}/{block}")
}

impl CheckpointService {
    /// A store of blocks beside the files of the same settings. All replicas must use the same `key`.
    pub fn new(
        catalogue: BlockCatalogue,
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
            uploads: UploadPermits::default(),
        }
    }

    fn url(&self, access: BlockAccess, job: JobId, lasts: Duration, base: &str) -> String {
        let until = Timestamp::from_secs(self.clock.now().plus(lasts).secs());
        BlockGrant { access, job, until }.url(&self.key, base)
    }

    /// The grant that goes with a job of `account` to its validator. `base` is the address at which executors reach
    /// this facilitator.
    ///
    /// # Errors
    /// The checkpoint that the job begins from is not kept, or belongs to another account.
    pub async fn grant(
        &self,
        account: &str,
        job: JobId,
        terms: &CheckpointTerms,
        base: &str,
    ) -> Result<CheckpointGrant, BlockStoreError> {
        let resume = match terms.resume_from {
            None => None,
            Some(source) => {
                let missing = BlockStoreError::NoCheckpoint(source.job, source.ordinal);
                if !self.catalogue.is_owned(source.job, account).await? {
                    return Err(missing);
                }
                let whole = self.whole_checkpoints(source.job).await?;
                let found = whole
                    .iter()
                    .find(|checkpoint| checkpoint.ordinal == source.ordinal);
                Some(ResumeOrder {
                    manifest: found.ok_or(missing)?.manifest,
                    blocks: self.url(BlockAccess::ReadFor(job), source.job, JOB_GRANT, base),
                })
            }
        };
        Ok(CheckpointGrant {
            blocks: self.url(BlockAccess::Write, job, JOB_GRANT, base),
            resume,
            attempt_urls: true,
        })
    }

    /// The grant that goes with a job to its validator, for the streams that the job's programs print. `base` is as for
    /// [`Self::grant`]. The output of a job that `keeps_checkpoints` shares their room, because one attempt writes
    /// both.
    pub fn grant_output(&self, job: JobId, keeps_checkpoints: bool, base: &str) -> OutputGrant {
        let access = if keeps_checkpoints {
            BlockAccess::Write
        } else {
            BlockAccess::Output
        };
        OutputGrant {
            blocks: self.url(access, job, JOB_GRANT, base),
        }
    }

    /// The checkpoints of a job for its user, with a URL that reads them.
    ///
    /// # Errors
    /// The database fails.
    pub async fn view(&self, job: JobId, base: &str) -> Result<JobCheckpointsView, StoreError> {
        Ok(JobCheckpointsView {
            checkpoints: self.whole_checkpoints(job).await?,
            blocks: self.url(BlockAccess::Read, job, self.settings.url_lifetime(), base),
        })
    }

    /// The kept checkpoints of a job whose manifests are stored.
    async fn whole_checkpoints(&self, job: JobId) -> Result<Vec<KeptCheckpoint>, StoreError> {
        let Some((_, kept)) = self.catalogue.kept(job).await? else {
            return Ok(Vec::new());
        };
        let mut whole = Vec::with_capacity(kept.len());
        for checkpoint in kept {
            if self
                .catalogue
                .block_length(job, checkpoint.manifest)
                .await?
                .is_some()
            {
                whole.push(checkpoint);
            }
        }
        Ok(whole)
    }

    /// Stores the list of a job's kept checkpoints, as its validator reported it, and which attempts have ended: those
    /// from 1 to `ended_attempts`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn record_kept(
        &self,
        validator: ValidatorKey,
        job: JobId,
        kept: &[KeptCheckpoint],
        ended_attempts: u32,
    ) -> Result<(), StoreError> {
        // Three newest and the best; the list of a validator that reports more is cut.
        let kept = kept.get(..16).unwrap_or(kept);
        self.catalogue
            .record_kept(validator, job, kept, ended_attempts, self.clock.now())
            .await
    }

    /// Checks a URL, and finds the job. The request counts for its account.
    pub(crate) async fn find_permitted(
        &self,
        job: JobId,
        query: &BlockQuery,
        writes: bool,
    ) -> Result<PermittedRequest, BlockStoreError> {
        let now = self.clock.now();
        let held = BlockGrant::read(&self.key, job, query, now).ok_or(BlockStoreError::NotPermitted)?;
        if writes && !held.grant.access.writes() {
            return Err(BlockStoreError::NotPermitted);
        }
        let owner = self
            .catalogue
            .owner(job)
            .await?
            .ok_or(BlockStoreError::NotFound)?;
        self.check_holder(&held).await?;
        self.count_request(&owner.account)?;
        Ok(PermittedRequest {
            job,
            account: owner.account,
            held,
        })
    }

    /// Counts a request for its account, which may have so many a minute.
    fn count_request(&self, account: &str) -> Result<(), BlockStoreError> {
        let counted = self.requests.lock().take(account.to_owned(), self.clock.now());
        counted.map_err(|wait| BlockStoreError::Throttled(wait.as_secs().saturating_add(1)))
    }

    /// Checks that the job and the attempt that hold a URL have not ended. A later attempt ends those before it: the
    /// validator's report of an end may be lost, and no two attempts of a job run at one time.
    async fn check_holder(&self, held: &HeldGrant) -> Result<(), BlockStoreError> {
        let Some(job) = held.grant.holder() else {
            return Ok(());
        };
        let holder = self.catalogue.owner(job).await?;
        let holder = holder
            .filter(|holder| !holder.has_ended)
            .ok_or(BlockStoreError::Ended)?;
        let Some(attempt) = held.attempt else {
            return Ok(());
        };
        if attempt <= holder.ended_attempts {
            return Err(BlockStoreError::AttemptEnded);
        }
        let earlier = attempt.saturating_sub(1);
        if earlier > holder.ended_attempts {
            self.catalogue.end_attempts(job, earlier).await?;
        }
        Ok(())
    }

    /// Those of the blocks that the job lacks.
    pub(crate) async fn find_missing(
        &self,
        job: JobId,
        blocks: &[Digest],
    ) -> Result<Vec<Digest>, StoreError> {
        let found = self.catalogue.touch_all(job, blocks, self.clock.now()).await?;
        let missing = blocks.iter().copied().filter(|block| !found.contains(block));
        Ok(missing.collect())
    }

    /// Stores a block of a job, whose content comes in pieces. It is durable once this has succeeded.
    pub(crate) async fn put(
        &self,
        request: &PermittedRequest,
        block: Digest,
        content: Vec<Bytes>,
    ) -> Result<(), BlockStoreError> {
        let hashed = content.iter().fold(Sha256::new(), Sha256::chain_update);
        let found = Digest::from_bytes(hashed.finalize().into());
        if found != block {
            return Err(BlockStoreError::OtherContent(found));
        }
        // The attempt may have ended while the block arrived.
        self.check_holder(&request.held).await?;
        let (job, now) = (request.job, self.clock.now());
        let bounds = self.settings.bounds();
        let bounds = BlockBounds {
            account: bounds.account,
            all: bounds.all,
        };
        let most = match request.held.grant.access {
            BlockAccess::Output => self.settings.output_bound(),
            BlockAccess::Write | BlockAccess::Read | BlockAccess::ReadFor(_) => self.settings.attempt_bound(),
        };
        let new = NewBlock {
            job,
            block,
            account: &request.account,
            bytes: u64::try_from(content.iter().map(Bytes::len).sum::<usize>()).unwrap_or(u64::MAX),
            attempt: request
                .held
                .attempt
                .map(|attempt| AttemptBound { attempt, bytes: most }),
        };
        let announced = self.catalogue.announce(new, bounds, now).await?;
        match announced {
            Announcement::Write => {}
            Announcement::Full => return Err(BlockStoreError::Full),
            Announcement::AttemptFull => return Err(BlockStoreError::AttemptFull(most)),
            Announcement::BeingDropped => return Err(BlockStoreError::BeingDropped),
        }
        self.storage
            .put(&object(&job.to_string(), &block.hex()), content)
            .await?;
        match self.catalogue.mark_durable(job, block).await? {
            true => Ok(()),
            false => Err(BlockStoreError::BeingDropped),
        }
    }

    /// Reads a block of a job.
    pub(crate) async fn get(&self, job: JobId, block: Digest) -> Result<Bytes, BlockStoreError> {
        self.get_range(job, block, 0..BLOCK_BYTES).await
    }

    /// Reads what a block of a job has of a range of bytes.
    async fn get_range(
        &self,
        job: JobId,
        block: Digest,
        range: Range<u64>,
    ) -> Result<Bytes, BlockStoreError> {
        let length = self.catalogue.block_length(job, block).await?;
        let length = length.ok_or(BlockStoreError::NotFound)?;
        let range = range.start..range.end.min(length).min(BLOCK_BYTES);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let name = object(&job.to_string(), &block.hex());
        Ok(self.storage.get(&name, range).await?)
    }

    /// Opens a stream that a program of a job printed, at `offset`. It comes in pieces of a mebibyte, of which one at a
    /// time is in memory. The request counts for the job's account. One block may stand in the list many times, so the
    /// account's room bounds the length, not only what is stored.
    ///
    /// # Errors
    /// The list of its blocks is not there, the stated length does not fit it, the account has too many requests, or
    /// the store fails.
    pub async fn open_stream(
        &self,
        job: JobId,
        printed: StoredStream,
        offset: u64,
    ) -> Result<impl Stream<Item = Result<Bytes, BlockStoreError>> + Send + use<>, BlockStoreError> {
        const { assert!(StoredStream::BLOCK_BYTES == BLOCK_BYTES) };
        let owner = self.catalogue.owner(job).await?;
        let owner = owner.ok_or(BlockStoreError::NotFound)?;
        self.count_request(&owner.account)?;
        if printed.bytes > self.settings.bounds().account {
            return Err(BlockStoreError::FalseLength(printed.bytes));
        }
        let list = self.get(job, printed.blocks).await?;
        let (digests, rest) = list.as_chunks::<32>();
        let needed = usize::try_from(printed.bytes.div_ceil(BLOCK_BYTES));
        if needed != Ok(digests.len()) || !rest.is_empty() {
            return Err(BlockStoreError::FalseLength(printed.bytes));
        }
        let service = self.clone();
        let read_on = move |at: u64| {
            let (service, list) = (service.clone(), list.clone());
            async move {
                if at >= printed.bytes {
                    return Ok(None);
                }
                let (index, skip) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
                let block = StoredStream::block(&list, index).ok_or(BlockStoreError::NotFound)?;
                let most = printed.bytes.saturating_sub(at).min(STREAM_PIECE_BYTES);
                let piece = service
                    .get_range(job, block, skip..skip.saturating_add(most))
                    .await?;
                if piece.is_empty() {
                    // The block is shorter than its place in the list: nothing takes its place.
                    return Err(BlockStoreError::NotFound);
                }
                let next = at.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
                Ok(Some((piece, next)))
            }
        };
        Ok(stream::try_unfold(offset, read_on))
    }

    /// Drops the blocks of jobs that are gone or ended long ago, and the blocks of open jobs that no kept checkpoint
    /// names. Returns the number of dropped blocks. A job whose objects cannot be read or deleted is passed over.
    ///
    /// # Errors
    /// The database failed. The next sweep goes on.
    pub async fn sweep(&self) -> Result<u64, BlockStoreError> {
        let (mut after, mut dropped) = (String::new(), 0);
        loop {
            let jobs = self.catalogue.jobs_with_blocks(&after).await?;
            let Some((last, _)) = jobs.last() else {
                return Ok(dropped);
            };
            after.clone_from(last);
            for (job, ended_at) in jobs {
                match self.sweep_job(&job, ended_at).await {
                    Ok(more) => dropped += more,
                    Err(error @ BlockStoreError::Store(_)) => return Err(error),
                    Err(error) => {
                        tracing::warn!(job, error = %Causes(&error), "the blocks of a job could not be swept");
                    }
                }
            }
        }
    }

    async fn sweep_job(&self, job: &str, ended_at: Option<i64>) -> Result<u64, BlockStoreError> {
        let now = self.clock.now();
        let (has_ended, is_over) = match ended_at {
            None => (true, true),
            Some(0) => (false, false),
            Some(ended_at) => {
                let until = Timestamp::from_micros(ended_at).plus(self.settings.retention());
                (true, until <= now)
            }
        };
        if is_over {
            // A request that is under way may still write what it announced.
            let old = self.catalogue.blocks_before(job, now.minus(GRACE)).await?;
            let dropped = self.drop_blocks(job, old, now.minus(GRACE)).await?;
            self.catalogue.forget_checkpoints(job).await?;
            return Ok(dropped);
        }
        if has_ended {
            // No checkpoint names the output, and the last list may come long after it was sent.
            return Ok(0);
        }
        let Ok(id) = job.parse::<JobId>() else {
            return Ok(0);
        };
        let Some((told_at, kept)) = self.catalogue.kept(id).await? else {
            return Ok(0);
        };
        // A checkpoint that is newer than the list, or that is being sent, has used its blocks since.
        let before = told_at.minus(GRACE);
        let mut old = self.catalogue.blocks_before(job, before).await?;
        if old.is_empty() {
            return Ok(0);
        }
        let mut named = BTreeSet::new();
        for checkpoint in kept {
            named.insert(checkpoint.manifest.hex());
            let manifest = match self.get(id, checkpoint.manifest).await {
                Ok(content) => CheckpointManifest::read(&content).ok(),
                Err(BlockStoreError::NotFound) => None,
                Err(error) => return Err(error),
            };
            let Some(manifest) = manifest else {
                // Nothing of the job goes while a kept checkpoint cannot be read.
                tracing::warn!(
                    job,
                    ordinal = checkpoint.ordinal,
                    "the manifest of a checkpoint cannot be read"
                );
                return Ok(0);
            };
            named.extend(manifest.blocks().map(|(block, _)| block.hex()));
        }
        old.retain(|block| !named.contains(block));
        self.drop_blocks(job, old, before).await
    }

    /// Drops those of the blocks that were still not used since `before`.
    async fn drop_blocks(
        &self,
        job: &str,
        blocks: Vec<String>,
        before: Timestamp,
    ) -> Result<u64, BlockStoreError> {
        let mut dropped = 0;
        for block in blocks {
            if !self.catalogue.withdraw(job, &block, before).await? {
                continue;
            }
            self.storage.delete(&object(job, &block)).await?;
            self.catalogue.forget(job, &block).await?;
            dropped += 1;
        }
        Ok(dropped)
    }

    /// The pause between two sweeps.
    pub const fn sweep_interval(&self) -> Duration {
        self.settings.sweep_interval()
    }
}
