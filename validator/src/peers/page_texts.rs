//! The long texts of a validator's pages, read from the store in pieces while they are sent: a request costs one piece
//! of memory, whatever the length of its text. A piece is read when the client has taken the one before it.

use std::fmt;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use futures_util::stream;
use muster_process::error::Causes;
use muster_protocol::Digest;
use muster_store::StoreError;
use muster_validator_store::Store;

use super::page_admission::TextTurn;

/// Lines of a receipt page that are read at one time; each is a receipt.
pub(super) const LINES_PER_PIECE: u32 = 64;

/// Bytes of a snapshot that are sent at once, without a turn.
pub(super) const SHORT_BYTES: u64 = 64 * 1024;

/// A text in the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum TextSource {
    /// The receipt page of this number.
    Receipts(i64),
    /// A scoring snapshot, from a piece of its text on.
    Snapshot {
        /// The digest of the snapshot.
        digest: Digest,
        /// The next piece, counted from 0.
        piece: u32,
    },
}

/// The rest of a text, from the byte `at` to `end`.
#[derive(Debug)]
pub(super) struct TextRest {
    pub(super) store: Arc<Store>,
    pub(super) source: TextSource,
    pub(super) at: u64,
    pub(super) end: u64,
}

/// A text that could not be sent to its end. The connection breaks, so the client sees that bytes are missing.
#[derive(Debug)]
enum TextBroken {
    /// Its client took longer than it may.
    TooSlow,
    /// It was deleted meanwhile.
    Gone,
    /// The database fails.
    Store(StoreError),
}

impl TextRest {
    /// Whether nothing is left.
    pub(super) const fn is_empty(&self) -> bool {
        self.at >= self.end
    }

    /// The body that sends `first` and then the rest. The turn ends with the body.
    pub(super) fn into_body(self, first: String, turn: TextTurn) -> Body {
        let first = (!first.is_empty()).then_some(first);
        let pieces = stream::try_unfold((first, self, turn), |(first, mut rest, turn)| async move {
            let piece = match first {
                Some(first) => first,
                None if rest.is_empty() => return Ok(None),
                None if turn.is_over() => return Err(rest.broken(TextBroken::TooSlow)),
                None => rest.read_piece().await.map_err(|error| rest.broken(error))?,
            };
            Ok(Some((Bytes::from(piece), (None, rest, turn))))
        });
        Body::from_stream(pieces)
    }

    async fn read_piece(&mut self) -> Result<String, TextBroken> {
        let read = match &mut self.source {
            TextSource::Receipts(page) => {
                let part = self.store.receipt_page(*page, self.at, LINES_PER_PIECE).await;
                part.map(|part| part.map(|part| part.lines))
            }
            TextSource::Snapshot { digest, piece } => {
                let read = self.store.snapshot_piece(*digest, *piece).await;
                *piece = piece.saturating_add(1);
                read
            }
        };
        let mut piece = read
            .map_err(TextBroken::Store)?
            .filter(|piece| !piece.is_empty())
            .ok_or(TextBroken::Gone)?;
        // Lines that were added meanwhile belong to the next request.
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        if piece.len() > left && piece.is_char_boundary(left) {
            piece.truncate(left);
        }
        self.at = self
            .at
            .saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        Ok(piece)
    }

    fn broken(&self, error: TextBroken) -> TextBroken {
        let (source, at, end) = (self.source, self.at, self.end);
        match &error {
            TextBroken::TooSlow | TextBroken::Gone => {
                tracing::debug!(?source, at, end, %error, "a page was not sent to its end");
            }
            TextBroken::Store(cause) => {
                tracing::error!(?source, at, end, error = %Causes(cause), "a page could not be read from the store");
            }
        }
        error
    }
}

impl fmt::Display for TextBroken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooSlow => "the client took too long to read the text",
            Self::Gone => "the text was deleted while it was sent",
            Self::Store(_) => "the store does not answer",
        })
    }
}

impl std::error::Error for TextBroken {}
