//! The lists of own prompts that a bundle's headers commit to, and whether an answer is one to a prompt of theirs.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{Digest, MinerKey};
use muster_response_proof::{BucketHeader, ResponseProof, body_digest};

use crate::bundle::{AnswerEvidence, AuditBundle, ListCommitment, Origin};
use crate::canaries::{Canary, OpenedCanary};
use crate::checked_answer::CheckedOrigin;
use crate::checked_log::{is_of_bundle, open};
use crate::list_head::{CommittedList, ListHead, root_of_lists};
use crate::own_prompt_key::{OwnPromptKey, names_no_seed};
use crate::replay_error::ReplayError;
use crate::verdict::Publicity;

/// The most positions of opened lists in a bundle.
const MAX_POSITIONS: u64 = 1 << 16;

/// A header that a bundle shows because of its lists, or because it stands between such headers.
#[derive(Clone, Debug)]
pub(crate) struct CommittingHeader {
    pub(crate) digest: Digest,
    /// The digest of the header before it.
    pub(crate) previous: Digest,
    pub(crate) lists: Vec<ShownList>,
}

/// A list to which a header commits.
#[derive(Clone, Debug)]
pub(crate) enum ShownList {
    /// A list of which the bundle shows the digest of miner and model alone.
    Sealed { subject: Digest },
    /// A list of a miner for the bundle's model.
    Opened {
        digest: Digest,
        miner: MinerKey,
        length: u64,
    },
}

/// The facts from which an own prompt of a list has to follow.
#[derive(Clone, Debug)]
struct ListTerms {
    bucket: u64,
    block_hash: Digest,
    key: OwnPromptKey,
    head: ListHead,
}

/// The commitments of a bundle.
pub(crate) struct CommittedLists {
    /// The headers in rising order of their buckets. Earlier formats show none.
    pub(crate) headers: Vec<CommittingHeader>,
    /// The keys of the headers with opened lists, in the order of the headers.
    pub(crate) keys: Vec<OwnPromptKey>,
    by_digest: BTreeMap<Digest, ListTerms>,
    /// Of earlier formats, in which a header names the root of one list: the number of the first bucket whose header
    /// names it, and the hash of its draw block.
    by_root: BTreeMap<Digest, (u64, Digest)>,
    names_heads: bool,
    /// Whether the seed of a position takes the place of a blank in its request: the engine draws by a seed that the
    /// request names.
    fills_seeds: bool,
    /// Whether every own prompt has to be of a committed list. The first two formats show no commitments.
    are_shown: bool,
}

/// The committed prompts that were seen, to find one that is named twice.
#[derive(Default)]
pub(crate) struct SeenPrompts {
    places: BTreeSet<(Digest, u64)>,
    /// The pseudonyms of own prompts: one prompt asked twice would count twice.
    clients: BTreeSet<Digest>,
}

/// Checks the headers that commit to lists of own prompts.
pub(crate) fn check_commitments(bundle: &AuditBundle) -> Result<CommittedLists, ReplayError> {
    let mut lists = CommittedLists {
        headers: Vec::new(),
        keys: Vec::new(),
        by_digest: BTreeMap::new(),
        by_root: BTreeMap::new(),
        names_heads: bundle.fixes_own_prompts(),
        fills_seeds: bundle.calibration.sampler.is_some(),
        are_shown: bundle.shows_commitments(),
    };
    let (mut last, mut positions) = (None, 0_u64);
    for (place, commitment) in bundle.commitments.iter().enumerate() {
        let wrong = || ReplayError::Commitment { place };
        let opened = open::<BucketHeader>(&commitment.header, &bundle.validator.0);
        let (header, digest) = opened.ok_or_else(wrong)?;
        let bucket = header.bucket.0;
        if last.is_some_and(|last| last >= bucket) || !is_of_bundle(&header, bundle) {
            return Err(wrong());
        }
        last = Some(bucket);
        if lists.names_heads {
            let shown = check_heads(bundle, commitment, &header, &mut lists).ok_or_else(wrong)?;
            for list in &shown {
                if let ShownList::Opened { length, .. } = list {
                    positions = positions.saturating_add(*length);
                }
            }
            if positions > MAX_POSITIONS {
                return Err(ReplayError::Bound("its lists have more own prompts than 65,536"));
            }
            lists.headers.push(CommittingHeader {
                digest,
                previous: header.previous,
                lists: shown,
            });
        } else {
            let block_hash = commitment.block_hash.ok_or_else(wrong)?;
            // A second commitment would be a second chance of pseudonyms that please.
            let is_first = lists
                .by_root
                .insert(header.canaries, (bucket, block_hash))
                .is_none();
            if !is_first || !commitment.lists.is_empty() || commitment.key.is_some() {
                return Err(wrong());
            }
        }
    }
    Ok(lists)
}

/// Checks the lists of one header, and notes those that are opened. `None` if the header does not commit to exactly
/// these, a list has two headers, or the key is not the validator's.
fn check_heads(
    bundle: &AuditBundle,
    commitment: &ListCommitment,
    header: &BucketHeader,
    lists: &mut CommittedLists,
) -> Option<Vec<ShownList>> {
    let has_opened = commitment
        .lists
        .iter()
        .any(|list| matches!(list, CommittedList::Opened(_)));
    let key = match (&commitment.block_hash, &commitment.key, has_opened) {
        (None, None, false) => None,
        (Some(block_hash), Some(proof), true) => {
            let key = OwnPromptKey::check(&bundle.validator, header, block_hash, proof)?;
            lists.keys.push(key);
            Some((*block_hash, key))
        }
        (_, _, _) => return None,
    };
    let (mut digests, mut shown) = (Vec::new(), Vec::new());
    for list in &commitment.lists {
        match (list, key) {
            (CommittedList::Sealed(sealed), _) => {
                digests.push(sealed.digest());
                shown.push(ShownList::Sealed {
                    subject: sealed.subject,
                });
            }
            (CommittedList::Opened(opened), Some((block_hash, key))) => {
                let head = opened.head(&bundle.model)?;
                let digest = head.digest();
                digests.push(digest);
                shown.push(ShownList::Opened {
                    digest,
                    miner: head.miner,
                    length: head.length,
                });
                let terms = ListTerms {
                    bucket: header.bucket.0,
                    block_hash,
                    key,
                    head,
                };
                if lists.by_digest.insert(digest, terms).is_some() {
                    return None;
                }
            }
            (CommittedList::Opened(_), None) => return None,
        }
    }
    (root_of_lists(&digests) == header.canaries).then_some(shown)
}

impl CommittedLists {
    /// Checks the origin of an answer's prompt; `None` if it claims to be from a committed list and is not, was used
    /// before, or was asked otherwise than the commitment wants: in another session or before its block, under another
    /// pseudonym, with another nonce or seed, or for the second time. `root` is what the header of the answer's bucket
    /// names, `miner` the one of the session, and `is_repeated` states whether the session signed the gateway's nonce
    /// before.
    pub(crate) fn check_origin(
        &self,
        evidence: &AnswerEvidence,
        proof: &ResponseProof,
        root: &Digest,
        (miner, is_repeated): (MinerKey, bool),
        seen: &mut SeenPrompts,
    ) -> Option<CheckedOrigin> {
        let Origin::Canary(opened) = &evidence.origin else {
            // Nothing that a client signed shows its consent, and the validator may be the client itself.
            return Some(CheckedOrigin::of_user());
        };
        if self.names_heads {
            return self.check_position(opened, evidence, proof, (miner, is_repeated), seen);
        }
        let canary = opened.check(root).filter(|_| opened.list.is_none())?;
        let is_fresh = seen.places.insert((*root, opened.position));
        if !is_fresh || body_digest::digest_input(proof.scheme, &canary.request) != proof.input {
            return None;
        }
        let publicity = match self.by_root.get(root) {
            Some((committed, block_hash)) => {
                let is_before = *committed < evidence.bucket;
                let is_own = is_asked_by(&canary, block_hash, proof);
                let is_alone = seen.clients.insert(canary.client(block_hash));
                (is_before && is_own && is_alone).then_some(Publicity::Public)?
            }
            None if self.are_shown => return None,
            // Its validator may have chosen the prompt's salt for a seed on which honest rounding shows.
            None => Publicity::Private,
        };
        Some(CheckedOrigin {
            is_own: true,
            publicity,
            position: None,
            request: Some(canary.request),
        })
    }

    fn check_position(
        &self,
        opened: &OpenedCanary,
        evidence: &AnswerEvidence,
        proof: &ResponseProof,
        (miner, is_repeated): (MinerKey, bool),
        seen: &mut SeenPrompts,
    ) -> Option<CheckedOrigin> {
        let list = opened.list?;
        let ListTerms {
            bucket,
            block_hash,
            key,
            head,
        } = self.by_digest.get(&list)?;
        let canary = opened.check(&head.root)?;
        let is_placed = opened.length == head.length && seen.places.insert((list, opened.position));
        let is_named = proof.attestation == head.session && miner == head.miner && *bucket < evidence.bucket;
        let has_nonce = proof.gateway_nonce == Some(key.nonce(&list, opened.position)) && !is_repeated;
        let filled = self
            .fills_seeds
            .then(|| key.fill_seed(&canary.request, &list, opened.position))
            .flatten();
        let is_seeded = match &filled {
            Some(filled) => key.is_seeded(filled, &list, opened.position),
            None => names_no_seed(&canary.request),
        };
        let request = filled.unwrap_or_else(|| canary.request.clone());
        let is_asked = body_digest::digest_input(proof.scheme, &request) == proof.input;
        let is_alone = seen.clients.insert(canary.client(block_hash));
        let is_own = is_asked && is_seeded && is_alone && is_asked_by(&canary, block_hash, proof);
        (is_placed && is_named && has_nonce && is_own).then_some(CheckedOrigin {
            is_own: true,
            publicity: Publicity::Public,
            position: Some((list, opened.position)),
            request: Some(request),
        })
    }
}

/// Whether a prompt was asked under its pseudonym, and with its client's nonce or without one as its salt states.
fn is_asked_by(canary: &Canary, block_hash: &Digest, proof: &ResponseProof) -> bool {
    proof.client == Some(canary.client(block_hash)) && proof.client_nonce == canary.client_nonce(block_hash)
}
