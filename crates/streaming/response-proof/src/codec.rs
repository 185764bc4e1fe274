//! The binary layout of signed statements: a tag, then the fields in a fixed order, big-endian, without names.

use std::fmt;

use muster_protocol::{Digest, Timestamp};

/// The longest text in a statement, in bytes. The longest that occurs is a request's path.
pub const MAX_TEXT: usize = 4096;

/// A text that does not fit into a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a text in a signed statement has at most {MAX_TEXT} bytes, this one has {0}")]
pub struct TextError(usize);

/// A text of at most [`MAX_TEXT`] bytes.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Text(String);

impl Text {
    /// Checks the length of a text.
    ///
    /// # Errors
    /// The text is longer than [`MAX_TEXT`].
    pub fn new(text: impl Into<String>) -> Result<Self, TextError> {
        let text = text.into();
        if text.len() <= MAX_TEXT {
            Ok(Self(text))
        } else {
            Err(TextError(text.len()))
        }
    }

    /// The text as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why bytes cannot be read as a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// They are another statement, or another version of this one.
    #[error("these bytes are another statement: they do not begin with {0:?}")]
    Tag(&'static str),
    /// They end too early.
    #[error("the bytes end within {0}")]
    Short(&'static str),
    /// There are bytes after the last field.
    #[error("{0} bytes follow after the last field")]
    Trailing(usize),
    /// A field holds a value that this version does not know.
    #[error("{0} holds a value that this version does not know")]
    Value(&'static str),
}

pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(tag: &'static str) -> Self {
        let mut bytes = Vec::with_capacity(512);
        bytes.extend_from_slice(tag.as_bytes());
        Self(bytes)
    }

    pub(crate) fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn time(self, value: Timestamp) -> Self {
        self.raw(&value.micros().to_be_bytes())
    }

    pub(crate) fn digest(self, value: &Digest) -> Self {
        self.raw(value.as_bytes())
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(self, value: &Text) -> Self {
        // A `Text` has at most `MAX_TEXT` bytes, which fits.
        let length = u16::try_from(value.0.len()).unwrap_or(u16::MAX);
        self.u16(length).raw(value.0.as_bytes())
    }

    /// Writes a flag byte, then the value if there is one.
    pub(crate) fn maybe<T>(self, value: Option<&T>, write: impl FnOnce(Self, &T) -> Self) -> Self {
        match value {
            Some(value) => write(self.byte(1), value),
            None => self.byte(0),
        }
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(tag: &'static str, bytes: &'a [u8]) -> Result<Self, LayoutError> {
        bytes
            .strip_prefix(tag.as_bytes())
            .map(Self)
            .ok_or(LayoutError::Tag(tag))
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], LayoutError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(LayoutError::Short(field))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn byte(&mut self, field: &'static str) -> Result<u8, LayoutError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, LayoutError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, LayoutError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, LayoutError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// Reads a time in the years that have a text form. Other times would be written back differently.
    pub(crate) fn time(&mut self, field: &'static str) -> Result<Timestamp, LayoutError> {
        let micros = self.array(field).map(i64::from_be_bytes)?;
        let time = Timestamp::from_micros(micros);
        if time.micros() == micros {
            Ok(time)
        } else {
            Err(LayoutError::Value(field))
        }
    }

    pub(crate) fn digest(&mut self, field: &'static str) -> Result<Digest, LayoutError> {
        self.array(field).map(Digest::from_bytes)
    }

    pub(crate) fn text(&mut self, field: &'static str) -> Result<Text, LayoutError> {
        let length = usize::from(self.u16(field)?);
        let (head, rest) = self.0.split_at_checked(length).ok_or(LayoutError::Short(field))?;
        self.0 = rest;
        let text = std::str::from_utf8(head).map_err(|_| LayoutError::Value(field))?;
        Text::new(text).map_err(|_| LayoutError::Value(field))
    }

    pub(crate) fn maybe<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, LayoutError>,
    ) -> Result<Option<T>, LayoutError> {
        match self.byte(field)? {
            0 => Ok(None),
            1 => read(self).map(Some),
            2.. => Err(LayoutError::Value(field)),
        }
    }

    pub(crate) fn done(self) -> Result<(), LayoutError> {
        match self.0.len() {
            0 => Ok(()),
            rest => Err(LayoutError::Trailing(rest)),
        }
    }
}
