//! Fetches parts of receipt pages, and a validator's statements. Bounded in time and bytes; redirects are not followed.

use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use muster_http::range::ContentRange;
use muster_process::tls;
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};

use crate::page_plan::{PagePart, PageRequest};

/// The most bytes that are read of one answer, and that a compressed page may have once it is opened; the next request
/// asks for the rest. Dozens of parties are read at once, and each may serve pages of the largest size.
pub const MAX_PIECE: usize = 1024 * 1024;

/// Time limit for a connection. A party that is away costs a round this time.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// Time limit for an answer, three times that of ComputeHorde's validators: a busy miner, or a slow way to it, is no
/// reason to miss its receipts in every round.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time limit for a whole old page, which is longer.
const ARCHIVE_PATIENCE: Duration = Duration::from_secs(6);

/// A piece of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagePiece {
    /// The bytes, from the requested offset on.
    pub bytes: Vec<u8>,
    /// Whether the page had no more bytes than these.
    pub whole: bool,
}

/// The reason why no usable answer came.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The HTTP client cannot be made.
    #[error("no HTTP client can be made")]
    Client(#[source] reqwest::Error),
    /// No answer came, or it broke off.
    #[error("no receipts are served at {address}")]
    Unreachable {
        /// The address that was asked.
        address: SocketAddr,
        /// The underlying error.
        #[source]
        source: reqwest::Error,
    },
    /// The status is not one that a receipt page has.
    #[error("the answer is {status} where a receipt page or a statement was asked for")]
    Status {
        /// The HTTP status of the answer.
        status: u16,
    },
    /// The answer holds another range than was asked for, so its bytes cannot be placed.
    #[error("the answer is another range than was asked for, or does not name it")]
    Range,
    /// The answer is longer than it may be, or no text.
    #[error("the answer is longer than it may be, or no text")]
    Text,
    /// The compressed page is malformed.
    #[error("the compressed page cannot be opened")]
    Archive(#[source] std::io::Error),
}

/// Fetches parts of pages.
#[derive(Clone, Debug)]
pub struct Fetcher {
    client: Client,
}

impl Fetcher {
    /// A fetcher that follows no redirect and uses no proxy.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn new() -> Result<Self, FetchError> {
        tls::install_provider();
        let client = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_PATIENCE)
            .pool_max_idle_per_host(1)
            .build()
            .map_err(FetchError::Client)?;
        Ok(Self { client })
    }

    /// Asks the miner at `address`. A page that the miner does not have, or whose end was reached, gives an empty
    /// piece.
    ///
    /// # Errors
    /// The miner does not answer in time, or its answer is not one of a receipt page.
    pub async fn fetch(&self, address: SocketAddr, ask: PageRequest) -> Result<PagePiece, FetchError> {
        match ask.form {
            PagePart::From(offset) => self.fetch_part(address, ask.page, offset, PATIENCE).await,
            PagePart::Archive => match self.fetch_archive(address, ask.page).await? {
                Some(piece) => Ok(piece),
                None => self.fetch_part(address, ask.page, 0, ARCHIVE_PATIENCE).await,
            },
        }
    }

    /// Asks a validator for a text that is not a receipt page; `None` if it has none there.
    ///
    /// # Errors
    /// The validator does not answer in time, its answer is longer than `most` bytes, or no text.
    pub async fn fetch_text(
        &self,
        address: SocketAddr,
        path: &str,
        most: usize,
    ) -> Result<Option<String>, FetchError> {
        let unreachable = |source| FetchError::Unreachable { address, source };
        let answer = self
            .client
            .get(format!("http://{address}{path}"))
            .timeout(ARCHIVE_PATIENCE)
            .send()
            .await
            .map_err(unreachable)?;
        match answer.status() {
            StatusCode::NOT_FOUND => return Ok(None),
            StatusCode::OK => {}
            status => {
                return Err(FetchError::Status {
                    status: status.as_u16(),
                });
            }
        }
        let piece = read_body(answer, 0, most).await.map_err(unreachable)?;
        let text = String::from_utf8(piece.bytes).ok().filter(|_| piece.whole);
        text.map(Some).ok_or(FetchError::Text)
    }

    async fn fetch_part(
        &self,
        address: SocketAddr,
        page: i64,
        offset: u64,
        patience: Duration,
    ) -> Result<PagePiece, FetchError> {
        let unreachable = |source| FetchError::Unreachable { address, source };
        let answer = self
            .client
            .get(format!("http://{address}/receipts/{page}.jsonl"))
            .header(RANGE, format!("bytes={offset}-"))
            .timeout(patience)
            .send()
            .await
            .map_err(unreachable)?;
        // The whole page, as far as a part of it shows.
        let total = range_of(&answer).and_then(|range| range.total);
        let skip = match answer.status() {
            StatusCode::NOT_FOUND | StatusCode::RANGE_NOT_SATISFIABLE => {
                return Ok(PagePiece {
                    bytes: Vec::new(),
                    whole: true,
                });
            }
            // A miner without support for ranges sends the whole page each time.
            StatusCode::OK => offset,
            StatusCode::PARTIAL_CONTENT if range_of(&answer).map(|range| range.first) == Some(offset) => 0,
            StatusCode::PARTIAL_CONTENT => return Err(FetchError::Range),
            status => {
                return Err(FetchError::Status {
                    status: status.as_u16(),
                });
            }
        };
        let mut piece = read_body(answer, skip, MAX_PIECE).await.map_err(unreachable)?;
        let read = offset.saturating_add(u64::try_from(piece.bytes.len()).unwrap_or(u64::MAX));
        piece.whole &= total.is_none_or(|total| read >= total);
        Ok(piece)
    }

    /// The compressed page; `None` if the miner has none, or one that is longer than a piece.
    async fn fetch_archive(&self, address: SocketAddr, page: i64) -> Result<Option<PagePiece>, FetchError> {
        let unreachable = |source| FetchError::Unreachable { address, source };
        let answer = self
            .client
            .get(format!("http://{address}/receipts/{page}.jsonl.gz"))
            .timeout(ARCHIVE_PATIENCE)
            .send()
            .await
            .map_err(unreachable)?;
        if answer.status() != StatusCode::OK {
            return Ok(None);
        }
        let packed = read_body(answer, 0, MAX_PIECE).await.map_err(unreachable)?;
        if !packed.whole {
            return Ok(None);
        }
        decompress(&packed.bytes)
    }
}

/// The range of a partial answer, by its own header.
fn range_of(answer: &Response) -> Option<ContentRange> {
    let range = answer.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    ContentRange::parse(range).ok()
}

/// Reads at most `most` bytes after the first `skip`.
async fn read_body(mut answer: Response, skip: u64, most: usize) -> Result<PagePiece, reqwest::Error> {
    let mut skip = skip;
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        let passed = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.len());
        skip = skip.saturating_sub(u64::try_from(passed).unwrap_or(u64::MAX));
        let rest = chunk.get(passed..).unwrap_or_default();
        let room = most.saturating_sub(bytes.len());
        bytes.extend_from_slice(rest.get(..room).unwrap_or(rest));
        if rest.len() > room {
            return Ok(PagePiece { bytes, whole: false });
        }
    }
    Ok(PagePiece { bytes, whole: true })
}

/// Decompresses a page; `None` if it is longer than a piece: a small archive may hold any amount. Such a page is read
/// in parts.
fn decompress(packed: &[u8]) -> Result<Option<PagePiece>, FetchError> {
    let mut bytes = Vec::new();
    let most = u64::try_from(MAX_PIECE).unwrap_or(u64::MAX);
    let mut reader = MultiGzDecoder::new(packed).take(most.saturating_add(1));
    reader.read_to_end(&mut bytes).map_err(FetchError::Archive)?;
    let fits = bytes.len() <= MAX_PIECE;
    Ok(fits.then_some(PagePiece { bytes, whole: true }))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_compressed_page_is_opened_up_to_its_bound() {
        let opened = decompress(&packed(b"a\nb\n")).unwrap();
        assert_eq!(opened.unwrap().bytes, b"a\nb\n");
        assert!(matches!(decompress(b"not gzip"), Err(FetchError::Archive(_))));
        let torn = packed(b"a\nb\n");
        assert!(matches!(
            decompress(&torn[..torn.len() - 4]),
            Err(FetchError::Archive(_))
        ));
        assert!(decompress(&packed(&vec![b'x'; MAX_PIECE])).unwrap().is_some());
        let bomb = packed(&vec![b'x'; 64 * MAX_PIECE]);
        assert!(bomb.len() < MAX_PIECE);
        assert_eq!(decompress(&bomb).unwrap(), None, "it is read in parts");
    }
}
