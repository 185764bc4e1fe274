//! The validator's own prompts: a list that it commits to before it sends them, and their order.
//!
//! A conviction rests on answers that may be published. The validator takes its own prompts from the list in order, so
//! it cannot search for prompts on which honest engines differ. Each prompt has a salt, so the root reveals no prompt,
//! not even one that can be guessed.
//!
//! The pseudonym under which a prompt is asked follows from its salt and from a block that did not exist when the list
//! was committed to. The nonce, and so the seed, follows from the pseudonym, so a validator that searches for salts
//! cannot foresee any seed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_protocol::Digest;
use muster_response_proof::{RequestNonce, hash_chunk, inclusion_path, root_by_path, root_of};
use serde::{Deserialize, Serialize};

const OWN_CLIENT_TAG: &[u8] = b"muster/own-client/2";
const OWN_NONCE_TAG: &[u8] = b"muster/own-nonce/1";
/// The bit of a salt's first byte that states whether its prompt is asked with a nonce, as some clients do.
const NONCE_BIT: u8 = 0x80;

/// One prompt of the list: the body of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    /// 32 random bytes.
    pub salt: [u8; 32],
    /// The body of the request, byte for byte. Where the request names the seed, `null` stands for it: see
    /// [`crate::OwnPromptKey::fill_seed`].
    pub request: Vec<u8>,
}

impl Canary {
    fn hash(&self) -> Digest {
        hash_chunk(&[self.salt.as_slice(), &self.request].concat())
    }

    /// The pseudonym under which the prompt is asked. `block_hash` is that of the draw block of the bucket whose header
    /// committed to the list.
    pub fn client(&self, block_hash: &Digest) -> Digest {
        own_client(&self.salt, block_hash)
    }

    /// The client's nonce with which the prompt is asked, by the same block; `None` if it is asked without one. The
    /// salt decides it, so the validator has no choice once it has committed to the list.
    pub fn client_nonce(&self, block_hash: &Digest) -> Option<RequestNonce> {
        self.has_nonce().then(|| {
            let bytes = [OWN_NONCE_TAG, self.salt.as_slice(), block_hash.as_bytes()].concat();
            RequestNonce::from_bytes(*Digest::of(&bytes).as_bytes())
        })
    }

    /// Whether the prompt is asked with a client's nonce.
    pub fn has_nonce(&self) -> bool {
        self.salt.first().is_some_and(|first| first & NONCE_BIT != 0)
    }

    /// Has the prompt of this salt asked with a client's nonce, or without one.
    pub fn set_nonce(salt: &mut [u8; 32], has_nonce: bool) {
        if let Some(first) = salt.first_mut() {
            *first = (*first & !NONCE_BIT) | if has_nonce { NONCE_BIT } else { 0 };
        }
    }
}

fn own_client(salt: &[u8; 32], block_hash: &Digest) -> Digest {
    Digest::of(&[OWN_CLIENT_TAG, salt.as_slice(), block_hash.as_bytes()].concat())
}

/// A list of prompts, whose root the list's head names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CanaryList {
    canaries: Vec<Canary>,
}

/// A prompt of a committed list with the proof of its place. The request is base64, the salt hex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedCanary {
    /// The prompt's place in the list, from 0.
    pub position: u64,
    /// The length of the list.
    pub length: u64,
    salt: String,
    request: String,
    path: Vec<Digest>,
    /// The digest of the list's head; `None` in earlier formats, where the header of the answer's bucket names the
    /// list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<Digest>,
}

impl CanaryList {
    /// A list in the order in which its prompts will be sent.
    pub const fn new(canaries: Vec<Canary>) -> Self {
        Self { canaries }
    }

    /// The number of prompts.
    pub fn length(&self) -> u64 {
        u64::try_from(self.canaries.len()).unwrap_or(u64::MAX)
    }

    /// The prompts, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Canary> {
        self.canaries.iter()
    }

    /// The root, which the list's head names.
    pub fn root(&self) -> Digest {
        root_of(self.canaries.iter().map(Canary::hash))
    }

    /// The prompt after `sent` ones; `None` at the end of the list, when another has to be committed.
    pub fn next(&self, sent: u64) -> Option<&Canary> {
        self.canaries.get(usize::try_from(sent).ok()?)
    }

    /// Opens one prompt for a bundle of evidence; `None` if there is no such place.
    pub fn open(&self, position: u64) -> Option<OpenedCanary> {
        let canary = self.next(position)?;
        let hashes: Vec<Digest> = self.canaries.iter().map(Canary::hash).collect();
        Some(OpenedCanary {
            position,
            length: u64::try_from(hashes.len()).ok()?,
            salt: hex::encode(canary.salt),
            request: STANDARD.encode(&canary.request),
            path: inclusion_path(&hashes, usize::try_from(position).ok()?)?,
            list: None,
        })
    }
}

impl OpenedCanary {
    /// The prompt as one of the list with this head.
    #[must_use]
    pub fn of_list(self, head: Digest) -> Self {
        Self {
            list: Some(head),
            ..self
        }
    }

    /// The body of the request as the list has it, whether or not the prompt stands in any list; `None` if it is not
    /// base64.
    fn request(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.request).ok()
    }

    /// Whether the list has the request in this form.
    pub(crate) fn has_request(&self, request: &[u8]) -> bool {
        self.request().is_some_and(|own| own == request)
    }

    /// Whether the request asks for the ids of tokens.
    pub(crate) fn asks_for_token_ids(&self) -> bool {
        #[derive(Deserialize)]
        struct AskedIds {
            #[serde(default)]
            return_token_ids: bool,
        }
        let request = self.request().unwrap_or_default();
        serde_json::from_slice(&request).is_ok_and(|asked: AskedIds| asked.return_token_ids)
    }

    /// The pseudonym under which the prompt has to be asked, as that of [`Canary::client`]; `None` if the salt cannot
    /// be decoded.
    pub fn client(&self, block_hash: &Digest) -> Option<Digest> {
        let mut salt = [0; 32];
        hex::decode_to_slice(&self.salt, &mut salt).ok()?;
        Some(own_client(&salt, block_hash))
    }

    /// The prompt, if it stands at its place in the list with this root.
    pub fn check(&self, root: &Digest) -> Option<Canary> {
        let mut salt = [0; 32];
        hex::decode_to_slice(&self.salt, &mut salt).ok()?;
        let request = STANDARD.decode(&self.request).ok()?;
        let canary = Canary { salt, request };
        let found = root_by_path(canary.hash(), self.position, self.length, &self.path)?;
        (found == *root).then_some(canary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> CanaryList {
        let canary = |number: u8| Canary {
            salt: [number; 32],
            request: format!("{{\"prompt\":\"{number}\"}}").into_bytes(),
        };
        CanaryList::new((0..5).map(canary).collect())
    }

    #[test]
    fn a_pseudonym_is_these_bytes_and_another_block_gives_another_one() {
        let canary = Canary {
            salt: [7; 32],
            request: Vec::new(),
        };
        let hash = Digest::of(b"block 37");
        assert_eq!(
            canary.client(&hash).hex(),
            "b9c968f284f01ddd92eee0cdaaf70d9a995e50017665e2f30f6e7a1231e7dfdd"
        );
        assert_ne!(
            canary.client(&Digest::of(b"a luckier block")),
            canary.client(&hash)
        );
        assert_eq!(canary.client_nonce(&hash), None);
        let mut asked_with = canary;
        Canary::set_nonce(&mut asked_with.salt, true);
        let nonce = asked_with.client_nonce(&hash).unwrap();
        assert_eq!(
            hex::encode(nonce.as_bytes()),
            "378e1815171b33fa997c3e487d0479997a04158c6edb6ec0b2cc3d196a85e4d3"
        );
        Canary::set_nonce(&mut asked_with.salt, false);
        assert_eq!(asked_with.salt, [7; 32]);
    }

    #[test]
    fn prompts_come_in_order_and_open_at_their_place_only() {
        let (list, root) = (list(), list().root());
        for position in 0..5 {
            let opened = list.open(position).unwrap();
            let found = opened.check(&root);
            assert_eq!(found.as_ref(), list.next(position));
            let moved = OpenedCanary {
                position: (position + 1) % 5,
                ..opened.clone()
            };
            assert_eq!(moved.check(&root), None);
            let other = OpenedCanary {
                request: STANDARD.encode(b"{\"prompt\":\"harder\"}"),
                ..opened
            };
            assert_eq!(other.check(&root), None);
        }
        assert_eq!((list.next(5), list.open(5)), (None, None));
        let swapped = CanaryList::new(list.canaries.iter().rev().cloned().collect());
        assert_ne!(swapped.root(), root, "the order is committed");
    }
}
