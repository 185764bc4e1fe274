//! The validator's own prompts as they are asked: from one committed list, in order, each once.
//!
//! A list is named by a header before any of its prompts is asked. The prompts' pseudonyms follow from the hash of that
//! bucket's draw block, which does not exist when the header is signed.

use std::sync::atomic::{AtomicUsize, Ordering};

use muster_audit::CanaryList;
use muster_gateway::logged_session::OwnQuestion;
use muster_gateway::store::GatewayStore;
use muster_protocol::Digest;
use muster_response_proof::RequestNonce;
use muster_store::StoreError;
use parking_lot::Mutex;

use crate::store::audit_store::AuditStore;
use crate::store::own_prompts::PromptList;

/// The list that is in use. Headers name its root, so it changes only right after a bucket was closed, or before the
/// first one is.
#[derive(Debug)]
pub(crate) struct Prompts {
    current: Mutex<CurrentList>,
    /// Prompts that were sent and not answered yet.
    open: AtomicUsize,
}

#[derive(Debug, Clone)]
struct CurrentList {
    root: Digest,
    list: CanaryList,
    next: u64,
    /// The hash of the draw block of the bucket that committed to the list; `None` before that block.
    committed_by: Option<Digest>,
}

/// A prompt that is asked now.
pub(crate) struct NextPrompt {
    pub(crate) root: Digest,
    pub(crate) position: u64,
    body: bytes::Bytes,
    /// The pseudonym under which it is asked; no other prompt has it.
    client: Digest,
    /// The nonce with which it is asked, if its form has one.
    client_nonce: Option<RequestNonce>,
    is_chat: bool,
    pub(crate) model: String,
}

impl NextPrompt {
    /// The question in a session of the validator's own.
    pub(crate) fn into_question(self) -> OwnQuestion {
        OwnQuestion {
            is_chat: self.is_chat,
            body: self.body,
            client: self.client,
            client_nonce: self.client_nonce,
        }
    }
}

impl Prompts {
    /// Goes on with the list of this root; without one, with an empty list. Its prompts are asked once the commitment
    /// is known: see [`Self::find_commitment`].
    pub(crate) async fn restore(store: &AuditStore, root: Option<Digest>) -> Result<Self, StoreError> {
        let read = match root {
            Some(root) => store.read_list(&root).await?,
            None => PromptList {
                list: CanaryList::default(),
                next: 0,
            },
        };
        Ok(Self {
            current: Mutex::new(CurrentList {
                root: read.list.root(),
                list: read.list,
                next: read.next,
                committed_by: None,
            }),
            open: AtomicUsize::new(0),
        })
    }

    /// The root of the list in use.
    pub(crate) fn root(&self) -> Digest {
        self.current.lock().root
    }

    /// Whether the list has no prompt left.
    pub(crate) fn is_used_up(&self) -> bool {
        let current = self.current.lock();
        current.list.next(current.next).is_none()
    }

    /// Whether the rest of the list has a prompt for each of these models.
    pub(crate) fn has_all(&self, models: &[String]) -> bool {
        let mut current = self.current.lock().clone();
        // The models of the prompts do not follow from the commitment.
        current.committed_by.get_or_insert(current.root);
        let mut missing: Vec<&String> = models.iter().collect();
        while !missing.is_empty() {
            let Some(prompt) = prompt_at(&current, current.next) else {
                return false;
            };
            current.next = current.next.saturating_add(1);
            missing.retain(|model| **model != prompt.model);
        }
        true
    }

    /// The next prompts for a model, at most `most`. Prompts for other models that come before them are left out.
    pub(crate) fn take_of(&self, model: &str, most: usize) -> Vec<NextPrompt> {
        let mut taken = Vec::new();
        while taken.len() < most {
            match self.take_next() {
                Some(prompt) if prompt.model == model => taken.push(prompt),
                Some(_) => {}
                None => break,
            }
        }
        taken
    }

    /// Begins another list. Only right after a bucket was closed, or before the first one is.
    pub(crate) fn replace(&self, list: CanaryList) {
        *self.current.lock() = CurrentList {
            root: list.root(),
            list,
            next: 0,
            committed_by: None,
        };
    }

    /// The number of prompts that were sent and not answered yet.
    pub(crate) fn count_open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Whether prompts were sent and not answered yet.
    pub(crate) fn has_open(&self) -> bool {
        self.count_open() > 0
    }

    /// Notes that a prompt is sent.
    pub(crate) fn note_open(&self) {
        self.open.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that a prompt was answered, or will not be.
    pub(crate) fn note_closed(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether there is no list yet: no header can name one whose answers are missing.
    pub(crate) fn is_unused(&self) -> bool {
        self.current.lock().list.next(0).is_none()
    }

    /// Whether a header has to name the list, even one of a bucket without answers, before a prompt can be asked.
    pub(crate) fn awaits_commitment(&self) -> bool {
        let current = self.current.lock();
        current.committed_by.is_none() && current.list.next(current.next).is_some()
    }

    /// Looks for the draw block of the bucket that committed to the list, unless it is known.
    pub(crate) async fn find_commitment(&self, log: &GatewayStore) -> Result<(), StoreError> {
        let root = match &*self.current.lock() {
            current if current.committed_by.is_none() => current.root,
            _ => return Ok(()),
        };
        let Some(draw) = log
            .first_bucket_of_list(&root)
            .await?
            .and_then(|first| first.draw)
        else {
            return Ok(());
        };
        let mut current = self.current.lock();
        if current.root == root {
            current.committed_by = Some(draw.block_hash);
        }
        Ok(())
    }

    /// All prompts of the list, in their order, none of which is asked by anybody else from now on; `None` before the
    /// draw block of its commitment.
    pub(crate) fn take_all(&self) -> Option<Vec<NextPrompt>> {
        self.current.lock().committed_by?;
        Some(std::iter::from_fn(|| self.take_next()).collect())
    }

    /// The next prompt for any model.
    pub(crate) fn take_next(&self) -> Option<NextPrompt> {
        let mut current = self.current.lock();
        let prompt = prompt_at(&current, current.next)?;
        current.next = current.next.saturating_add(1);
        Some(prompt)
    }
}

fn prompt_at(current: &CurrentList, position: u64) -> Option<NextPrompt> {
    let canary = current.list.next(position)?;
    let asked: serde_json::Value = serde_json::from_slice(&canary.request).ok()?;
    let block_hash = current.committed_by?;
    Some(NextPrompt {
        root: current.root,
        position,
        body: canary.request.clone().into(),
        client: canary.client(&block_hash),
        client_nonce: canary.client_nonce(&block_hash),
        is_chat: asked.get("messages").is_some(),
        model: asked.get("model")?.as_str()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use muster_store::testing::stores;
    use muster_validator_store::MIGRATIONS;

    use muster_audit::own_prompts::{ListPlan, PromptedModel, Repeats, SamplerNeeds, built_in, make_list};
    use muster_protocol::Timestamp;

    use super::*;

    fn list(seed: u8) -> CanaryList {
        let model = PromptedModel {
            name: "tiny".to_owned(),
            needs: SamplerNeeds::Nothing,
            forms: Vec::new(),
            chats: Vec::new(),
        };
        let plan = ListPlan {
            models: &[model],
            fresh: &[],
            texts: &built_in(),
            tokens: 16,
            repeats: Repeats(2),
        };
        make_list(&plan, &[seed; 32])
    }

    #[tokio::test]
    async fn the_list_of_a_self_test_is_named_and_none_of_its_prompts_is_asked_of_others() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = AuditStore::new(test.pool.clone(), test.writer());
            let prompts = Prompts::restore(&store, None).await.unwrap();
            prompts.replace(list(2));
            assert!(prompts.take_all().is_none(), "no header has committed to it");
            prompts.current.lock().committed_by = Some(Digest::of(b"block"));
            assert_eq!(
                prompts.take_all().map_or(0, |all| all.len()),
                2,
                "the test itself asks all"
            );
            assert_eq!(prompts.root(), list(2).root());
            assert!(prompts.is_used_up() && prompts.take_of("tiny", 9).is_empty());
            assert!(!prompts.has_all(&["tiny".to_owned()]));
        }
    }

    #[tokio::test]
    async fn the_first_answer_to_a_prompt_stands() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = AuditStore::new(test.pool.clone(), test.writer());
            let now = Timestamp::from_secs(9);
            store.insert_list(&list(1), now).await.unwrap();
            let root = list(1).root();
            store.note_sent(&root, 0, now).await.unwrap();
            for answer in ["of the test", "of another miner"] {
                store.note_answer(&root, 0, answer).await.unwrap();
            }
            let answered = store.answered_prompts(now).await.unwrap();
            let ids: Vec<&String> = answered.keys().collect();
            assert_eq!(ids, ["of the test"], "{}", test.engine);
        }
    }
}
