//! Assembles the bundle about one coldkey and one model from what was logged, drawn and scored. Pure.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{
    AnswerEvidence, AuditBundle, AuditOutcome, BUNDLE_FORMAT, BucketEvidence, FalseIds, LoggedClient,
    NoncePeriod, OpenedText, Origin, SessionEvidence, TokenScore, UnprovenAnswer, UnusableReason,
};
use muster_gateway::store::{LoggedAnswer, TextConsent};
use muster_protocol::MinerKey;
use serde::Serialize;

use crate::evidence::client_counts::BeyondClients;
use crate::evidence::inputs::{EvidenceInputs, WholeSession};
use crate::evidence::outcome::{BothOutcomes, ReferenceOutcome};
use crate::evidence::session_choice::{SizedProof, SizedSession, fit};
use crate::log::shares::open_shares;

/// The most bytes of responses in one bundle, base64. Others read bundles of 8 MiB, and a conviction
/// needs few answers.
const MAX_RESPONSES: usize = 4 * 1024 * 1024;
/// Bytes of the name of a session's missing answers, with its signs.
const UNPROVEN_FIELD: usize = r#","unproven":[]"#.len();

/// The periods whose keys give the nonces of the audited answers: an answer began in the period of its bucket or in the
/// one before.
pub(crate) fn nonce_periods<'a>(audited: impl Iterator<Item = &'a LoggedAnswer>) -> BTreeSet<NoncePeriod> {
    audited
        .map(|answer| NoncePeriod::of_bucket(answer.bucket))
        .flat_map(|ended| [Some(ended), ended.previous()])
        .flatten()
        .collect()
}

/// The bundle, at most `max_bytes` long; `None` if what is stored does not fit together. The sessions come first that
/// stand first in the inputs; see [`crate::evidence::session_choice`] for what is left out.
pub(crate) fn assemble(inputs: &EvidenceInputs, max_bytes: usize) -> Option<AuditBundle> {
    let mut room = MAX_RESPONSES;
    let beyond = BeyondClients::of(&inputs.sessions);
    let mut shown: Vec<(&WholeSession, SessionEvidence)> = Vec::new();
    for (place, session) in inputs.sessions.iter().enumerate() {
        let evidence = session_evidence(inputs, (place, session), &beyond, &mut room)?;
        // One whose missing answers are all beyond the first of their clients shows nothing.
        if !evidence.answers.is_empty() || !evidence.unproven.is_empty() {
            shown.push((session, evidence));
        }
    }
    let (miners, numbers) = shown_in(shown.iter().map(|(session, _)| *session));
    let buckets = bucket_evidence(inputs, &miners, &numbers)?;
    if max_bytes == usize::MAX {
        // Everything fits, so nothing is measured.
        return Some(bundle_of(
            inputs,
            miners,
            buckets.into_values().collect(),
            shown.into_iter().map(|(_, evidence)| evidence).collect(),
        ));
    }
    let bucket_bytes = buckets.iter().map(|(number, bucket)| (*number, bytes_of(bucket)));
    let empty = bundle_of(inputs, miners, Vec::new(), Vec::new());
    let budget = max_bytes.saturating_sub(empty.to_text().len());
    let sized: Vec<SizedSession> = shown
        .iter()
        .map(|(session, evidence)| size_session(session, evidence))
        .collect();
    let lengths = fit(&sized, &bucket_bytes.collect(), budget);
    let cut = shown.into_iter().zip(lengths);
    let cut: Vec<(WholeSession, SessionEvidence)> = cut
        .filter_map(|((session, evidence), shown)| cut_session(session, evidence, shown))
        .collect();
    let (miners, numbers) = shown_in(cut.iter().map(|(session, _)| session));
    let buckets = bucket_evidence(inputs, &miners, &numbers)?;
    let sessions = cut.into_iter().map(|(_, evidence)| evidence).collect();
    Some(bundle_of(
        inputs,
        miners,
        buckets.into_values().collect(),
        sessions,
    ))
}

fn bundle_of(
    inputs: &EvidenceInputs,
    miners: BTreeSet<MinerKey>,
    buckets: Vec<BucketEvidence>,
    sessions: Vec<SessionEvidence>,
) -> AuditBundle {
    AuditBundle {
        format: BUNDLE_FORMAT.to_owned(),
        genesis: inputs.auditor.genesis,
        netuid: inputs.auditor.netuid,
        validator: inputs.auditor.validator,
        coldkey: inputs.coldkey,
        miners: miners.into_iter().collect(),
        model: inputs.model.clone(),
        calibration: inputs.calibration.clone(),
        unseeded: inputs.unseeded.clone(),
        references: inputs.references.clone(),
        buckets,
        commitments: inputs.commitments.clone(),
        sessions,
        nonce_keys: inputs.nonce_keys.clone(),
    }
}

/// The miners of these sessions and the buckets of their answers.
fn shown_in<'a>(sessions: impl Iterator<Item = &'a WholeSession>) -> (BTreeSet<MinerKey>, BTreeSet<u64>) {
    let (mut miners, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for session in sessions {
        miners.insert(session.miner);
        numbers.extend(session.answers.iter().map(|answer| answer.bucket.0));
    }
    (miners, numbers)
}

fn bucket_evidence(
    inputs: &EvidenceInputs,
    miners: &BTreeSet<MinerKey>,
    numbers: &BTreeSet<u64>,
) -> Option<BTreeMap<u64, BucketEvidence>> {
    let of_number = |number: &u64| {
        let bucket = inputs.buckets.get(number)?;
        let evidence = BucketEvidence {
            header: bucket.stored.header.clone(),
            block_hash: bucket.block_hash,
            draw: bucket.draw,
            shares: open_shares(&bucket.shares, miners, &inputs.model)?,
        };
        Some((*number, evidence))
    };
    numbers.iter().map(of_number).collect()
}

fn session_evidence(
    inputs: &EvidenceInputs,
    (place, session): (usize, &WholeSession),
    beyond: &BeyondClients,
    room: &mut usize,
) -> Option<SessionEvidence> {
    let answers = session.answers.iter();
    let unproven = (0..).zip(&session.unproven);
    let unproven = unproven.filter(|(number, _)| !beyond.has_missing(place, *number));
    Some(SessionEvidence {
        attestation: session.attestation.clone(),
        answers: answers
            .map(|answer| evidence_of(inputs, answer, beyond.has(answer), room))
            .collect::<Option<_>>()?,
        others: session.others.clone(),
        unproven: unproven
            .map(|(_, missing)| UnprovenAnswer {
                bucket: missing.bucket,
                client: None,
                after: missing.after,
            })
            .collect(),
    })
}

/// The bytes of a part of a bundle, with the comma behind it.
fn bytes_of<T: Serialize>(part: &T) -> usize {
    // Such parts always have a JSON form.
    serde_json::to_vec(part).map_or(usize::MAX, |text| text.len().saturating_add(1))
}

fn size_session(session: &WholeSession, evidence: &SessionEvidence) -> SizedSession {
    let frame = SessionEvidence {
        attestation: evidence.attestation.clone(),
        answers: Vec::new(),
        others: vec![String::new()],
        unproven: Vec::new(),
    };
    let mut unproven = evidence.unproven.iter().peekable();
    let mut ended = 0_u64;
    let mut answers = session.answers.iter().zip(&evidence.answers).peekable();
    let mut others = session.others.iter();
    let mut proofs = Vec::new();
    for number in 0_u64.. {
        let answer = answers.next_if(|(answer, _)| answer.sequence == number);
        proofs.push(match answer {
            Some((answer, evidence)) => {
                // Each answer shows the missing ones before it.
                let before: usize = std::iter::from_fn(|| unproven.next_if(|one| one.after <= ended))
                    .map(bytes_of)
                    .sum();
                ended += 1;
                SizedProof {
                    bytes: bytes_of(evidence).saturating_add(before),
                    bucket: Some(answer.bucket.0),
                    is_audited: evidence.outcome.is_some(),
                }
            }
            None => match others.next() {
                Some(proof) => SizedProof {
                    bytes: bytes_of(proof),
                    bucket: None,
                    is_audited: false,
                },
                None => break,
            },
        });
    }
    // Missing answers behind the last one are shown with the whole session only.
    let behind: usize = unproven.map(bytes_of).sum();
    if behind > 0 {
        proofs.push(SizedProof {
            bytes: behind,
            bucket: None,
            is_audited: false,
        });
    }
    SizedSession {
        frame: bytes_of(&frame).saturating_add(UNPROVEN_FIELD),
        proofs,
    }
}

/// The first `shown` proofs of a session with the answers that are missing before the last of them; `None` if there is
/// neither an answer nor a missing one among them.
fn cut_session(
    session: &WholeSession,
    mut evidence: SessionEvidence,
    shown: usize,
) -> Option<(WholeSession, SessionEvidence)> {
    let is_shown =
        |answer: &&LoggedAnswer| usize::try_from(answer.sequence).is_ok_and(|number| number < shown);
    let answers: Vec<LoggedAnswer> = session.answers.iter().filter(is_shown).cloned().collect();
    let others = shown.saturating_sub(answers.len());
    evidence.answers.truncate(answers.len());
    evidence.others.truncate(others);
    let proofs = session.answers.len().saturating_add(session.others.len());
    let is_whole = shown > proofs;
    let ended = u64::try_from(answers.len()).ok()?;
    evidence.unproven.retain(|one| is_whole || one.after < ended);
    let mut unproven = session.unproven.clone();
    unproven.retain(|one| is_whole || one.after < ended);
    let whole = WholeSession {
        miner: session.miner,
        attestation: session.attestation.clone(),
        answers,
        others: evidence.others.clone(),
        unproven,
        newest_unproven: session.newest_unproven,
        behind_gap: Vec::new(),
    };
    (!whole.answers.is_empty() || !evidence.unproven.is_empty()).then_some((whole, evidence))
}

/// `beyond` states whether the answer is beyond the first four of its client and day, and `room` is the number of bytes
/// of responses that the bundle may still show.
fn evidence_of(
    inputs: &EvidenceInputs,
    answer: &LoggedAnswer,
    beyond: bool,
    room: &mut usize,
) -> Option<AnswerEvidence> {
    let tree = &inputs.buckets.get(&answer.bucket.0)?.tree;
    let canary = inputs.canaries.get(&answer.id);
    let origin = match (canary, answer.consent) {
        (Some(opened), _) => Origin::Canary(opened.clone()),
        (None, TextConsent::Publish) => Origin::Consenting,
        (None, TextConsent::Private | TextConsent::Declined) => Origin::User,
    };
    let is_audited = answer.is_drawn || canary.is_some();
    let words = inputs.words.get(&answer.id).filter(|_| is_audited);
    let outcome = is_audited.then(|| outcome_of(inputs.outcomes.get(&answer.id)));
    let words = words.and_then(|words| open_words(&origin, words));
    let words = words.and_then(|words| show_words(words, outcome.as_ref()?, room));
    let client = answer.client_opening().map(|opening| match is_audited {
        true => LoggedClient::Opened(opening),
        false => LoggedClient::Sealed(opening.commitment()),
    });
    Some(AnswerEvidence {
        client,
        beyond,
        cut: answer.cut,
        words,
        proof: answer.proof.clone(),
        output_tokens: answer.output_tokens,
        earned: answer.earned,
        bucket: answer.bucket.0,
        position: answer.position,
        path: tree.path(usize::try_from(answer.position).ok()?)?,
        origin,
        outcome,
    })
}

/// The text that a bundle opens of an answer of this origin: the request of an own prompt is opened with its place,
/// that of a consenting client is not opened otherwise, and a user's text is never opened.
fn open_words(origin: &Origin, words: &OpenedText) -> Option<OpenedText> {
    match origin {
        Origin::User => None,
        Origin::Consenting => words.request.is_some().then(|| words.clone()),
        Origin::Canary(_) => Some(OpenedText {
            request: None,
            ..words.clone()
        }),
    }
}

/// The part of an opened text that others need: the response if its ids are false or there are none, and if there is
/// room for it; the ids otherwise.
fn show_words(words: OpenedText, outcome: &AuditOutcome, room: &mut usize) -> Option<OpenedText> {
    match outcome {
        AuditOutcome::FalseIds(_) => {
            *room = room.checked_sub(words.response.as_ref()?.len())?;
            Some(OpenedText {
                prompt: Vec::new(),
                output: Vec::new(),
                ..words
            })
        }
        AuditOutcome::Scored(_) if words.output.is_empty() => {
            *room = room.checked_sub(words.response.as_ref()?.len())?;
            Some(words)
        }
        AuditOutcome::Scored(_) | AuditOutcome::Unseeded(_) | AuditOutcome::Unusable(_) => {
            (!words.output.is_empty()).then_some(OpenedText {
                response: None,
                ..words
            })
        }
    }
}

/// The outcome that a bundle states: the scores of both references where one scored, otherwise false ids where one
/// found them, otherwise the first's reason.
fn outcome_of(both: Option<&BothOutcomes>) -> AuditOutcome {
    let Some(both) = both else {
        return AuditOutcome::Unusable(UnusableReason::NotAudited);
    };
    let scores: Vec<Option<Vec<TokenScore>>> = by_both(both, ReferenceOutcome::scored);
    if scores.iter().any(Option::is_some) {
        return AuditOutcome::Scored(scores);
    }
    let unseeded: Vec<Option<Vec<TokenScore>>> = by_both(both, ReferenceOutcome::unseeded);
    if unseeded.iter().any(Option::is_some) {
        return AuditOutcome::Unseeded(unseeded);
    }
    let false_ids: Vec<Option<FalseIds>> = by_both(both, ReferenceOutcome::false_ids);
    if false_ids.iter().any(Option::is_some) {
        return AuditOutcome::FalseIds(false_ids);
    }
    let reason = both.iter().flatten().find_map(|outcome| match outcome {
        ReferenceOutcome::Unusable(reason) => Some(*reason),
        ReferenceOutcome::Scored(_) | ReferenceOutcome::Unseeded(_) | ReferenceOutcome::FalseIds(_) => None,
    });
    AuditOutcome::Unusable(reason.unwrap_or(UnusableReason::NotAudited))
}

fn by_both<T: Clone>(both: &BothOutcomes, of: fn(&ReferenceOutcome) -> Option<&T>) -> Vec<Option<T>> {
    let of = |outcome: &Option<ReferenceOutcome>| outcome.as_ref().and_then(of).cloned();
    both.iter().map(of).collect()
}

#[cfg(test)]
mod tests;
