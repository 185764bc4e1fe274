//! The sources of own prompts: the forms in which users ask, and the words of prompts that nobody else has seen.

use std::collections::{BTreeMap, VecDeque};

use muster_audit::own_prompts::{
    AnsweredChat, ListPlan, PromptedModel, Repeats, RequestForm, SamplerNeeds, author_request, make_list,
    read_authored,
};
use muster_audit::{Canary, CanaryList, SamplerEngine, SeededNumbers};
use muster_process::error::Causes;
use muster_protocol::Timestamp;

use crate::reference::reference_machine::Reference;
use crate::reference::scoring_engine::Sampling;
use crate::runner_state::RunnerState;
use crate::settings::Settings;
use crate::store::audit_store::Result;

/// Forms that are kept of one bucket.
pub(crate) const MAX_FORMS_OF_BUCKET: usize = 64;
/// Answered chats of one model that a list goes on with at most.
const MAX_CHATS: u32 = 64;
/// The fewest prompts that are made at a time. A restart loses what no list has taken.
const LEAST_MADE: usize = 32;
/// Unasked prompts of one model that are kept.
const MAX_WRITTEN: u64 = 512;
/// Replies in a row that are no prompts, after which a model is not asked for more.
const MAX_USELESS: usize = 8;

/// Prompts that are made and that no list has yet, by model.
#[derive(Debug, Default)]
pub(crate) struct PromptStock(tokio::sync::Mutex<BTreeMap<String, VecDeque<Canary>>>);

impl PromptStock {
    /// Takes this many prompts to a model, which nobody else gets, as a list.
    ///
    /// # Errors
    /// The database fails.
    pub(crate) async fn take(&self, state: &RunnerState, model: &str, count: usize) -> Result<CanaryList> {
        let mut stock = self.0.lock().await;
        let of_model = stock.entry(model.to_owned()).or_default();
        let missing = count.saturating_sub(of_model.len());
        if missing > 0 {
            of_model.extend(make_prompts(state, model, missing.max(LEAST_MADE)).await?);
        }
        let taken = of_model.drain(..count.min(of_model.len()));
        Ok(CanaryList::new(taken.collect()))
    }
}

/// Makes prompts to a model. Each prompt of an operator's file may come again; one that a model has written is asked
/// once. None without random bytes, which order them.
async fn make_prompts(state: &RunnerState, model: &str, count: usize) -> Result<Vec<Canary>> {
    let mut seed = [0; 32];
    if getrandom::fill(&mut seed).is_err() {
        tracing::error!("the system gives no random bytes: there are no own prompts");
        return Ok(Vec::new());
    }
    let since = state.clock.now().minus(state.settings.window());
    let models = [PromptedModel {
        name: model.to_owned(),
        needs: needs_of(&state.settings, model),
        forms: measured_forms(state, model, since).await?,
        chats: answered_chats(state, model, since, count).await?,
    }];
    let fresh = match state.settings.prompts {
        None => state.store.take_written(model, count).await?,
        Some(_) => Vec::new(),
    };
    let plan = ListPlan {
        models: &models,
        fresh: &fresh,
        texts: &state.settings.own_texts(),
        tokens: state.settings.own_tokens,
        repeats: Repeats(count),
    };
    Ok(make_list(&plan, &seed).iter().cloned().collect())
}

/// The forms of users whose answers calibrations measure. Adopters count no own prompt of another form.
async fn measured_forms(state: &RunnerState, model: &str, since: Timestamp) -> Result<Vec<RequestForm>> {
    let mut forms = state.store.forms(model, since).await?;
    forms.retain(RequestForm::is_measured);
    Ok(forms)
}

/// The chats that miners have answered since a time and that no prompt has gone on with, the newest ones first. No
/// other list goes on with them.
async fn answered_chats(
    state: &RunnerState,
    model: &str,
    since: Timestamp,
    prompts: usize,
) -> Result<Vec<AnsweredChat>> {
    let most = u32::try_from(prompts).map_or(MAX_CHATS, |prompts| prompts.min(MAX_CHATS));
    let taken = state.store.take_replies(model, since, most).await?;
    let read = |(request, reply): &(Vec<u8>, String)| AnsweredChat::read(request, reply);
    Ok(taken.iter().filter_map(read).collect())
}

/// Whether a model's engine draws by a seed that the request names, which the position of a prompt fixes.
pub(crate) fn names_seeds(settings: &Settings, model: &str) -> bool {
    match needs_of(settings, model) {
        SamplerNeeds::Seed | SamplerNeeds::SeedAndIds => true,
        SamplerNeeds::Nothing | SamplerNeeds::NoParameters => false,
    }
}

/// The fields without which answers of a model cannot be scored.
fn needs_of(settings: &Settings, model: &str) -> SamplerNeeds {
    match settings.sampling(model) {
        Sampling::Muster => SamplerNeeds::Nothing,
        Sampling::Engine(sampler) => match sampler.engine {
            SamplerEngine::Vllm => SamplerNeeds::SeedAndIds,
            SamplerEngine::LlamaCpp => SamplerNeeds::Seed,
        },
        Sampling::Unknown => SamplerNeeds::NoParameters,
    }
}

/// Has a model write prompts on a reference, which nobody else sees, as many as the configuration wants for one audit.
/// A model that writes nothing that can be used is left in peace.
///
/// # Errors
/// The database fails.
pub(crate) async fn write_prompts(state: &RunnerState, model: &str, reference: &Reference) -> Result<()> {
    let settings = &state.settings;
    let wanted = u64::from(settings.written_prompts);
    if settings.prompts.is_some() || settings.own_prompts == 0 || wanted == 0 {
        return Ok(());
    }
    let missing = MAX_WRITTEN.saturating_sub(state.store.count_written(model).await?);
    let mut seed = [0; 32];
    if getrandom::fill(&mut seed).is_err() {
        return Ok(());
    }
    let mut numbers = SeededNumbers::new("muster/written-prompts/1", &seed);
    let mut useless = 0;
    for _ in 0..wanted.min(missing) {
        if useless >= MAX_USELESS || state.tasks.token().is_cancelled() {
            break;
        }
        let reply = reference
            .write_chat(state, author_request(model, &mut numbers))
            .await;
        match reply.and_then(|reply| read_authored(&reply)) {
            Some(prompt) => match state.store.put_written(model, &prompt, state.clock.now()).await {
                Ok(()) => useless = 0,
                Err(refused) if refused.is_refused_value() => {
                    tracing::warn!(model, error = %Causes(&refused), "the store refuses a prompt that a model has written");
                    useless += 1;
                }
                Err(error) => return Err(error),
            },
            None => useless += 1,
        }
    }
    Ok(())
}
