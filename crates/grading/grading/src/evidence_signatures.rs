//! The signatures in a batch's evidence: the miner attests the session of its executor, and the session signs each
//! answer.
//!
//! They prove that the judged executor sent the answers on which its verdict rests. Times, draws and missing answers
//! are statements of the validator alone.

use muster_hardware_proof::Evidence;
use muster_protocol::{Digest, Hotkey, JobId, Signature, ValidatorKey};
use muster_response_proof::{Attestation, ChunkTree, Envelope, ProofLedger, ResponseProof};

use crate::batch_file::ParticipantEvidence;
use crate::batch_plan::Participant;

/// The path at which a grader takes messages.
pub const GRADE_PATH: &str = "/v1/grade";
/// The path at which an executor is challenged in a session that it serves.
pub const IN_SESSION_PATH: &str = "/.well-known/muster/grade";

/// Returns whether a key signed some bytes.
pub type SignatureCheck<'a> = &'a dyn Fn(&Hotkey, &[u8], &Signature) -> bool;

/// A challenged executor, and the session in which it was challenged.
pub(crate) struct ChallengedParticipant<'a> {
    pub(crate) place: usize,
    pub(crate) participant: &'a Participant,
    pub(crate) validator: ValidatorKey,
    /// The job of the session that it serves, if it was challenged there.
    pub(crate) session: Option<JobId>,
}

/// Checks all signatures about one executor. Returns the faults as texts.
pub(crate) fn check_seals(
    asked: &ChallengedParticipant<'_>,
    kept: &ParticipantEvidence,
    seen: &[Evidence],
    signed: SignatureCheck<'_>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let found = match check_attestation(asked, kept, signed) {
        Ok(None) if seen.is_empty() => Ok(()),
        Ok(None) => Err("the session of its proofs is not attested".to_owned()),
        Ok(Some(attestation)) => check_answers(asked, &attestation, kept, seen, signed, &mut wrong),
        Err(why) => Err(why),
    };
    wrong.extend(found.err());
    let place = asked.place;
    wrong
        .into_iter()
        .map(|why| format!("executor {place}: {why}"))
        .collect()
}

/// Checks the miner's attestation of the session. `None` if there is no attestation.
fn check_attestation(
    asked: &ChallengedParticipant<'_>,
    kept: &ParticipantEvidence,
    signed: SignatureCheck<'_>,
) -> Result<Option<Envelope<Attestation>>, String> {
    let job = kept.job.as_deref();
    if let Some(due) = asked.session
        && job.is_some_and(|job| job != due.to_string())
    {
        return Err(format!(
            "it serves the session of job {due}, but it was challenged elsewhere"
        ));
    }
    let Some(text) = &kept.attestation else {
        return Ok(None);
    };
    let envelope: Envelope<Attestation> =
        Envelope::from_text(text).map_err(|error| format!("its attestation cannot be read: {error}"))?;
    let stated = envelope
        .statement()
        .map_err(|error| format!("its attestation cannot be read: {error}"))?;
    if stated.miner != asked.participant.miner {
        return Err(format!(
            "its attestation is of another miner: {} instead of {}",
            stated.miner, asked.participant.miner
        ));
    }
    if !signed(&stated.miner.0, envelope.signed_bytes(), envelope.signature()) {
        return Err(format!("miner {} did not sign its attestation", stated.miner));
    }
    if stated.audience != asked.validator {
        return Err(format!(
            "its attestation was made for another validator: {}",
            stated.audience
        ));
    }
    if job != Some(stated.job.to_string().as_str()) {
        return Err(format!("its attestation is of another job: {}", stated.job));
    }
    Ok(Some(envelope))
}

/// Checks that the session signed each stored answer, for the question that the validator sent.
fn check_answers(
    asked: &ChallengedParticipant<'_>,
    attestation: &Envelope<Attestation>,
    kept: &ParticipantEvidence,
    seen: &[Evidence],
    signed: SignatureCheck<'_>,
    wrong: &mut Vec<String>,
) -> Result<(), String> {
    let mut seals = Vec::new();
    for (number, proof) in kept.proofs.iter().enumerate() {
        for (answer, text) in proof.seals.iter().enumerate() {
            let unread = |error: &dyn std::fmt::Display| {
                format!("proof {number}: the seal of answer {answer} cannot be read: {error}")
            };
            let envelope: Envelope<ResponseProof> =
                Envelope::from_text(text).map_err(|error| unread(&error))?;
            let stated = envelope.statement().map_err(|error| unread(&error))?;
            seals.push((number, answer, envelope, stated));
        }
    }
    // A session in use has answered other requests before.
    let first = seals.iter().min_by_key(|(_, _, _, stated)| stated.sequence);
    let opened = match first {
        Some((_, _, _, first)) => ProofLedger::after(attestation, first.sequence, first.previous),
        None => ProofLedger::open(attestation),
    };
    let mut ledger = opened.map_err(|error| format!("its attestation cannot be read: {error}"))?;
    let path = if asked.session.is_some() {
        IN_SESSION_PATH
    } else {
        GRADE_PATH
    };
    for (number, answer, envelope, stated) in &seals {
        if let Err(forgery) = ledger.accept_unseen(envelope, signed) {
            wrong.push(format!("proof {number}: the seal of answer {answer}: {forgery}"));
            continue;
        }
        let exchanged = seen.get(*number).map(Evidence::exchanges).unwrap_or_default();
        let Some((message, received)) = exchanged.get(*answer) else {
            wrong.push(format!(
                "proof {number}: answer {answer} is sealed, but there was no question"
            ));
            continue;
        };
        let asked_so = stated.method.as_str() == "POST" && stated.path.as_str() == path;
        if !asked_so || stated.input != Digest::of(message) {
            wrong.push(format!(
                "proof {number}: the seal of answer {answer} is for another question"
            ));
        }
        if received.is_some_and(|received| !covers(stated, &received.bytes)) {
            wrong.push(format!(
                "proof {number}: the seal of answer {answer} covers other bytes"
            ));
        }
    }
    for (number, (proof, evidence)) in kept.proofs.iter().zip(seen).enumerate() {
        let exchanged = evidence.exchanges();
        let bare = exchanged.iter().skip(proof.seals.len());
        let bare = bare.filter(|(_, received)| received.is_some()).count();
        if bare > 0 {
            wrong.push(format!("proof {number}: {bare} of its answers have no seal"));
        }
    }
    Ok(())
}

/// Whether a seal covers these bytes. The chunks are over the plain bytes in every hash scheme.
fn covers(stated: &ResponseProof, bytes: &[u8]) -> bool {
    let mut chunks = ChunkTree::default();
    chunks.update(bytes);
    u64::try_from(bytes.len()) == Ok(stated.output_bytes) && chunks.finish() == stated.chunks
}
