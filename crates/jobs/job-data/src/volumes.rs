//! Puts a job's inputs in place: inline, downloaded and cached ones. A refused volume leaves no files behind.

use std::fs::File;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt, stream};
use muster_http::addresses::{AddressRules, RuleError};
use muster_process::SharedClock;
use muster_protocol::Volume;
use muster_protocol::volume::{HuggingfaceVolume, InlineVolume, SingleFileVolume, VolumePart, ZipUrlVolume};
use reqwest::header::HeaderValue;
use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::download::{ExpectedContent, FetchOutcome, FetchRequest, TransferProgress, fetch};
use crate::error::{HttpError, VolumeError};
use crate::huggingface::HubClient;
use crate::huggingface_json::HubFile;
use crate::input_cache::{Cache, CachedFile, CachedResource, IncomingFile};
use crate::job_url::Target;
use crate::pinned_request::PinnedClient;
use crate::retry::Pace;
use crate::safe_names::plain_path;
use crate::settings::Settings;
use crate::unpack::InputFolder;
pub use crate::unpack::UnpackLimits;

/// Number of files of one repository that are fetched at the same time.
const MAX_PARALLEL: usize = 4;
/// Least size of a repository's file that is cached, in bytes.
const MIN_CACHED: u64 = 1 << 20;

/// The settings and limits for putting inputs in place.
#[derive(Clone)]
pub struct Fetcher {
    rules: Arc<AddressRules>,
    settings: Arc<Settings>,
    clock: SharedClock,
    progress: TransferProgress,
    pace: Pace,
}

/// A file that has arrived.
enum ArrivedFile {
    /// A file outside the cache: it may be moved.
    Own(NamedTempFile, u64),
    /// A cached file: it must be copied.
    Kept(CachedFile),
}

/// The inputs that are being put into one job's folder.
struct VolumePlacement<'a> {
    fetcher: &'a Fetcher,
    http: PinnedClient,
    cache: Option<Cache>,
    /// A folder for downloads, on the same disk as the job's folder.
    scratch: PathBuf,
    called_off: &'a CancellationToken,
}

/// The volume of a job, which comes either with the offer or with the request.
///
/// # Errors
/// [`VolumeError::Twice`] if both are given.
pub fn merge_volumes(
    offered: Option<Volume>,
    requested: Option<Volume>,
) -> Result<Vec<VolumePart>, VolumeError> {
    match (offered, requested) {
        (Some(_), Some(_)) => Err(VolumeError::Twice),
        (volume, None) | (None, volume) => Ok(volume.map(Volume::into_parts).unwrap_or_default()),
    }
}

impl Fetcher {
    /// Creates a fetcher under an operator's settings.
    ///
    /// # Errors
    /// An entry of `allow` cannot be read.
    pub fn new(settings: Settings, clock: SharedClock) -> Result<Self, RuleError> {
        Ok(Self {
            rules: Arc::new(AddressRules::parse(&settings.allow)?),
            settings: Arc::new(settings),
            clock,
            progress: Arc::new(|_, _| {}),
            pace: Pace::default(),
        })
    }

    /// Reports the bytes received of a file, every few megabytes.
    #[must_use]
    pub fn with_progress(self, progress: TransferProgress) -> Self {
        Self { progress, ..self }
    }

    /// Replaces the default timeouts and pauses.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    pub(crate) fn rules(&self) -> Arc<AddressRules> {
        Arc::clone(&self.rules)
    }

    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    pub(crate) fn progress(&self) -> TransferProgress {
        Arc::clone(&self.progress)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Creates `target` and puts every part into it. A later volume replaces files of an earlier one. Downloads are
    /// stored in the parent folder of `target` meanwhile. Ends soon after it is cancelled.
    ///
    /// # Errors
    /// The first failure; `target` is removed again.
    pub async fn place(
        &self,
        parts: Vec<VolumePart>,
        target: &Path,
        limits: UnpackLimits,
        called_off: &CancellationToken,
    ) -> Result<(), VolumeError> {
        let (folder, token) = (target.to_owned(), called_off.clone());
        let room = blocking(move || InputFolder::create(&folder, limits, token)).await?;
        let outcome = self.fill(room, parts, target, limits, called_off).await;
        if outcome.is_err() {
            let folder = target.to_owned();
            let removed = blocking(move || std::fs::remove_dir_all(folder).map_err(VolumeError::Disk)).await;
            if let Err(error) = removed {
                tracing::warn!(%error, "the folder of a refused volume cannot be removed");
            }
        }
        outcome
    }

    async fn fill(
        &self,
        room: InputFolder,
        parts: Vec<VolumePart>,
        target: &Path,
        limits: UnpackLimits,
        called_off: &CancellationToken,
    ) -> Result<(), VolumeError> {
        let placing = VolumePlacement {
            fetcher: self,
            http: PinnedClient::new(self.rules()).with_pace(self.pace),
            cache: self.open_cache(&parts),
            scratch: target.parent().unwrap_or(target).to_owned(),
            called_off,
        };
        let outcome = placing.all(room, parts, limits.entries).await;
        if let Some(cache) = placing.cache {
            let now = self.clock.now();
            match blocking(move || cache.collect(now).map_err(VolumeError::Disk)).await {
                Ok(collected) if collected.removed > 0 => {
                    tracing::info!(?collected, "cached inputs were removed")
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "the cache of inputs cannot be read"),
            }
        }
        outcome
    }

    /// The cache, if it can be used. A job runs without one otherwise.
    fn open_cache(&self, parts: &[VolumePart]) -> Option<Cache> {
        let fetched = parts.iter().any(|part| !matches!(part, VolumePart::Inline(_)));
        if self.settings.cache_mib == 0 || !fetched {
            return None;
        }
        Cache::open(&self.settings.cache_dir, self.settings.cache_limits())
            .inspect_err(|error| tracing::warn!(%error, "inputs are not cached: cache_dir cannot be used"))
            .ok()
    }
}

async fn place_inline(mut room: InputFolder, volume: InlineVolume) -> Result<InputFolder, VolumeError> {
    blocking(move || {
        let packed: String = volume.contents.split_ascii_whitespace().collect();
        let index = room.index;
        let bytes = STANDARD
            .decode(packed)
            .map_err(|source| VolumeError::Base64 { index, source })?;
        let len = bytes.len() as u64;
        room.unpack_archive(Cursor::new(bytes), len, volume.relative_path.as_deref())?;
        Ok(room)
    })
    .await
}

impl VolumePlacement<'_> {
    async fn all(
        &self,
        mut room: InputFolder,
        parts: Vec<VolumePart>,
        max_files: usize,
    ) -> Result<(), VolumeError> {
        for (index, part) in parts.into_iter().enumerate() {
            room.index = index;
            room = match part {
                VolumePart::Inline(volume) => place_inline(room, volume).await,
                VolumePart::ZipUrl(volume) => self.place_zip(room, volume).await,
                VolumePart::SingleFile(volume) => self.place_file(room, volume).await,
                VolumePart::HuggingfaceVolume(volume) => self.place_repository(room, volume, max_files).await,
            }?;
        }
        Ok(())
    }

    async fn place_zip(
        &self,
        mut room: InputFolder,
        volume: ZipUrlVolume,
    ) -> Result<InputFolder, VolumeError> {
        let failed = VolumeError::fetch(room.index);
        let target = self
            .http
            .target(&volume.contents)
            .map_err(|error| failed(error.into()))?;
        let arrived = self
            .fetch_or_reuse(target, room.remaining())
            .await
            .map_err(failed)?;
        blocking(move || {
            let base = volume.relative_path.as_deref();
            match arrived {
                ArrivedFile::Own(file, len) => {
                    room.unpack_archive(file.reopen().map_err(VolumeError::Disk)?, len, base)?
                }
                ArrivedFile::Kept(held) => room.unpack_archive(&held.file, held.len, base)?,
            }
            Ok(room)
        })
        .await
    }

    async fn place_file(
        &self,
        room: InputFolder,
        volume: SingleFileVolume,
    ) -> Result<InputFolder, VolumeError> {
        let failed = VolumeError::fetch(room.index);
        // The path is checked before the download.
        plain_path(&volume.relative_path).map_err(|reason| room.name_error(&volume.relative_path, reason))?;
        let target = self
            .http
            .target(&volume.url)
            .map_err(|error| failed(error.into()))?;
        let arrived = self
            .fetch_or_reuse(target, room.remaining())
            .await
            .map_err(failed)?;
        write_file(room, arrived, volume.relative_path).await
    }

    async fn place_repository(
        &self,
        mut room: InputFolder,
        volume: HuggingfaceVolume,
        max_files: usize,
    ) -> Result<InputFolder, VolumeError> {
        let index = room.index;
        let settings = self.fetcher.settings();
        let hub = HubClient {
            http: &self.http,
            endpoint: &settings.hub,
            token: settings.hub_token_for(&volume.repo_id),
            index,
            max_files,
            called_off: self.called_off,
        };
        let base = volume.relative_path.as_deref();
        let base = crate::safe_names::base_path(base)
            .map_err(|reason| room.name_error(base.unwrap_or_default(), reason))?;
        let snapshot = hub.list_snapshot(&volume).await?;
        let total = snapshot
            .files
            .iter()
            .map(|(_, file)| file.len)
            .fold(0, u64::saturating_add);
        if total > room.remaining() {
            let limit = room.limits().bytes;
            return Err(VolumeError::TooLarge { index, limit });
        }
        let authorization = snapshot.authorization.as_ref();
        let fetches = snapshot.files.into_iter().map(|(target, file)| async move {
            let arrived = self.hub_file(target, &file, authorization).await;
            arrived
                .map(|arrived| (file.path, arrived))
                .map_err(VolumeError::fetch(index))
        });
        let mut fetches = std::pin::pin!(stream::iter(fetches).buffer_unordered(MAX_PARALLEL));
        while let Some(fetched) = fetches.next().await {
            let (path, arrived) = fetched?;
            plain_path(&path).map_err(|reason| room.name_error(&path, reason))?;
            let path = base.join(path).to_string_lossy().into_owned();
            room = write_file(room, arrived, path).await?;
        }
        Ok(room)
    }

    /// Fetches a file of the hub. A cached file with a known digest needs no request.
    async fn hub_file(
        &self,
        target: Target,
        file: &HubFile,
        authorization: Option<&HeaderValue>,
    ) -> Result<ArrivedFile, HttpError> {
        let cache = self
            .cache
            .as_ref()
            .filter(|cache| file.len >= MIN_CACHED && cache.accepts(file.len));
        let cache = cache.filter(|_| file.promise.sha256.is_some());
        if let (Some(cache), Some(sha256)) = (cache.cloned(), file.promise.sha256)
            && let Some(held) = disk(move || cache.open_content(sha256)).await?
        {
            return Ok(ArrivedFile::Kept(held));
        }
        let want = FetchRequest {
            target,
            authorization: authorization.cloned(),
            limit: file.len,
            promise: file.promise,
            unless: None,
        };
        self.fetched(want, cache, None).await
    }

    /// Fetches a file by its URL. Cached content is used if the server reports that it has not changed.
    async fn fetch_or_reuse(&self, target: Target, limit: u64) -> Result<ArrivedFile, HttpError> {
        let resource = target.resource();
        let mut kept = None;
        if let Some(cache) = self.cache.clone() {
            let named = resource.clone();
            kept = disk(move || {
                let Some(known) = cache.look_up(&named) else {
                    return Ok(None);
                };
                Ok(cache.open_content(known.sha256)?.map(|held| (known, held)))
            })
            .await?;
        }
        let mut want = FetchRequest {
            target,
            authorization: None,
            limit,
            promise: ExpectedContent::default(),
            unless: None,
        };
        let Some((CachedResource { etag, .. }, held)) = kept.filter(|(_, held)| held.len <= limit) else {
            return self.fetched(want, self.cache.as_ref(), Some(resource)).await;
        };
        want.unless = Some(etag);
        let (incoming, file) = self.incoming(self.cache.as_ref()).await?;
        match self.fetch(&want, file).await? {
            FetchOutcome::Unchanged => Ok(ArrivedFile::Kept(held)),
            FetchOutcome::Content { digests, etag } => {
                self.keep(incoming, digests, etag, Some(resource)).await
            }
        }
    }

    async fn fetched(
        &self,
        want: FetchRequest,
        cache: Option<&Cache>,
        resource: Option<String>,
    ) -> Result<ArrivedFile, HttpError> {
        let (incoming, file) = self.incoming(cache).await?;
        match self.fetch(&want, file).await? {
            // No entity tag was sent, so the server cannot answer that the file is unchanged.
            FetchOutcome::Unchanged => Err(HttpError::Disk(std::io::Error::other(
                "the server answered that an uncached file is unchanged",
            ))),
            FetchOutcome::Content { digests, etag } => self.keep(incoming, digests, etag, resource).await,
        }
    }

    async fn fetch(&self, want: &FetchRequest, file: File) -> Result<FetchOutcome, HttpError> {
        fetch(&self.http, want, file, &self.fetcher.progress, self.called_off).await
    }

    async fn incoming(&self, cache: Option<&Cache>) -> Result<(PendingFile, File), HttpError> {
        let (cache, scratch) = (cache.cloned(), self.scratch.clone());
        disk(move || {
            let on_its_way = match cache {
                Some(cache) => PendingFile::Cached(cache.begin_download()?, cache),
                None => PendingFile::Own(NamedTempFile::new_in(scratch)?),
            };
            let file = match &on_its_way {
                PendingFile::Cached(incoming, _) => incoming.file.reopen()?,
                PendingFile::Own(file) => file.reopen()?,
            };
            Ok((on_its_way, file))
        })
        .await
    }

    async fn keep(
        &self,
        incoming: PendingFile,
        digests: crate::download_file::Digests,
        etag: Option<String>,
        resource: Option<String>,
    ) -> Result<ArrivedFile, HttpError> {
        disk(move || match incoming {
            PendingFile::Own(file) => Ok(ArrivedFile::Own(file, digests.len)),
            // Without a strong entity tag a later job could not ask whether the file has changed.
            PendingFile::Cached(incoming, cache) if cache.accepts(digests.len) => {
                let named = resource.as_deref().zip(etag.as_deref());
                if resource.is_some() && named.is_none() {
                    return Ok(ArrivedFile::Kept(CachedFile::uncached(
                        incoming.file,
                        digests.len,
                    )?));
                }
                cache
                    .insert(incoming, digests.sha256, named)
                    .map(ArrivedFile::Kept)
            }
            PendingFile::Cached(incoming, _) => Ok(ArrivedFile::Kept(CachedFile::uncached(
                incoming.file,
                digests.len,
            )?)),
        })
        .await
    }
}

enum PendingFile {
    Cached(IncomingFile, Cache),
    Own(NamedTempFile),
}

async fn write_file(
    mut room: InputFolder,
    arrived: ArrivedFile,
    path: String,
) -> Result<InputFolder, VolumeError> {
    blocking(move || {
        match arrived {
            ArrivedFile::Own(file, len) => room.move_file(file.path(), len, &path)?,
            ArrivedFile::Kept(held) => room.copy_file(held.file, &path)?,
        }
        Ok(room)
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(VolumeError::Disk(std::io::Error::other(error))))
}

async fn disk<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, HttpError> {
    spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        .map_err(HttpError::Disk)
}

#[cfg(test)]
mod tests;
