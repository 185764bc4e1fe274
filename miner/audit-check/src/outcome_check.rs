//! Checks what a validator shows of its draw from a bucket. Pure.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::BucketDraw;
use muster_identity::ProvenOutput;
use muster_protocol::MinerKey;
use muster_protocol::wire::audits::{LeafOutcome, OutcomesNotice};
use muster_response_proof::{AuditShare, BucketHeader, Text, root_by_path};

use crate::finding::{Finding, FindingKind, about_answer, about_bucket};
use crate::header_check::CheckedLeaf;

/// The outcomes of a bucket as the miner keeps them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedOutcomes {
    /// The outcomes by the places of their answers.
    pub outcomes: BTreeMap<u64, LeafOutcome>,
    /// The faults of the list.
    pub findings: Vec<Finding>,
}

/// A finding about a draw of which nothing is taken.
fn false_draw(bucket: u64, words: &str) -> Finding {
    Finding::new(FindingKind::FalseDraw, about_bucket(bucket), words)
}

/// The miner's shares by model, each of which the header commits to.
fn checked_shares<'a>(
    notice: &'a OutcomesNotice,
    header: &BucketHeader,
    me: MinerKey,
) -> Result<BTreeMap<&'a str, u32>, Finding> {
    let refuse = |words: &str| false_draw(header.bucket.0, words);
    let mut shares = BTreeMap::new();
    for share in &notice.shares {
        let leaf = AuditShare {
            miner: me,
            model: Text::new(share.model.as_str()).map_err(|_| refuse("the name of a model is too long"))?,
            ppm: share.ppm,
        };
        if root_by_path(leaf.hash(), share.position, header.shares, &share.path) != Some(header.share_root) {
            return Err(refuse("a share is not the one that the header commits to"));
        }
        shares.insert(share.model.as_str(), share.ppm);
    }
    Ok(shares)
}

/// Checks the draw, the shares and the list of drawn answers against the header and the leaves that the miner has. An
/// answer without an outcome is a finding, too: it counts for the miner.
///
/// # Errors
/// The draw or a share is not the one that the header commits to: nothing of the notice is taken.
pub fn check_outcomes(
    notice: &OutcomesNotice,
    header: &BucketHeader,
    me: MinerKey,
    leaves: &[CheckedLeaf],
) -> Result<CheckedOutcomes, Finding> {
    let bucket = header.bucket.0;
    let refuse = |words: &str| false_draw(bucket, words);
    let proven: ProvenOutput = notice
        .draw
        .parse()
        .map_err(|_| refuse("the draw cannot be read"))?;
    let draw = BucketDraw::check(&header.validator, header, &notice.block_hash, &proven)
        .ok_or_else(|| refuse("it is not the validator's draw from this bucket by this block"))?;
    let shares = checked_shares(notice, header, me)?;
    let shown: BTreeMap<u64, &LeafOutcome> = notice
        .outcomes
        .iter()
        .map(|shown| (shown.position, &shown.outcome))
        .collect();
    let mut checked = CheckedOutcomes {
        outcomes: BTreeMap::new(),
        findings: Vec::new(),
    };
    let mut places = BTreeSet::new();
    for leaf in leaves {
        places.insert(leaf.position);
        let Some(ppm) = shares.get(leaf.model.as_str()) else {
            return Err(refuse("the share of one of the miner's models is not shown"));
        };
        let is_drawn = draw.draws(&leaf.proof, *ppm);
        let about = || about_answer(leaf.session, leaf.sequence);
        match (is_drawn, shown.get(&leaf.position)) {
            (true, Some(outcome)) => {
                if **outcome == LeafOutcome::NoOutcome {
                    let words = format!(
                        "it was drawn from bucket {bucket} and not scored in time; it counts for you"
                    );
                    checked
                        .findings
                        .push(Finding::new(FindingKind::NoOutcome, about(), words));
                }
                checked.outcomes.insert(leaf.position, (*outcome).clone());
            }
            (true, None) => {
                let words =
                    format!("the draw from bucket {bucket} chooses it, and the validator does not show it");
                checked
                    .findings
                    .push(Finding::new(FindingKind::HiddenDraw, about(), words));
            }
            (false, Some(_)) => {
                let words =
                    format!("the draw from bucket {bucket} does not choose it, and the validator says so");
                checked
                    .findings
                    .push(Finding::new(FindingKind::WrongDraw, about(), words));
            }
            (false, None) => {}
        }
    }
    for position in shown.keys().filter(|position| !places.contains(position)) {
        let about = format!("{}, place {position}", about_bucket(bucket));
        let words = "an outcome of an answer that the validator has not shown as one of yours";
        checked
            .findings
            .push(Finding::new(FindingKind::WrongDraw, about, words));
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use muster_identity::Keypair;
    use muster_protocol::wire::audits::{OutcomeNotice, ShareNotice};
    use muster_protocol::{Digest, Hotkey, ValidatorKey};
    use muster_response_proof::{BucketNumber, SessionId, root_of};
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    const ME: MinerKey = MinerKey(Hotkey::from_bytes([5; 32]));

    fn leaves(count: u64) -> Vec<CheckedLeaf> {
        (0..count)
            .map(|number| CheckedLeaf {
                session: SessionId(Uuid::from_u128(9)),
                sequence: number,
                proof: Digest::of(&number.to_be_bytes()),
                model: "tiny".to_owned(),
                position: number,
            })
            .collect()
    }

    /// A header with this share of the miner, and what the validator truly draws from it.
    fn drawn(leaves: &[CheckedLeaf], ppm: u32) -> (BucketHeader, OutcomesNotice) {
        let validator = Keypair::from_uri("//Validator").unwrap();
        let share = AuditShare {
            miner: ME,
            model: Text::new("tiny").unwrap(),
            ppm,
        };
        let header = BucketHeader {
            genesis: Digest::of(b"genesis"),
            netuid: 1,
            validator: ValidatorKey(validator.hotkey()),
            bucket: BucketNumber(7),
            answers: u64::try_from(leaves.len()).unwrap(),
            root: Digest::of(b"root"),
            previous: Digest::of(b""),
            shares: 1,
            share_root: root_of([share.hash()]),
            canaries: Digest::of(b"none"),
        };
        let block_hash = Digest::of(b"block");
        let (draw, proven) = BucketDraw::prove(&validator, &header, &block_hash);
        let chosen = leaves.iter().filter(|leaf| draw.draws(&leaf.proof, ppm));
        let outcomes = chosen.map(|leaf| OutcomeNotice {
            position: leaf.position,
            outcome: LeafOutcome::Scored { tokens: 8, off: 0 },
        });
        let notice = OutcomesNotice {
            bucket: 7,
            block_hash,
            draw: proven.to_string(),
            shares: vec![ShareNotice {
                model: "tiny".to_owned(),
                ppm,
                position: 0,
                path: vec![],
            }],
            outcomes: outcomes.collect(),
        };
        (header, notice)
    }

    #[test]
    fn a_draw_or_a_share_that_the_header_does_not_fix_is_refused() {
        let leaves = leaves(8);
        let (header, notice) = drawn(&leaves, 500_000);
        let refused = |change: &dyn Fn(&mut OutcomesNotice)| {
            let mut changed = notice.clone();
            change(&mut changed);
            check_outcomes(&changed, &header, ME, &leaves).unwrap_err().words
        };
        assert!(
            refused(&|notice| notice.block_hash = Digest::of(b"other")).contains("not the validator's draw")
        );
        assert!(refused(&|notice| notice.draw.truncate(7)).contains("cannot be read"));
        assert!(refused(&|notice| notice.shares[0].ppm = 1).contains("a share is not"));
        assert!(refused(&|notice| notice.shares.clear()).contains("is not shown"));
        let other = BucketHeader {
            bucket: BucketNumber(8),
            ..header.clone()
        };
        assert!(check_outcomes(&notice, &other, ME, &leaves).is_err());
    }

    proptest! {
        #[test]
        fn a_true_list_is_clean_and_every_lie_about_one_answer_is_found(
            count in 1u64..24, ppm in 0u32..=1_000_000, at in any::<prop::sample::Index>(),
        ) {
            let leaves = leaves(count);
            let (header, notice) = drawn(&leaves, ppm);
            let checked = check_outcomes(&notice, &header, ME, &leaves).unwrap();
            prop_assert_eq!(&checked.findings, &[]);
            prop_assert_eq!(checked.outcomes.len(), notice.outcomes.len());
            let place = u64::try_from(at.index(leaves.len())).unwrap();
            let mut lie = notice.clone();
            let was_drawn = lie.outcomes.iter().any(|one| one.position == place);
            lie.outcomes.retain(|one| one.position != place);
            if !was_drawn {
                lie.outcomes.push(OutcomeNotice { position: place, outcome: LeafOutcome::NoOutcome });
            }
            let found = check_outcomes(&lie, &header, ME, &leaves).unwrap().findings;
            let kind = if was_drawn { FindingKind::HiddenDraw } else { FindingKind::WrongDraw };
            prop_assert_eq!(found.iter().map(|one| one.kind).collect::<Vec<_>>(), [kind]);
            let mut late = notice.clone();
            for one in &mut late.outcomes {
                one.outcome = LeafOutcome::NoOutcome;
            }
            let found = check_outcomes(&late, &header, ME, &leaves).unwrap().findings;
            prop_assert_eq!(found.len(), notice.outcomes.len());
            prop_assert!(found.iter().all(|one| one.kind == FindingKind::NoOutcome));
        }
    }
}
