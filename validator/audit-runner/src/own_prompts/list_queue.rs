//! Lists of own prompts on their way: planned for a session, committed to by the next header, and asked once the draw
//! block of that header has given the prompts their nonces.

use std::collections::BTreeMap;

use muster_audit::{CanaryList, ListHead, OwnPromptKey};
use muster_gateway::logged_session::OwnQuestion;
use muster_protocol::Digest;
use muster_response_proof::{Attestation, BucketNumber, Envelope, RequestNonce};
use muster_sealed_client::SealedSession;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The lists that wait for a header or for its draw block. A restart loses them: their prompts are never asked.
#[derive(Debug, Default)]
pub(crate) struct ListQueue {
    planned: Mutex<Vec<PlannedList>>,
    committed: Mutex<BTreeMap<BucketNumber, Vec<PlannedList>>>,
}

/// A list of prompts for one session.
#[derive(Debug)]
pub(crate) struct PlannedList {
    pub(crate) head: ListHead,
    /// The digest by which headers and answers name the list.
    pub(crate) digest: Digest,
    pub(crate) list: CanaryList,
    /// Whether the engine draws by a seed that the request names.
    names_seeds: bool,
    ready: oneshot::Sender<Vec<NextPrompt>>,
}

/// A prompt that may be asked now, once.
#[derive(Debug)]
pub(crate) struct NextPrompt {
    /// The digest of its list.
    pub(crate) list: Digest,
    pub(crate) position: u64,
    body: bytes::Bytes,
    /// The pseudonym under which it is asked; no other prompt has it.
    client: Digest,
    /// The nonce with which it is asked, if its form has one.
    client_nonce: Option<RequestNonce>,
    gateway_nonce: RequestNonce,
    is_chat: bool,
}

impl NextPrompt {
    /// The question in the session that the list names.
    pub(crate) fn into_question(self) -> OwnQuestion {
        OwnQuestion {
            is_chat: self.is_chat,
            body: self.body,
            client: self.client,
            client_nonce: self.client_nonce,
            gateway_nonce: self.gateway_nonce,
        }
    }
}

impl ListQueue {
    /// Plans a list for a session. Its prompts come once its header has a draw block; the sender is dropped if the
    /// header cannot be stored. `None` if the session's attestation cannot be read, the list is empty, or the system
    /// gives no random bytes.
    pub(crate) fn plan(
        &self,
        session: &SealedSession,
        list: CanaryList,
        names_seeds: bool,
    ) -> Option<oneshot::Receiver<Vec<NextPrompt>>> {
        let attested = Envelope::<Attestation>::from_text(session.attestation()).ok()?;
        let mut salt = [0; 32];
        getrandom::fill(&mut salt).ok()?;
        let head = ListHead {
            salt,
            session: attested.digest(),
            miner: session.miner(),
            model: session.service().model.clone(),
            length: list.length(),
            root: list.root(),
        };
        if head.length == 0 {
            return None;
        }
        let (ready, prompts) = oneshot::channel();
        self.planned.lock().push(PlannedList {
            digest: head.digest(),
            head,
            list,
            names_seeds,
            ready,
        });
        Some(prompts)
    }

    /// The lists that the next header commits to.
    pub(crate) fn take_planned(&self) -> Vec<PlannedList> {
        std::mem::take(&mut *self.planned.lock())
    }

    /// Notes that the header of this bucket commits to these lists.
    pub(crate) fn note_committed(&self, bucket: BucketNumber, lists: Vec<PlannedList>) {
        self.committed.lock().insert(bucket, lists);
    }

    /// Hands out the prompts of the lists to which the header of this bucket commits.
    pub(crate) fn release(&self, bucket: BucketNumber, block_hash: &Digest, key: &OwnPromptKey) {
        let lists = self.committed.lock().remove(&bucket).unwrap_or_default();
        for list in lists {
            let prompts = list.prompts(block_hash, key);
            // The task that asks may have ended.
            let _ = list.ready.send(prompts);
        }
    }
}

impl PlannedList {
    fn prompts(&self, block_hash: &Digest, key: &OwnPromptKey) -> Vec<NextPrompt> {
        let prompts = (0..).zip(self.list.iter()).filter_map(|(position, canary)| {
            let asked: serde_json::Value = serde_json::from_slice(&canary.request).ok()?;
            let filled = self
                .names_seeds
                .then(|| key.fill_seed(&canary.request, &self.digest, position));
            Some(NextPrompt {
                list: self.digest,
                position,
                body: filled.flatten().unwrap_or_else(|| canary.request.clone()).into(),
                client: canary.client(block_hash),
                client_nonce: canary.client_nonce(block_hash),
                gateway_nonce: key.nonce(&self.digest, position),
                is_chat: asked.get("messages").is_some(),
            })
        });
        prompts.collect()
    }
}
