//! What requests say about parts of a file: `Content-Range` of an upload, `Range` of a download. Pure.

/// A part of a file that is being sent: `Content-Range: bytes 5-9/10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentPart {
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
    /// Bytes of the whole file; `None` for `*`.
    pub total: Option<u64>,
}

/// A header that asks for no part that there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Content-Range must be `bytes FIRST-LAST/TOTAL`, or `*` for a total that is not known yet")]
pub struct BadPart;

/// What a download gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Everything, with 200.
    Whole,
    /// Bytes `first..end`, with 206.
    Part {
        /// The first byte.
        first: u64,
        /// One past the last byte; more than `first`.
        end: u64,
    },
    /// Nothing that there is: 416.
    Nothing,
}

// === impl SentPart ===

impl SentPart {
    /// Reads `Content-Range`.
    ///
    /// # Errors
    /// It is anything else, or contradicts itself.
    pub fn read(value: &str) -> Result<Self, BadPart> {
        let (range, total) = value
            .strip_prefix("bytes ")
            .and_then(|rest| rest.split_once('/'))
            .ok_or(BadPart)?;
        let (first, last) = range.split_once('-').ok_or(BadPart)?;
        let (first, last) = (number(first).ok_or(BadPart)?, number(last).ok_or(BadPart)?);
        let total = match total {
            "*" => None,
            total => Some(number(total).ok_or(BadPart)?),
        };
        let fits = first <= last && last < u64::MAX && total.is_none_or(|total| last < total);
        fits.then_some(Self { first, last, total }).ok_or(BadPart)
    }

    /// Bytes in it.
    pub const fn len(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Never: a part has at least one byte.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

// === impl Wanted ===

impl Wanted {
    /// What a `Range` header asks for of a file of `size` bytes (RFC 9110, 14.2).
    ///
    /// Several ranges, other units and whatever cannot be read mean the whole file, as if there were no header.
    pub fn of(header: Option<&str>, size: u64) -> Self {
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
        let (first, end) = match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => (first, size.min(last.saturating_add(1))),
            (Some(first), None) if last.is_empty() => (first, size),
            (None, Some(count)) if first.is_empty() => (size.saturating_sub(count), size),
            (_, _) => return Self::Whole,
        };
        if first < end {
            Self::Part { first, end }
        } else {
            Self::Nothing
        }
    }
}

/// Digits only: `parse` would take a sign too.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_part_is_read_exactly() {
        let part = |first, last, total| Ok(SentPart { first, last, total });
        assert_eq!(SentPart::read("bytes 5-9/10"), part(5, 9, Some(10)));
        assert_eq!(SentPart::read("bytes 0-0/*"), part(0, 0, None));
        assert_eq!(SentPart::read("bytes 5-9/10").unwrap().len(), 5);
        for wrong in [
            "",
            "bytes */10",
            "bytes 9-5/10",
            "bytes 5-10/10",
            "bytes -5-9/10",
            "bytes +5-9/10",
            "items 5-9/10",
            "bytes 5-9",
            "bytes 5-18446744073709551615/*",
        ] {
            assert_eq!(SentPart::read(wrong), Err(BadPart), "{wrong}");
        }
    }

    #[test]
    fn a_download_gets_what_it_asks_for_as_far_as_there_is_any() {
        let part = |first, end| Wanted::Part { first, end };
        for (header, expected) in [
            ("bytes=0-4", part(0, 5)),
            ("bytes=5-", part(5, 10)),
            ("bytes=5-99", part(5, 10)),
            ("bytes=-3", part(7, 10)),
            ("bytes=-99", part(0, 10)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=9-5", Wanted::Whole),
            ("bytes=0-1,3-4", Wanted::Whole),
            ("lines=1-2", Wanted::Whole),
            ("bytes=", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=a-b", Wanted::Whole),
        ] {
            assert_eq!(Wanted::of(Some(header), 10), expected, "{header}");
        }
        assert_eq!(Wanted::of(None, 10), Wanted::Whole);
        assert_eq!(Wanted::of(Some("bytes=0-0"), 0), Wanted::Nothing);
    }

    proptest! {
        #[test]
        fn no_range_leaves_its_file(header in "bytes=[0-9]{0,20}-[0-9]{0,20}", size: u64) {
            match Wanted::of(Some(&header), size) {
                Wanted::Part { first, end } => prop_assert!(first < end && end <= size),
                Wanted::Whole | Wanted::Nothing => {}
            }
        }
    }
}
