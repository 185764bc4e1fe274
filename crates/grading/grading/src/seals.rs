//! The signatures in a batch's evidence: the miner's over which session speaks for its executor, the session's over each answer.
//!
//! What is checked is that the executor whom a verdict is about said what the verdict is of. Times, draws and silence are the
//! validator's word.

use muster_hardware_proof::Evidence;
use muster_protocol::{Digest, Hotkey, JobId, Signature, ValidatorKey};
use muster_response_proof::{Attestation, ChunkTree, Envelope, Ledger, ResponseProof};

use crate::evidence::SeatFile;
use crate::plan::Seat;

/// Where a grader takes messages.
pub const PATH: &str = "/v1/grade";
/// Where an executor is challenged in a session that it serves.
pub const IN_SESSION: &str = "/.well-known/muster/grade";

/// Whether a key signed bytes.
pub type Signed<'a> = &'a dyn Fn(&Hotkey, &[u8], &Signature) -> bool;

/// Who was challenged, and how.
pub(crate) struct Asked<'a> {
    pub(crate) place: usize,
    pub(crate) seat: &'a Seat,
    pub(crate) validator: ValidatorKey,
    /// The session that it was challenged in, if it serves one.
    pub(crate) session: Option<JobId>,
}

/// Everything that is not signed as it should be, in words.
pub(crate) fn check(
    asked: &Asked<'_>,
    kept: &SeatFile,
    seen: &[Evidence],
    signed: Signed<'_>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let found = match attested(asked, kept, signed) {
        Ok(None) if seen.is_empty() => Ok(()),
        Ok(None) => Err("nobody attested the session that its proofs came from".to_owned()),
        Ok(Some(attestation)) => answers(asked, &attestation, kept, seen, signed, &mut wrong),
        Err(why) => Err(why),
    };
    wrong.extend(found.err());
    let place = asked.place;
    wrong
        .into_iter()
        .map(|why| format!("executor {place}: {why}"))
        .collect()
}

/// The miner's word for the session, if there is one.
fn attested(
    asked: &Asked<'_>,
    kept: &SeatFile,
    signed: Signed<'_>,
) -> Result<Option<Envelope<Attestation>>, String> {
    let job = kept.job.as_deref();
    if let Some(due) = asked.session
        && job.is_some_and(|job| job != due.to_string())
    {
        return Err(format!(
            "it serves the session of job {due}, and was challenged elsewhere"
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
    if stated.miner != asked.seat.miner {
        return Err(format!(
            "its attestation is of another miner: {} instead of {}",
            stated.miner, asked.seat.miner
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

/// Each answer that is kept must be what the session signed, for what the validator asked.
fn answers(
    asked: &Asked<'_>,
    attestation: &Envelope<Attestation>,
    kept: &SeatFile,
    seen: &[Evidence],
    signed: Signed<'_>,
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
    // A session that serves has answered others before.
    let first = seals.iter().min_by_key(|(_, _, _, stated)| stated.sequence);
    let opened = match first {
        Some((_, _, _, first)) => Ledger::after(attestation, first.sequence, first.previous),
        None => Ledger::open(attestation),
    };
    let mut ledger = opened.map_err(|error| format!("its attestation cannot be read: {error}"))?;
    let path = if asked.session.is_some() { IN_SESSION } else { PATH };
    for (number, answer, envelope, stated) in &seals {
        if let Err(forgery) = ledger.accept_unseen(envelope, signed) {
            wrong.push(format!("proof {number}: the seal of answer {answer}: {forgery}"));
            continue;
        }
        let exchanged = seen.get(*number).map(Evidence::exchanged).unwrap_or_default();
        let Some((message, received)) = exchanged.get(*answer) else {
            wrong.push(format!(
                "proof {number}: answer {answer} is sealed, and nothing was asked"
            ));
            continue;
        };
        let asked_so = stated.method.as_str() == "POST" && stated.path.as_str() == path;
        if !asked_so || stated.input != Digest::of(message) {
            wrong.push(format!(
                "proof {number}: the seal of answer {answer} is for another question"
            ));
        }
        if received.is_some_and(|received| !is_over(stated, &received.bytes)) {
            wrong.push(format!(
                "proof {number}: the seal of answer {answer} is over other bytes"
            ));
        }
    }
    for (number, (proof, evidence)) in kept.proofs.iter().zip(seen).enumerate() {
        let exchanged = evidence.exchanged();
        let bare = exchanged.iter().skip(proof.seals.len());
        let bare = bare.filter(|(_, received)| received.is_some()).count();
        if bare > 0 {
            wrong.push(format!("proof {number}: {bare} of its answers carry no seal"));
        }
    }
    Ok(())
}

/// Whether a seal is over these bytes. Whatever the session's digests are over, its chunks are the bytes.
fn is_over(stated: &ResponseProof, bytes: &[u8]) -> bool {
    let mut chunks = ChunkTree::default();
    chunks.update(bytes);
    u64::try_from(bytes.len()) == Ok(stated.output_bytes) && chunks.finish() == stated.chunks
}
