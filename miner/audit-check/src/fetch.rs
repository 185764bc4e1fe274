//! A bundle that is being fetched in parts. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_protocol::Digest;
use muster_protocol::wire::audits::{BundlePart, VerdictNotice};
use muster_response_proof::audit_limits::MAX_PART_BYTES;

use crate::evidence::BundleOpinion;

/// The longest bundle that a miner fetches, in bytes.
pub const MAX_FETCHED: u64 = 16 * 1024 * 1024;

/// A bundle on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleFetch {
    bundle: Digest,
    bytes: u64,
    text: Vec<u8>,
}

/// The step after a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchStep {
    /// The part that begins at this place is needed next.
    Next(u64),
    /// The text is whole and has the digest that names it.
    Whole(String),
    /// The text does not come, or is another one; the reason as text.
    Failed(&'static str),
}

impl BundleFetch {
    /// The fetch of a verdict's bundle.
    ///
    /// # Errors
    /// The validator shows no bundle, or one that is longer than [`MAX_FETCHED`]: the opinion of it.
    pub fn new(notice: &VerdictNotice) -> Result<Self, BundleOpinion> {
        if notice.bytes == 0 {
            return Err(BundleOpinion::ProvesNothing(
                "the validator shows none".to_owned(),
            ));
        }
        if notice.bytes > MAX_FETCHED {
            return Err(BundleOpinion::NotFetched(format!(
                "it has {} bytes, and this miner fetches {MAX_FETCHED}: `muster audit explain` reads it at the validator",
                notice.bytes
            )));
        }
        Ok(Self {
            bundle: notice.bundle,
            bytes: notice.bytes,
            text: Vec::new(),
        })
    }

    /// The digest of the bundle.
    pub fn bundle(&self) -> Digest {
        self.bundle
    }

    /// Takes a part. A part of another bundle or place changes nothing.
    pub fn take(&mut self, part: &BundlePart) -> FetchStep {
        let at = self.len();
        if part.bundle != self.bundle || part.offset != at {
            return FetchStep::Next(at);
        }
        let Ok(data) = STANDARD.decode(&part.data) else {
            return FetchStep::Failed("a part of the bundle is no base64");
        };
        if data.is_empty() || data.len() > MAX_PART_BYTES {
            return FetchStep::Failed("the validator does not give the whole bundle");
        }
        self.text.extend_from_slice(&data);
        if self.len() < self.bytes {
            return FetchStep::Next(self.len());
        }
        if Digest::of(&self.text) != self.bundle {
            return FetchStep::Failed("the bundle has another digest than the validator says");
        }
        match String::from_utf8(std::mem::take(&mut self.text)) {
            Ok(text) => FetchStep::Whole(text),
            Err(_) => FetchStep::Failed("the bundle is no text"),
        }
    }

    fn len(&self) -> u64 {
        u64::try_from(self.text.len()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn told(text: &str, bytes: usize) -> VerdictNotice {
        VerdictNotice {
            bundle: Digest::of(text.as_bytes()),
            bytes: u64::try_from(bytes).unwrap(),
            verdict: "suspect".to_owned(),
            model: "tiny".to_owned(),
            quality_per_mille: 1_000,
            since: Timestamp::from_secs(1),
        }
    }

    fn part(bundle: Digest, offset: u64, data: &[u8]) -> BundlePart {
        BundlePart {
            bundle,
            offset,
            data: STANDARD.encode(data),
        }
    }

    #[test]
    fn a_text_of_another_digest_or_length_is_refused() {
        let mut fetch = BundleFetch::new(&told("right", 5)).unwrap();
        assert_eq!(
            fetch.take(&part(fetch.bundle(), 0, b"wrong")),
            FetchStep::Failed("the bundle has another digest than the validator says")
        );
        let mut fetch = BundleFetch::new(&told("right", 5)).unwrap();
        assert!(matches!(
            fetch.take(&part(fetch.bundle(), 0, b"")),
            FetchStep::Failed(_)
        ));
        let elsewhere = part(Digest::of(b"other"), 0, b"right");
        assert_eq!(fetch.take(&elsewhere), FetchStep::Next(0));
        let opinion = |bytes| BundleFetch::new(&told("right", bytes)).unwrap_err();
        assert!(opinion(0).is_disagreement());
        let long = opinion(usize::try_from(MAX_FETCHED).unwrap() + 1);
        assert!(
            long.name() == "not_fetched" && !long.is_disagreement(),
            "its length is no false verdict"
        );
    }

    proptest! {
        #[test]
        fn parts_of_any_length_make_the_whole_text(text in "[a-z]{1,200}", length in 1usize..64) {
            let mut fetch = BundleFetch::new(&told(&text, text.len())).unwrap();
            let mut at = 0_usize;
            loop {
                let end = text.len().min(at + length);
                match fetch.take(&part(fetch.bundle(), at as u64, &text.as_bytes()[at..end])) {
                    FetchStep::Next(next) => {
                        prop_assert_eq!(next, end as u64);
                        at = end;
                    }
                    FetchStep::Whole(whole) => {
                        prop_assert_eq!(whole, text);
                        break;
                    }
                    FetchStep::Failed(why) => prop_assert!(false, "{}", why),
                }
            }
        }
    }
}
