//! The proofs of a session as their receiver checks them: each against the observed exchange, and all of them as one
//! chain.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use muster_http::is_event_stream;
use muster_protocol::{Digest, Hotkey, Signature, Timestamp};

use crate::attestation::Attestation;
use crate::codec::LayoutError;
use crate::envelope::Envelope;
use crate::hash_scheme::HashScheme;
use crate::nonce::RequestNonce;
use crate::proof::ResponseProof;
use crate::session_close::SessionClose;

/// The furthest that a proof's number may be ahead of the next expected one: as many responses may be under way at
/// once.
const WINDOW: u64 = 4096;

/// Why a proof is rejected. Each kind of forgery has a variant of its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Forgery {
    /// The bytes cannot be read as a proof.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The session key did not sign these bytes: they were altered, or belong to another session.
    #[error("the session key did not sign this proof: it was altered, or is another session's")]
    Signature,
    /// It names another session.
    #[error("the proof is of another session")]
    Session,
    /// It names another attestation.
    #[error("the proof refers to another attestation than the miner's for this session")]
    Attestation,
    /// It names another job or attempt.
    #[error("the proof is of another job")]
    Job,
    /// It was made for another validator.
    #[error("the proof was made for another validator")]
    Audience,
    /// It was made outside the time for which the miner attested the session.
    #[error("the response lies outside the time for which the miner attested the session")]
    Expired,
    /// Its digests use another scheme than was attested.
    #[error("the proof hashes by {0:?}, the session was attested for another scheme")]
    Scheme(HashScheme),
    /// Its number was used before: the same proof again, or two proofs of one number.
    #[error("response {0} was proven before")]
    Replayed(u64),
    /// Its number is implausibly far ahead.
    #[error("response {got} is far ahead of {expected}, which is the next")]
    Ahead {
        /// The next number of the chain.
        expected: u64,
        /// The proof's number.
        got: u64,
    },
    /// It does not refer to the proof before it: proofs were reordered, or one was exchanged.
    #[error("response {0} does not follow on the one before it")]
    Chain(u64),
    /// Its nonces are those of another request.
    #[error("the proof carries another request's nonce")]
    Nonce,
    /// It names another client's pseudonym than the checker sent, or none.
    #[error("the proof names another client than the request did")]
    Client,
    /// It states another method, path or request body.
    #[error("the proof is of another request: {0} differs")]
    Request(&'static str),
    /// It states another status, content type or response body.
    #[error("the proof is of another response: {0} differs")]
    Response(&'static str),
    /// Its times contradict one another.
    #[error("the proof's times run backwards")]
    Backwards,
    /// Its times contradict the checker's clock.
    #[error("the proof's times are {} ms off the time at which it was seen", .0.as_millis())]
    Clock(Duration),
    /// Responses are missing at the close.
    #[error("{0} responses of the session were never proven")]
    Gap(u64),
}

/// A request and its response as the checker observed them.
#[derive(Clone, Debug)]
pub struct ObservedExchange<'a> {
    /// The pseudonym of the client that the request carried, if it carried one.
    pub client: Option<Digest>,
    /// The nonce of the checker's client, if the request carried one.
    pub client_nonce: Option<RequestNonce>,
    /// The checker's own nonce of the request.
    pub gateway_nonce: Option<RequestNonce>,
    /// The method of the request.
    pub method: &'a str,
    /// Path and query of the request.
    pub path: &'a str,
    /// Digest of the request's body, by the session's scheme.
    pub input: Digest,
    /// The status of the response.
    pub status: u16,
    /// The `Content-Type` of the response.
    pub content_type: Option<&'a str>,
    /// Digest of the response's body, by the session's scheme; `None` if its end did not arrive.
    pub output: Option<Digest>,
    /// Bytes of the body that arrived, without the comment line that carries the proof.
    pub output_bytes: u64,
    /// The time at which the request was sent, by the checker's clock.
    pub asked: Timestamp,
    /// The time at which the last byte arrived, by the checker's clock.
    pub ended: Timestamp,
}

/// The difference between clocks that a check tolerates.
#[derive(Clone, Copy, Debug)]
pub struct ClockTolerance {
    /// The most by which the checker's clock and the executor's may differ.
    pub skew: Duration,
}

/// The chain of one session's proofs, which may arrive in any order.
#[derive(Debug)]
pub struct ProofLedger {
    attestation: Attestation,
    attested: Digest,
    /// Every response below this number is proven, and the proofs form a chain.
    next: u64,
    /// Digest of the proof before `next`.
    last: Digest,
    /// Proofs with later numbers: the digest to which each refers, and its own.
    early: BTreeMap<u64, (Digest, Digest)>,
}

impl ProofLedger {
    /// An empty ledger. The caller has checked that the miner signed the attestation.
    ///
    /// # Errors
    /// The attestation cannot be read.
    pub fn open(attestation: &Envelope<Attestation>) -> Result<Self, LayoutError> {
        let attested = attestation.digest();
        Ok(Self {
            attestation: attestation.statement()?,
            attested,
            next: 0,
            last: attested,
            early: BTreeMap::new(),
        })
    }

    /// A ledger for a checker that sees one response of a session and none before it: the next proof has the number
    /// `next` and refers to the digest `last`.
    ///
    /// # Errors
    /// The attestation cannot be read.
    pub fn after(attestation: &Envelope<Attestation>, next: u64, last: Digest) -> Result<Self, LayoutError> {
        Ok(Self {
            next,
            last,
            ..Self::open(attestation)?
        })
    }

    /// The attestation of the session.
    pub const fn attestation(&self) -> &Attestation {
        &self.attestation
    }

    /// Checks a proof against the observed exchange and adds it to the chain. `is_signed` says whether a key signed
    /// bytes.
    ///
    /// # Errors
    /// The first check that fails. The ledger is then unchanged.
    pub fn accept(
        &mut self,
        proof: &Envelope<ResponseProof>,
        seen: &ObservedExchange<'_>,
        tolerance: ClockTolerance,
        is_signed: impl FnOnce(&Hotkey, &[u8], &Signature) -> bool,
    ) -> Result<ResponseProof, Forgery> {
        let stated = self.read(proof, is_signed)?;
        check_exchange(&stated, seen)?;
        check_times(&stated, seen, tolerance)?;
        self.append(&stated, proof.digest())?;
        Ok(stated)
    }

    /// Adds a proof to the chain whose response was not observed, because its client went away before the response
    /// came. Its statements about that response cannot be checked.
    ///
    /// # Errors
    /// The first check that fails. The ledger is then unchanged.
    pub fn accept_unseen(
        &mut self,
        proof: &Envelope<ResponseProof>,
        is_signed: impl FnOnce(&Hotkey, &[u8], &Signature) -> bool,
    ) -> Result<ResponseProof, Forgery> {
        let stated = self.read(proof, is_signed)?;
        self.append(&stated, proof.digest())?;
        Ok(stated)
    }

    /// The number up to which every response is proven.
    pub const fn proven(&self) -> u64 {
        self.next
    }

    /// Whether the response with this number is proven.
    pub fn is_proven(&self, number: u64) -> bool {
        number < self.next || self.early.contains_key(&number)
    }

    /// The ranges of unproven numbers below the highest proven one.
    pub fn missing(&self) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut from = self.next;
        for &number in self.early.keys() {
            if number > from {
                gaps.push(from..number);
            }
            from = number.saturating_add(1);
        }
        gaps
    }

    /// Checks the session's closing statement.
    ///
    /// # Errors
    /// The statement is of another session, or responses are missing.
    pub fn close(
        &self,
        close: &Envelope<SessionClose>,
        is_signed: impl FnOnce(&Hotkey, &[u8], &Signature) -> bool,
    ) -> Result<SessionClose, Forgery> {
        if !is_signed(
            &self.attestation.session_key,
            close.signed_bytes(),
            close.signature(),
        ) {
            return Err(Forgery::Signature);
        }
        let stated = close.statement()?;
        if stated.session != self.attestation.session {
            return Err(Forgery::Session);
        }
        if stated.attestation != self.attested {
            return Err(Forgery::Attestation);
        }
        if stated.responses > self.next {
            let known = u64::try_from(self.early.len()).unwrap_or(u64::MAX);
            return Err(Forgery::Gap((stated.responses - self.next).saturating_sub(known)));
        }
        if stated.responses < self.next || !self.early.is_empty() {
            return Err(Forgery::Replayed(stated.responses));
        }
        if stated.last != self.last {
            return Err(Forgery::Chain(stated.responses));
        }
        Ok(stated)
    }

    /// Reads a proof, and checks that the session key signed it and that it belongs to this session.
    fn read(
        &self,
        proof: &Envelope<ResponseProof>,
        is_signed: impl FnOnce(&Hotkey, &[u8], &Signature) -> bool,
    ) -> Result<ResponseProof, Forgery> {
        if !is_signed(
            &self.attestation.session_key,
            proof.signed_bytes(),
            proof.signature(),
        ) {
            return Err(Forgery::Signature);
        }
        let stated = proof.statement()?;
        self.check_session(&stated)?;
        Ok(stated)
    }

    fn check_session(&self, stated: &ResponseProof) -> Result<(), Forgery> {
        let own = &self.attestation;
        if stated.session != own.session {
            return Err(Forgery::Session);
        }
        if stated.attestation != self.attested {
            return Err(Forgery::Attestation);
        }
        if stated.job != own.job || stated.attempt != own.attempt {
            return Err(Forgery::Job);
        }
        if stated.audience != own.audience {
            return Err(Forgery::Audience);
        }
        if stated.scheme != own.scheme {
            return Err(Forgery::Scheme(stated.scheme));
        }
        if stated.from < own.not_before || stated.to > own.not_after {
            return Err(Forgery::Expired);
        }
        Ok(())
    }

    fn append(&mut self, stated: &ResponseProof, digest: Digest) -> Result<(), Forgery> {
        let got = stated.sequence;
        if got < self.next || self.early.contains_key(&got) {
            return Err(Forgery::Replayed(got));
        }
        if got - self.next > WINDOW {
            return Err(Forgery::Ahead {
                expected: self.next,
                got,
            });
        }
        let before = match got.checked_sub(1) {
            Some(before) if got > self.next => self.early.get(&before).map(|(_, own)| *own),
            Some(_) | None => Some(self.last),
        };
        let after = self
            .early
            .get(&got.saturating_add(1))
            .map(|(previous, _)| *previous);
        if before.is_some_and(|before| before != stated.previous) {
            return Err(Forgery::Chain(got));
        }
        if after.is_some_and(|previous| previous != digest) {
            return Err(Forgery::Chain(got));
        }
        self.early.insert(got, (stated.previous, digest));
        while let Some((_, own)) = self.early.remove(&self.next) {
            self.next += 1;
            self.last = own;
        }
        Ok(())
    }
}

/// Compares the proof with the observed request and response.
fn check_exchange(stated: &ResponseProof, seen: &ObservedExchange<'_>) -> Result<(), Forgery> {
    if stated.gateway_nonce != seen.gateway_nonce || stated.client_nonce != seen.client_nonce {
        return Err(Forgery::Nonce);
    }
    if stated.client != seen.client {
        return Err(Forgery::Client);
    }
    let request = [
        ("the method", stated.method.as_str() == seen.method),
        ("the path", stated.path.as_str() == seen.path),
        ("the body's digest", stated.input == seen.input),
    ];
    if let Some((what, _)) = request.iter().find(|(_, same)| !same) {
        return Err(Forgery::Request(what));
    }
    let content_type = stated.content_type.as_ref().map(super::codec::Text::as_str);
    // A checker that did not see the end saw a beginning, which is not longer than the whole.
    let (length, digest) = match seen.output {
        Some(output) => (stated.output_bytes == seen.output_bytes, stated.output == output),
        None => (stated.output_bytes >= seen.output_bytes, true),
    };
    let response = [
        ("the status", stated.status == seen.status),
        ("the content type", is_same_type(content_type, seen.content_type)),
        ("the length", length),
        ("the body's digest", digest),
    ];
    match response.iter().find(|(_, same)| !same) {
        Some((what, _)) => Err(Forgery::Response(what)),
        None => Ok(()),
    }
}

fn check_times(
    stated: &ResponseProof,
    seen: &ObservedExchange<'_>,
    tolerance: ClockTolerance,
) -> Result<(), Forgery> {
    let first = stated.first_byte.unwrap_or(stated.from);
    if stated.from > first || first > stated.to {
        return Err(Forgery::Backwards);
    }
    let early = seen.asked.since(stated.from);
    let late = stated.to.since(seen.ended);
    let off = early.max(late);
    if off > tolerance.skew {
        return Err(Forgery::Clock(off));
    }
    Ok(())
}

/// Whether two content types are the same. Parameters of an event stream do not count: a gateway whose client waits for
/// a session sends its own head before it knows the session's.
fn is_same_type(stated: Option<&str>, seen: Option<&str>) -> bool {
    stated == seen || (is_event_stream(stated) && is_event_stream(seen))
}
