//! The sources of own prompts: the forms in which users ask, and the words of prompts that nobody else has seen.

use muster_audit::own_prompts::{
    AnsweredChat, ListPlan, PromptedModel, Repeats, SamplerNeeds, author_request, make_list, read_authored,
};
use muster_audit::{CanaryList, SamplerEngine, SeededNumbers};
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
/// Unasked prompts of one model that are kept.
const MAX_WRITTEN: u64 = 512;
/// Replies in a row that are no prompts, after which a model is not asked for more.
const MAX_USELESS: usize = 8;

/// Makes a list of prompts to these models and stores it. Each prompt of an operator's file may come again; one that a
/// model has written is asked once. `seed` orders the list.
///
/// # Errors
/// The database fails.
pub(crate) async fn begin_list(
    state: &RunnerState,
    names: impl IntoIterator<Item = &String>,
    repeats: Repeats,
    seed: &[u8; 32],
) -> Result<CanaryList> {
    let now = state.clock.now();
    let since = now.minus(state.settings.window());
    let (mut models, mut fresh) = (Vec::new(), Vec::new());
    for name in names {
        models.push(PromptedModel {
            name: name.clone(),
            needs: needs_of(&state.settings, name),
            forms: state.store.forms(name, since).await?,
            chats: answered_chats(state, name, since).await?,
        });
        if state.settings.prompts.is_none() {
            fresh.extend(state.store.take_written(name, repeats.0).await?);
        }
    }
    let plan = ListPlan {
        models: &models,
        fresh: &fresh,
        texts: &state.settings.own_texts(),
        tokens: state.settings.own_tokens,
        repeats,
    };
    let list = make_list(&plan, seed);
    state.store.insert_list(&list, now).await?;
    Ok(list)
}

/// The chats that miners have answered since a time and that no prompt has gone on with, the newest ones first. No
/// other list goes on with them.
async fn answered_chats(state: &RunnerState, model: &str, since: Timestamp) -> Result<Vec<AnsweredChat>> {
    let taken = state.store.take_replies(model, since, MAX_CHATS).await?;
    let read = |(request, reply): &(Vec<u8>, String)| AnsweredChat::read(request, reply);
    Ok(taken.iter().filter_map(read).collect())
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
