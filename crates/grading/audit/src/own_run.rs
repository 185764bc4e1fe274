//! The run of own prompts by which an adopter judges: every position that the shown headers commit to, in their order.
//!
//! A position counts whether or not it was asked, so an author that asks only prompts whose seeds please it shows zeros
//! between them. Headers name one another. Where one is missing, was not seen in time, or hides a list of the miner,
//! the evidence begins anew behind it: evidence that is restarted at 1 anyway is never larger for that.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{Digest, MinerKey};
use muster_response_proof::{HashScheme, StreamEnd};

use crate::bundle::AuditBundle;
use crate::checked_answer::CheckedAnswer;
use crate::checked_log::CheckedLog;
use crate::committed_lists::ShownList;
use crate::list_head::subject_of;
use crate::measured_request::is_measured;
use crate::opened_text::RescorablePair;

/// Whether the lists of a header count, and whether it goes on with the run before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It was seen in time, and no header stands between it and the one that it follows.
    Joined,
    /// It was seen in time. The run begins anew with it.
    Apart,
    /// It was not seen in time, so its lists do not count. The run begins anew behind it.
    Unseen,
}

/// A position of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunPosition {
    /// Whether the evidence begins anew with it.
    pub(crate) starts_anew: bool,
    /// Whether the bundle shows an answer to it.
    pub(crate) is_answered: bool,
    /// The parts of the answer that a reference needs to score it; `None` if there is none, if the bundle does not show
    /// that, or if its author had a choice left: see [`is_evidence`].
    pub(crate) pair: Option<RescorablePair>,
}

/// All positions of own prompts to these miners in the order of their commitment. `state_of` gets the digest of a
/// header and states whether it counts; whether it names the one before it is looked at here. A bundle of an earlier
/// format fixes none.
pub(crate) fn positions(
    log: &CheckedLog<'_>,
    bundle: &AuditBundle,
    miners: &BTreeSet<MinerKey>,
    state_of: &dyn Fn(&Digest) -> LinkState,
) -> Vec<RunPosition> {
    let answered: BTreeMap<(Digest, u64), &CheckedAnswer<'_>> = log
        .answers
        .iter()
        .filter_map(|answer| Some((answer.position?, answer)))
        .collect();
    let subjects: BTreeSet<Digest> = miners
        .iter()
        .map(|miner| subject_of(miner, &bundle.model))
        .collect();
    let mut run = Vec::new();
    let mut starts_anew = true;
    let mut before = None;
    for header in &log.headers {
        let is_judged = |list: &ShownList| match list {
            ShownList::Sealed { subject } => subjects.contains(subject),
            ShownList::Opened { miner, .. } => miners.contains(miner),
        };
        let follows = before == Some(header.previous);
        before = Some(header.digest);
        match state_of(&header.digest) {
            LinkState::Joined => starts_anew |= !follows,
            LinkState::Apart => starts_anew = true,
            LinkState::Unseen => {
                starts_anew = true;
                continue;
            }
        }
        for list in header.lists.iter().filter(|list| is_judged(list)) {
            match list {
                ShownList::Sealed { .. } => starts_anew = true,
                ShownList::Opened { digest, length, .. } => {
                    for position in 0..*length {
                        let answer = answered.get(&(*digest, position));
                        run.push(RunPosition {
                            starts_anew: std::mem::take(&mut starts_anew),
                            is_answered: answer.is_some(),
                            pair: answer
                                .filter(|answer| is_evidence(answer))
                                .and_then(|answer| RescorablePair::of(answer)),
                        });
                    }
                }
            }
        }
    }
    run
}

/// Whether an answer is one to the whole request of its position, as every engine reads it, and came to its end. Under
/// the scheme of texts nothing signs the request's other fields.
fn is_evidence(answer: &CheckedAnswer<'_>) -> bool {
    let proof = &answer.proof;
    let request = answer.request.as_deref().unwrap_or_default();
    proof.end == StreamEnd::Completed
        && proof.scheme == HashScheme::RawHttp
        && proof.method.as_str() == "POST"
        && is_measured(proof.path.as_str(), request)
}
