//! Numbers, chains and signs what a session answers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use muster_identity::Keypair;
use muster_process::SharedClock;
use muster_protocol::{Digest, Timestamp};
use muster_response_proof::{
    Attestation, Envelope, HashScheme, LayoutError, Nonce, ResponseProof, SessionClose, StreamEnd, Text,
};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::digest::BodyDigest;

/// How many proofs are kept for whoever missed them.
pub const KEPT: usize = 4_096;

/// Why a session cannot be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealerError {
    /// The attestation cannot be read.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// It names another key than the one that would sign.
    #[error("the attestation names another session key than the one at hand")]
    Key,
}

/// Who signs for one session. Everything that happens to its chain of proofs happens here, one after another.
pub struct Sealer {
    key: Keypair,
    attestation: Envelope<Attestation>,
    stated: Attestation,
    attested: Digest,
    clock: SharedClock,
    chain: Mutex<Chain>,
    closing: CancellationToken,
    under_way: TaskTracker,
}

struct Chain {
    next: u64,
    last: Digest,
    kept: BTreeMap<u64, Arc<str>>,
    close: Option<Envelope<SessionClose>>,
}

/// Proofs by their numbers, for whoever missed them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The number that the next proof will have.
    pub next: u64,
    /// Those that were asked for and are still kept, in order: text forms of [`ResponseProof`].
    pub proofs: Vec<(u64, Arc<str>)>,
}

/// What is said about one response, but for what the chain adds.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) asked: Asking,
    pub(crate) input: Digest,
    pub(crate) status: u16,
    pub(crate) content_type: Option<Text>,
    pub(crate) first_byte: Option<Timestamp>,
}

/// A request's head as it is signed.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) method: Text,
    pub(crate) path: Text,
    pub(crate) client: Option<Digest>,
    pub(crate) client_nonce: Option<Nonce>,
    pub(crate) gateway_nonce: Option<Nonce>,
    pub(crate) from: Timestamp,
}

impl Sealer {
    /// For the session that a miner attested.
    ///
    /// # Errors
    /// An attestation that is unreadable or of another key.
    pub fn new(
        key: Keypair,
        attestation: Envelope<Attestation>,
        clock: SharedClock,
    ) -> Result<Arc<Self>, SealerError> {
        let stated = attestation.statement()?;
        if stated.session_key != key.hotkey() {
            return Err(SealerError::Key);
        }
        let attested = attestation.digest();
        Ok(Arc::new(Self {
            key,
            attestation,
            stated,
            attested,
            clock,
            chain: Mutex::new(Chain {
                next: 0,
                last: attested,
                kept: BTreeMap::new(),
                close: None,
            }),
            closing: CancellationToken::new(),
            under_way: TaskTracker::new(),
        }))
    }

    /// What the miner signed.
    pub fn attestation(&self) -> &Envelope<Attestation> {
        &self.attestation
    }

    /// What it says.
    pub fn session(&self) -> &Attestation {
        &self.stated
    }

    /// What digests are over.
    pub fn scheme(&self) -> HashScheme {
        self.stated.scheme
    }

    /// How many responses are under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// How many have been signed.
    pub fn signed(&self) -> u64 {
        self.chain().next
    }

    /// Proofs from a number on, `most` at most.
    pub fn proofs(&self, from: u64, most: usize) -> Kept {
        let chain = self.chain();
        let wanted = chain.kept.range(from..).take(most);
        Kept {
            next: chain.next,
            proofs: wanted
                .map(|(number, proof)| (*number, Arc::clone(proof)))
                .collect(),
        }
    }

    /// Every response that is under way ends now, and none begins any more.
    pub fn begin_close(&self) {
        self.closing.cancel();
        self.under_way.close();
    }

    /// Whether [`Self::begin_close`] was called.
    pub fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Waits until [`Self::begin_close`] is called, here or by the session's client.
    pub async fn close_begun(&self) {
        self.closing.cancelled().await;
    }

    /// Waits until nothing is under way. [`Self::begin_close`] comes first.
    pub async fn drained(&self) {
        self.under_way.wait().await;
    }

    /// The session's last word: nothing is signed after it. The same one every time.
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
            Envelope::new(&close, |bytes| self.key.sign(bytes))
        });
        close.clone()
    }

    /// The session's last word, if it has been said.
    pub fn closed(&self) -> Option<Envelope<SessionClose>> {
        self.chain().close.clone()
    }

    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.under_way
    }

    pub(crate) fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// Signs a response. `None` once the session is closed.
    pub(crate) fn sign(&self, facts: &Facts, output: BodyDigest, end: StreamEnd) -> Option<Arc<str>> {
        let asked = &facts.asked;
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
            client: asked.client,
            attestation: self.attested,
            client_nonce: asked.client_nonce,
            gateway_nonce: asked.gateway_nonce,
            method: asked.method.clone(),
            path: asked.path.clone(),
            status: facts.status,
            content_type: facts.content_type.clone(),
            scheme: self.stated.scheme,
            input: facts.input,
            output: output.digest,
            output_bytes: output.bytes,
            chunks: output.chunks,
            from: asked.from,
            first_byte: facts.first_byte,
            to: self.clock.now(),
            tokens: None,
            engine: None,
            end,
        };
        let envelope = Envelope::new(&proof, |bytes| self.key.sign(bytes));
        let text: Arc<str> = envelope.to_text().into();
        let number = chain.next;
        chain.next += 1;
        chain.last = envelope.digest();
        chain.kept.insert(number, Arc::clone(&text));
        while chain.kept.len() > KEPT {
            chain.kept.pop_first();
        }
        drop(chain);
        metrics::counter!("muster_sealed_responses_total", "end" => end.name()).increment(1);
        Some(text)
    }

    fn chain(&self) -> MutexGuard<'_, Chain> {
        // It is whole between any two statements.
        self.chain.lock()
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer({}, {} signed)", self.stated.session, self.signed())
    }
}
