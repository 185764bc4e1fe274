//! The rule of refunds for streamed answers: which answers of a coldkey and model a conviction refunds. Pure.
//!
//! A conviction is about a run of answers, of which a small share was drawn: it refunds all answers since the last
//! verdict that was consistent, of thirty days at most, not only those in the evidence. A later `consistent` verdict
//! about the coldkey and model lifts the refunds, as does any that the operator adopts; one that proves less does not.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_audit::Verdict;
use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp};
use muster_validator_store::{AdoptedAudit, AuditOrigin};

/// The longest run of answers that one conviction refunds: as long as verdicts that do not count any more are kept.
const LONGEST_RUN: Duration = Duration::from_secs(30 * 86_400);

/// The answers that are refunded because of one conviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundSpan {
    /// The bundle that convicts.
    pub bundle: Digest,
    /// The hotkeys of the coldkey in the bundle.
    pub miners: Vec<MinerKey>,
    /// The model by its name in the whitelist.
    pub model: String,
    /// Answers that ended after this time are refunded.
    pub after: Timestamp,
    /// Answers that ended later are not.
    pub until: Timestamp,
}

/// The answers that are refunded now, by the newest verdict about each coldkey and model. `audits` are all verdicts.
pub fn refund_spans(audits: &[AdoptedAudit]) -> Vec<RefundSpan> {
    let mut by_subject: BTreeMap<(Hotkey, &str), Vec<&AdoptedAudit>> = BTreeMap::new();
    for audit in audits {
        by_subject
            .entry((audit.coldkey, audit.model.as_str()))
            .or_default()
            .push(audit);
    }
    let mut spans = Vec::new();
    for mut verdicts in by_subject.into_values() {
        // As the store decides which one counts.
        verdicts.sort_by_key(|audit| (audit.adopted_at, audit.digest.to_string()));
        verdicts.retain(|audit| decides(audit));
        let Some((newest, before)) = verdicts.split_last() else {
            continue;
        };
        if !is(newest, Verdict::Convicted) {
            continue;
        }
        let consistent = before.iter().rev().find(|audit| is(audit, Verdict::Consistent));
        spans.push(RefundSpan {
            bundle: newest.digest,
            miners: newest.miners.clone(),
            model: newest.model.clone(),
            after: consistent
                .map_or(Timestamp::from_secs(0), |audit| audit.adopted_at)
                .max(newest.adopted_at.minus(LONGEST_RUN)),
            until: newest.adopted_at,
        });
    }
    spans
}

fn is(audit: &AdoptedAudit, verdict: Verdict) -> bool {
    Verdict::of_name(&audit.verdict) == Some(verdict)
}

/// Whether a verdict begins or ends refunds.
fn decides(audit: &AdoptedAudit) -> bool {
    let decides = is(audit, Verdict::Convicted) || is(audit, Verdict::Consistent);
    decides || audit.origin == AuditOrigin::Operator
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn audit(coldkey: u8, verdict: &str, at: i64) -> AdoptedAudit {
        AdoptedAudit {
            digest: Digest::of(&[coldkey, u8::try_from(at).unwrap()]),
            coldkey: Hotkey::from_bytes([coldkey; 32]),
            miners: vec![MinerKey(Hotkey::from_bytes([coldkey + 100; 32]))],
            model: "tiny".to_owned(),
            verdict: verdict.to_owned(),
            quality_per_mille: 0,
            adopted_at: Timestamp::from_secs(at),
            origin: AuditOrigin::Own,
            author: None,
            through_bucket: 0,
            newest_answer: 0,
            scored: 0,
        }
    }

    #[test]
    fn a_conviction_refunds_the_answers_since_the_last_consistent_verdict() {
        let audits = [
            audit(1, "consistent", 1),
            audit(1, "suspect", 2),
            audit(1, "convicted", 3),
            audit(2, "convicted", 4),
            audit(3, "convicted", 5),
            audit(3, "consistent", 6),
            audit(2, "suspect", 7),
            audit(2, "unproven(no scored answers)", 8),
        ];
        let spans = refund_spans(&audits);
        let shown: Vec<_> = spans.iter().map(|span| (span.after, span.until)).collect();
        let at = Timestamp::from_secs;
        assert_eq!(
            shown,
            [(at(1), at(3)), (at(4).minus(LONGEST_RUN), at(4))],
            "a lifted conviction refunds nothing"
        );
        assert_eq!(spans[0].bundle, audits[2].digest);
    }

    proptest! {
        #[test]
        fn the_order_of_the_list_changes_nothing_and_a_span_ends_with_its_conviction(
            verdicts in prop::collection::vec((0_u8..3, 0_usize..3), 0..12), turn in 0_usize..12,
        ) {
            let names = ["convicted", "consistent", "suspect"];
            let mut audits: Vec<_> = verdicts
                .iter()
                .zip(1_i64..)
                .map(|((coldkey, name), at)| audit(*coldkey, names[*name], at))
                .collect();
            let spans = refund_spans(&audits);
            for span in &spans {
                prop_assert!(span.after < span.until);
                prop_assert!(audits.iter().any(|audit| audit.digest == span.bundle && is(audit, Verdict::Convicted)));
            }
            let count = audits.len().max(1);
            audits.rotate_left(turn % count);
            prop_assert_eq!(refund_spans(&audits), spans);
        }
    }
}
