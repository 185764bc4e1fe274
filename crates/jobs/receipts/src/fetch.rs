//! Asking a miner for a part of a page. Bounded in time and bytes; nothing is followed.

use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use muster_process::tls;
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};

use crate::pages::{MAX_PAGE, PagePart, PageRequest};

/// Bytes that are taken of one answer; the rest is asked for next time.
pub const MAX_PIECE: usize = 8 * 1024 * 1024;

/// What a miner answers is late after this (ComputeHorde's validators wait as long).
const PATIENCE: Duration = Duration::from_secs(1);

/// Likewise for a page that is caught up, which is longer.
const ARCHIVE_PATIENCE: Duration = Duration::from_secs(3);

/// What came of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagePiece {
    /// The bytes, from where the ask began.
    pub bytes: Vec<u8>,
    /// Whether the miner had no more than these.
    pub whole: bool,
}

/// Why nothing usable came.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The client cannot be made.
    #[error("no HTTP client can be made")]
    Client(#[source] reqwest::Error),
    /// No answer, or one that broke off.
    #[error("the miner does not serve its receipts at {address}")]
    Unreachable {
        /// Where it was asked.
        address: SocketAddr,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// An answer that a receipt page does not give.
    #[error("the miner answers {status} where a receipt page was asked for")]
    Status {
        /// What it answers.
        status: u16,
    },
    /// A part of another place than was asked for: its bytes belong nowhere.
    #[error("the miner answers a range without saying which, or another than was asked for")]
    Range,
    /// A compressed page that is not one, or is longer than any page once it is opened.
    #[error("the miner's compressed page cannot be opened")]
    Archive(#[source] std::io::Error),
}

/// Fetches parts of pages.
#[derive(Clone, Debug)]
pub struct Fetcher {
    client: Client,
}

impl Fetcher {
    /// A fetcher that goes where it is told and nowhere else.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn new() -> Result<Self, FetchError> {
        tls::install_provider();
        let client = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(PATIENCE)
            .pool_max_idle_per_host(1)
            .build()
            .map_err(FetchError::Client)?;
        Ok(Self { client })
    }

    /// Asks the miner at `address`. A page that it does not have, or of which it has no more, is an empty piece.
    ///
    /// # Errors
    /// It does not answer in time, or not as a receipt page is answered.
    pub async fn fetch(&self, address: SocketAddr, ask: PageRequest) -> Result<PagePiece, FetchError> {
        match ask.form {
            PagePart::From(offset) => self.part(address, ask.page, offset, PATIENCE).await,
            PagePart::Archive => match self.archive(address, ask.page).await? {
                Some(piece) => Ok(piece),
                None => self.part(address, ask.page, 0, ARCHIVE_PATIENCE).await,
            },
        }
    }

    async fn part(
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
        let skip = match answer.status() {
            StatusCode::NOT_FOUND | StatusCode::RANGE_NOT_SATISFIABLE => {
                return Ok(PagePiece {
                    bytes: Vec::new(),
                    whole: true,
                });
            }
            // A miner that knows no ranges sends everything each time.
            StatusCode::OK => offset,
            StatusCode::PARTIAL_CONTENT if begins_at(&answer) == Some(offset) => 0,
            StatusCode::PARTIAL_CONTENT => return Err(FetchError::Range),
            status => {
                return Err(FetchError::Status {
                    status: status.as_u16(),
                });
            }
        };
        body(answer, skip, MAX_PIECE).await.map_err(unreachable)
    }

    /// The compressed page; `None` if the miner has none.
    async fn archive(&self, address: SocketAddr, page: i64) -> Result<Option<PagePiece>, FetchError> {
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
        let packed = body(answer, 0, MAX_PIECE).await.map_err(unreachable)?;
        if !packed.whole {
            // Longer than a piece even when it is compressed: it is read in parts.
            return Ok(None);
        }
        open(&packed.bytes).map(Some)
    }
}

/// The first byte that a partial answer says it holds.
fn begins_at(answer: &Response) -> Option<u64> {
    let range = answer.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    let (first, _) = range.trim().strip_prefix("bytes ")?.split_once('-')?;
    first.trim().parse().ok()
}

/// Reads at most `most` bytes after `skip`.
async fn body(mut answer: Response, skip: u64, most: usize) -> Result<PagePiece, reqwest::Error> {
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

/// Opens a compressed page, which may be small and hold the world.
fn open(packed: &[u8]) -> Result<PagePiece, FetchError> {
    let mut bytes = Vec::new();
    let mut reader = MultiGzDecoder::new(packed).take(MAX_PAGE.saturating_add(1));
    reader.read_to_end(&mut bytes).map_err(FetchError::Archive)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_PAGE {
        return Err(FetchError::Archive(std::io::ErrorKind::FileTooLarge.into()));
    }
    Ok(PagePiece { bytes, whole: true })
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
        assert_eq!(open(&packed(b"a\nb\n")).unwrap().bytes, b"a\nb\n");
        assert!(matches!(open(b"not gzip"), Err(FetchError::Archive(_))));
        let torn = packed(b"a\nb\n");
        assert!(matches!(
            open(&torn[..torn.len() - 4]),
            Err(FetchError::Archive(_))
        ));
        let bomb = packed(&vec![b'x'; usize::try_from(MAX_PAGE).unwrap() + 2]);
        assert!(bomb.len() < MAX_PIECE);
        assert!(matches!(open(&bomb), Err(FetchError::Archive(_))));
    }
}
