//! Sends one output to one URL, with retries. The file is read again for each try and never held in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use indexmap::IndexMap;
use parking_lot::Mutex;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Method, Response};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::download::{TransferProgress, describe_failure, header_text};
use crate::error::HttpError;
use crate::job_url::Target;
use crate::pinned_request::PinnedClient;
use crate::response_headers::retry_after;
use crate::retry::{Retries, TryFailure, is_retryable, retryable};
use crate::safe_names::shown;
use crate::upload_reports::{MAX_BODY, UploadAnswer};

const BLOCK: usize = 256 * 1024;
const MAX_REDIRECTS: usize = 5;
const MAX_HEADERS: usize = 64;

/// One output with the request that carries it, reusable over all tries.
pub(crate) struct UploadRequest {
    pub(crate) method: Method,
    pub(crate) target: Target,
    /// The job's headers, in its order.
    pub(crate) headers: HeaderMap,
    pub(crate) before: Bytes,
    pub(crate) file: Arc<File>,
    /// Length of the file in bytes.
    pub(crate) len: u64,
    pub(crate) after: Bytes,
    /// Receives the number of bytes sent.
    pub(crate) progress: Arc<UploadProgress>,
}

/// The progress of all outputs of a job.
pub(crate) struct UploadTally {
    /// Bytes sent and length of each output; `None` until it is opened.
    uploads: Mutex<Vec<Option<(u64, u64)>>>,
    progress: TransferProgress,
}

/// The progress of one output in a [`UploadTally`].
pub(crate) struct UploadProgress {
    index: usize,
    tally: Arc<UploadTally>,
}

impl UploadTally {
    pub(crate) fn new(uploads: usize, progress: TransferProgress) -> Self {
        Self {
            uploads: Mutex::new(vec![None; uploads]),
            progress,
        }
    }
}

impl UploadProgress {
    pub(crate) fn new(index: usize, tally: &Arc<UploadTally>) -> Self {
        Self {
            index,
            tally: Arc::clone(tally),
        }
    }

    /// Records that an earlier process has sent the output: there is nothing to send.
    pub(crate) fn skip(&self) {
        self.record(0, 0);
    }

    /// Records the bytes sent. The number falls when a retry begins.
    fn record(&self, sent: u64, len: u64) {
        let mut uploads = self.tally.uploads.lock();
        if let Some(upload) = uploads.get_mut(self.index) {
            *upload = Some((sent, len));
        }
        let done = uploads.iter().flatten().map(|(sent, _)| sent).sum();
        let total = uploads.iter().map(|upload| upload.map(|(_, len)| len)).sum();
        drop(uploads);
        (self.tally.progress)(done, total);
    }
}

/// The headers that a job signed. A job may not set the headers that belong to the connection.
pub(crate) fn signed_headers(
    headers: Option<&IndexMap<String, String>>,
    target: &Target,
) -> Result<HeaderMap, HttpError> {
    let mut checked = HeaderMap::new();
    for (name, value) in headers.into_iter().flatten() {
        let refused = |reason| HttpError::Header {
            name: shown(name),
            reason,
        };
        if checked.len() >= MAX_HEADERS {
            return Err(refused("is one of more than 64"));
        }
        let lower = HeaderName::try_from(name.as_str()).map_err(|_| refused("is not a header's name"))?;
        let text = HeaderValue::try_from(value.as_str())
            .map_err(|_| refused("holds a line break or another character that headers cannot hold"))?;
        match lower.as_str() {
            "host" => {
                let own = target.url().host_str().unwrap_or_default();
                let with_port = format!("{own}:{}", target.port());
                if value != own && *value != with_port {
                    return Err(refused("names another host than the URL"));
                }
            }
            // The client sends the same length itself, unless the signature is for another file.
            "content-length" => {}
            "connection" | "transfer-encoding" | "te" | "trailer" | "upgrade" | "expect" | "keep-alive" => {
                return Err(refused("belongs to the connection and cannot be set by a job"));
            }
            name if name.starts_with("proxy-") => {
                return Err(refused("belongs to the connection and cannot be set by a job"));
            }
            _ => {
                checked.append(lower, text);
            }
        }
    }
    Ok(checked)
}

/// Sends until the server accepts the file or a retry cannot help.
///
/// # Errors
/// Any [`HttpError`].
pub(crate) async fn send(http: &PinnedClient, upload: &UploadRequest) -> Result<UploadAnswer, HttpError> {
    let mut retries = Retries::new(http.pace());
    loop {
        match try_once(http, upload).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => retries.wait(&upload.target, failure).await?,
        }
    }
}

async fn try_once(http: &PinnedClient, upload: &UploadRequest) -> Result<UploadAnswer, TryFailure> {
    let mut target = upload.target.clone();
    for _ in 0..=MAX_REDIRECTS {
        let answer = deliver(http, upload, &target).await?;
        let status = answer.status();
        if let Some(next) = http.redirect(&target, &answer)? {
            // Another method would lose the body; another host would get a request that was signed for this one.
            if !matches!(status.as_u16(), 307 | 308) || next.host() != target.host() {
                let shown = target.shown();
                return Err(TryFailure::Final(HttpError::Moved { shown, status }));
            }
            target = next;
            continue;
        }
        if is_retryable(status) {
            let asked = header_text(answer.headers(), &header::RETRY_AFTER).and_then(retry_after);
            return Err(TryFailure::Retryable {
                what: format!("it answered {status}"),
                asked,
            });
        }
        if !status.is_success() {
            let detail = match s3_code(&read_answer(answer, http.pace().stall).await.body) {
                Some(code) => format!(" ({code})"),
                None => String::new(),
            };
            let shown = target.shown();
            return Err(TryFailure::Final(HttpError::Status {
                shown,
                status,
                detail,
            }));
        }
        return Ok(read_answer(answer, http.pace().stall).await);
    }
    Err(TryFailure::Final(HttpError::Redirects {
        shown: upload.target.shown(),
        limit: MAX_REDIRECTS,
    }))
}

async fn deliver(
    http: &PinnedClient,
    upload: &UploadRequest,
    target: &Target,
) -> Result<Response, TryFailure> {
    let client = http.client(target).await?;
    let sent = Arc::new(AtomicU64::new(0));
    let len = upload.len + (upload.before.len() + upload.after.len()) as u64;
    let request = client
        .request(upload.method.clone(), target.url().clone())
        .headers(upload.headers.clone())
        .header(header::CONTENT_LENGTH, len)
        .body(Body::wrap_stream(content(upload, len, Arc::clone(&sent))));
    let mut answering = std::pin::pin!(request.send());
    let mut before = 0;
    loop {
        match timeout(http.pace().stall, &mut answering).await {
            Ok(answer) => {
                return answer.map_err(|error| retryable(describe_failure(&error)));
            }
            Err(_) => {
                let now = sent.load(Ordering::Relaxed);
                if now == before {
                    return Err(retryable(format!("it stopped after {now} of {len} bytes")));
                }
                before = now;
            }
        }
    }
}

fn content(
    upload: &UploadRequest,
    whole: u64,
    sent: Arc<AtomicU64>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let around = |bytes: &Bytes| stream::iter(Some(Ok(bytes.clone())).filter(|_| !bytes.is_empty()));
    let file = (Arc::clone(&upload.file), 0_u64, upload.len);
    let blocks = stream::try_unfold(file, |(file, at, len)| async move {
        let want = usize::try_from(len.saturating_sub(at))
            .unwrap_or(BLOCK)
            .min(BLOCK);
        if want == 0 {
            return Ok(None);
        }
        let (file, block) = spawn_blocking(move || {
            let mut block = vec![0; want];
            file.read_exact_at(&mut block, at)?;
            Ok::<_, io::Error>((file, block))
        })
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))?;
        Ok(Some((Bytes::from(block), (file, at + want as u64, len))))
    });
    let pieces = around(&upload.before).chain(blocks).chain(around(&upload.after));
    let progress = Arc::clone(&upload.progress);
    pieces.inspect(move |piece: &io::Result<Bytes>| {
        let len = piece.as_ref().map_or(0, Bytes::len) as u64;
        let before = sent.fetch_add(len, Ordering::Relaxed);
        progress.record(before.saturating_add(len), whole);
    })
}

/// The headers and the beginning of the body. The upload is complete, so a failure here is ignored.
async fn read_answer(mut answer: Response, stall: Duration) -> UploadAnswer {
    let mut headers: IndexMap<String, String> = IndexMap::new();
    for (name, value) in answer.headers() {
        let value = String::from_utf8_lossy(value.as_bytes());
        headers
            .entry(name.as_str().to_owned())
            .and_modify(|joined| {
                joined.push_str(", ");
                joined.push_str(&value);
            })
            .or_insert_with(|| value.into_owned());
    }
    let mut body = Vec::new();
    while body.len() < MAX_BODY {
        let Ok(Ok(Some(piece))) = timeout(stall, answer.chunk()).await else {
            break;
        };
        let room = MAX_BODY - body.len();
        body.extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or_default());
    }
    UploadAnswer { headers, body }
}

/// The error code in S3's XML, such as `SignatureDoesNotMatch` or `EntityTooLarge`.
fn s3_code(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let (_, after) = text.split_once("<Code>")?;
    let (code, _) = after.split_once("</Code>")?;
    let plain = code.len() <= 64 && code.bytes().all(|c| c.is_ascii_alphanumeric());
    plain.then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_counted_together_and_their_sum_is_known_once_all_have_begun() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let progress: TransferProgress = {
            let told = Arc::clone(&told);
            Arc::new(move |done, total| told.lock().push((done, total)))
        };
        let tally = Arc::new(UploadTally::new(2, progress));
        let (one, two) = (UploadProgress::new(0, &tally), UploadProgress::new(1, &tally));
        one.record(5, 10);
        two.record(1, 100);
        one.record(10, 10);
        // The output is sent again from its beginning.
        two.record(0, 100);
        assert_eq!(
            *told.lock(),
            [(5, None), (6, Some(110)), (11, Some(110)), (10, Some(110))]
        );
    }
    use muster_http::addresses::AddressRules;

    #[test]
    fn a_job_sets_its_headers_in_order_but_not_those_of_the_connection() {
        let target = Target::parse("https://store.example/x", &AddressRules::default()).unwrap();
        let signed = |pairs: &[(&str, &str)]| {
            let pairs: IndexMap<_, _> = pairs
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect();
            signed_headers(Some(&pairs), &target)
        };
        let checked = signed(&[
            ("X-Amz-Meta-b", "1"),
            ("Content-Type", "text/plain"),
            ("Host", "store.example"),
            ("Content-Length", "7"),
            ("x-amz-acl", "private"),
        ]);
        let names: Vec<_> = checked.unwrap().keys().map(ToString::to_string).collect();
        assert_eq!(names, ["x-amz-meta-b", "content-type", "x-amz-acl"]);
        for (name, value) in [
            ("Host", "169.254.169.254"),
            ("Transfer-Encoding", "chunked"),
            ("Connection", "close"),
            ("Proxy-Authorization", "x"),
            ("a b", "x"),
            ("X", "a\r\nHost: b"),
        ] {
            assert!(signed(&[(name, value)]).is_err(), "{name}");
        }
        let many: Vec<_> = (0..65).map(|number| format!("x-{number}")).collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), "")).collect();
        assert!(signed(&many).is_err());
    }

    #[test]
    fn the_reason_of_s3_is_found() {
        let xml = b"<?xml?><Error><Code>SignatureDoesNotMatch</Code><Message>m</Message></Error>";
        assert_eq!(s3_code(xml).as_deref(), Some("SignatureDoesNotMatch"));
        for none in [&b""[..], b"<Code>", b"<Code>a b</Code>", b"<Code><script></Code>"] {
            assert_eq!(s3_code(none), None);
        }
    }
}
