//! Checks a header and the leaves that a validator shows with it. Pure.

use muster_identity::verify;
use muster_protocol::wire::audits::{HeaderNotice, LeafNotice};
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::audit_limits::{MAX_BETWEEN, MAX_NOTICE_LEAVES};
use muster_response_proof::{AnswerLeaf, BUCKET_BLOCKS, BucketHeader, Envelope, SessionId, root_by_path};
use uuid::Uuid;

use crate::finding::{Finding, FindingKind, about_answer, about_bucket};

/// The longest name of a model, in bytes.
const MAX_MODEL: usize = 256;

/// A header that the miner has stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownHeader {
    /// The number of the bucket.
    pub bucket: u64,
    /// The digest of the header's signed bytes.
    pub digest: Digest,
}

/// The miner's knowledge when a header comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderContext {
    /// The validator that the connection is of.
    pub validator: ValidatorKey,
    /// The validator's newest header that the miner has taken.
    pub last: Option<KnownHeader>,
    /// The validator's header of the same bucket that the miner has taken.
    pub same: Option<KnownHeader>,
    /// The newest block that the miner knows of; `None` without a chain.
    pub head: Option<u64>,
    /// The newest block that the miner knew of when its process began.
    pub up_since: Option<u64>,
}

/// A leaf that stands in the tree of its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedLeaf {
    /// The session that answered.
    pub session: SessionId,
    /// The number of the answer's proof.
    pub sequence: u64,
    /// The digest of the proof.
    pub proof: Digest,
    /// The model as the validator names it.
    pub model: String,
    /// The place among the bucket's leaves.
    pub position: u64,
}

/// A header that its validator has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedHeader {
    /// The statement that the validator has signed.
    pub header: BucketHeader,
    /// The digest of its signed bytes.
    pub digest: Digest,
    /// The leaves that stand in its tree.
    pub leaves: Vec<CheckedLeaf>,
    /// The faults of a header that is signed all the same.
    pub findings: Vec<Finding>,
}

/// Checks a header. The findings of a signed header are about its place and its leaves.
///
/// # Errors
/// The header is not this validator's: nothing of it is taken.
pub fn check_header(notice: &HeaderNotice, known: &HeaderContext) -> Result<CheckedHeader, Finding> {
    let (header, digest) = signed_header(&notice.header, known.validator)?;
    let bucket = header.bucket;
    let mut findings = Vec::new();
    match known.same {
        Some(same) if same.digest != digest => {
            // Its text is the evidence; the first one is kept as it is.
            let words = format!("the validator has signed another header: {}", notice.header);
            return Err(Finding::new(
                FindingKind::TwoHeaders,
                about_bucket(bucket.0),
                words,
            ));
        }
        // Another part of its leaves, or the same once more.
        Some(_) => {}
        None => {
            findings.extend(broken_chain(notice, &header, known)?);
            let was_there = known
                .up_since
                .is_some_and(|block| block < bucket.0.saturating_mul(BUCKET_BLOCKS));
            if let Some(head) = known
                .head
                .filter(|head| was_there && *head >= bucket.draw_block())
            {
                let words = format!(
                    "it came at block {head}; its draw block is {}, so the validator may have known the draw when it \
                     signed",
                    bucket.draw_block()
                );
                findings.push(Finding::new(
                    FindingKind::LateHeader,
                    about_bucket(bucket.0),
                    words,
                ));
            }
        }
    }
    let mut leaves = Vec::new();
    for leaf in notice.leaves.iter().take(MAX_NOTICE_LEAVES) {
        match check_leaf(leaf, &header) {
            Some(checked) => leaves.push(checked),
            None => {
                let about = format!("{}, place {}", about_bucket(bucket.0), leaf.position);
                let words = format!(
                    "answer {} of session {} does not stand in the header's tree",
                    leaf.sequence,
                    leaf.session.chars().take(36).collect::<String>()
                );
                findings.push(Finding::new(FindingKind::FalseLeaf, about, words));
            }
        }
    }
    Ok(CheckedHeader {
        header,
        digest,
        leaves,
        findings,
    })
}

/// Reads a header that this validator has signed.
fn signed_header(text: &str, validator: ValidatorKey) -> Result<(BucketHeader, Digest), Finding> {
    let forged = |about: String, words: &str| Finding::new(FindingKind::ForgedHeader, about, words);
    let unreadable = |error: &dyn std::fmt::Display| {
        forged(
            "unreadable header".to_owned(),
            &format!("a header cannot be read: {error}"),
        )
    };
    let envelope = Envelope::<BucketHeader>::from_text(text).map_err(|error| unreadable(&error))?;
    let header = envelope.statement().map_err(|error| unreadable(&error))?;
    let about = about_bucket(header.bucket.0);
    if header.validator != validator {
        return Err(forged(about, "the header is of another validator"));
    }
    if !verify(&validator.0, envelope.signed_bytes(), envelope.signature()) {
        return Err(forged(about, "the signature is not the validator's"));
    }
    Ok((header, envelope.digest()))
}

/// Follows the headers from the newest one that is known to this one.
fn broken_chain(
    notice: &HeaderNotice,
    header: &BucketHeader,
    known: &HeaderContext,
) -> Result<Option<Finding>, Finding> {
    let broken = |words: String| {
        Some(Finding::new(
            FindingKind::BrokenChain,
            about_bucket(header.bucket.0),
            words,
        ))
    };
    if let Some(last) = known.last.filter(|last| last.bucket > header.bucket.0) {
        let words = format!(
            "it came after the header of bucket {}, which names it nowhere",
            last.bucket
        );
        return Ok(broken(words));
    }
    let mut before = known.last;
    // Headers further back were left out.
    if notice.between.len() >= MAX_BETWEEN {
        before = None;
    }
    for text in notice.between.iter().take(MAX_BETWEEN) {
        let (between, digest) = signed_header(text, known.validator)?;
        if let Some(before) = before
            && (between.previous != before.digest || between.bucket.0 <= before.bucket)
        {
            return Ok(broken(format!(
                "the header of bucket {} does not follow the one of bucket {}",
                between.bucket.0, before.bucket
            )));
        }
        before = Some(KnownHeader {
            bucket: between.bucket.0,
            digest,
        });
    }
    Ok(before
        .filter(|before| header.previous != before.digest || header.bucket.0 <= before.bucket)
        .and_then(|before| {
            broken(format!(
                "it does not follow the header of bucket {}",
                before.bucket
            ))
        }))
}

fn check_leaf(leaf: &LeafNotice, header: &BucketHeader) -> Option<CheckedLeaf> {
    if leaf.model.len() > MAX_MODEL {
        return None;
    }
    let session = SessionId(leaf.session.parse::<Uuid>().ok()?);
    let stated = AnswerLeaf {
        session,
        sequence: leaf.sequence,
        proof: leaf.proof,
        output_tokens: leaf.output_tokens,
        earned: leaf.earned,
        stratum: leaf.stratum,
    };
    let root = root_by_path(stated.hash(), leaf.position, header.answers, &leaf.path)?;
    (root == header.root).then(|| CheckedLeaf {
        session,
        sequence: leaf.sequence,
        proof: leaf.proof,
        model: leaf.model.clone(),
        position: leaf.position,
    })
}

/// The answers of a header that are not the miner's own proofs, by what the executors reported of them: `own` is the
/// digest of the proof of that number, `at` another place of the log that has the number already.
pub fn compare_leaf(
    leaf: &CheckedLeaf,
    bucket: u64,
    own: Option<Digest>,
    at: Option<(u64, u64)>,
) -> Option<Finding> {
    let about = about_answer(leaf.session, leaf.sequence);
    if own.is_some_and(|digest| digest != leaf.proof) {
        let words =
            format!("the log of bucket {bucket} names a proof that this miner's executor did not sign");
        return Some(Finding::new(FindingKind::ForeignLeaf, about, words));
    }
    let (other, place) = at.filter(|place| *place != (bucket, leaf.position))?;
    let words = format!(
        "it stands at place {} of bucket {bucket} and at place {place} of bucket {other}",
        leaf.position
    );
    Some(Finding::new(FindingKind::RepeatedLeaf, about, words))
}

#[cfg(test)]
mod tests {
    use muster_identity::Keypair;
    use muster_response_proof::{BucketNumber, inclusion_path, root_of, seal};
    use proptest::prelude::*;

    use super::*;

    fn validator() -> Keypair {
        Keypair::from_uri("//Validator").unwrap()
    }

    fn leaf(sequence: u64) -> AnswerLeaf {
        AnswerLeaf {
            session: SessionId(Uuid::from_u128(1)),
            sequence,
            proof: Digest::of(&sequence.to_be_bytes()),
            output_tokens: 1,
            earned: 2,
            stratum: Digest::of(b"client"),
        }
    }

    /// A header of a bucket with `leaves` leaves, as its validator shows it, and its digest.
    fn header(bucket: u64, leaves: u64, previous: Digest) -> (HeaderNotice, Digest) {
        let hashes: Vec<Digest> = (0..leaves).map(|number| leaf(number).hash()).collect();
        let stated = BucketHeader {
            genesis: Digest::of(b"genesis"),
            netuid: 1,
            validator: ValidatorKey(validator().hotkey()),
            bucket: BucketNumber(bucket),
            answers: leaves,
            root: root_of(hashes.clone()),
            previous,
            shares: 0,
            share_root: Digest::of(b""),
            canaries: Digest::of(b""),
        };
        let envelope = seal(&stated, &validator());
        let shown = (0..leaves).map(|number| {
            let leaf = leaf(number);
            LeafNotice {
                session: leaf.session.to_string(),
                sequence: number,
                proof: leaf.proof,
                output_tokens: leaf.output_tokens,
                earned: leaf.earned,
                stratum: leaf.stratum,
                model: "tiny".to_owned(),
                position: number,
                path: inclusion_path(&hashes, usize::try_from(number).unwrap()).unwrap(),
            }
        });
        let notice = HeaderNotice {
            header: envelope.to_text(),
            between: vec![],
            own: leaves,
            leaves: shown.collect(),
        };
        (notice, envelope.digest())
    }

    fn context() -> HeaderContext {
        HeaderContext {
            validator: ValidatorKey(validator().hotkey()),
            last: None,
            same: None,
            head: None,
            up_since: None,
        }
    }

    fn kinds(checked: &CheckedHeader) -> Vec<FindingKind> {
        checked.findings.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn a_header_follows_the_last_one_directly_or_through_those_between() {
        let (first, first_digest) = header(3, 1, Digest::of(b""));
        let (second, second_digest) = header(5, 1, first_digest);
        let (mut third, _) = header(9, 1, second_digest);
        let known = |bucket, digest| HeaderContext {
            last: Some(KnownHeader { bucket, digest }),
            ..context()
        };
        let found =
            |notice: &HeaderNotice, known: &HeaderContext| kinds(&check_header(notice, known).unwrap());
        assert_eq!(found(&first, &context()), []);
        assert_eq!(found(&second, &known(3, first_digest)), []);
        assert_eq!(found(&third, &known(3, first_digest)), [FindingKind::BrokenChain]);
        third.between = vec![second.header.clone()];
        assert_eq!(found(&third, &known(3, first_digest)), []);
        // A bucket that is shown after a later one.
        assert_eq!(
            found(&first, &known(5, second_digest)),
            [FindingKind::BrokenChain]
        );
        // Another header of the same bucket.
        let (other, _) = header(5, 2, first_digest);
        let same = HeaderContext {
            same: Some(KnownHeader {
                bucket: 5,
                digest: second_digest,
            }),
            ..context()
        };
        assert_eq!(
            check_header(&other, &same).unwrap_err().kind,
            FindingKind::TwoHeaders
        );
        assert_eq!(found(&second, &same), [], "once more");
    }

    #[test]
    fn a_header_after_its_draw_block_is_late_only_for_a_miner_that_was_there() {
        let (notice, _) = header(3, 1, Digest::of(b""));
        let found = |head, up_since| {
            let known = HeaderContext {
                head,
                up_since,
                ..context()
            };
            kinds(&check_header(&notice, &known).unwrap())
        };
        // Bucket 3 has the blocks 75 to 99, and is drawn from by block 112.
        assert_eq!(found(Some(111), Some(10)), []);
        assert_eq!(found(Some(112), Some(10)), [FindingKind::LateHeader]);
        assert_eq!(found(Some(112), Some(80)), [], "it began too late to know");
        assert_eq!(found(None, None), []);
    }

    #[test]
    fn a_leaf_of_another_proof_or_at_two_places_is_a_finding() {
        let (notice, _) = header(3, 2, Digest::of(b""));
        let checked = check_header(&notice, &context()).unwrap();
        let one = &checked.leaves[0];
        let kind = |own, at| compare_leaf(one, 3, own, at).map(|finding| finding.kind);
        assert_eq!(kind(None, None), None, "the executor did not tell");
        assert_eq!(kind(Some(one.proof), Some((3, one.position))), None);
        assert_eq!(
            kind(Some(Digest::of(b"other")), None),
            Some(FindingKind::ForeignLeaf)
        );
        assert_eq!(
            kind(Some(one.proof), Some((2, 9))),
            Some(FindingKind::RepeatedLeaf)
        );
    }

    proptest! {
        #[test]
        fn no_changed_byte_of_a_header_is_taken(at in any::<prop::sample::Index>(), change in 1u8..=255) {
            let (mut notice, _) = header(3, 2, Digest::of(b""));
            let envelope = Envelope::<BucketHeader>::from_text(&notice.header).unwrap();
            let mut bytes = envelope.to_bytes();
            let place = at.index(bytes.len());
            bytes[place] ^= change;
            notice.header = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
            let refused = check_header(&notice, &context());
            prop_assert_eq!(refused.map_err(|finding| finding.kind).err(), Some(FindingKind::ForgedHeader));
        }

        #[test]
        fn every_true_leaf_is_taken_and_no_changed_one(leaves in 1u64..9, at in any::<prop::sample::Index>(), field in 0u8..4) {
            let (mut notice, _) = header(3, leaves, Digest::of(b""));
            let checked = check_header(&notice, &context()).unwrap();
            prop_assert_eq!((checked.leaves.len() as u64, checked.findings.len()), (leaves, 0));
            let place = at.index(notice.leaves.len());
            let leaf = &mut notice.leaves[place];
            match field {
                0 => leaf.sequence += 1,
                1 => leaf.proof = Digest::of(b"another"),
                2 => leaf.earned += 1,
                _ => leaf.stratum = Digest::of(b"somebody"),
            }
            let checked = check_header(&notice, &context()).unwrap();
            prop_assert_eq!(kinds(&checked), [FindingKind::FalseLeaf]);
            prop_assert_eq!(checked.leaves.len() as u64, leaves - 1);
        }
    }
}
