//! The proofs of one session: each is checked against its response, and all of them when the session closes.

use std::time::Duration;

use muster_process::error::Causes;
use muster_response_proof::{Envelope, Forgery, ProofLedger, ResponseProof};

use super::SealedSession;
use crate::checked_body::{ProofError, ReceivedResponse, SentRequest};
use crate::client::ClientError;

/// Pauses before each search for a proof that did not come with its response: the session signs once it has noticed
/// that its client is gone.
const SEARCH_PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(3),
];

#[derive(Debug)]
pub(super) struct SessionProofs {
    pub(super) ledger: ProofLedger,
    /// The closing statement in text form, if the miner has passed one on.
    pub(super) close_from_miner: Option<String>,
    /// The number after the highest that was proven.
    pub(super) next: u64,
}

impl SealedSession {
    /// Checks the proof of a response. If none came with it, the session is asked for the proof several times.
    ///
    /// # Errors
    /// There is no proof, or it does not match the exchange.
    pub async fn check_proof(
        &self,
        received: &ReceivedResponse,
        sent: &SentRequest,
    ) -> Result<(ResponseProof, Envelope<ResponseProof>), ProofError> {
        let checked = {
            let mut proofs = self.proofs();
            let checked = received.check_proof(sent, &mut proofs.ledger, self.tolerance);
            proofs.note(&checked);
            checked
        };
        match checked {
            Err(ProofError::Absent) => {}
            Ok(_) | Err(ProofError::Unreadable(_) | ProofError::Forged(_)) => return checked,
        }
        for pause in SEARCH_PAUSES {
            self.clock.sleep(pause).await;
            let Ok(Some(envelope)) = self.find_proof(sent).await else {
                continue;
            };
            let mut proofs = self.proofs();
            let checked = received.check_other_proof(&envelope, sent, &mut proofs.ledger, self.tolerance);
            let checked = checked.map(|proof| (proof, envelope)).map_err(ProofError::from);
            proofs.note(&checked);
            return checked;
        }
        Err(ProofError::Absent)
    }

    /// Searches the proofs that the session keeps for the one that carries the nonce of this request.
    async fn find_proof(&self, sent: &SentRequest) -> Result<Option<Envelope<ResponseProof>>, ClientError> {
        let mut from = {
            let proofs = self.proofs();
            let gaps = proofs.ledger.missing();
            gaps.first().map_or(proofs.next, |gap| gap.start)
        };
        loop {
            let (proofs, next) = self.client.fetch_proofs(from).await?;
            let count = u64::try_from(proofs.len()).unwrap_or(u64::MAX);
            let found = proofs.into_iter().find(|proof| {
                proof
                    .statement()
                    .is_ok_and(|stated| stated.gateway_nonce == sent.gateway_nonce)
            });
            if found.is_some() {
                return Ok(found);
            }
            from = from.saturating_add(count);
            if count == 0 || from >= next {
                return Ok(None);
            }
        }
    }

    /// Keeps a closing statement that the miner has passed on, for a session that no longer answers when it is closed.
    pub fn set_close_from_miner(&self, close: String) {
        self.proofs().close_from_miner = Some(close);
    }

    /// Closes the session. Returns the text form of its closing statement, if there is one, and the fault that the
    /// statement shows, if any.
    pub async fn close(&self) -> (Option<String>, Option<String>) {
        let proven = self.proofs().ledger.proven();
        match self.client.close(proven).await {
            Ok(closing) => {
                let ledger = &mut self.proofs().ledger;
                for proof in &closing.proofs {
                    // Proofs of responses whose clients went away. A known or forged one is not added; a missing one
                    // shows as a gap in the next check.
                    let _ = ledger.accept_unseen(proof, muster_identity::verify);
                }
                let fault = ledger.close(&closing.close, muster_identity::verify).err();
                (
                    Some(closing.close.to_text()),
                    fault.map(|forgery| forgery.to_string()),
                )
            }
            Err(error) => {
                let from_miner = self.proofs().close_from_miner.take();
                match from_miner {
                    None => (
                        None,
                        Some(format!("it sent no closing statement: {}", Causes(&error))),
                    ),
                    Some(text) => self.close_by_statement(text).await,
                }
            }
        }
    }

    /// Checks a closing statement that came from the miner. Proofs of responses that have just ended are checked a
    /// moment later, so a gap counts only if it stays.
    async fn close_by_statement(&self, text: String) -> (Option<String>, Option<String>) {
        let close = match Envelope::from_text(&text) {
            Ok(close) => close,
            Err(error) => {
                return (
                    None,
                    Some(format!("its closing statement cannot be read: {error}")),
                );
            }
        };
        let mut pauses = SEARCH_PAUSES.into_iter();
        loop {
            let checked = self.proofs().ledger.close(&close, muster_identity::verify);
            let fault = match checked {
                Ok(_) => return (Some(text), None),
                Err(forgery) => forgery,
            };
            match (&fault, pauses.next()) {
                (Forgery::Gap(_), Some(pause)) => self.clock.sleep(pause).await,
                (_, _) => return (Some(text), Some(fault.to_string())),
            }
        }
    }
}

impl SessionProofs {
    fn note(&mut self, checked: &Result<(ResponseProof, Envelope<ResponseProof>), ProofError>) {
        if let Ok((proof, _)) = checked {
            self.next = self.next.max(proof.sequence.saturating_add(1));
        }
    }
}
