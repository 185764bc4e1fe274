//! The check of an answer's proof, from its signed statements alone. Pure.

use std::time::Duration;

use muster_protocol::{MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{
    Attestation, ClockTolerance, Envelope, HashScheme, ObservedExchange, ProofLedger, ResponseProof,
};
use muster_web_pages::proof::ShownProof;
use serde::Deserialize;

/// By how much the clocks of two parties may differ.
const SKEW: Duration = Duration::from_secs(30);

/// `GET /v1/proofs/{id}` as pages read it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AnswerProof {
    id: String,
    /// The nonce of the request; without it the id is the nonce, as in earlier releases.
    #[serde(default)]
    nonce: Option<String>,
    verdict: String,
    model: String,
    miner: MinerKey,
    validator: ValidatorKey,
    ended_at: Timestamp,
    cost: u64,
    proof: Option<String>,
    attestation: String,
}

/// Checks both signatures, the parties and the answer that they bind, and tells what was signed.
pub(super) fn check_proof(found: &AnswerProof, id: &str) -> ShownProof {
    let mut statements = vec![
        ("Model", found.model.clone()),
        ("Verdict of the gateway", found.verdict.clone()),
    ];
    match check_statements(found, id) {
        Ok((proof, attestation)) => {
            statements.extend(describe(found, &proof, &attestation));
            ShownProof {
                defect: None,
                statements,
                input: (proof.scheme == HashScheme::RawHttp).then(|| proof.input.hex()),
            }
        }
        Err(defect) => ShownProof {
            defect: Some(defect),
            statements,
            input: None,
        },
    }
}

fn check_statements(found: &AnswerProof, id: &str) -> Result<(ResponseProof, Attestation), String> {
    let attested = Envelope::<Attestation>::from_text(&found.attestation).map_err(in_words)?;
    let attestation = attested.statement().map_err(in_words)?;
    if !muster_identity::verify(
        &attestation.miner.0,
        attested.signed_bytes(),
        attested.signature(),
    ) {
        return Err("The miner that the attestation names did not sign it.".to_owned());
    }
    if attestation.miner != found.miner || attestation.audience != found.validator {
        return Err("The gateway names other parties than the statements.".to_owned());
    }
    let Some(text) = &found.proof else {
        return Err(format!(
            "The answer came without a proof; its gateway says: {}",
            found.verdict
        ));
    };
    let envelope = Envelope::<ResponseProof>::from_text(text).map_err(in_words)?;
    let proof = envelope.statement().map_err(in_words)?;
    let nonce = proof.gateway_nonce.map(|nonce| nonce.hex());
    if found.id != id || nonce.as_ref() != Some(found.nonce.as_ref().unwrap_or(&found.id)) {
        return Err("The proof is of another answer.".to_owned());
    }
    // The proof is judged alone. Only the validator can see whether an earlier proof of the session is missing.
    let mut ledger = ProofLedger::after(&attested, proof.sequence, proof.previous).map_err(in_words)?;
    let (method, path) = (proof.method.to_string(), proof.path.to_string());
    let content_type = proof.content_type.as_ref().map(ToString::to_string);
    let seen = ObservedExchange {
        client_nonce: proof.client_nonce,
        gateway_nonce: proof.gateway_nonce,
        method: &method,
        path: &path,
        input: proof.input,
        status: proof.status,
        content_type: content_type.as_deref(),
        output: Some(proof.output),
        output_bytes: proof.output_bytes,
        asked: proof.from,
        ended: proof.to,
    };
    let bounds = ClockTolerance { skew: SKEW };
    let checked = ledger
        .accept(&envelope, &seen, bounds, muster_identity::verify)
        .map_err(in_words)?;
    Ok((checked, attestation))
}

fn in_words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn describe(
    found: &AnswerProof,
    proof: &ResponseProof,
    attestation: &Attestation,
) -> Vec<(&'static str, String)> {
    vec![
        (
            "Answer",
            format!(
                "{} of session {}, {}",
                proof.sequence,
                proof.session,
                proof.end.name()
            ),
        ),
        ("Image", attestation.image.to_string()),
        (
            "Weights",
            attestation
                .model
                .map_or_else(|| "not stated".to_owned(), |digest| digest.to_string()),
        ),
        ("Miner", attestation.miner.to_string()),
        ("Validator", attestation.audience.to_string()),
        (
            "Request",
            format!("{} {}, {}", proof.method, proof.path, proof.input),
        ),
        (
            "Response",
            format!("{}, {} bytes, {}", proof.status, proof.output_bytes, proof.output),
        ),
        ("Digests by", proof.scheme.name().to_owned()),
        ("Time", format!("{} to {}", proof.from, proof.to)),
        ("Seen by the gateway", found.ended_at.to_string()),
        ("Price", format!("{} rao", found.cost)),
    ]
}
