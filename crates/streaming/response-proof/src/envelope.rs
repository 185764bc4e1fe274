//! A statement with its signature, as bytes and as text without spaces.

use std::marker::PhantomData;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_protocol::{Digest, Signature};

use crate::codec::LayoutError;

const SIGNATURE: usize = 64;
/// The longest text that is decoded, in bytes: no statement comes near it.
const MAX_ENVELOPE: usize = 64 * 1024;

/// A statement that has one exact layout of bytes.
pub trait Sealable: Sized {
    /// The first bytes of the statement: its kind and version.
    const TAG: &'static str;

    /// The bytes that are signed.
    fn signed_bytes(&self) -> Vec<u8>;

    /// Reads the statement from the bytes that were signed.
    ///
    /// # Errors
    /// The bytes are another statement, too short, too long, or hold a value that this version does not know.
    fn read(bytes: &[u8]) -> Result<Self, LayoutError>;
}

/// Why a text is not an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Not base64, too long, or too short for a signature.
    #[error("not a signed statement: it is base64 of a statement and 64 bytes of signature")]
    Text,
    /// The statement cannot be read.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// A statement as it arrived, with a signature that was not checked yet. The bytes are kept because they are the signed
/// ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<T> {
    bytes: Vec<u8>,
    signature: Signature,
    kind: PhantomData<T>,
}

impl<T: Sealable> Envelope<T> {
    /// Signs a statement: `sign` returns the signature over its bytes.
    pub fn new(statement: &T, sign: impl FnOnce(&[u8]) -> Signature) -> Self {
        let bytes = statement.signed_bytes();
        let signature = sign(&bytes);
        Self {
            bytes,
            signature,
            kind: PhantomData,
        }
    }

    /// Reads the text form: standard base64 of the statement's bytes followed by the signature's 64.
    ///
    /// # Errors
    /// The text is something else, or another kind of statement.
    pub fn from_text(text: &str) -> Result<Self, EnvelopeError> {
        if text.len() > MAX_ENVELOPE {
            return Err(EnvelopeError::Text);
        }
        let bytes = STANDARD.decode(text.trim()).map_err(|_| EnvelopeError::Text)?;
        Self::from_bytes(&bytes)
    }

    /// Reads the binary form: the statement's bytes followed by the signature's 64.
    ///
    /// # Errors
    /// As [`Self::from_text`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EnvelopeError> {
        let (statement, signature) = bytes.split_last_chunk::<SIGNATURE>().ok_or(EnvelopeError::Text)?;
        T::read(statement)?;
        Ok(Self {
            bytes: statement.to_vec(),
            signature: Signature::from_bytes(*signature),
            kind: PhantomData,
        })
    }

    /// The text form.
    pub fn to_text(&self) -> String {
        STANDARD.encode(self.to_bytes())
    }

    /// The binary form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.extend_from_slice(self.signature.as_bytes());
        bytes
    }

    /// Reads the statement.
    ///
    /// # Errors
    /// None, as [`Self::from_bytes`] has read it before.
    pub fn statement(&self) -> Result<T, LayoutError> {
        T::read(&self.bytes)
    }

    /// The bytes that were signed.
    pub fn signed_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The digest by which the next statement refers to this one.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.bytes)
    }

    /// The signature, which was not checked.
    pub const fn signature(&self) -> &Signature {
        &self.signature
    }
}
