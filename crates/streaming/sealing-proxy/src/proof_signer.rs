//! Numbers, chains and signs the responses of a session.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use muster_identity::Keypair;
use muster_process::SharedClock;
use muster_protocol::{Digest, Timestamp};
use muster_response_proof::{
    Attestation, BodyDigest, Envelope, HashScheme, LayoutError, RequestNonce, ResponseProof, SessionClose,
    StreamEnd, Text, TokenFacts, seal,
};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The number of proofs that are kept for clients that missed them: the latest ones.
pub const MAX_KEPT: usize = 4_096;

/// Why the responses of a session cannot be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    /// The attestation cannot be read.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The attestation names another key than the one that would sign.
    #[error("the attestation names another session key than the one at hand")]
    Key,
}

/// Signs the responses of one session. Every change of its chain of proofs happens here, one after another.
pub struct ProofSigner {
    key: Keypair,
    attestation: Envelope<Attestation>,
    stated: Attestation,
    /// Digest of the attestation's signed bytes.
    attested: Digest,
    clock: SharedClock,
    chain: Mutex<ProofChain>,
    closing: CancellationToken,
    under_way: TaskTracker,
}

struct ProofChain {
    /// The number of the next proof.
    next: u64,
    /// The digest to which the next proof refers.
    last: Digest,
    kept: BTreeMap<u64, Arc<str>>,
    close: Option<Envelope<SessionClose>>,
}

/// A part of a session's proofs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofPage {
    /// The number that the next proof will have.
    pub next: u64,
    /// Proofs with their numbers, in order: text forms of [`ResponseProof`].
    pub proofs: Vec<(u64, Arc<str>)>,
}

/// The facts that are signed about one response, except those that the chain adds.
#[derive(Clone, Debug)]
pub(crate) struct ResponseFacts {
    pub(crate) request: RequestFacts,
    pub(crate) input: Digest,
    pub(crate) status: u16,
    pub(crate) content_type: Option<Text>,
    pub(crate) first_byte: Option<Timestamp>,
}

/// The facts that are signed about a request's head.
#[derive(Clone, Debug)]
pub(crate) struct RequestFacts {
    pub(crate) method: Text,
    pub(crate) path: Text,
    pub(crate) client: Option<Digest>,
    pub(crate) client_nonce: Option<RequestNonce>,
    pub(crate) gateway_nonce: Option<RequestNonce>,
    /// The time at which the head was read.
    pub(crate) from: Timestamp,
}

impl ProofSigner {
    /// A signer for the session that a miner attested.
    ///
    /// # Errors
    /// The attestation cannot be read, or names another key.
    pub fn new(
        key: Keypair,
        attestation: Envelope<Attestation>,
        clock: SharedClock,
    ) -> Result<Arc<Self>, SignerError> {
        let stated = attestation.statement()?;
        if stated.session_key != key.hotkey() {
            return Err(SignerError::Key);
        }
        let attested = attestation.digest();
        Ok(Arc::new(Self {
            key,
            attestation,
            stated,
            attested,
            clock,
            chain: Mutex::new(ProofChain {
                next: 0,
                last: attested,
                kept: BTreeMap::new(),
                close: None,
            }),
            closing: CancellationToken::new(),
            under_way: TaskTracker::new(),
        }))
    }

    /// The attestation with the miner's signature.
    pub fn attestation(&self) -> &Envelope<Attestation> {
        &self.attestation
    }

    /// The attestation's statement.
    pub fn session(&self) -> &Attestation {
        &self.stated
    }

    /// The scheme of the session's digests.
    pub fn scheme(&self) -> HashScheme {
        self.stated.scheme
    }

    /// The number of responses under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The number of signed responses.
    pub fn signed(&self) -> u64 {
        self.chain().next
    }

    /// The kept proofs from the number `from` on, at most `max`.
    pub fn proofs(&self, from: u64, max: usize) -> ProofPage {
        let chain = self.chain();
        let wanted = chain.kept.range(from..).take(max);
        ProofPage {
            next: chain.next,
            proofs: wanted
                .map(|(number, proof)| (*number, Arc::clone(proof)))
                .collect(),
        }
    }

    /// Ends every response that is under way. No response begins any more.
    pub fn begin_close(&self) {
        self.closing.cancel();
        self.under_way.close();
    }

    /// Whether [`Self::begin_close`] was called.
    pub fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Waits until [`Self::begin_close`] is called, by this program or by the session's client.
    pub async fn wait_closing(&self) {
        self.closing.cancelled().await;
    }

    /// Waits until no response is under way. The caller calls [`Self::begin_close`] first.
    pub async fn wait_drained(&self) {
        self.under_way.wait().await;
    }

    /// Signs the session's closing statement, after which nothing is signed. Every call returns the same statement.
    pub fn close(&self) -> Envelope<SessionClose> {
        self.begin_close();
        let at = self.clock.now();
        let mut chain = self.chain();
        let (responses, last) = (chain.next, chain.last);
        let close = chain.close.get_or_insert_with(|| {
            let close = SessionClose {
                session: self.stated.session,
                attestation: self.attested,
                responses,
                last,
                at,
            };
            seal(&close, &self.key)
        });
        close.clone()
    }

    /// The session's closing statement, if it was signed.
    pub fn closed(&self) -> Option<Envelope<SessionClose>> {
        self.chain().close.clone()
    }

    /// Cancelled by [`Self::begin_close`].
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Counts the responses that are under way.
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.under_way
    }

    pub(crate) fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// Signs a response. Returns the proof's text form; `None` once the session is closed.
    pub(crate) fn sign(
        &self,
        facts: &ResponseFacts,
        output: BodyDigest,
        tokens: Option<TokenFacts>,
        end: StreamEnd,
    ) -> Option<Arc<str>> {
        let request = &facts.request;
        let mut chain = self.chain();
        if chain.close.is_some() {
            return None;
        }
        let proof = ResponseProof {
            session: self.stated.session,
            sequence: chain.next,
            previous: chain.last,
            job: self.stated.job,
            attempt: self.stated.attempt,
            audience: self.stated.audience,
            client: request.client,
            attestation: self.attested,
            client_nonce: request.client_nonce,
            gateway_nonce: request.gateway_nonce,
            method: request.method.clone(),
            path: request.path.clone(),
            status: facts.status,
            content_type: facts.content_type.clone(),
            scheme: self.stated.scheme,
            input: facts.input,
            output: output.digest,
            output_bytes: output.bytes,
            chunks: output.chunks,
            from: request.from,
            first_byte: facts.first_byte,
            to: self.clock.now(),
            tokens,
            engine: None,
            end,
        };
        let envelope = seal(&proof, &self.key);
        let text: Arc<str> = envelope.to_text().into();
        let number = chain.next;
        chain.next += 1;
        chain.last = envelope.digest();
        chain.kept.insert(number, Arc::clone(&text));
        while chain.kept.len() > MAX_KEPT {
            chain.kept.pop_first();
        }
        drop(chain);
        metrics::counter!("muster_sealed_responses_total", "end" => end.name()).increment(1);
        Some(text)
    }

    fn chain(&self) -> MutexGuard<'_, ProofChain> {
        self.chain.lock()
    }
}

impl fmt::Debug for ProofSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ProofSigner({}, {} signed)",
            self.stated.session,
            self.signed()
        )
    }
}
