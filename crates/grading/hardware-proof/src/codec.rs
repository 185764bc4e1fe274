//! Reads fixed layouts from a peer's bytes. Nothing is allocated before its length has been checked.

/// A fault in bytes that should have been a message, a specification or stored evidence.
///
/// The texts are part of stored judgements, which a replay compares: they must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are too few or too many bytes.
    #[error("the peer's message has {got} bytes where {expected} belong")]
    Length {
        /// The length that the specification fixes.
        expected: usize,
        /// The length that was received.
        got: usize,
    },
    /// A version, a kind or a tag has an unknown value.
    #[error("the peer's message has an unknown {0}")]
    Unknown(&'static str),
    /// A field is outside its range.
    #[error("the peer's message has a {0} outside its range")]
    Range(&'static str),
}

/// Reads from the front of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    total: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            total: bytes.len(),
        }
    }

    fn short(&self, wanted: usize) -> DecodeError {
        DecodeError::Length {
            expected: self.total - self.rest.len() + wanted,
            got: self.total,
        }
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.short(N))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn slice(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or_else(|| self.short(length))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn hashes(&mut self, count: usize) -> Result<&'a [[u8; 32]], DecodeError> {
        Ok(self.slice(count * 32)?.as_chunks::<32>().0)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take::<1>().map(|[byte]| *byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take().map(|bytes| u16::from_le_bytes(*bytes))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Length {
                expected: self.total - self.rest.len(),
                got: self.total,
            })
        }
    }
}
