//! How own prompts are asked: those of the list in use, as many after each draw as the configuration wants.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_audit::own_prompts::Repeats;
use muster_response_proof::BucketNumber;
use muster_store::StoreError;

use crate::own_prompts::current_list::NextPrompt;
use crate::own_prompts::sources::begin_list;
use crate::runner_state::RunnerState;

/// Prompts for each model in one list. A list that is used up is followed by another one.
const LIST_PROMPTS: Repeats = Repeats(256);

/// The models whose own prompts are asked.
struct AskedModels {
    served: Vec<String>,
    audited: Vec<String>,
    appealed: Vec<String>,
    /// All of them; none if nothing is asked.
    all: BTreeSet<String>,
}

async fn asked_models(state: &RunnerState) -> Result<AskedModels, StoreError> {
    let sessions = state.gateway.list_live_sessions().await;
    let served: BTreeSet<String> = sessions
        .iter()
        .map(|session| session.service().model.clone())
        .collect();
    let served = Vec::from_iter(served);
    let audited = served
        .iter()
        .filter(|model| state.settings.calibrations.contains_key(*model));
    let audited: Vec<String> = audited.cloned().collect();
    let appealed = state.appealed_models().await?;
    let mut all: BTreeSet<String> = audited.iter().chain(&appealed).cloned().collect();
    if state.settings.own_prompts == 0 && appealed.is_empty() {
        all.clear();
    }
    Ok(AskedModels {
        served,
        audited,
        appealed,
        all,
    })
}

/// Begins another list after this bucket was closed, if the one in use has no prompt left. The next header commits to
/// it. While headers have to name the list of a self-test, or one waits for open prompts, none is begun.
pub(crate) async fn prepare_list(state: &Arc<RunnerState>, closed: BucketNumber) -> Result<(), StoreError> {
    if state.self_tests.needs_list(closed) {
        return Ok(());
    }
    let models = asked_models(state).await?;
    if models.all.is_empty() {
        return Ok(());
    }
    if state.prompts.is_used_up() || !state.prompts.has_all(&models.appealed) {
        // A list stays until its last answer: the header of that answer's bucket has to name it.
        if state.prompts.has_open() {
            return Ok(());
        }
        let mut seed = [0; 32];
        if getrandom::fill(&mut seed).is_err() {
            tracing::error!("the system gives no random bytes: no own prompts are asked");
            return Ok(());
        }
        let list = begin_list(state, &models.all, LIST_PROMPTS, &seed).await?;
        state.prompts.replace(list);
    }
    Ok(())
}

/// Asks the prompts that are due once after the end of this bucket, each as a task of its own. While headers have to
/// name the list of a self-test, or one waits for open prompts, no others are asked.
pub(crate) async fn ask_own(state: &Arc<RunnerState>, ended: BucketNumber) -> Result<(), StoreError> {
    if state.self_tests.needs_list(ended) {
        return Ok(());
    }
    let AskedModels {
        served, audited, all, ..
    } = asked_models(state).await?;
    if all.is_empty() {
        return Ok(());
    }
    // Sessions that are slower than the prompts come get no more of them.
    let open = state.prompts.count_open();
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
            state.prompts.note_open();
            let asking = Arc::clone(state);
            let pause = draw_pause(state.settings.own_spread_s);
            drop(state.tasks.spawn("own prompt", async move {
                // Prompts that all came with a block could be recognised by their time.
                let stop = asking.tasks.token();
                if stop
                    .run_until_cancelled(tokio::time::sleep(pause))
                    .await
                    .is_some()
                {
                    ask(&asking, prompt).await;
                }
                asking.prompts.note_closed();
            }));
        }
    }
    Ok(())
}

/// A pause of at most `most_s` seconds, which nobody can foresee.
fn draw_pause(most_s: u64) -> Duration {
    let mut drawn = [0; 8];
    // Without random bytes there are no lists, and no prompts.
    let _ = getrandom::fill(&mut drawn);
    let most = most_s.saturating_mul(1_000).saturating_add(1);
    Duration::from_millis(u64::from_le_bytes(drawn) % most)
}

async fn ask(state: &RunnerState, prompt: NextPrompt) {
    let (root, position, model) = (prompt.root, prompt.position, prompt.model.clone());
    match state.gateway.ask(prompt.into_question()).await {
        Ok(answer) => {
            let noted = state.store.note_answer(&root, position, &answer).await;
            if let Err(error) = noted {
                state.fail(error);
            }
        }
        Err(error) => tracing::info!(%error, model, "an own prompt was not answered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_at_most_as_long_as_the_configuration_says() {
        assert!((0..64).all(|_| draw_pause(2) <= Duration::from_secs(2)));
        assert!((0..64).any(|_| draw_pause(2) > Duration::from_millis(200)));
        assert_eq!(draw_pause(0), Duration::ZERO);
    }
}
