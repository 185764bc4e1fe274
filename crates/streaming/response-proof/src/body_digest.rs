//! What passes is hashed on its way.

use muster_protocol::Digest;
use muster_response_proof::{ChunkTree, HashScheme};
use sha2::{Digest as _, Sha256};

use muster_openai::{BodyKind, TextDigest, text};

/// What is known of a body once it has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyDigest {
    /// Over what the scheme says.
    pub digest: Digest,
    /// Root over the chunks of its bytes, whatever the scheme.
    pub chunks: Digest,
    /// How many bytes.
    pub bytes: u64,
}

/// Hashes an answer while it passes. Its memory does not grow with the body, but for words: see [`TextDigest`].
#[derive(Debug, Default)]
pub struct BodyHash {
    whole: Sha256,
    chunks: ChunkTree,
    bytes: u64,
    words: Option<Box<TextDigest>>,
}

impl BodyHash {
    /// For an answer of this kind under this scheme.
    pub fn new(scheme: HashScheme, kind: BodyKind) -> Self {
        let words = match scheme {
            HashScheme::RawHttp => None,
            HashScheme::Text => TextDigest::new(kind).map(Box::new),
        };
        Self {
            words,
            ..Self::default()
        }
    }

    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.whole.update(bytes);
        self.chunks.update(bytes);
        self.bytes = self
            .bytes
            .saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if let Some(words) = &mut self.words {
            words.update(bytes);
        }
    }

    /// Bytes so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// That was all.
    pub fn finish(self) -> BodyDigest {
        let words = self.words.and_then(|words| words.finish());
        BodyDigest {
            digest: words.unwrap_or_else(|| Digest::from_bytes(self.whole.finalize().into())),
            chunks: self.chunks.finish(),
            bytes: self.bytes,
        }
    }
}

/// The digest of a request's body under a scheme.
pub fn input_digest(scheme: HashScheme, body: &[u8]) -> Digest {
    let words = match scheme {
        HashScheme::RawHttp => None,
        HashScheme::Text => text::digest_input(body),
    };
    words.unwrap_or_else(|| Digest::of(body))
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
            let mut whole = BodyHash::new(HashScheme::RawHttp, BodyKind::Other);
            whole.update(&body);
            let mut cut = BodyHash::new(HashScheme::RawHttp, BodyKind::Other);
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
