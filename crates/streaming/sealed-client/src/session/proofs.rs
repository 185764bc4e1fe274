//! The proofs of one session: each is checked against its response, and all of them when the session closes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_response_proof::{Envelope, Forgery, ProofLedger, RequestNonce, ResponseProof};
use parking_lot::Mutex;

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

/// Pages of missing proofs that are fetched in one go.
const MAX_PAGES: usize = 64;

/// The searches in a row in which a session may not show a proof.
const MAX_REFUSALS: u32 = 2;
/// The searches in a row in which a number may be shown as that of a response under way. It ends before: its client has
/// to take what is there already.
const MAX_SEARCHES: u32 = 40;

#[derive(Debug)]
pub(super) struct SessionProofs {
    pub(super) ledger: ProofLedger,
    /// The closing statement in text form, if the miner has passed one on.
    pub(super) close_from_miner: Option<String>,
    /// The number after the highest that was proven.
    pub(super) next: u64,
    /// Proofs of other exchanges than clients' answers, with their numbers, that nobody has stored yet.
    pub(super) others: Vec<(u64, String)>,
    /// The nonces of requests whose proofs this side may still check itself.
    pub(super) awaited: HashMap<RequestNonce, usize>,
    /// The numbers that were missing at the last search, and how often.
    missing: BTreeMap<u64, MissingNumber>,
}

/// How often in a row a number was missing when the session was asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MissingNumber {
    searches: u32,
    /// Those searches in which the session did not show a proof of it.
    refusals: u32,
}

impl MissingNumber {
    const fn is_withheld(self) -> bool {
        self.refusals >= MAX_REFUSALS || self.searches >= MAX_SEARCHES
    }
}

/// Keeps the proof of one request for the check of its response. Until this is dropped, the search for missing proofs
/// leaves that proof alone.
#[derive(Debug)]
pub struct AwaitedProof {
    pub(super) proofs: Arc<Mutex<SessionProofs>>,
    pub(super) nonce: RequestNonce,
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

    /// The proofs of exchanges that are no client's answers, with their numbers, which nobody has stored yet: health
    /// checks, grading, and responses whose clients went away. [`Self::forget_other_proofs`] ends their stay.
    pub fn other_proofs(&self) -> Vec<(u64, String)> {
        self.proofs().others.clone()
    }

    /// Forgets other proofs that are stored.
    pub fn forget_other_proofs(&self, stored: &[(u64, String)]) {
        let numbers: HashSet<u64> = stored.iter().map(|(number, _)| *number).collect();
        self.proofs()
            .others
            .retain(|(number, _)| !numbers.contains(number));
    }

    /// Fetches the proofs that are missing below the highest proven number: of responses whose clients went away.
    /// Returns whether the session withholds a proof: it has not shown the same number twice in a row. Proofs that
    /// still belong to a response under way are left to its check.
    pub async fn fetch_missing(&self) -> bool {
        let is_whole = self.proofs().ledger.missing().is_empty();
        if is_whole {
            self.proofs().missing.clear();
            return false;
        }
        let highest = self.proofs().next;
        let found = self.fetch_unseen(Some(highest)).await;
        self.proofs().note_missing(&found)
    }

    /// Fetches the unproven numbers below `end`, page after page, and adds their proofs to the chain; without an end,
    /// up to the one that the session names first. Returns the numbers that it saw proven, whether they were added or
    /// belong to a response under way.
    async fn fetch_unseen(&self, mut end: Option<u64>) -> BTreeSet<u64> {
        let found = Mutex::new(BTreeSet::new());
        let fetching = async {
            let mut from = self.proofs().ledger.proven();
            for _ in 0..MAX_PAGES {
                if end.is_some_and(|end| from >= end) {
                    break;
                }
                let Ok((page, next)) = self.client.fetch_proofs(from).await else {
                    return None;
                };
                end.get_or_insert(next);
                let taken = self.proofs().take_unseen(&page);
                let last = taken.last().copied().filter(|last| *last >= from)?;
                found.lock().extend(taken);
                from = self.proofs().first_unproven(last.saturating_add(1));
            }
            Some(())
        };
        // A session that does not answer in time has shown what it has shown.
        let _ = search_in_time(fetching, &self.clock).await;
        found.into_inner()
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
        // The closing document has one page of proofs only.
        drop(self.fetch_unseen(None).await);
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

/// Searches page after page from the number `from` on. The first page states where the search ends, whatever later
/// pages state: their sender would keep it going.
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
    pub(super) fn open(ledger: ProofLedger) -> Self {
        Self {
            ledger,
            close_from_miner: None,
            next: 0,
            others: Vec::new(),
            awaited: HashMap::new(),
            missing: BTreeMap::new(),
        }
    }

    /// Adds proofs to the chain whose responses nobody here checks. Returns the numbers that the session key proves, in
    /// the order of the page.
    fn take_unseen(&mut self, page: &[Envelope<ResponseProof>]) -> Vec<u64> {
        let mut proven = Vec::new();
        for proof in page {
            let Ok(stated) = proof.statement() else { continue };
            let is_awaited = stated
                .gateway_nonce
                .is_some_and(|nonce| self.awaited.contains_key(&nonce));
            if self.ledger.is_proven(stated.sequence) {
                proven.push(stated.sequence);
            } else if is_awaited {
                // Its check belongs to the response under way. A statement that the session did not sign proves no
                // number.
                if self.is_signed(&stated, proof) {
                    proven.push(stated.sequence);
                }
            } else if self.ledger.accept_unseen(proof, muster_identity::verify).is_ok() {
                self.others.push((stated.sequence, proof.to_text()));
                proven.push(stated.sequence);
            }
        }
        proven
    }

    fn is_signed(&self, stated: &ResponseProof, proof: &Envelope<ResponseProof>) -> bool {
        let attested = self.ledger.attestation();
        stated.session == attested.session
            && muster_identity::verify(&attested.session_key, proof.signed_bytes(), proof.signature())
    }

    /// The lowest unproven number from this one on.
    fn first_unproven(&self, from: u64) -> u64 {
        let from = from.max(self.ledger.proven());
        let mut gaps = self.ledger.missing().into_iter().filter(|gap| gap.end > from);
        gaps.next().map_or(self.next.max(from), |gap| gap.start.max(from))
    }

    /// Notes the numbers that are still missing after a search that `found` these. Returns whether one of them is
    /// withheld.
    fn note_missing(&mut self, found: &BTreeSet<u64>) -> bool {
        let numbers = self.ledger.missing().into_iter().flatten();
        let noted = numbers.map(|number| {
            let before = self.missing.get(&number).copied().unwrap_or_default();
            let now = MissingNumber {
                searches: before.searches.saturating_add(1),
                refusals: match found.contains(&number) {
                    true => 0,
                    false => before.refusals.saturating_add(1),
                },
            };
            (number, now)
        });
        self.missing = noted.collect();
        self.missing.values().any(|number| number.is_withheld())
    }

    fn note(&mut self, checked: &Result<(ResponseProof, Envelope<ResponseProof>), ProofError>) {
        if let Ok((proof, envelope)) = checked {
            self.next = self.next.max(proof.sequence.saturating_add(1));
            if proof.client.is_none() {
                self.others.push((proof.sequence, envelope.to_text()));
            }
        }
    }
}

// === impl AwaitedProof ===

impl Drop for AwaitedProof {
    fn drop(&mut self) {
        let mut proofs = self.proofs.lock();
        if let Entry::Occupied(mut waiting) = proofs.awaited.entry(self.nonce) {
            *waiting.get_mut() -= 1;
            if *waiting.get() == 0 {
                waiting.remove();
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
    use muster_identity::Keypair;
    use muster_process::TestClock;
    use muster_protocol::{AttemptId, Digest, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
    use muster_response_proof::{Attestation, HashScheme, Price, SessionId, StreamEnd, Text, seal};

    use super::*;

    /// A session whose key is this one, and its attestation.
    fn session(key: &Keypair) -> (SessionProofs, Envelope<Attestation>) {
        let miner = Keypair::from_seed([1; 32]);
        let attestation = Attestation {
            session: SessionId("11111111-2222-4333-8444-555555555555".parse().unwrap()),
            session_key: key.hotkey(),
            job: "11111111-2222-4333-8444-555555555551".parse::<JobId>().unwrap(),
            attempt: "11111111-2222-4333-8444-555555555552"
                .parse::<AttemptId>()
                .unwrap(),
            miner: MinerKey(miner.hotkey()),
            audience: ValidatorKey(miner.hotkey()),
            server_certificate: Digest::of(b"s"),
            client_certificate: Digest::of(b"c"),
            executor: Text::new("e").unwrap(),
            address: Text::new("127.0.0.1:1").unwrap(),
            image: ImageId(Digest::of(b"i")),
            model: None,
            scheme: HashScheme::RawHttp,
            price: Price::default(),
            not_before: Timestamp::from_secs(0),
            not_after: Timestamp::from_secs(1_000),
        };
        let envelope = seal(&attestation, &miner);
        let ledger = ProofLedger::open(&envelope).unwrap();
        (SessionProofs::open(ledger), envelope)
    }

    /// The proof of an answer with this number and nonce after the one with the digest `previous`.
    fn proof(
        attested: &Envelope<Attestation>,
        (sequence, previous): (u64, Digest),
        nonce: RequestNonce,
        key: &Keypair,
    ) -> Envelope<ResponseProof> {
        let stated = attested.statement().unwrap();
        let proof = ResponseProof {
            session: stated.session,
            sequence,
            previous,
            job: stated.job,
            attempt: stated.attempt,
            audience: stated.audience,
            client: None,
            attestation: attested.digest(),
            client_nonce: None,
            gateway_nonce: Some(nonce),
            method: Text::new("POST").unwrap(),
            path: Text::new("/v1/chat/completions").unwrap(),
            status: 200,
            content_type: None,
            scheme: HashScheme::RawHttp,
            input: Digest::of(b"asked"),
            output: Digest::of(b""),
            output_bytes: 0,
            chunks: Digest::of(b""),
            from: Timestamp::from_secs(1),
            first_byte: None,
            to: Timestamp::from_secs(2),
            tokens: None,
            engine: None,
            end: StreamEnd::Completed,
        };
        seal(&proof, key)
    }

    #[test]
    fn a_statement_that_the_session_did_not_sign_does_not_excuse_a_missing_proof() {
        let (key, stranger) = (Keypair::from_seed([2; 32]), Keypair::from_seed([9; 32]));
        let (mut proofs, attested) = session(&key);
        let [asked, other] = [[7; 32], [8; 32]].map(RequestNonce::from_bytes);
        proofs.awaited.insert(asked, 1);
        let first = (0, attested.digest());
        let signed = proof(&attested, first, asked, &key);
        let later = proof(&attested, (1, signed.digest()), other, &key);
        assert_eq!(proofs.take_unseen(std::slice::from_ref(&later)), [1]);
        assert!(proofs.ledger.missing().into_iter().flatten().eq([0]));
        let forged = proof(&attested, first, asked, &stranger);
        let mut search = |page: &[Envelope<ResponseProof>]| {
            let found = proofs.take_unseen(page).into_iter().collect();
            proofs.note_missing(&found)
        };
        assert!(!search(&[]), "one refusal may be chance");
        assert!(
            !search(std::slice::from_ref(&signed)),
            "shown, and checked elsewhere"
        );
        assert!(!search(std::slice::from_ref(&forged)));
        assert!(search(std::slice::from_ref(&forged)), "two refusals in a row");
    }

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
