//! The streams that a program printed, whole, as the end of its job names them.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Both streams that a program printed, as bytes. An executor states it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PrintedStreams {
    /// The stream of file descriptor 1, as its executor collected it.
    pub stdout: PrintedStream,
    /// The stream of file descriptor 2, as its executor collected it.
    pub stderr: PrintedStream,
}

/// One stream that a program printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PrintedStream {
    /// The bytes that the program printed, as far as its executor received them.
    pub bytes: u64,
    /// The SHA-256 of the first [`Self::collected`] bytes; absent if the executor could not read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub sha256: Option<Digest>,
    /// The number of bytes from the beginning that the executor has kept; all of them if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<u64>,
    /// The bytes from the beginning that lie in the facilitator's file store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredStream>,
    /// The reason why the file store does not have all of them; absent where it has, and where the text of the result
    /// holds them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortfall: Option<OutputShortfall>,
}

/// The part of a stream that lies in the file store, in blocks of [`BLOCK_BYTES`](Self::BLOCK_BYTES).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredStream {
    /// Its length in bytes, from the beginning of the stream.
    pub bytes: u64,
    /// The SHA-256 of the block that lists the others: the 32 bytes of the SHA-256 of each block, in order.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub blocks: Digest,
}

/// The reason why not all of a stream lies in the file store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OutputShortfall {
    /// The program printed more than the executor's `limits.output_mib`.
    Bound,
    /// The account, or the attempt, has no more room in the file store.
    Room,
    /// The file store could not be reached, or took the bytes too slowly.
    Store,
    /// The executor's disk could not keep the bytes.
    Disk,
    /// The process that collected the output ended before the program did.
    Collector,
    /// A reason that this version does not know.
    #[serde(other)]
    Unknown,
}

// === impl PrintedStream ===

impl PrintedStream {
    /// The number of bytes from the beginning of the stream that the executor has kept.
    pub fn collected(&self) -> u64 {
        self.kept.unwrap_or(self.bytes).min(self.bytes)
    }

    /// Whether the executor has kept all that the program printed.
    pub fn is_whole(&self) -> bool {
        self.collected() == self.bytes && self.shortfall != Some(OutputShortfall::Collector)
    }

    /// The bytes of this stream at the beginning of a text of the result, if they are what the digest states.
    pub fn within<'a>(&self, text: &'a str) -> Option<&'a [u8]> {
        let length = usize::try_from(self.collected()).ok()?;
        let bytes = text.as_bytes().get(..length)?;
        (Digest::of(bytes) == self.sha256?).then_some(bytes)
    }
}

impl StoredStream {
    /// The bytes of each block but the last.
    pub const BLOCK_BYTES: u64 = 8 << 20;

    /// The digest of the block at `index` in the list of blocks; `None` behind the last one.
    pub fn block(list: &[u8], index: u64) -> Option<Digest> {
        let index = usize::try_from(index).ok()?;
        let (digests, _) = list.as_chunks::<32>();
        digests.get(index).copied().map(Digest::from_bytes)
    }
}

// === impl OutputShortfall ===

impl OutputShortfall {
    /// The reason as text for the job's user, behind "because".
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Bound => "it is more than its executor keeps (limits.output_mib)",
            Self::Room => "the account has no more room in the facilitator's file store",
            Self::Store => "the facilitator's file store could not be reached in time",
            Self::Disk => "the disk of its executor was full",
            Self::Collector => "the process that collected it ended before the program did",
            Self::Unknown => "its executor could not keep it",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn printed_streams_are_these_bytes_on_the_wire() {
        let whole = PrintedStream {
            bytes: 3,
            sha256: Some(Digest::of(b"abc")),
            ..PrintedStream::default()
        };
        let cut = PrintedStream {
            bytes: 9,
            kept: Some(3),
            stored: Some(StoredStream {
                bytes: 3,
                blocks: Digest::of(b"list"),
            }),
            shortfall: Some(OutputShortfall::Bound),
            ..whole
        };
        let streams = PrintedStreams {
            stdout: whole,
            stderr: cut,
        };
        let (abc, list) = (Digest::of(b"abc"), Digest::of(b"list"));
        let text = format!(
            r#"{{"stdout":{{"bytes":3,"sha256":"{abc}"}},"stderr":{{"bytes":9,"sha256":"{abc}","kept":3,"stored":{{"bytes":3,"blocks":"{list}"}},"shortfall":"bound"}}}}"#
        );
        assert_eq!(serde_json::to_string(&streams).unwrap(), text);
        assert_eq!(serde_json::from_str::<PrintedStreams>(&text).unwrap(), streams);
        let later: OutputShortfall = serde_json::from_value(json!("moon")).unwrap();
        assert_eq!(later, OutputShortfall::Unknown);
    }

    #[test]
    fn text_stands_for_the_stream_only_where_the_digest_says_so() {
        let stream = PrintedStream {
            bytes: 3,
            sha256: Some(Digest::of(b"abc")),
            ..PrintedStream::default()
        };
        assert_eq!(stream.within("abc\nmuster: a note"), Some(&b"abc"[..]));
        assert_eq!(
            stream.within("abd"),
            None,
            "bytes that are no UTF-8 became others"
        );
        assert_eq!(stream.within("ab"), None);
        let unknown = PrintedStream {
            sha256: None,
            ..stream
        };
        assert_eq!(unknown.within("abc"), None);
    }

    #[test]
    fn list_of_blocks_names_each_block_and_no_other() {
        let list = [*Digest::of(b"a").as_bytes(), *Digest::of(b"b").as_bytes()].concat();
        assert_eq!(StoredStream::block(&list, 1), Some(Digest::of(b"b")));
        assert_eq!(StoredStream::block(&list, 2), None);
        assert_eq!(StoredStream::block(&list, u64::MAX), None);
        assert_eq!(StoredStream::block(b"short", 0), None);
    }
}
