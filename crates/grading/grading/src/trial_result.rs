//! The result of each proof of one executor, and the judgement that follows from all of them.

use muster_hardware_proof::grade::{Attempt, Grade, Shortfall, grade};
use muster_hardware_proof::{Engine, Evidence, Reason, Verdict};

use crate::course::Course;
use crate::fingerprints::{Facts, Marks};
use crate::judgement::{Judgement, Why};

/// One proof that was asked for, as its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Which trial of the course.
    pub trial: usize,
    /// What the evidence comes to.
    pub verdict: Verdict,
    /// What was seen besides the messages, in words: how the executor refused, or what its seal lacked.
    pub trouble: Option<String>,
    /// What else the evidence says.
    pub facts: Facts,
}

impl Tried {
    /// Judges the evidence of one proof.
    pub fn judge(trial: usize, evidence: &Evidence, trouble: Option<String>, engine: Engine) -> Self {
        Self {
            trial,
            verdict: evidence.judge(engine),
            trouble,
            facts: Facts::of(evidence),
        }
    }
}

/// What an executor comes to by its own proofs; an absence is settled by [`settle`] with those of the others of its miner.
pub fn judge(place: usize, course: &Course, tried: &[Tried], marks: &Marks) -> Judgement {
    let attempts = tried.iter().filter_map(|tried| {
        let of = course.trials.get(tried.trial)?.shape.challenged();
        Some(Attempt {
            of,
            verdict: tried.verdict,
        })
    });
    let attempts: Vec<_> = attempts.collect();
    let shortfalls = match grade(course.class(), std::slice::from_ref(&course.floors), &attempts) {
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
            Shortfall::Wrong(reason) | Shortfall::Failed(_, reason) => named(place, reason, tried, marks),
            Shortfall::Unproven(component) => Why::Unproven { component },
            Shortfall::Below {
                component,
                measured,
                floor,
            } => Why::Below {
                component,
                measured,
                floor,
            },
            Shortfall::UnknownClass => Why::UnknownClass,
        })
        .collect();
    // A walk stands for two components, and fails them for one reason.
    let mut reasons: Vec<_> = reasons;
    reasons.dedup();
    if let [Why::Evidence { said }, ..] = reasons.as_slice() {
        return Judgement::Void { said: said.clone() };
    }
    Judgement::Zero { reasons }
}

/// The name of a proof's failure.
fn named(place: usize, reason: Reason, tried: &[Tried], marks: &Marks) -> Why {
    let which = tried.iter().find(|tried| tried.verdict == Verdict::Zero(reason));
    let facts = which.map(|tried| tried.facts);
    if reason.is_wrong()
        && let Some(roots) = facts.and_then(|facts| facts.roots)
        && let Some(of) = elsewhere(place, marks, |other| other.roots == Some(roots))
    {
        return Why::CopiedRoot { of };
    }
    match reason {
        Reason::Gone => {
            let trouble = which.and_then(|tried| tried.trouble.clone());
            let said = trouble.unwrap_or_else(|| reason.to_string());
            Why::Gone { said }
        }
        Reason::NotFilled { limit_us } | Reason::NotCommitted { limit_us } => Why::Late { limit_us },
        Reason::Vanished => Why::VanishedAfterCommitment,
        Reason::OutOfTurn { kind } => Why::OutOfTurn { kind },
        Reason::Oversized { length, most } => Why::Oversized { length, most },
        Reason::Malformed(error) => Why::Malformed {
            said: error.to_string(),
        },
        Reason::OtherSession => {
            let named = facts.and_then(|facts| facts.named);
            let of = named.and_then(|named| elsewhere(place, marks, |other| other.session == named));
            of.map_or(Why::Replayed, |of| Why::Foreign { of })
        }
        Reason::OtherKey => Why::OtherKey,
        Reason::OtherCommitment
        | Reason::OtherRound { .. }
        | Reason::OtherPlace { .. }
        | Reason::WrongEntry { .. }
        | Reason::WrongStep { .. }
        | Reason::AlteredLeaf { .. }
        | Reason::AlteredPath { .. } => Why::WrongOpening {
            said: reason.to_string(),
        },
        Reason::Evidence(said) => Why::Evidence {
            said: said.to_owned(),
        },
    }
}

fn elsewhere(place: usize, marks: &Marks, is: impl Fn(&Facts) -> bool) -> Option<usize> {
    let mut others = marks.iter().filter(|(other, _)| **other != place);
    others.find_map(|(other, facts)| facts.iter().any(&is).then_some(*other))
}
