//! The proofs of one session: each is checked against its response, and all of them when the session closes.

use std::time::Duration;

use muster_process::SharedClock;
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

/// The longest search for one proof, pauses and answers together. A session that answers slowly or without end is no
/// reason to keep its client's place.
const SEARCH_LIMIT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct SessionProofs {
    pub(super) ledger: ProofLedger,
    /// The closing statement in text form, if the miner has passed one on.
    pub(super) close_from_miner: Option<String>,
    /// The number after the highest that was proven.
    pub(super) next: u64,
    /// Proofs of other exchanges than clients', with their numbers, that nobody has taken yet.
    pub(super) others: Vec<(u64, String)>,
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
        let search = async {
            for pause in SEARCH_PAUSES {
                self.clock.sleep(pause).await;
                if let Ok(Some(envelope)) = self.find_proof(sent).await {
                    return Some(envelope);
                }
            }
            None
        };
        let Some(envelope) = search_in_time(search, &self.clock).await else {
            return Err(ProofError::Absent);
        };
        let mut proofs = self.proofs();
        let checked = received.check_other_proof(&envelope, sent, &mut proofs.ledger, self.tolerance);
        let checked = checked.map(|proof| (proof, envelope)).map_err(ProofError::from);
        proofs.note(&checked);
        checked
    }

    /// Searches the proofs that the session keeps for the one that carries the nonce of this request.
    async fn find_proof(&self, sent: &SentRequest) -> Result<Option<Envelope<ResponseProof>>, ClientError> {
        let from = {
            let proofs = self.proofs();
            let gaps = proofs.ledger.missing();
            gaps.first().map_or(proofs.next, |gap| gap.start)
        };
        let is_it = |proof: &Envelope<ResponseProof>| {
            let stated = proof.statement();
            stated.is_ok_and(|stated| stated.gateway_nonce == sent.gateway_nonce)
        };
        search_pages(from, |from| self.client.fetch_proofs(from), is_it).await
    }

    /// Takes the proofs of exchanges that are no client's answers, with their numbers: health checks, grading, and,
    /// once the session is closed, responses whose clients went away.
    pub fn take_other_proofs(&self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.proofs().others)
    }

    /// The number after the highest that was proven. It grows with every proven answer.
    pub fn next_number(&self) -> u64 {
        self.proofs().next
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
                let mut proofs = self.proofs();
                let SessionProofs { ledger, others, .. } = &mut *proofs;
                for proof in &closing.proofs {
                    // Proofs of responses whose clients went away. A known or forged one is not added; a missing one
                    // shows as a gap in the next check.
                    if let Ok(stated) = ledger.accept_unseen(proof, muster_identity::verify) {
                        others.push((stated.sequence, proof.to_text()));
                    }
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

/// The outcome of a search, unless it takes longer than [`SEARCH_LIMIT`].
async fn search_in_time<T>(search: impl Future<Output = Option<T>>, clock: &SharedClock) -> Option<T> {
    tokio::select! {
        biased;
        found = search => found,
        () = clock.sleep(SEARCH_LIMIT) => None,
    }
}

/// Searches page after page from the number `from` on. The first page says where the search ends, whatever later pages
/// say: their sender would keep it going.
///
/// # Errors
/// A page does not arrive.
async fn search_pages<T, E, Page>(
    mut from: u64,
    fetch: impl Fn(u64) -> Page,
    is_it: impl Fn(&T) -> bool,
) -> Result<Option<T>, E>
where
    Page: Future<Output = Result<(Vec<T>, u64), E>>,
{
    let mut end = None;
    loop {
        let (items, next) = fetch(from).await?;
        let end = *end.get_or_insert(next);
        let count = u64::try_from(items.len()).unwrap_or(u64::MAX);
        if let Some(found) = items.into_iter().find(&is_it) {
            return Ok(Some(found));
        }
        from = from.saturating_add(count);
        if count == 0 || from >= end {
            return Ok(None);
        }
    }
}

impl SessionProofs {
    fn note(&mut self, checked: &Result<(ResponseProof, Envelope<ResponseProof>), ProofError>) {
        if let Ok((proof, envelope)) = checked {
            self.next = self.next.max(proof.sequence.saturating_add(1));
            if proof.client.is_none() {
                self.others.push((proof.sequence, envelope.to_text()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;
    use std::future::{pending, ready};
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use muster_process::TestClock;

    use super::*;

    #[test]
    fn a_session_that_always_has_more_is_searched_to_the_end_that_it_named_first() {
        let asked = RefCell::new(Vec::new());
        let endless = |from: u64| {
            asked.borrow_mut().push(from);
            ready(Ok::<_, Infallible>((vec![from], from + 3)))
        };
        let found = search_pages(5, endless, |_| false).now_or_never().unwrap();
        assert_eq!((found, asked.take()), (Ok(None), vec![5, 6, 7]));
        let found = search_pages(5, endless, |item| *item == 6).now_or_never();
        assert_eq!(found, Some(Ok(Some(6))));
    }

    #[tokio::test]
    async fn a_session_that_does_not_answer_is_not_waited_for() {
        let test = TestClock::default();
        let clock: SharedClock = Arc::new(test.clone());
        let mut search = std::pin::pin!(search_in_time(pending::<Option<()>>(), &clock));
        assert_eq!((&mut search).now_or_never(), None);
        test.advance(SEARCH_LIMIT);
        assert_eq!(search.await, None);
    }
}
