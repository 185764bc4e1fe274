//! The result of each proof of one executor, and the judgement that follows from all of them.

use muster_hardware_proof::grade::{Grade, ProofAttempt, Shortfall, grade};
use muster_hardware_proof::{Evidence, InstructionSet, ProofVerdict, ZeroReason};

use crate::fingerprints::{Fingerprints, ProofFingerprint};
use crate::grade_spec::GradeSpec;
use crate::judgement::{Judgement, Why};

/// The result of one requested proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialResult {
    /// The round of the batch, from 0.
    pub trial: usize,
    /// The verdict that follows from the evidence.
    pub verdict: ProofVerdict,
    /// A failure that is not a message, as text: the executor's refusal, or a fault of its seal.
    pub trouble: Option<String>,
    /// The fingerprint of the evidence, to be compared with those of other executors.
    pub fingerprint: ProofFingerprint,
}

impl TrialResult {
    /// Judges the evidence of one proof.
    pub fn from_evidence(
        trial: usize,
        evidence: &Evidence,
        trouble: Option<String>,
        engine: InstructionSet,
    ) -> Self {
        Self {
            trial,
            verdict: evidence.judge(engine),
            trouble,
            fingerprint: ProofFingerprint::of_evidence(evidence),
        }
    }
}

/// Judges an executor by its own proofs. [`crate::batch_settlement::settle`] judges absences, together with the other
/// executors of the miner.
pub fn judge_participant(
    place: usize,
    grade_spec: &GradeSpec,
    results: &[TrialResult],
    fingerprints: &Fingerprints,
) -> Judgement {
    let attempts = results.iter().filter_map(|results| {
        let of = grade_spec.trial_in(results.trial)?.shape.proof_kind();
        Some(ProofAttempt {
            kind: of,
            verdict: results.verdict,
        })
    });
    let attempts: Vec<_> = attempts.collect();
    let shortfalls = match grade(
        grade_spec.class(),
        std::slice::from_ref(&grade_spec.thresholds),
        &attempts,
    ) {
        Grade::Proven {
            measured,
            provisional,
            ..
        } => {
            return Judgement::Proven {
                measured,
                provisional,
            };
        }
        Grade::Zero(shortfalls) => shortfalls,
    };
    let reasons: Vec<_> = shortfalls
        .iter()
        .map(|shortfall| match *shortfall {
            Shortfall::Wrong(reason) | Shortfall::Failed(_, reason) => {
                explain_zero(place, reason, results, fingerprints)
            }
            Shortfall::Unproven(component) => Why::Unproven { component },
            Shortfall::Below {
                component,
                measured,
                threshold,
            } => Why::Below {
                component,
                measured,
                threshold,
            },
            Shortfall::UnknownClass => Why::UnknownClass,
        })
        .collect();
    // One walk measures two components, so its reason may occur twice.
    let mut reasons: Vec<_> = reasons;
    reasons.dedup();
    // A proof that failed is the reason why the proofs after it were not asked for, so it comes first.
    reasons.sort_by_key(|reason| matches!(reason, Why::Unproven { .. }));
    if let [Why::Evidence { said }, ..] = reasons.as_slice() {
        return Judgement::Void { said: said.clone() };
    }
    Judgement::Zero { reasons }
}

/// Explains the failure of a proof, which may need the fingerprints of other executors.
fn explain_zero(
    place: usize,
    reason: ZeroReason,
    results: &[TrialResult],
    fingerprints: &Fingerprints,
) -> Why {
    let which = results
        .iter()
        .find(|result| result.verdict == ProofVerdict::Zero(reason));
    let fingerprint = which.map(|result| result.fingerprint);
    if reason.is_wrong()
        && let Some(roots) = fingerprint.and_then(|fingerprint| fingerprint.roots)
        && let Some(of) = find_other_place(place, fingerprints, |other| other.roots == Some(roots))
    {
        return Why::CopiedRoot { of };
    }
    match reason {
        ZeroReason::Gone => {
            let trouble = which.and_then(|result| result.trouble.clone());
            let said = trouble.unwrap_or_else(|| reason.to_string());
            Why::Gone { said }
        }
        ZeroReason::NotFilled { limit_us } | ZeroReason::NotCommitted { limit_us } => Why::Late { limit_us },
        ZeroReason::Vanished => Why::VanishedAfterCommitment,
        ZeroReason::OutOfTurn { kind } => Why::OutOfTurn { kind },
        ZeroReason::Oversized { length, most } => Why::Oversized { length, most },
        ZeroReason::Malformed(error) => Why::Malformed {
            said: error.to_string(),
        },
        ZeroReason::OtherChallenge => {
            let named = fingerprint.and_then(|fingerprint| fingerprint.named_challenge);
            let of = named
                .and_then(|named| find_other_place(place, fingerprints, |other| other.challenge_id == named));
            of.map_or(Why::Replayed, |of| Why::Foreign { of })
        }
        ZeroReason::OtherKey => Why::OtherKey,
        ZeroReason::OtherCommitment
        | ZeroReason::OtherRound { .. }
        | ZeroReason::OtherPlace { .. }
        | ZeroReason::WrongEntry { .. }
        | ZeroReason::WrongStep { .. }
        | ZeroReason::AlteredLeaf { .. }
        | ZeroReason::AlteredPath { .. } => Why::WrongOpening {
            said: reason.to_string(),
        },
        ZeroReason::Evidence(said) => Why::Evidence {
            said: said.to_owned(),
        },
    }
}

fn find_other_place(
    place: usize,
    fingerprints: &Fingerprints,
    is: impl Fn(&ProofFingerprint) -> bool,
) -> Option<usize> {
    let mut others = fingerprints.iter().filter(|(other, _)| **other != place);
    others.find_map(|(other, fingerprint)| fingerprint.iter().any(&is).then_some(*other))
}

/// The fingerprints of every proof, by place.
pub(crate) fn collect_fingerprints(results: &[Vec<TrialResult>]) -> Fingerprints {
    let all = results
        .iter()
        .enumerate()
        .filter(|(_, results)| !results.is_empty());
    all.map(|(place, results)| (place, results.iter().map(|result| result.fingerprint).collect()))
        .collect()
}
