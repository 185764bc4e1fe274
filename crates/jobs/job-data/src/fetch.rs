//! One file from one URL: redirects checked, bytes bounded and hashed, a broken connection continued, a passing failure
//! tried again.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use muster_http::range::ContentRange;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::error::HttpError;
use crate::headers::{retry_after, strong_etag};
use crate::http::Http;
use crate::retry::{PROGRESS, Retries, is_passing};
use crate::sink::{Digests, Flow, Sink};
use crate::target::Target;

const MAX_REDIRECTS: usize = 10;
/// At least so many bytes must come in each span of [`crate::Pace::stall`], or the server is as good as dead.
const LEAST: u64 = 32 * 1024;
/// How often somebody is told of progress, in bytes.
const TOLD_EVERY: u64 = 8 << 20;
/// How much of a small answer is read.
const MAX_TOLD: usize = 128;

/// Called as bytes arrive: how many so far, and of how many if the server says so.
pub type Progress = Arc<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// What is to be fetched.
pub(crate) struct Want {
    pub(crate) target: Target,
    /// Credentials, for the target's own origin and no other.
    pub(crate) authorization: Option<HeaderValue>,
    /// At most so many bytes.
    pub(crate) limit: u64,
    /// What it must be.
    pub(crate) promise: Promise,
    /// Not wanted if it is still this.
    pub(crate) unless: Option<String>,
}

/// What is known of a file beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) len: Option<u64>,
    pub(crate) sha256: Option<muster_protocol::Digest>,
    pub(crate) git: Option<[u8; 20]>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Got {
    /// It is in the file.
    Content { digests: Digests, etag: Option<String> },
    /// It is still what was known.
    Unchanged,
}

/// How a try ended badly.
enum Flaw {
    /// It may go better.
    Passing { what: String, asked: Option<Duration> },
    /// It will not.
    Final(HttpError),
}

impl From<HttpError> for Flaw {
    fn from(error: HttpError) -> Self {
        Self::Final(error)
    }
}

/// A download across its tries.
struct Download<'a> {
    http: &'a Http,
    want: &'a Want,
    /// Where the bytes are between two tries.
    sink: Option<Sink>,
    /// Promises that the rest belongs to the bytes that came.
    tag: Option<String>,
    /// The whole length, as far as a server said it.
    total: Option<u64>,
    /// The server has shown that it cannot continue.
    whole_only: bool,
    progress: &'a Progress,
    told: u64,
}

/// Fetches into an empty file.
///
/// # Errors
/// As [`HttpError`] says. The file then holds anything.
pub(crate) async fn fetch(
    http: &Http,
    want: &Want,
    file: File,
    progress: &Progress,
    called_off: &CancellationToken,
) -> Result<Got, HttpError> {
    let mut download = Download {
        http,
        want,
        sink: Some(Sink::new(file, want.promise.git.and(want.promise.len))),
        tag: None,
        total: want.promise.len,
        whole_only: false,
        progress,
        told: 0,
    };
    tokio::select! {
        biased;
        () = called_off.cancelled() => Err(HttpError::CalledOff),
        got = download.until_it_ends() => got,
    }
}

impl Download<'_> {
    async fn until_it_ends(&mut self) -> Result<Got, HttpError> {
        let mut retries = Retries::new(self.http.pace());
        loop {
            let before = self.kept();
            let (what, asked) = match self.once().await {
                Ok(got) => return Ok(got),
                Err(Flaw::Final(error)) => return Err(error),
                Err(Flaw::Passing { what, asked }) => (what, asked),
            };
            if self.kept() >= before.saturating_add(PROGRESS) && self.can_continue() {
                retries.advanced();
            }
            let Some(pause) = retries.pause(asked) else {
                return Err(HttpError::Unreachable {
                    shown: self.want.target.shown(),
                    what,
                    tries: retries.tries().saturating_add(1),
                });
            };
            tracing::info!(what, kept = self.kept(), pause = ?pause, "a transfer is tried again");
            sleep(pause).await;
        }
    }

    fn kept(&self) -> u64 {
        self.sink.as_ref().map_or(0, Sink::len)
    }

    fn can_continue(&self) -> bool {
        self.tag.is_some() && !self.whole_only
    }

    /// One request with its redirects, and the body.
    async fn once(&mut self) -> Result<Got, Flaw> {
        let resume = (self.kept() > 0 && self.can_continue()).then(|| self.kept());
        let (from, answer) = self.ask(resume).await?;
        let status = answer.status();
        match (status, resume) {
            (StatusCode::OK, _) => {
                self.begin(&answer)?;
                self.body(&from, answer).await
            }
            (StatusCode::PARTIAL_CONTENT, Some(kept)) => {
                if !self.continues(&answer, kept) {
                    self.whole_only = true;
                    return Err(passing("it sent another part of the file than it was asked for"));
                }
                self.body(&from, answer).await
            }
            // Everything had arrived when the connection broke, or the file is another one now.
            (StatusCode::RANGE_NOT_SATISFIABLE, Some(_)) => {
                self.whole_only = true;
                Err(passing("it cannot continue where it broke off"))
            }
            (StatusCode::NOT_MODIFIED, None) if self.want.unless.is_some() => Ok(Got::Unchanged),
            (status, _) if is_passing(status) => {
                let asked = text_of(answer.headers(), &header::RETRY_AFTER).and_then(retry_after);
                Err(Flaw::Passing {
                    what: format!("it answered {status}"),
                    asked,
                })
            }
            (status, _) => Err(Flaw::Final(HttpError::Status {
                shown: from.shown(),
                status,
                detail: detail(answer.headers()),
            })),
        }
    }

    async fn ask(&self, resume: Option<u64>) -> Result<(Target, Response), Flaw> {
        let mut target = self.want.target.clone();
        for _ in 0..=MAX_REDIRECTS {
            let client = match self.http.client(&target).await {
                Err(HttpError::Unresolved { host, source }) => {
                    // A resolver may be away for a moment; a name that does not exist stays unknown.
                    return Err(if source.kind() == std::io::ErrorKind::TimedOut {
                        passing("its name was not resolved in time")
                    } else {
                        HttpError::Unresolved { host, source }.into()
                    });
                }
                client => client?,
            };
            let mut request = client
                .get(target.url().clone())
                // Packed content would have to be unpacked here, by a size that nobody bounds.
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
                .map_err(|_| passing("it did not answer in time"))?
                .map_err(|error| passing(&causes(&error)))?;
            match self.http.redirect(&target, &answer)? {
                None => return Ok((target, answer)),
                Some(next) => target = next,
            }
        }
        Err(Flaw::Final(HttpError::Redirects {
            shown: self.want.target.shown(),
            limit: MAX_REDIRECTS,
        }))
    }

    /// A whole answer: what came before is forgotten.
    fn begin(&mut self, answer: &Response) -> Result<(), Flaw> {
        if let Some(sink) = &mut self.sink {
            sink.restart().map_err(HttpError::Disk)?;
        }
        self.told = 0;
        let headers = answer.headers();
        self.tag = text_of(headers, &header::ETAG)
            .and_then(strong_etag)
            .map(str::to_owned);
        if text_of(headers, &header::ACCEPT_RANGES).is_some_and(|ranges| ranges.trim() == "none") {
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

    /// Whether a partial answer is the part that is missing, of the same file.
    fn continues(&self, answer: &Response, kept: u64) -> bool {
        let headers = answer.headers();
        let same = text_of(headers, &header::ETAG).is_none_or(|tag| Some(tag) == self.tag.as_deref());
        let range = text_of(headers, &header::CONTENT_RANGE);
        let range = range.and_then(|range| ContentRange::parse(range).ok());
        range.is_some_and(|range| {
            let whole = match (range.total, self.total) {
                (Some(said), Some(known)) => said == known,
                _ => true,
            };
            same && whole && range.first == kept
        })
    }

    async fn body(&mut self, from: &Target, mut answer: Response) -> Result<Got, Flaw> {
        if let Some(encoding) = text_of(answer.headers(), &header::CONTENT_ENCODING)
            && !encoding.eq_ignore_ascii_case("identity")
        {
            return Err(Flaw::Final(HttpError::Encoded {
                shown: from.shown(),
                encoding: encoding.chars().take(40).collect(),
            }));
        }
        let Some(sink) = self.sink.take() else {
            return Err(HttpError::Disk(std::io::Error::other("the file is in use")).into());
        };
        let mut len = sink.len();
        let flow = Flow::new(sink);
        let flaw = self.pump(&mut answer, &flow, &mut len).await;
        let sink = flow.finish().await.map_err(HttpError::Disk)?;
        let digests = sink.digests();
        self.sink = Some(sink);
        flaw?;
        if let Some(total) = self.total.filter(|total| *total != digests.len) {
            return Err(passing(&format!(
                "it broke off after {} of {total} bytes",
                digests.len
            )));
        }
        self.check(&digests)?;
        (self.progress)(digests.len, Some(digests.len));
        Ok(Got::Content {
            digests,
            etag: self.tag.clone(),
        })
    }

    async fn pump(&mut self, answer: &mut Response, flow: &Flow, len: &mut u64) -> Result<(), Flaw> {
        let stall = self.http.pace().stall;
        let mut window = Instant::now() + stall;
        let mut seen = 0_u64;
        loop {
            let piece = timeout_at(window, answer.chunk())
                .await
                .map_err(|_| passing(&format!("it sent {seen} bytes in {stall:?}")))?
                .map_err(|error| passing(&causes(&error)))?;
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
                // The writer knows why.
                return Ok(());
            }
            seen = seen.saturating_add(more);
            if seen >= LEAST {
                (window, seen) = (Instant::now() + stall, 0);
            }
            if *len >= self.told.saturating_add(TOLD_EVERY) {
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

fn passing(what: &str) -> Flaw {
    Flaw::Passing {
        what: what.to_owned(),
        asked: None,
    }
}

pub(crate) fn text_of<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// What the hub says about a refusal: `RepoNotFound`, `GatedRepo` and the like.
pub(crate) fn detail(headers: &HeaderMap) -> String {
    let said = headers.get("x-error-code").and_then(|value| value.to_str().ok());
    let plain = said.filter(|said| said.len() <= MAX_TOLD && said.bytes().all(|c| c.is_ascii_alphanumeric()));
    plain.map(|said| format!(" ({said})")).unwrap_or_default()
}

/// A failure of the connection in words, without the URL, which may hold a signature.
pub(crate) fn causes(error: &reqwest::Error) -> String {
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
    format!("{what}: {}", text.chars().take(MAX_TOLD).collect::<String>())
}
