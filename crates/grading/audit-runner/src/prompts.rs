//! The validator's own prompts as they are asked: from one committed list, in order, each once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use muster_audit::CanaryList;
use muster_protocol::Digest;
use muster_store::StoreError;
use parking_lot::Mutex;

use crate::RunnerState;
use crate::own_prompts::{LIST_PROMPTS, body_of, make_list};
use crate::store::{AuditStore, PromptList};

/// The list that is in use. Headers name its root, so it changes only right after a bucket was closed.
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
}

/// A prompt that is asked now.
pub(crate) struct NextPrompt {
    pub(crate) root: Digest,
    pub(crate) position: u64,
    pub(crate) body: bytes::Bytes,
    /// The pseudonym under which it is asked; no other prompt has it.
    pub(crate) client: Digest,
    model: String,
}

impl Prompts {
    /// Goes on with the list of this root; without one, with an empty list.
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
            }),
            open: AtomicUsize::new(0),
        })
    }

    /// The root of the list in use.
    pub(crate) fn root(&self) -> Digest {
        self.current.lock().root
    }

    fn is_used_up(&self) -> bool {
        let current = self.current.lock();
        current.list.next(current.next).is_none()
    }

    /// Whether the rest of the list has a prompt for each of these models.
    fn has_all(&self, models: &[String]) -> bool {
        let rest = Self {
            current: Mutex::new(self.current.lock().clone()),
            open: AtomicUsize::new(0),
        };
        let mut missing: Vec<&String> = models.iter().collect();
        while !missing.is_empty() {
            let Some(prompt) = rest.take_next() else {
                return false;
            };
            missing.retain(|model| **model != prompt.model);
        }
        true
    }

    /// The next prompts for a model, at most so many. Prompts for other models that come before them are left out.
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

    /// Begins another list. Only right after a bucket was closed.
    pub(crate) fn replace(&self, list: CanaryList) {
        *self.current.lock() = CurrentList {
            root: list.root(),
            list,
            next: 0,
        };
    }

    fn take_next(&self) -> Option<NextPrompt> {
        let mut current = self.current.lock();
        let prompt = prompt_at(&current.list, current.root, current.next)?;
        current.next = current.next.saturating_add(1);
        Some(prompt)
    }
}

/// All prompts of a list, in their order.
pub(crate) fn all_of(list: &CanaryList) -> Vec<NextPrompt> {
    let root = list.root();
    (0_u64..)
        .map_while(|position| prompt_at(list, root, position))
        .collect()
}

fn prompt_at(list: &CanaryList, root: Digest, position: u64) -> Option<NextPrompt> {
    let canary = list.next(position)?;
    let asked: serde_json::Value = serde_json::from_slice(&canary.request).ok()?;
    Some(NextPrompt {
        root,
        position,
        body: body_of(canary),
        client: canary.client(),
        model: asked.get("model")?.as_str()?.to_owned(),
    })
}

/// Asks the prompts that are due once a bucket is closed, each as a task of its own. While a self-test asks the prompts
/// of its own list, no others are asked: the next header has to name that list.
pub(crate) async fn ask_own(state: &Arc<RunnerState>) -> Result<(), StoreError> {
    if state.self_tests.is_asking() {
        return Ok(());
    }
    let served = state.backend.served_models().await;
    let audited = served
        .iter()
        .filter(|model| state.settings.calibrations.contains_key(*model));
    let audited: Vec<String> = audited.cloned().collect();
    let appealed = state.appealed_models().await?;
    let models: BTreeSet<String> = audited.iter().chain(&appealed).cloned().collect();
    if models.is_empty() || (state.settings.own_prompts == 0 && appealed.is_empty()) {
        return Ok(());
    }
    // Sessions that are slower than the prompts come get no more of them, and a list stays until its last answer: the
    // header of that answer's bucket has to name it.
    let open = state.prompts.open.load(Ordering::Acquire);
    if state.prompts.is_used_up() || !state.prompts.has_all(&appealed) {
        if open > 0 {
            return Ok(());
        }
        let mut seed = [0; 32];
        if getrandom::fill(&mut seed).is_err() {
            tracing::error!("the system gives no random bytes: no own prompts are asked");
            return Ok(());
        }
        let texts = state.settings.own_texts();
        let models: Vec<String> = models.into_iter().collect();
        let list = make_list(&models, &texts, state.settings.own_tokens, LIST_PROMPTS, &seed);
        state.store.insert_list(&list).await?;
        state.prompts.replace(list);
    }
    let asked = audited
        .len()
        .saturating_mul(usize::try_from(state.settings.own_prompts).unwrap_or(usize::MAX));
    for _ in open..asked {
        let Some(prompt) = state.prompts.take_next() else {
            break;
        };
        state
            .store
            .note_sent(&prompt.root, prompt.position, state.clock.now())
            .await?;
        if served.contains(&prompt.model) {
            state.prompts.open.fetch_add(1, Ordering::AcqRel);
            let asking = Arc::clone(state);
            drop(state.tasks.spawn("own prompt", async move {
                ask(&asking, prompt).await;
                asking.prompts.open.fetch_sub(1, Ordering::AcqRel);
            }));
        }
    }
    Ok(())
}

async fn ask(state: &RunnerState, prompt: NextPrompt) {
    match state.backend.ask(prompt.body, prompt.client).await {
        Ok(answer) => {
            let noted = state
                .store
                .note_answer(&prompt.root, prompt.position, &answer)
                .await;
            if let Err(error) = noted {
                state.fail(error);
            }
        }
        Err(error) => tracing::info!(error, model = prompt.model, "an own prompt was not answered"),
    }
}
