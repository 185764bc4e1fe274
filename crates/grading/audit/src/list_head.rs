//! The heads of lists of own prompts: what a bucket's header commits to before the block that gives their seeds.
//!
//! A head names the session that will be asked and the number of prompts, so each position counts once: in no other
//! session, and for the miner if it was not asked. A header names the heads of its bucket alone. Every list of a miner
//! therefore stands in one header, and the headers name one another.

use muster_protocol::{Digest, MinerKey};
use muster_response_proof::{hash_chunk, root_of};
use serde::{Deserialize, Serialize};

const HEAD_TAG: &[u8] = b"muster/own-list/1";
const SUBJECT_TAG: &[u8] = b"muster/own-list-subject/1";
const TERMS_TAG: &[u8] = b"muster/own-list-terms/1";

/// The head of a list of own prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListHead {
    /// 32 random bytes, so that nobody finds the session by trying.
    pub salt: [u8; 32],
    /// Digest of the attestation of the session that will be asked.
    pub session: Digest,
    /// The miner of that session.
    pub miner: MinerKey,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The number of prompts.
    pub length: u64,
    /// The root of the list, as that of [`crate::CanaryList::root`].
    pub root: Digest,
}

impl ListHead {
    /// The digest by which headers and answers name the list.
    pub fn digest(&self) -> Digest {
        head_digest(&subject_of(&self.miner, &self.model), &self.terms())
    }

    /// The head as a bundle shows it that judges other miners, or another model.
    pub fn seal(&self) -> CommittedList {
        CommittedList::Sealed(SealedList {
            subject: subject_of(&self.miner, &self.model),
            terms: self.terms(),
        })
    }

    /// The head as a bundle shows it that judges its miner and model.
    pub fn open(&self) -> CommittedList {
        CommittedList::Opened(OpenedList {
            miner: self.miner,
            salt: hex::encode(self.salt),
            session: self.session,
            length: self.length,
            root: self.root,
        })
    }

    fn terms(&self) -> Digest {
        let (session, root) = (self.session.as_bytes(), self.root.as_bytes());
        let length = self.length.to_be_bytes();
        Digest::of(&[TERMS_TAG, &self.salt, session, &length, root].concat())
    }
}

/// The digest of a miner and a model.
pub(crate) fn subject_of(miner: &MinerKey, model: &str) -> Digest {
    Digest::of(&[SUBJECT_TAG, miner.0.as_bytes().as_slice(), model.as_bytes()].concat())
}

fn head_digest(subject: &Digest, terms: &Digest) -> Digest {
    hash_chunk(&[HEAD_TAG, subject.as_bytes().as_slice(), terms.as_bytes()].concat())
}

/// The root of own prompts that a bucket's header names: the one over the digests of its lists' heads, in their order.
pub fn root_of_lists<'a>(lists: impl IntoIterator<Item = &'a Digest>) -> Digest {
    let digests: Vec<Digest> = lists.into_iter().copied().collect();
    root_of(digests)
}

/// A list to which a header commits, as a bundle shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommittedList {
    /// The list of a miner or a model that the bundle does not judge.
    Sealed(SealedList),
    /// A list of prompts to a miner that the bundle judges.
    Opened(OpenedList),
}

/// A head of which only the miner and the model can be found, by trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedList {
    /// The digest of miner and model.
    pub subject: Digest,
    /// The digest of everything else.
    pub terms: Digest,
}

/// A head with all of its parts. The model is that of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedList {
    /// The miner that is asked.
    pub miner: MinerKey,
    /// The head's salt, hex.
    pub salt: String,
    /// Digest of the attestation of the session that is asked.
    pub session: Digest,
    /// The number of prompts.
    pub length: u64,
    /// The root of the list.
    pub root: Digest,
}

impl OpenedList {
    /// The head of a bundle's list; `None` if its salt cannot be decoded.
    pub(crate) fn head(&self, model: &str) -> Option<ListHead> {
        let mut salt = [0; 32];
        hex::decode_to_slice(&self.salt, &mut salt).ok()?;
        Some(ListHead {
            salt,
            session: self.session,
            miner: self.miner,
            model: model.to_owned(),
            length: self.length,
            root: self.root,
        })
    }
}

impl SealedList {
    pub(crate) fn digest(&self) -> Digest {
        head_digest(&self.subject, &self.terms)
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;

    use super::*;

    fn head() -> ListHead {
        ListHead {
            salt: [7; 32],
            session: Digest::of(b"session"),
            miner: MinerKey(Hotkey::from_bytes([1; 32])),
            model: "tiny".to_owned(),
            length: 3,
            root: Digest::of(b"root"),
        }
    }

    #[test]
    fn a_head_is_these_bytes_and_the_same_sealed_and_opened() {
        assert_eq!(
            head().digest().hex(),
            "c171ce3f0455ae4f4c671d54bf05a4f1901cedeb40dff7ea8e8622e782b238ed"
        );
        let CommittedList::Sealed(sealed) = head().seal() else {
            panic!("a sealed head");
        };
        assert_eq!(sealed.digest(), head().digest());
        let CommittedList::Opened(opened) = head().open() else {
            panic!("an opened head");
        };
        assert_eq!(opened.head("tiny"), Some(head()));
        assert_ne!(
            opened.head("other").map(|head| head.digest()),
            Some(head().digest())
        );
    }

    #[test]
    fn every_part_of_a_head_changes_its_digest() {
        type Change = fn(&mut ListHead);
        let changes: [Change; 6] = [
            |head| head.salt[0] = 8,
            |head| head.session = Digest::of(b"other session"),
            |head| head.miner = MinerKey(Hotkey::from_bytes([2; 32])),
            |head| head.model.push('2'),
            |head| head.length = 4,
            |head| head.root = Digest::of(b"other root"),
        ];
        for change in changes {
            let mut changed = head();
            change(&mut changed);
            assert_ne!(changed.digest(), head().digest(), "{changed:?}");
        }
    }
}
