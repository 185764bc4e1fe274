//! Files sent to a facilitator's store and fetched from it. A connection that breaks costs what was on its way.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use muster_protocol::Digest;
use muster_protocol::rest::{CreateFile, FileView};
use reqwest::{Body, Method, StatusCode, header};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use crate::client::Client;
use crate::error::ClientError;
use crate::part_file::{PartFile, part_path};

const BLOCK: usize = 256 * 1024;
/// The permission bits of a file of which nobody has told any, before the umask takes its part.
pub const USUAL_FILE: u32 = 0o666;
/// Between two reports of how far a transfer is.
const TELL: Duration = Duration::from_millis(100);
/// A transfer that does not get on for so long is begun again where it is.
const STALL: Duration = Duration::from_secs(60);
/// Breaks without any progress in between, and the pause after the first; the further ones double.
pub(crate) const BREAKS: u32 = 6;
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// How far back a file is looked for that has been sent before.
const LOOK_PAGES: u64 = 4;
const LOOK_SIZE: u32 = 100;

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferProgress {
    /// The bytes transferred so far.
    pub done: u64,
    /// The bytes of the whole transfer.
    pub total: u64,
}

/// A file that lies in the store now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// It, with its URLs.
    pub file: FileView,
    /// Bytes that were there already: of an upload that broke off earlier, or of the same content sent before.
    pub known: u64,
}

/// A file of the store that has come to this machine, whole and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The file that holds it, beside the place that it was fetched for.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
}

/// A file of this machine, read once.
#[derive(Clone, Debug)]
struct LocalFile {
    path: PathBuf,
    size: u64,
    sha256: Digest,
}

impl Client {
    /// Sends a file of this machine to the store under `name`.
    ///
    /// Content that lies there under that name already is not sent again, and an upload of it that broke off, also with
    /// the process that made it, goes on where it broke off.
    ///
    /// # Errors
    /// The file cannot be read or changes meanwhile, the facilitator refuses it, or the connection breaks again and
    /// again.
    pub async fn send_file(
        &self,
        path: &Path,
        name: &str,
        mut tell: impl FnMut(TransferProgress),
    ) -> Result<Sent, ClientError> {
        let local = LocalFile::read(path).await?;
        let file = match self.known(&local, name).await? {
            Some(known) if known.complete => {
                let known_bytes = local.size;
                return Ok(Sent {
                    file: known,
                    known: known_bytes,
                });
            }
            Some(begun) => begun,
            None => {
                let announced = CreateFile {
                    name: name.to_owned(),
                    size: Some(local.size),
                    max_size: None,
                    sha256: Some(local.sha256.hex()),
                };
                self.create_file(&announced).await?
            }
        };
        let known = self.push(&local, &file, &mut tell).await?;
        let file = self.file(&file.id).await?;
        Ok(Sent { file, known })
    }

    /// A file of ours with that name and content, whole or begun.
    async fn known(&self, local: &LocalFile, name: &str) -> Result<Option<FileView>, ClientError> {
        let sha256 = local.sha256.hex();
        for page in 1..=LOOK_PAGES {
            let list = self.files(page, LOOK_SIZE).await?;
            let same = |file: &FileView| {
                file.name == name
                    && file.size == Some(local.size)
                    && file.sha256.as_deref() == Some(sha256.as_str())
            };
            if let Some(found) = list.results.into_iter().find(same) {
                return Ok(Some(found));
            }
            if list.next.is_none() {
                break;
            }
        }
        Ok(None)
    }

    /// Uploads what is missing; returns the number of bytes that were not.
    async fn push(
        &self,
        local: &LocalFile,
        file: &FileView,
        tell: &mut impl FnMut(TransferProgress),
    ) -> Result<u64, ClientError> {
        let mut at = self.offset(&file.upload_url).await?;
        let known = at;
        let mut breaks = 0;
        let mut pause = FIRST_PAUSE;
        loop {
            let failed = match self.part(local, &file.upload_url, at, tell).await {
                Ok(()) => return Ok(known),
                Err(failed) => failed,
            };
            let conflict = failed.status() == Some(StatusCode::CONFLICT);
            let broken = failed.status() == Some(StatusCode::BAD_REQUEST);
            if failed.status() == Some(StatusCode::UNPROCESSABLE_ENTITY) {
                return Err(ClientError::Damaged {
                    path: local.path.clone(),
                    what: "it changed while it was uploaded, or was damaged on its way; upload it again"
                        .to_owned(),
                });
            }
            if !(failed.is_passing() || conflict || broken) {
                return Err(failed);
            }
            self.clock.sleep(pause).await;
            let now = self.offset(&file.upload_url).await?;
            if now > at {
                (breaks, pause) = (0, FIRST_PAUSE);
            } else {
                (breaks, pause) = (breaks + 1, pause * 2);
            }
            at = now;
            if breaks >= BREAKS {
                return Err(ClientError::BrokeOff {
                    what: format!("the upload of {}", local.path.display()),
                    offset: at,
                });
            }
        }
    }

    /// How far an upload has come.
    async fn offset(&self, upload_url: &str) -> Result<u64, ClientError> {
        let mut breaks = 0;
        let mut pause = FIRST_PAUSE;
        loop {
            let asked = self.once(self.http.head(upload_url).timeout(STALL)).await;
            match asked {
                Ok(answer) => {
                    let offset = answer.headers().get("upload-offset");
                    let offset = offset.and_then(|value| value.to_str().ok()?.parse().ok());
                    return Ok(offset.unwrap_or_default());
                }
                // A facilitator that has just been restarted.
                Err(failed) if failed.is_passing() && breaks < BREAKS => {
                    breaks += 1;
                    self.clock.sleep(pause).await;
                    pause *= 2;
                }
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Sends everything from `at` on in one request.
    async fn part(
        &self,
        local: &LocalFile,
        upload_url: &str,
        at: u64,
        tell: &mut impl FnMut(TransferProgress),
    ) -> Result<(), ClientError> {
        let left = local.size.saturating_sub(at);
        let mut request = self
            .http
            .request(Method::PUT, upload_url)
            .header(header::CONTENT_LENGTH, left);
        if left > 0 {
            let range = format!("bytes {at}-{}/{}", local.size - 1, local.size);
            request = request.header(header::CONTENT_RANGE, range);
        } else if local.size > 0 {
            return Ok(());
        }
        let counter = Arc::new(AtomicU64::new(at));
        let blocks = blocks(&local.path, at, left, Arc::clone(&counter)).await?;
        let mut sending = std::pin::pin!(self.once(request.body(Body::wrap_stream(blocks))));
        let mut last = (at, self.clock.now());
        loop {
            tokio::select! {
                answer = &mut sending => {
                    answer?;
                    tell(TransferProgress { done: local.size, total: local.size });
                    return Ok(());
                }
                () = self.clock.sleep(TELL) => {
                    let (done, now) = (counter.load(Ordering::Relaxed), self.clock.now());
                    tell(TransferProgress { done, total: local.size });
                    if done > last.0 {
                        last = (done, now);
                    } else if now.since(last.1) > STALL {
                        return Err(ClientError::Unwell {
                            base: self.base().to_owned(),
                            status: StatusCode::REQUEST_TIMEOUT,
                            reason: "it stopped taking the upload in".to_owned(),
                        });
                    }
                }
            }
        }
    }

    /// Fetches a file of the store to `to`, which is replaced once everything has come and its sha256 is right. Its
    /// permissions are those that the umask gives.
    ///
    /// # Errors
    /// The file is not there, this machine cannot keep it, its content is not what the store promises, or the
    /// connection breaks again and again.
    pub async fn fetch_file(
        &self,
        file: &FileView,
        to: &Path,
        tell: impl FnMut(TransferProgress),
    ) -> Result<u64, ClientError> {
        let fetched = self.fetch_beside(file, to, USUAL_FILE, tell).await?;
        std::fs::rename(&fetched.path, to).map_err(|source| write_error(to, source))?;
        Ok(fetched.bytes)
    }

    /// Fetches a file of the store into a file beside `to`, whose name ends with `.part`, and checks its sha256. The
    /// file at `to` stays. The fetched one gets these permission bits, of which the umask takes its part.
    ///
    /// A download that is interrupted, also with the process that made it, leaves what has come there, and the next one
    /// of the same content to the same place goes on with it.
    ///
    /// # Errors
    /// See [`Client::fetch_file`].
    pub async fn fetch_beside(
        &self,
        file: &FileView,
        to: &Path,
        mode: u32,
        mut tell: impl FnMut(TransferProgress),
    ) -> Result<Fetched, ClientError> {
        let folder = to.parent().unwrap_or(Path::new(""));
        let folder = match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        std::fs::create_dir_all(folder).map_err(|source| ClientError::Io {
            operation: "make the folder of",
            path: to.to_owned(),
            source,
        })?;
        let (path, size) = (part_path(to, file), file.size);
        // Without a digest nobody knows whether two parts are of one content.
        let keeps = file.sha256.is_some();
        let opening = path.clone();
        let opened = tokio::task::spawn_blocking(move || PartFile::open(opening, mode, keeps, size)).await;
        let mut part = opened
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|source| write_error(&path, source))?;
        if let Err(error) = self.pull_all(file, &mut part, &mut tell).await {
            if part.received() == 0 {
                part.discard();
            }
            return Err(error);
        }
        let found = part.digest().hex();
        if let Some(promised) = file.sha256.as_ref().filter(|promised| **promised != found) {
            part.discard();
            return Err(ClientError::Damaged {
                path: to.to_owned(),
                what: format!(
                    "the received bytes have sha256 {found} instead of {promised}; fetch the file again"
                ),
            });
        }
        let bytes = part.received();
        let path = part.finish().map_err(|source| write_error(&path, source))?;
        Ok(Fetched { path, bytes })
    }

    /// Fetches what is missing, over as many connections as that takes.
    async fn pull_all(
        &self,
        file: &FileView,
        part: &mut PartFile,
        tell: &mut impl FnMut(TransferProgress),
    ) -> Result<(), ClientError> {
        let mut breaks = 0;
        let mut pause = FIRST_PAUSE;
        loop {
            let before = part.received();
            if before > 0 && file.size == Some(before) {
                return Ok(());
            }
            match self.pull(file, part, tell).await {
                Ok(()) => return Ok(()),
                Err(failed) if !failed.is_passing() => return Err(failed),
                Err(_) => {}
            }
            if part.received() > before {
                (breaks, pause) = (0, FIRST_PAUSE);
            } else {
                breaks += 1;
                self.clock.sleep(pause).await;
                pause *= 2;
            }
            if breaks >= BREAKS {
                return Err(ClientError::BrokeOff {
                    what: format!("the download of {}", file.name),
                    offset: part.received(),
                });
            }
        }
    }

    /// The next bytes of an answer; `None` at its end.
    ///
    /// # Errors
    /// The connection broke, or nothing came for a while.
    pub(crate) async fn next_chunk(
        &self,
        answer: &mut reqwest::Response,
    ) -> Result<Option<Bytes>, ClientError> {
        let chunk = tokio::select! {
            chunk = answer.chunk() => chunk,
            () = self.clock.sleep(STALL) => {
                return Err(ClientError::Unwell {
                    base: self.base().to_owned(),
                    status: StatusCode::REQUEST_TIMEOUT,
                    reason: "it stopped sending".to_owned(),
                });
            }
        };
        chunk.map_err(|source| ClientError::Unreachable {
            base: self.base().to_owned(),
            source: source.without_url(),
        })
    }

    /// Fetches what is missing over one connection.
    async fn pull(
        &self,
        file: &FileView,
        part: &mut PartFile,
        tell: &mut impl FnMut(TransferProgress),
    ) -> Result<(), ClientError> {
        let at = part.received();
        let mut request = self.http.get(&file.download_url);
        if at > 0 {
            request = request.header(header::RANGE, format!("bytes={at}-"));
            if let Some(sha256) = &file.sha256 {
                request = request.header(header::IF_RANGE, format!("\"{sha256}\""));
            }
        }
        let mut answer = self.once(request).await?;
        let path = part.path().to_owned();
        let failed = |source| write_error(&path, source);
        if at > 0 && answer.status() != StatusCode::PARTIAL_CONTENT {
            // A server that sends everything again is taken at its word.
            part.restart().map_err(failed)?;
        }
        let total = answer.content_length().map_or(0, |len| part.received() + len);
        while let Some(piece) = self.next_chunk(&mut answer).await? {
            part.add(&piece).map_err(failed)?;
            let done = part.received();
            tell(TransferProgress { done, total });
        }
        Ok(())
    }
}

fn write_error(path: &Path, source: std::io::Error) -> ClientError {
    ClientError::Io {
        operation: "write",
        path: path.to_owned(),
        source,
    }
}

impl LocalFile {
    /// Measures and hashes a file.
    async fn read(path: &Path) -> Result<Self, ClientError> {
        let path = path.to_owned();
        let unreadable = |path: &Path, source| ClientError::Io {
            operation: "read",
            path: path.to_owned(),
            source,
        };
        let reading = path.clone();
        let hashed = tokio::task::spawn_blocking(move || {
            let mut file = std::fs::File::open(&reading)?;
            let mut hasher = Sha256::new();
            let mut block = vec![0; BLOCK];
            let mut size = 0_u64;
            loop {
                let read = file.read(&mut block)?;
                if read == 0 {
                    return Ok((size, Digest::from_bytes(hasher.finalize().into())));
                }
                hasher.update(block.get(..read).unwrap_or_default());
                size += read as u64;
            }
        });
        let (size, sha256) = hashed
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|source| unreadable(&path, source))?;
        Ok(Self { path, size, sha256 })
    }
}

/// `len` bytes of a file from `at` on; `counter` shows how far the reader is.
async fn blocks(
    path: &Path,
    at: u64,
    len: u64,
    counter: Arc<AtomicU64>,
) -> Result<impl Stream<Item = std::io::Result<Bytes>> + Send + 'static, ClientError> {
    let open = async {
        let mut file = tokio::fs::File::open(path).await?;
        file.seek(std::io::SeekFrom::Start(at)).await?;
        Ok(file)
    };
    let file = open.await.map_err(|source| ClientError::Io {
        operation: "read",
        path: path.to_owned(),
        source,
    })?;
    let state = (file, len, counter);
    Ok(stream::try_unfold(
        state,
        |(mut file, left, counter)| async move {
            let want = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
            if want == 0 {
                return Ok(None);
            }
            let mut block = vec![0; want];
            let read = file.read(&mut block).await?;
            if read == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
            }
            block.truncate(read);
            counter.fetch_add(read as u64, Ordering::Relaxed);
            Ok(Some((Bytes::from(block), (file, left - read as u64, counter))))
        },
    ))
}

/// The id of the file that a signed URL of a facilitator's store is about; `None` if it is no such URL.
pub fn file_of(url: &str) -> Option<String> {
    let url = url::Url::parse(url).ok()?;
    let mut parts = url.path_segments()?.rev();
    let ours = matches!(parts.next()?, "upload" | "content");
    let id = parts.next()?;
    let uuid = id.len() == 36 && id.bytes().all(|c| c.is_ascii_hexdigit() || c == b'-');
    (ours && uuid && parts.next()? == "files").then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_url_is_found_at_every_facilitator_and_nowhere_else() {
        let id = "11111111-2222-4333-8444-555555555555";
        for base in ["http://127.0.0.1:8090", "https://facilitator.example/below"] {
            for deed in ["upload", "content"] {
                let url = format!("{base}/files/{id}/{deed}?Expires=1&Signature=2");
                assert_eq!(file_of(&url).as_deref(), Some(id));
            }
        }
        for foreign in [
            "https://bucket.example/key?Signature=1",
            "http://x/files/1/upload",
            "http://x/files/11111111-2222-4333-8444-555555555555/other",
            "http://x/f/11111111-2222-4333-8444-555555555555/upload",
            "no url",
        ] {
            assert_eq!(file_of(foreign), None, "{foreign}");
        }
    }
}
