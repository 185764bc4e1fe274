//! Downloads one file from one URL: checks redirects, bounds and hashes the bytes, continues a broken transfer, and
//! retries after a temporary failure.

use std::fs::File;
use std::sync::Arc;

use muster_http::range::ContentRange;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::download_file::{Digests, FileWriter, HashingFile};
use crate::error::HttpError;
use crate::job_url::Target;
use crate::pinned_request::PinnedClient;
use crate::response_headers::{retry_after, strong_etag};
use crate::retry::{PROGRESS, Retries, TryFailure, is_retryable, retryable};

const MAX_REDIRECTS: usize = 10;
/// Least number of bytes that must arrive in each span of [`crate::Pace::stall`]; otherwise the try fails.
const MIN_STALL_BYTES: u64 = 32 * 1024;
/// Number of bytes between two reports of progress.
const REPORT_EVERY: u64 = 8 << 20;
/// Upper bound on the error name that is repeated from a header, in bytes.
const MAX_DETAIL: usize = 128;

/// Called as bytes arrive, with the bytes received and the total if the server has stated it.
pub type TransferProgress = Arc<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// A request for a file.
pub(crate) struct FetchRequest {
    pub(crate) target: Target,
    /// Credentials, sent to the target's own origin only.
    pub(crate) authorization: Option<HeaderValue>,
    /// Upper bound on the size, in bytes.
    pub(crate) limit: u64,
    /// The expected content.
    pub(crate) promise: ExpectedContent,
    /// The entity tag of a cached copy: the file is not wanted if it still has this tag.
    pub(crate) unless: Option<String>,
}

/// The properties of a file that are known before it is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpectedContent {
    pub(crate) len: Option<u64>,
    pub(crate) sha256: Option<muster_protocol::Digest>,
    pub(crate) git: Option<[u8; 20]>,
}

/// The result of a download.
#[derive(Debug)]
pub(crate) enum FetchOutcome {
    /// The content is in the file.
    Content { digests: Digests, etag: Option<String> },
    /// The file still has the entity tag of the cached copy.
    Unchanged,
}

/// The state of a download across its tries.
struct Download<'a> {
    http: &'a PinnedClient,
    want: &'a FetchRequest,
    /// Holds the received bytes between two tries.
    sink: Option<HashingFile>,
    /// The strong entity tag that guarantees that the rest belongs to the received bytes.
    tag: Option<String>,
    /// The total length, if a server has stated it.
    total: Option<u64>,
    /// The server has shown that it cannot continue a transfer.
    whole_only: bool,
    progress: &'a TransferProgress,
    told: u64,
}

/// Downloads into an empty file.
///
/// # Errors
/// Any [`HttpError`]. The content of the file is then undefined.
pub(crate) async fn fetch(
    http: &PinnedClient,
    want: &FetchRequest,
    file: File,
    progress: &TransferProgress,
    called_off: &CancellationToken,
) -> Result<FetchOutcome, HttpError> {
    let mut download = Download {
        http,
        want,
        sink: Some(HashingFile::new(file, want.promise.git.and(want.promise.len))),
        tag: None,
        total: want.promise.len,
        whole_only: false,
        progress,
        told: 0,
    };
    tokio::select! {
        biased;
        () = called_off.cancelled() => Err(HttpError::CalledOff),
        got = download.run() => got,
    }
}

impl Download<'_> {
    async fn run(&mut self) -> Result<FetchOutcome, HttpError> {
        let mut retries = Retries::new(self.http.pace());
        loop {
            let before = self.kept();
            let failure = match self.try_once().await {
                Ok(got) => return Ok(got),
                Err(failure) => failure,
            };
            if self.kept() >= before.saturating_add(PROGRESS) && self.can_continue() {
                retries.restart();
            }
            retries.wait(&self.want.target, failure).await?;
        }
    }

    fn kept(&self) -> u64 {
        self.sink.as_ref().map_or(0, HashingFile::len)
    }

    fn can_continue(&self) -> bool {
        self.tag.is_some() && !self.whole_only
    }

    /// Makes one request with its redirects, and reads the body.
    async fn try_once(&mut self) -> Result<FetchOutcome, TryFailure> {
        let resume = (self.kept() > 0 && self.can_continue()).then(|| self.kept());
        let (from, answer) = self.request(resume).await?;
        let status = answer.status();
        match (status, resume) {
            (StatusCode::OK, _) => {
                self.begin(&answer)?;
                self.body(&from, answer).await
            }
            (StatusCode::PARTIAL_CONTENT, Some(kept)) => {
                if !self.continues(&answer, kept) {
                    self.whole_only = true;
                    return Err(retryable(
                        "it sent another part of the file than the one requested",
                    ));
                }
                self.body(&from, answer).await
            }
            // Either all bytes had arrived when the connection broke, or the file has changed.
            (StatusCode::RANGE_NOT_SATISFIABLE, Some(_)) => {
                self.whole_only = true;
                Err(retryable("it cannot continue where it broke off"))
            }
            (StatusCode::NOT_MODIFIED, None) if self.want.unless.is_some() => Ok(FetchOutcome::Unchanged),
            (status, _) if is_retryable(status) => {
                let asked = header_text(answer.headers(), &header::RETRY_AFTER).and_then(retry_after);
                Err(TryFailure::Retryable {
                    what: format!("it answered {status}"),
                    asked,
                })
            }
            (status, _) => Err(TryFailure::Final(HttpError::Status {
                shown: from.shown(),
                status,
                detail: detail(answer.headers()),
            })),
        }
    }

    async fn request(&self, resume: Option<u64>) -> Result<(Target, Response), TryFailure> {
        let mut target = self.want.target.clone();
        for _ in 0..=MAX_REDIRECTS {
            let client = match self.http.client(&target).await {
                Err(HttpError::Unresolved { host, source }) => {
                    // A resolver may be away for a moment, but a name that does not exist stays unknown.
                    return Err(if source.kind() == std::io::ErrorKind::TimedOut {
                        retryable("its name was not resolved in time")
                    } else {
                        HttpError::Unresolved { host, source }.into()
                    });
                }
                client => client?,
            };
            let mut request = client
                .get(target.url().clone())
                // Encoded content would have to be decoded here, to a size that nothing bounds.
                .header(header::ACCEPT_ENCODING, "identity");
            let home = target.same_origin(&self.want.target);
            if let Some(authorization) = self.want.authorization.as_ref().filter(|_| home) {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            if let (Some(kept), Some(tag)) = (resume, &self.tag) {
                request = request
                    .header(header::RANGE, format!("bytes={kept}-"))
                    .header(header::IF_RANGE, tag);
            } else if let Some(known) = &self.want.unless {
                request = request.header(header::IF_NONE_MATCH, known);
            }
            let answer = timeout(self.http.pace().head, request.send())
                .await
                .map_err(|_| retryable("it did not answer in time"))?
                .map_err(|error| retryable(describe_failure(&error)))?;
            match self.http.redirect(&target, &answer)? {
                None => return Ok((target, answer)),
                Some(next) => target = next,
            }
        }
        Err(TryFailure::Final(HttpError::Redirects {
            shown: self.want.target.shown(),
            limit: MAX_REDIRECTS,
        }))
    }

    /// Starts with a complete answer: the bytes received before are discarded.
    fn begin(&mut self, answer: &Response) -> Result<(), TryFailure> {
        if let Some(sink) = &mut self.sink {
            sink.restart().map_err(HttpError::Disk)?;
        }
        self.told = 0;
        let headers = answer.headers();
        self.tag = header_text(headers, &header::ETAG)
            .and_then(strong_etag)
            .map(str::to_owned);
        if header_text(headers, &header::ACCEPT_RANGES).is_some_and(|ranges| ranges.trim() == "none") {
            self.whole_only = true;
        }
        let said = answer.content_length();
        if let (Some(promised), Some(said)) = (self.want.promise.len, said)
            && promised != said
        {
            return Err(self
                .mismatch(format!("it has {said} bytes instead of {promised}"))
                .into());
        }
        self.total = self.want.promise.len.or(said);
        if self.total.is_some_and(|total| total > self.want.limit) {
            return Err(self.too_large().into());
        }
        Ok(())
    }

    /// Whether a partial answer is the missing part of the same file.
    fn continues(&self, answer: &Response, kept: u64) -> bool {
        let headers = answer.headers();
        let same = header_text(headers, &header::ETAG).is_none_or(|tag| Some(tag) == self.tag.as_deref());
        let range = header_text(headers, &header::CONTENT_RANGE);
        let range = range.and_then(|range| ContentRange::parse(range).ok());
        range.is_some_and(|range| {
            let whole = match (range.total, self.total) {
                (Some(said), Some(known)) => said == known,
                _ => true,
            };
            same && whole && range.first == kept
        })
    }

    async fn body(&mut self, from: &Target, mut answer: Response) -> Result<FetchOutcome, TryFailure> {
        if let Some(encoding) = header_text(answer.headers(), &header::CONTENT_ENCODING)
            && !encoding.eq_ignore_ascii_case("identity")
        {
            return Err(TryFailure::Final(HttpError::Encoded {
                shown: from.shown(),
                encoding: encoding.chars().take(40).collect(),
            }));
        }
        let Some(sink) = self.sink.take() else {
            return Err(HttpError::Disk(std::io::Error::other("the file is in use")).into());
        };
        let mut len = sink.len();
        let flow = FileWriter::new(sink);
        let flaw = self.pump(&mut answer, &flow, &mut len).await;
        let sink = flow.finish().await.map_err(HttpError::Disk)?;
        let digests = sink.digests();
        self.sink = Some(sink);
        flaw?;
        if let Some(total) = self.total.filter(|total| *total != digests.len) {
            return Err(retryable(format!(
                "it broke off after {} of {total} bytes",
                digests.len
            )));
        }
        self.check(&digests)?;
        (self.progress)(digests.len, Some(digests.len));
        Ok(FetchOutcome::Content {
            digests,
            etag: self.tag.clone(),
        })
    }

    async fn pump(
        &mut self,
        answer: &mut Response,
        flow: &FileWriter,
        len: &mut u64,
    ) -> Result<(), TryFailure> {
        let stall = self.http.pace().stall;
        let mut window = Instant::now() + stall;
        let mut seen = 0_u64;
        loop {
            let piece = timeout_at(window, answer.chunk())
                .await
                .map_err(|_| retryable(format!("it sent {seen} bytes in {stall:?}")))?
                .map_err(|error| retryable(describe_failure(&error)))?;
            let Some(piece) = piece else { return Ok(()) };
            let more = piece.len() as u64;
            *len = len.saturating_add(more);
            if *len > self.want.limit {
                return Err(self.too_large().into());
            }
            if let Some(total) = self.total.filter(|total| *len > *total) {
                return Err(self.mismatch(format!("it has more than {total} bytes")).into());
            }
            if !flow.push(piece).await {
                // The writer failed and returns the reason itself.
                return Ok(());
            }
            seen = seen.saturating_add(more);
            if seen >= MIN_STALL_BYTES {
                (window, seen) = (Instant::now() + stall, 0);
            }
            if *len >= self.told.saturating_add(REPORT_EVERY) {
                self.told = *len;
                (self.progress)(*len, self.total);
            }
        }
    }

    fn check(&self, digests: &Digests) -> Result<(), HttpError> {
        let promise = &self.want.promise;
        if let Some(expected) = promise.sha256.filter(|expected| *expected != digests.sha256) {
            return Err(self.mismatch(format!("it has {} instead of {expected}", digests.sha256)));
        }
        if let Some(expected) = promise.git.filter(|expected| Some(*expected) != digests.git) {
            return Err(self.mismatch(format!("it is not the git object {}", hex::encode(expected))));
        }
        Ok(())
    }

    fn mismatch(&self, what: String) -> HttpError {
        HttpError::Mismatch {
            shown: self.want.target.shown(),
            what,
        }
    }

    fn too_large(&self) -> HttpError {
        HttpError::TooLarge {
            shown: self.want.target.shown(),
            limit: self.want.limit,
        }
    }
}

pub(crate) fn header_text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The error that the hub names in a header, such as `RepoNotFound` or `GatedRepo`.
pub(crate) fn detail(headers: &HeaderMap) -> String {
    let said = headers.get("x-error-code").and_then(|value| value.to_str().ok());
    let plain =
        said.filter(|said| said.len() <= MAX_DETAIL && said.bytes().all(|c| c.is_ascii_alphanumeric()));
    plain.map(|said| format!(" ({said})")).unwrap_or_default()
}

/// Describes a failure of the connection without the URL, which may hold a signature.
pub(crate) fn describe_failure(error: &reqwest::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    let text = deepest.to_string();
    let what = if error.is_connect() {
        "no connection"
    } else {
        "the connection broke"
    };
    format!("{what}: {}", text.chars().take(MAX_DETAIL).collect::<String>())
}
