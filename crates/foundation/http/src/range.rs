//! Byte ranges (RFC 9110, 14): `Range` of a download, `Content-Range` of a part. Pure.

use std::fmt;

/// The bytes that a message holds of a longer content: `Content-Range: bytes 5-9/10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// Position of the first byte.
    pub first: u64,
    /// Position of the last byte; at least `first`.
    pub last: u64,
    /// Bytes of the whole content; `None` if the sender does not know it yet (`*`).
    pub total: Option<u64>,
}

/// A `Content-Range` header that cannot be read or contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Content-Range must be `bytes FIRST-LAST/TOTAL`, or `*` for a total that is not known yet")]
pub struct InvalidContentRange;

/// The bytes of a content that a download is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedRange {
    /// Everything, with status 200.
    Whole,
    /// Bytes `first..end`, with status 206.
    Part {
        /// Position of the first byte.
        first: u64,
        /// One past the position of the last byte; more than `first`, at most the size of the content.
        end: u64,
    },
    /// The content has no byte of the range: status 416, with [`unsatisfied`] as `Content-Range`.
    Unsatisfiable,
}

/// The `Content-Range` of an answer with status 416 for a content of `size` bytes.
pub fn unsatisfied(size: u64) -> String {
    format!("bytes */{size}")
}

// === impl ContentRange ===

impl ContentRange {
    /// Bytes `first..end` of a content of `total` bytes.
    pub const fn of_part(first: u64, end: u64, total: u64) -> Self {
        Self {
            first,
            last: end.saturating_sub(1),
            total: Some(total),
        }
    }

    /// Reads a `Content-Range` header.
    ///
    /// # Errors
    /// Another form than `bytes FIRST-LAST/TOTAL`, a range that ends before it begins or beyond its total.
    pub fn parse(header: &str) -> Result<Self, InvalidContentRange> {
        Self::read(header.trim()).ok_or(InvalidContentRange)
    }

    fn read(header: &str) -> Option<Self> {
        let (range, total) = header.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, last) = (digits(first)?, digits(last)?);
        let total = match total {
            "*" => None,
            total => Some(digits(total)?),
        };
        let fits = first <= last && last < u64::MAX && total.is_none_or(|total| last < total);
        fits.then_some(Self { first, last, total })
    }

    /// The number of bytes in the range; at least one.
    #[expect(clippy::len_without_is_empty, reason = "no range is empty")]
    pub const fn len(&self) -> u64 {
        self.last - self.first + 1
    }
}

impl fmt::Display for ContentRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}-{}/", self.first, self.last)?;
        match self.total {
            Some(total) => write!(f, "{total}"),
            None => f.write_str("*"),
        }
    }
}

// === impl RequestedRange ===

impl RequestedRange {
    /// Reads a `Range` header of a request for a content of `size` bytes.
    ///
    /// Several ranges, other units, and headers that cannot be read ask for the whole content, as if there were no
    /// header.
    pub fn parse(header: Option<&str>, size: u64) -> Self {
        let Some(range) = header
            .and_then(|value| value.trim().strip_prefix("bytes="))
            .map(str::trim)
            .filter(|range| !range.contains(','))
        else {
            return Self::Whole;
        };
        let Some((first, last)) = range.split_once('-') else {
            return Self::Whole;
        };
        let (first, end) = match (digits(first), digits(last)) {
            (Some(first), Some(last)) if first <= last => (first, size.min(last.saturating_add(1))),
            (Some(first), None) if last.is_empty() => (first, size),
            (None, Some(count)) if first.is_empty() => (size.saturating_sub(count), size),
            (_, _) => return Self::Whole,
        };
        if first < end {
            Self::Part { first, end }
        } else {
            Self::Unsatisfiable
        }
    }
}

/// A number of digits only: `parse` would take a sign too.
fn digits(text: &str) -> Option<u64> {
    let only_digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    only_digits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_content_range_is_read_exactly() {
        let range = |first, last, total| Ok(ContentRange { first, last, total });
        assert_eq!(ContentRange::parse("bytes 5-9/10"), range(5, 9, Some(10)));
        assert_eq!(ContentRange::parse("bytes 0-0/*"), range(0, 0, None));
        assert_eq!(ContentRange::parse("bytes 5-9/10").unwrap().len(), 5);
        assert_eq!(ContentRange::of_part(5, 10, 10).to_string(), "bytes 5-9/10");
        for wrong in [
            "",
            "bytes",
            "bytes */10",
            "bytes 9-5/10",
            "bytes 5-10/10",
            "bytes -5-9/10",
            "bytes +5-9/10",
            "items 5-9/10",
            "bytes 5-9",
            "bytes 5-/10",
            "bytes 5-18446744073709551615/*",
            "bytes 5-18446744073709551616/*",
            "bytes 5-9/10, bytes 1-2/10",
        ] {
            assert_eq!(ContentRange::parse(wrong), Err(InvalidContentRange), "{wrong}");
        }
    }

    #[test]
    fn a_download_gets_what_it_asks_for_as_far_as_there_is_any() {
        let part = |first, end| RequestedRange::Part { first, end };
        for (header, expected) in [
            ("bytes=0-", part(0, 10)),
            ("bytes=0-4", part(0, 5)),
            ("bytes=5-", part(5, 10)),
            ("bytes=5-99", part(5, 10)),
            ("bytes=-3", part(7, 10)),
            ("bytes=-99", part(0, 10)),
            ("bytes=10-", RequestedRange::Unsatisfiable),
            ("bytes=99-100", RequestedRange::Unsatisfiable),
            ("bytes=-0", RequestedRange::Unsatisfiable),
            ("bytes=9-5", RequestedRange::Whole),
            ("bytes=0-1,3-4", RequestedRange::Whole),
            ("bytes=+1-2", RequestedRange::Whole),
            ("lines=1-2", RequestedRange::Whole),
            ("bytes=", RequestedRange::Whole),
            ("bytes=-", RequestedRange::Whole),
            ("bytes=a-b", RequestedRange::Whole),
        ] {
            assert_eq!(RequestedRange::parse(Some(header), 10), expected, "{header}");
        }
        assert_eq!(RequestedRange::parse(None, 10), RequestedRange::Whole);
        for header in ["bytes=0-0", "bytes=0-", "bytes=-5"] {
            assert_eq!(
                RequestedRange::parse(Some(header), 0),
                RequestedRange::Unsatisfiable
            );
        }
        assert_eq!(unsatisfied(10), "bytes */10");
    }

    proptest! {
        #[test]
        fn no_range_leaves_its_content(header in "bytes=[0-9,+ é-]{0,24}", size: u64) {
            match RequestedRange::parse(Some(&header), size) {
                RequestedRange::Part { first, end } => prop_assert!(first < end && end <= size),
                RequestedRange::Whole | RequestedRange::Unsatisfiable => {}
            }
        }

        #[test]
        fn a_content_range_is_read_as_it_is_written(first in 0..u64::MAX / 2, more in 0..1_000_u64, rest in 0..9_u64) {
            let range = ContentRange::of_part(first, first + more + 1, first + more + 1 + rest);
            prop_assert_eq!(ContentRange::parse(&range.to_string()), Ok(range));
        }
    }
}
