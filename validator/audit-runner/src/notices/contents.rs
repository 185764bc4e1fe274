//! The notices to miners about the log: the header of a bucket with their own leaves, later the draw and the outcomes
//! of their drawn answers. Pure.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{Margin, TokenScore, UnusableReason};
use muster_gateway::store::{LoggedAnswer, StoredBucket};
use muster_identity::ProvenOutput;
use muster_protocol::MinerKey;
use muster_protocol::wire::audits::{
    HeaderNotice, LeafNotice, LeafOutcome, OutcomeNotice, OutcomesNotice, ShareNotice,
};
use muster_response_proof::LeafTree;
use muster_response_proof::audit_limits::MAX_NOTICE_LEAVES;

use crate::evidence::outcome::{BothOutcomes, ReferenceOutcome};
use crate::log::leaves::leaf_hashes;
use crate::log::shares::{StoredShare, open_shares};

/// The notices of a bucket's header for one miner; several if the miner has many answers in it. `None` if a stored
/// proof cannot be decoded.
pub(crate) fn header_notices(
    closed: &StoredBucket,
    answers: &[LoggedAnswer],
    miner: &MinerKey,
    between: Vec<String>,
) -> Option<Vec<HeaderNotice>> {
    let tree = LeafTree::new(leaf_hashes(answers)?);
    let own = answers.iter().filter(|answer| answer.miner == *miner);
    let leaves: Vec<LeafNotice> = own
        .map(|answer| leaf_notice(answer, &tree))
        .collect::<Option<_>>()?;
    let count = u64::try_from(leaves.len()).ok()?;
    let notice = |part: &[LeafNotice]| HeaderNotice {
        header: closed.header.clone(),
        between: between.clone(),
        own: count,
        leaves: part.to_vec(),
    };
    Some(leaves.chunks(MAX_NOTICE_LEAVES).map(notice).collect())
}

fn leaf_notice(answer: &LoggedAnswer, tree: &LeafTree) -> Option<LeafNotice> {
    let leaf = answer.leaf()?;
    Some(LeafNotice {
        session: leaf.session.to_string(),
        sequence: leaf.sequence,
        proof: leaf.proof,
        output_tokens: leaf.output_tokens,
        earned: leaf.earned,
        stratum: leaf.stratum,
        model: answer.model.clone(),
        position: answer.position,
        path: tree.path(usize::try_from(answer.position).ok()?)?,
    })
}

/// The outcomes of a miner's drawn answers of a bucket; `None` before the draw, or if what is stored does not fit
/// together.
pub(crate) fn outcomes_notice(
    closed: &StoredBucket,
    answers: &[LoggedAnswer],
    miner: &MinerKey,
    found: &BTreeMap<String, BothOutcomes>,
) -> Option<OutcomesNotice> {
    let drawn = closed.draw.as_ref()?;
    let draw: ProvenOutput = serde_json::from_str(&drawn.text).ok()?;
    let shares: Vec<StoredShare> = serde_json::from_str(&closed.shares).ok()?;
    let own: Vec<&LoggedAnswer> = answers.iter().filter(|answer| answer.miner == *miner).collect();
    let models: BTreeSet<&str> = own.iter().map(|answer| answer.model.as_str()).collect();
    let mut shown = Vec::new();
    for model in models {
        for opened in open_shares(&shares, &BTreeSet::from([*miner]), model)? {
            shown.push(ShareNotice {
                model: model.to_owned(),
                ppm: opened.ppm,
                position: opened.position,
                path: opened.path,
            });
        }
    }
    let outcomes = own
        .iter()
        .filter(|answer| answer.is_drawn)
        .map(|answer| OutcomeNotice {
            position: answer.position,
            outcome: leaf_outcome(found.get(&answer.id)),
        });
    Some(OutcomesNotice {
        bucket: closed.bucket.0,
        block_hash: drawn.block_hash,
        draw: draw.to_string(),
        shares: shown,
        outcomes: outcomes.collect(),
    })
}

/// The outcome that miners and everybody else see: the tokens that the first reference which scored the answer has
/// looked at and found off, or why there are no scores.
pub(crate) fn leaf_outcome(found: Option<&BothOutcomes>) -> LeafOutcome {
    let Some(both) = found else {
        return LeafOutcome::NoOutcome;
    };
    let scored = both.iter().flatten().find_map(|outcome| match outcome {
        ReferenceOutcome::Scored(tokens) => Some(tokens),
        ReferenceOutcome::Unseeded(_) | ReferenceOutcome::FalseIds(_) | ReferenceOutcome::Unusable(_) => None,
    });
    if let Some(tokens) = scored {
        let is_off = |token: &&TokenScore| token.margin != Margin::Micronats(0);
        let count = |many: usize| u64::try_from(many).unwrap_or(u64::MAX);
        return LeafOutcome::Scored {
            tokens: count(tokens.len()),
            off: count(tokens.iter().filter(is_off).count()),
        };
    }
    let falsehood = both.iter().flatten().find_map(|outcome| match outcome {
        ReferenceOutcome::FalseIds(falsehood) => Some(*falsehood),
        ReferenceOutcome::Scored(_) | ReferenceOutcome::Unseeded(_) | ReferenceOutcome::Unusable(_) => None,
    });
    if let Some(falsehood) = falsehood {
        return LeafOutcome::Unusable(format!("false_ids_{}", falsehood.name()));
    }
    let reason = both.iter().flatten().find_map(|outcome| match outcome {
        ReferenceOutcome::Unusable(reason) => serde_json::to_value(reason).ok(),
        // Its scores are no margins, so none of its tokens is off.
        ReferenceOutcome::Unseeded(_) => serde_json::to_value(UnusableReason::NoSeed).ok(),
        ReferenceOutcome::Scored(_) | ReferenceOutcome::FalseIds(_) => None,
    });
    match reason {
        Some(serde_json::Value::String(reason)) => LeafOutcome::Unusable(reason),
        Some(_) | None => LeafOutcome::NoOutcome,
    }
}

#[cfg(test)]
mod tests {
    use muster_audit::FalseIds;

    use super::*;

    #[test]
    fn an_outcome_is_told_without_the_scores_of_single_tokens() {
        let token = |micronats| TokenScore {
            margin: Margin::Micronats(micronats),
            entropy: 5,
        };
        let scored = ReferenceOutcome::Scored(vec![token(0), token(7), token(0)]);
        let died = ReferenceOutcome::Unusable(UnusableReason::ReferenceDied);
        let told = |both: BothOutcomes| leaf_outcome(Some(&both));
        assert_eq!(leaf_outcome(None), LeafOutcome::NoOutcome);
        assert_eq!(told([None, None]), LeafOutcome::NoOutcome);
        let of_three = LeafOutcome::Scored { tokens: 3, off: 1 };
        assert_eq!(told([Some(died.clone()), Some(scored.clone())]), of_three);
        let false_ids = ReferenceOutcome::FalseIds(FalseIds::Text);
        assert_eq!(
            told([Some(died.clone()), Some(false_ids)]),
            LeafOutcome::Unusable("false_ids_text".to_owned())
        );
        assert_eq!(told([Some(scored), None]), of_three);
        assert_eq!(
            told([Some(died), None]),
            LeafOutcome::Unusable("reference_died".to_owned())
        );
    }
}
