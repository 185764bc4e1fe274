//! A session's proofs as their audience checks them: each against what was seen, all of them against one another.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use muster_http::is_event_stream;
use muster_protocol::{Digest, Hotkey, Signature, Timestamp};

use crate::attestation::Attestation;
use crate::close::SessionClose;
use crate::envelope::Envelope;
use crate::layout::{LayoutError, Nonce};
use crate::proof::ResponseProof;
use crate::scheme::HashScheme;

/// How far ahead of the next expected number a proof may be: as many responses may be under way at once.
const WINDOW: u64 = 4096;

/// Why a proof is worth nothing. Each forgery has a name of its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Forgery {
    /// The bytes are no proof.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The session key did not sign these bytes: altered, or another's.
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
    /// Made outside the time for which the miner attested.
    #[error("the response lies outside the time for which the miner attested the session")]
    Expired,
    /// Digests over something else than was attested.
    #[error("the proof hashes by {0:?}, the session was attested for another scheme")]
    Scheme(HashScheme),
    /// A number that has been used: the same proof again, or two proofs of one number.
    #[error("response {0} was proven before")]
    Replayed(u64),
    /// A number that is not plausible.
    #[error("response {got} is far ahead of {expected}, which is the next")]
    Ahead {
        /// The next number.
        expected: u64,
        /// The proof's.
        got: u64,
    },
    /// It does not follow on the proof before it: reordered, or one was exchanged.
    #[error("response {0} does not follow on the one before it")]
    Chain(u64),
    /// Not for this request: its nonces are others.
    #[error("the proof carries another request's nonce")]
    Nonce,
    /// Not for this request: another method, path, or body.
    #[error("the proof is of another request: {0} differs")]
    Request(&'static str),
    /// Not for this response: another status, type or body.
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

/// What the checker saw itself.
#[derive(Clone, Debug)]
pub struct Exchange<'a> {
    /// What it or its client drew for this request.
    pub client_nonce: Option<Nonce>,
    /// What it drew for this request.
    pub gateway_nonce: Option<Nonce>,
    /// As it asked.
    pub method: &'a str,
    /// As it asked.
    pub path: &'a str,
    /// Of what it sent, by the session's scheme.
    pub input: Digest,
    /// As it came.
    pub status: u16,
    /// As it came.
    pub content_type: Option<&'a str>,
    /// Of what came, by the session's scheme; absent if the end did not come.
    pub output: Option<Digest>,
    /// Bytes of the body that came, our own comment line not counted.
    pub output_bytes: u64,
    /// When it began to send.
    pub asked: Timestamp,
    /// When the last byte came.
    pub ended: Timestamp,
}

/// What is tolerated.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Between the checker's clock and the executor's.
    pub skew: Duration,
}

/// The proofs of one session, in whatever order they arrive.
#[derive(Debug)]
pub struct Ledger {
    attestation: Attestation,
    attested: Digest,
    /// The number up to which everything is proven and chained.
    next: u64,
    /// Digest of the proof before `next`.
    last: Digest,
    /// Later ones: which digest each follows on, and its own.
    early: BTreeMap<u64, (Digest, Digest)>,
}

impl Ledger {
    /// For a session whose attestation has been checked: that its miner signed it is not asked here.
    ///
    /// # Errors
    /// The envelope cannot be read.
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

    /// For a checker who sees one response of a session and none before it: the next number is `next`, and follows on `last`.
    ///
    /// # Errors
    /// The envelope cannot be read.
    pub fn after(attestation: &Envelope<Attestation>, next: u64, last: Digest) -> Result<Self, LayoutError> {
        Ok(Self {
            next,
            last,
            ..Self::open(attestation)?
        })
    }

    /// What the miner attested.
    pub const fn attestation(&self) -> &Attestation {
        &self.attestation
    }

    /// Checks a proof against what was seen and takes its number. `signed` says whether a key signed bytes.
    ///
    /// # Errors
    /// The first thing that is wrong; the ledger is then as it was.
    pub fn accept(
        &mut self,
        proof: &Envelope<ResponseProof>,
        seen: &Exchange<'_>,
        bounds: Bounds,
        signed: impl FnOnce(&Hotkey, &[u8], &Signature) -> bool,
    ) -> Result<ResponseProof, Forgery> {
        let stated = self.read(proof, signed)?;
        self.agrees(&stated, seen)?;
        times(&stated, seen, bounds)?;
        self.number(&stated, proof.digest())?;
        Ok(stated)
    }

    /// Takes the number of a proof whose response nobody here saw: whoever had asked went away before it came. What it says
    /// of that response is the session's word alone.
    ///
    /// # Errors
    /// The first thing that is wrong; the ledger is then as it was.
    pub fn accept_unseen(
        &mut self,
        proof: &Envelope<ResponseProof>,
        signed: impl FnOnce(&Hotkey, &[u8], &Signature) -> bool,
    ) -> Result<ResponseProof, Forgery> {
        let stated = self.read(proof, signed)?;
        self.number(&stated, proof.digest())?;
        Ok(stated)
    }

    /// The number up to which every response is proven.
    pub const fn proven(&self) -> u64 {
        self.next
    }

    /// Numbers below the highest known that nobody has proven.
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

    /// Checks the session's last word.
    ///
    /// # Errors
    /// It is not this session's, or responses are missing.
    pub fn close(
        &self,
        close: &Envelope<SessionClose>,
        signed: impl FnOnce(&Hotkey, &[u8], &Signature) -> bool,
    ) -> Result<SessionClose, Forgery> {
        if !signed(
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

    /// A proof that the session key signed, and that is this session's.
    fn read(
        &self,
        proof: &Envelope<ResponseProof>,
        signed: impl FnOnce(&Hotkey, &[u8], &Signature) -> bool,
    ) -> Result<ResponseProof, Forgery> {
        if !signed(
            &self.attestation.session_key,
            proof.signed_bytes(),
            proof.signature(),
        ) {
            return Err(Forgery::Signature);
        }
        let stated = proof.statement()?;
        self.concerns_us(&stated)?;
        Ok(stated)
    }

    fn concerns_us(&self, stated: &ResponseProof) -> Result<(), Forgery> {
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

    fn agrees(&self, stated: &ResponseProof, seen: &Exchange<'_>) -> Result<(), Forgery> {
        if stated.gateway_nonce != seen.gateway_nonce || stated.client_nonce != seen.client_nonce {
            return Err(Forgery::Nonce);
        }
        let request = [
            ("the method", stated.method.as_str() == seen.method),
            ("the path", stated.path.as_str() == seen.path),
            ("the body's digest", stated.input == seen.input),
        ];
        if let Some((what, _)) = request.iter().find(|(_, same)| !same) {
            return Err(Forgery::Request(what));
        }
        let content_type = stated.content_type.as_ref().map(super::layout::Text::as_str);
        // Whoever did not see the end saw a beginning: at most what was sent.
        let (length, digest) = match seen.output {
            Some(output) => (stated.output_bytes == seen.output_bytes, stated.output == output),
            None => (stated.output_bytes >= seen.output_bytes, true),
        };
        let response = [
            ("the status", stated.status == seen.status),
            ("the content type", same_type(content_type, seen.content_type)),
            ("the length", length),
            ("the body's digest", digest),
        ];
        match response.iter().find(|(_, same)| !same) {
            Some((what, _)) => Err(Forgery::Response(what)),
            None => Ok(()),
        }
    }

    fn number(&mut self, stated: &ResponseProof, digest: Digest) -> Result<(), Forgery> {
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

fn times(stated: &ResponseProof, seen: &Exchange<'_>, bounds: Bounds) -> Result<(), Forgery> {
    let first = stated.first_byte.unwrap_or(stated.from);
    if stated.from > first || first > stated.to {
        return Err(Forgery::Backwards);
    }
    let early = seen.asked.since(stated.from);
    let late = stated.to.since(seen.ended);
    let off = early.max(late);
    if off > bounds.skew {
        return Err(Forgery::Clock(off));
    }
    Ok(())
}

/// Two names of one type. What a stream of events says beyond that it is one changes nothing about it, and a gateway that keeps its client
/// waiting says so before it knows what the session will say.
fn same_type(stated: Option<&str>, seen: Option<&str>) -> bool {
    stated == seen || (is_event_stream(stated) && is_event_stream(seen))
}
