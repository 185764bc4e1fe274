//! The validator's own prompts as they are asked: from one committed list, in order, each once.

use std::sync::Arc;

use muster_audit::CanaryList;
use muster_protocol::Digest;
use muster_store::StoreError;
use parking_lot::Mutex;

use crate::RunnerState;
use crate::own_prompts::{body_of, make_list};
use crate::store::{AuditStore, PromptList};

/// The list that is in use. Headers name its root, so it changes only right after a bucket was closed.
#[derive(Debug)]
pub(crate) struct Prompts(Mutex<CurrentList>);

#[derive(Debug, Clone)]
struct CurrentList {
    root: Digest,
    list: CanaryList,
    next: u64,
}

/// A prompt that is asked now.
struct NextPrompt {
    root: Digest,
    position: u64,
    body: bytes::Bytes,
    client: Digest,
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
        Ok(Self(Mutex::new(CurrentList {
            root: read.list.root(),
            list: read.list,
            next: read.next,
        })))
    }

    /// The root of the list in use.
    pub(crate) fn root(&self) -> Digest {
        self.0.lock().root
    }

    fn is_used_up(&self) -> bool {
        let current = self.0.lock();
        current.list.next(current.next).is_none()
    }

    fn replace(&self, list: CanaryList) {
        *self.0.lock() = CurrentList {
            root: list.root(),
            list,
            next: 0,
        };
    }

    fn take_next(&self) -> Option<NextPrompt> {
        let mut current = self.0.lock();
        let canary = current.list.next(current.next)?.clone();
        let position = current.next;
        current.next = current.next.saturating_add(1);
        let asked: serde_json::Value = serde_json::from_slice(&canary.request).ok()?;
        Some(NextPrompt {
            root: current.root,
            position,
            body: body_of(&canary),
            client: canary.client(),
            model: asked.get("model")?.as_str()?.to_owned(),
        })
    }
}

/// Asks the prompts that are due once a bucket is closed, each as a task of its own.
pub(crate) async fn ask_own(state: &Arc<RunnerState>) -> Result<(), StoreError> {
    let served = state.backend.served_models().await;
    let audited = served
        .iter()
        .filter(|model| state.settings.calibrations.contains_key(*model));
    let audited: Vec<String> = audited.cloned().collect();
    if audited.is_empty() || state.settings.own_prompts == 0 {
        return Ok(());
    }
    if state.prompts.is_used_up() {
        let mut seed = [0; 32];
        if getrandom::fill(&mut seed).is_err() {
            tracing::error!("the system gives no random bytes: no own prompts are asked");
            return Ok(());
        }
        let texts = state.settings.own_texts();
        let list = make_list(&audited, &texts, state.settings.own_tokens, &seed);
        state.store.insert_list(&list).await?;
        state.prompts.replace(list);
    }
    let asked = audited
        .len()
        .saturating_mul(usize::try_from(state.settings.own_prompts).unwrap_or(usize::MAX));
    for _ in 0..asked {
        let Some(prompt) = state.prompts.take_next() else {
            break;
        };
        state
            .store
            .note_sent(&prompt.root, prompt.position, state.clock.now())
            .await?;
        if served.contains(&prompt.model) {
            let asking = Arc::clone(state);
            drop(state.tasks.spawn("own prompt", async move {
                ask(&asking, prompt).await;
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
