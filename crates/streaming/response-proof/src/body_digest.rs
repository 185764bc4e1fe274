//! Digests of request and response bodies, computed while they pass.

use muster_openai::{BodyKind, TextDigest, text};
use muster_protocol::Digest;
use sha2::{Digest as _, Sha256};

use crate::hash_scheme::HashScheme;
use crate::tree::ChunkTree;

/// The digests and the length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyDigest {
    /// The digest by the session's scheme.
    pub digest: Digest,
    /// The Merkle root over the chunks of the body's bytes, under every scheme.
    pub chunks: Digest,
    /// The length of the body in bytes.
    pub bytes: u64,
}

/// Hashes a response while it passes. Its memory does not grow with the body, except for text: see [`TextDigest`].
#[derive(Debug, Default)]
pub struct BodyHasher {
    whole: Sha256,
    chunks: ChunkTree,
    bytes: u64,
    text: Option<Box<TextDigest>>,
}

impl BodyHasher {
    /// A hasher for a response body of this kind under this scheme.
    pub fn new(scheme: HashScheme, kind: BodyKind) -> Self {
        let text = match scheme {
            HashScheme::RawHttp => None,
            HashScheme::Text => TextDigest::new(kind).map(Box::new),
        };
        Self {
            text,
            ..Self::default()
        }
    }

    /// Takes the next bytes of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        self.whole.update(bytes);
        self.chunks.update(bytes);
        self.bytes = self
            .bytes
            .saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if let Some(text) = &mut self.text {
            text.update(bytes);
        }
    }

    /// The number of bytes so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the digests over the bytes so far.
    pub fn finish(self) -> BodyDigest {
        let text = self.text.and_then(|text| text.finish());
        BodyDigest {
            digest: text.unwrap_or_else(|| Digest::from_bytes(self.whole.finalize().into())),
            chunks: self.chunks.finish(),
            bytes: self.bytes,
        }
    }
}

/// Computes the digest of a request's body under a scheme.
pub fn digest_input(scheme: HashScheme, body: &[u8]) -> Digest {
    let text = match scheme {
        HashScheme::RawHttp => None,
        HashScheme::Text => text::digest_input(body),
    };
    text.unwrap_or_else(|| Digest::of(body))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn however_a_body_is_cut_its_digests_are_the_same(
            body in proptest::collection::vec(any::<u8>(), 0..20_000),
            cuts in proptest::collection::vec(1_usize..6_000, 0..12),
        ) {
            let mut whole = BodyHasher::new(HashScheme::RawHttp, BodyKind::Other);
            whole.update(&body);
            let mut cut = BodyHasher::new(HashScheme::RawHttp, BodyKind::Other);
            let mut rest = body.as_slice();
            for length in cuts {
                let (head, tail) = rest.split_at(length.min(rest.len()));
                cut.update(head);
                rest = tail;
            }
            cut.update(rest);
            let whole = whole.finish();
            prop_assert_eq!(whole.digest, Digest::of(&body));
            prop_assert_eq!(whole.bytes, body.len() as u64);
            prop_assert_eq!(cut.finish(), whole);
        }
    }
}
