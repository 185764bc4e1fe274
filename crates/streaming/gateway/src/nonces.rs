//! The nonces of requests to sessions.
//!
//! A nonce follows from a key of the validator's, so the gateway cannot look for seeds that it likes: see
//! `docs/audit-bundle.md`. Until the chain has given the first key, a nonce is random; an answer to it is shown as one
//! whose nonce is not the rule's, and does not count against its miner.

use std::collections::{BTreeSet, HashMap};

use muster_protocol::Digest;
use muster_response_proof::{Attestation, Envelope, NonceInput, RequestNonce, SessionId};
use muster_sealed_client::{SealedSession, SentRequest, draw_nonce};
use parking_lot::Mutex;

use crate::request::RelayedRequest;

/// Makes the nonces of one gateway.
#[derive(Default)]
pub(crate) struct NonceMaker {
    key: Mutex<Option<[u8; 32]>>,
    sessions: Mutex<HashMap<SessionId, SessionNonces>>,
}

/// The nonces of one session.
struct SessionNonces {
    /// Digest of the session's attestation.
    attestation: Digest,
    /// The ordinals of each request of a client.
    ordinals: HashMap<Digest, Ordinals>,
}

/// The ordinals of equal requests. A proof may have one below the number of the proofs of such requests, so the ordinal
/// of a request that the session did not take is given again.
#[derive(Default)]
struct Ordinals {
    next: u64,
    returned: BTreeSet<u64>,
}

/// A nonce, and how it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IssuedNonce {
    /// 32 bytes that the session signs with its answer.
    pub(crate) nonce: RequestNonce,
    /// The request's digest and ordinal; `None` of a random nonce.
    made: Option<(Digest, u64)>,
}

/// The facts of a request that fix its nonce, beside the session and the ordinal.
pub(crate) struct RequestFacts {
    /// The pseudonym under which the session sees the request.
    pub(crate) client: Digest,
    client_nonce: Option<RequestNonce>,
    input: Digest,
}

impl NonceMaker {
    /// Makes nonces by this key from now on; random ones without a key.
    pub(crate) fn use_key(&self, key: Option<[u8; 32]>) {
        *self.key.lock() = key;
    }

    /// The nonce of a request that is about to be sent to a session. No two requests have the same at one time.
    ///
    /// # Errors
    /// There is no key, and the operating system has no randomness.
    pub(crate) fn make(
        &self,
        session: &SealedSession,
        facts: &RequestFacts,
    ) -> Result<IssuedNonce, getrandom::Error> {
        let random = || {
            Ok(IssuedNonce {
                nonce: draw_nonce()?,
                made: None,
            })
        };
        let key = *self.key.lock();
        let Some(key) = key else { return random() };
        match self.derive(&key, session.id(), session.attestation(), facts) {
            Some(issued) => Ok(issued),
            None => random(),
        }
    }

    /// `None` if the attestation cannot be decoded.
    fn derive(
        &self,
        key: &[u8; 32],
        session: SessionId,
        attestation: &str,
        facts: &RequestFacts,
    ) -> Option<IssuedNonce> {
        let mut sessions = self.sessions.lock();
        let nonces = match sessions.entry(session) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => new.insert(SessionNonces {
                attestation: Envelope::<Attestation>::from_text(attestation).ok()?.digest(),
                ordinals: HashMap::new(),
            }),
        };
        let digest = facts.digest();
        let ordinal = nonces.ordinals.entry(digest).or_default().take();
        let input = NonceInput {
            attestation: &nonces.attestation,
            client: &facts.client,
            client_nonce: facts.client_nonce.as_ref(),
            request: &facts.input,
            ordinal,
        };
        Some(IssuedNonce {
            nonce: RequestNonce::derive(key, &input),
            made: Some((digest, ordinal)),
        })
    }

    /// Takes back the nonce of a request that the session did not take: no connection came, or its seal refused it.
    /// The next equal request of its client gets it again. Otherwise a miner that refuses each request once would have
    /// answers whose nonces nobody can check. A nonce that the session may still sign stays used: signed twice, it
    /// would stand in the proofs of two answers.
    pub(crate) fn take_back(&self, session: SessionId, issued: IssuedNonce) {
        let Some((digest, ordinal)) = issued.made else {
            return;
        };
        let mut sessions = self.sessions.lock();
        let ordinals = sessions
            .get_mut(&session)
            .and_then(|known| known.ordinals.get_mut(&digest));
        if let Some(ordinals) = ordinals {
            ordinals.returned.insert(ordinal);
        }
    }

    /// Forgets a session that gets no more requests.
    pub(crate) fn forget(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
    }
}

impl Ordinals {
    /// The lowest ordinal that no request has.
    fn take(&mut self) -> u64 {
        self.returned.pop_first().unwrap_or_else(|| {
            let ordinal = self.next;
            self.next = ordinal.saturating_add(1);
            ordinal
        })
    }
}

impl IssuedNonce {
    /// The nonce of an own prompt, which its position fixes.
    pub(crate) const fn fixed(nonce: RequestNonce) -> Self {
        Self { nonce, made: None }
    }
}

impl RequestFacts {
    /// The facts of a request that is about to be sent to a session.
    pub(crate) fn of(session: &SealedSession, request: &RelayedRequest) -> Self {
        let input = SentRequest::digest_body(session.service().scheme, &request.body);
        Self {
            client: request.client.pseudonym(&input),
            client_nonce: request.client_nonce,
            input,
        }
    }

    fn digest(&self) -> Digest {
        let nonce = self.client_nonce.map(|nonce| *nonce.as_bytes());
        let nonce = nonce.as_ref().map_or(&[][..], <[u8; 32]>::as_slice);
        Digest::of(&[self.client.as_bytes(), self.input.as_bytes(), nonce].concat())
    }
}

#[cfg(test)]
mod tests {
    use muster_identity::Keypair;
    use muster_protocol::{AttemptId, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
    use muster_response_proof::{HashScheme, Price, Text, seal};
    use uuid::Uuid;

    use super::*;

    fn attestation(session: u128) -> String {
        let miner = Keypair::from_seed([1; 32]);
        let statement = Attestation {
            session: SessionId(Uuid::from_u128(session)),
            session_key: miner.hotkey(),
            job: JobId::from_uuid(Uuid::from_u128(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
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
            not_after: Timestamp::from_secs(9),
        };
        seal(&statement, &miner).to_text()
    }

    fn facts(client: &[u8], client_nonce: Option<u8>) -> RequestFacts {
        RequestFacts {
            client: Digest::of(client),
            client_nonce: client_nonce.map(|byte| RequestNonce::from_bytes([byte; 32])),
            input: Digest::of(b"request"),
        }
    }

    #[test]
    fn every_request_of_every_session_has_a_nonce_of_its_own_that_the_key_gives() {
        let maker = NonceMaker::default();
        let session = |number: u128| SessionId(Uuid::from_u128(number));
        let make = |number: u128, facts: &RequestFacts| {
            maker
                .derive(&[7; 32], session(number), &attestation(number), facts)
                .unwrap()
                .nonce
        };
        let all = [
            make(1, &facts(b"a", None)),
            make(1, &facts(b"a", None)),
            make(1, &facts(b"a", Some(1))),
            make(1, &facts(b"b", None)),
            // The same request on another session, as after a failed attempt.
            make(2, &facts(b"a", None)),
        ];
        let distinct: std::collections::HashSet<RequestNonce> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        let attested = Envelope::<Attestation>::from_text(&attestation(1))
            .unwrap()
            .digest();
        for (ordinal, nonce) in [(0, all[0]), (1, all[1])] {
            let input = NonceInput {
                attestation: &attested,
                client: &Digest::of(b"a"),
                client_nonce: None,
                request: &Digest::of(b"request"),
                ordinal,
            };
            assert_eq!(RequestNonce::derive(&[7; 32], &input), nonce);
        }
        maker.forget(session(1));
        assert_eq!(maker.sessions.lock().len(), 1);
    }

    #[test]
    fn a_returned_nonce_is_given_again_and_to_one_request_at_a_time() {
        let maker = NonceMaker::default();
        let session = SessionId(Uuid::from_u128(1));
        let make = || {
            maker
                .derive(&[7; 32], session, &attestation(1), &facts(b"a", None))
                .unwrap()
        };
        let (first, second) = (make(), make());
        maker.take_back(session, first);
        assert_eq!(make(), first, "the refused request has its ordinal again");
        let third = make();
        assert!(third != first && third != second);
        maker.take_back(session, third);
        maker.take_back(session, second);
        assert_eq!([make(), make()], [second, third], "the lowest comes first");
        maker.forget(session);
        maker.take_back(session, second);
        assert!(
            maker.sessions.lock().is_empty(),
            "a session that is over has none"
        );
    }

    #[test]
    fn an_attestation_that_cannot_be_read_gives_no_nonce() {
        let maker = NonceMaker::default();
        let made = maker.derive(&[7; 32], SessionId(Uuid::nil()), "?", &facts(b"a", None));
        assert_eq!(made, None);
    }
}
