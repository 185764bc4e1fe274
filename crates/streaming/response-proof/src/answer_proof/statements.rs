//! The two signed statements of an answer, as far as they can be judged without the exchange itself.

use muster_protocol::{Hotkey, MinerKey, Signature, ValidatorKey};

use crate::{Attestation, Envelope, EnvelopeError, LayoutError, ProofLedger, ResponseProof};

/// The statements of an answer, with the parties and the nonce that its gateway names beside them.
#[derive(Clone, Copy, Debug)]
pub struct ShownStatements<'a> {
    /// The miner of the session.
    pub miner: MinerKey,
    /// The validator whose gateway passed the answer on.
    pub validator: ValidatorKey,
    /// The nonce of the request, 64 hex digits.
    pub nonce: &'a str,
    /// The gateway's own verdict in words.
    pub verdict: &'a str,
    /// The miner's signed statement about the session, in text form.
    pub attestation: &'a str,
    /// The signed statement about the answer, in text form; `None` if none came.
    pub proof: Option<&'a str>,
}

/// Why statements prove nothing about the answer beside which they stand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatementFault {
    /// There is no proof. The gateway's verdict says why.
    #[error("the answer came without a proof; its gateway says: {0}")]
    NoProof(String),
    /// A signed statement cannot be decoded.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    /// The content of a signed statement cannot be decoded.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The miner did not sign the attestation.
    #[error("the miner that the attestation names did not sign it")]
    Attestation,
    /// The gateway and the statements disagree on this.
    #[error("the gateway names another {0} than the signed statements")]
    Mismatch(&'static str),
}

/// An answer's statements, read. The miner signed the attestation; the signature of the proof is not checked yet.
#[derive(Debug)]
pub struct OpenedStatements {
    /// The miner's statement about the session.
    pub attestation: Attestation,
    /// The statement about the answer.
    pub proof: ResponseProof,
    /// The statement about the answer as it was signed.
    pub sealed: Envelope<ResponseProof>,
    /// A ledger that takes this proof next. The proof is judged alone: only the validator can see whether an earlier
    /// proof of the session is missing.
    pub ledger: ProofLedger,
}

impl ShownStatements<'_> {
    /// Reads the statements and checks that they are of these parties and this request.
    ///
    /// # Errors
    /// The first fault that is found.
    pub fn open(
        &self,
        verify: impl FnOnce(&Hotkey, &[u8], &Signature) -> bool,
    ) -> Result<OpenedStatements, StatementFault> {
        let attested = Envelope::<Attestation>::from_text(self.attestation)?;
        let attestation = attested.statement()?;
        if !verify(
            &attestation.miner.0,
            attested.signed_bytes(),
            attested.signature(),
        ) {
            return Err(StatementFault::Attestation);
        }
        if attestation.miner != self.miner {
            return Err(StatementFault::Mismatch("miner"));
        }
        if attestation.audience != self.validator {
            return Err(StatementFault::Mismatch("validator"));
        }
        let text = self
            .proof
            .ok_or_else(|| StatementFault::NoProof(self.verdict.to_owned()))?;
        let sealed = Envelope::<ResponseProof>::from_text(text)?;
        let proof = sealed.statement()?;
        if proof.gateway_nonce.map(|nonce| nonce.hex()).as_deref() != Some(self.nonce) {
            return Err(StatementFault::Mismatch("answer"));
        }
        let ledger = ProofLedger::after(&attested, proof.sequence, proof.previous)?;
        Ok(OpenedStatements {
            attestation,
            proof,
            sealed,
            ledger,
        })
    }
}
