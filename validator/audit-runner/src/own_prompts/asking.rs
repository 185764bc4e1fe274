//! How own prompts are asked: for each bucket some, each of a live session that the bucket's header names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use muster_audit::SeededNumbers;
use muster_openai::OpenAiError;
use muster_protocol::Timestamp;
use muster_response_proof::SessionId;
use muster_sealed_client::SealedSession;
use muster_store::StoreError;
use tokio::time::Instant;

use crate::own_prompts::list_queue::NextPrompt;
use crate::own_prompts::sources::names_seeds;
use crate::runner_state::RunnerState;

/// Prompts of one list that are asked at once.
const AT_ONCE: usize = 4;
/// The pause after which a session that did not take a prompt is asked again, and how often that happens.
const BUSY_PAUSE: Duration = Duration::from_secs(2);
const MOST_TRIES: u32 = 300;

/// Plans the own prompts that the next header commits to, each of a session that takes requests now, and has them asked
/// after its draw block.
pub(crate) async fn plan_own(state: &Arc<RunnerState>) -> Result<(), StoreError> {
    let settings = &state.settings;
    if settings.own_prompts == 0 {
        return Ok(());
    }
    let mut by_model: BTreeMap<String, Vec<Arc<SealedSession>>> = BTreeMap::new();
    for session in state.gateway.list_live_sessions().await {
        let model = session.service().model.clone();
        if settings.calibrations.contains_key(&model) {
            by_model.entry(model).or_default().push(session);
        }
    }
    let wanted = usize::try_from(settings.own_prompts).unwrap_or(usize::MAX);
    for (model, live) in by_model {
        // Sessions that are slower than the prompts come get no more of them. Those of the bucket before may still wait
        // for their pauses.
        let open = state.open_prompts.lock().get(&model).copied().unwrap_or_default();
        let open = open.saturating_sub(wanted);
        let asked_until = state.clock.now().plus(settings.own_time());
        let lasting = lasting_sessions(&live, asked_until.plus(state.gateway.session_margin()));
        let mut seed = [0; 32];
        if getrandom::fill(&mut seed).is_err() {
            tracing::error!("the system gives no random bytes: no own prompts are asked");
            return Ok(());
        }
        for (session, prompts) in choose_sessions(&lasting, wanted.saturating_sub(open), &seed) {
            // One that nobody uses is not kept for own prompts alone.
            if !state.gateway.hold_session(session.id(), asked_until).await {
                continue;
            }
            let list = state.stock.take(state, &model, prompts).await?;
            let planned = state.lists.plan(&session, list, names_seeds(settings, &model));
            let Some(ready) = planned else { continue };
            let (asking, id, model) = (Arc::clone(state), session.id(), model.clone());
            drop(state.tasks.spawn("own prompts", async move {
                let stop = asking.tasks.token();
                if let Some(Ok(prompts)) = stop.run_until_cancelled(ready).await {
                    stop.run_until_cancelled(ask_list(&asking, &model, id, prompts))
                        .await;
                }
            }));
        }
    }
    Ok(())
}

/// The sessions that live until then; all if none does.
fn lasting_sessions(live: &[Arc<SealedSession>], until: Timestamp) -> Vec<Arc<SealedSession>> {
    let lasting = live.iter().filter(|session| session.not_after() > until);
    let lasting: Vec<Arc<SealedSession>> = lasting.cloned().collect();
    if lasting.is_empty() {
        live.to_vec()
    } else {
        lasting
    }
}

/// Draws a session for each of these prompts. Returns each drawn session with the number of its prompts.
fn choose_sessions<T: Clone>(sessions: &[T], prompts: usize, seed: &[u8; 32]) -> Vec<(T, usize)> {
    let mut numbers = SeededNumbers::new("muster/own-sessions/1", seed);
    let mut chosen: BTreeMap<usize, usize> = BTreeMap::new();
    for _ in 0..if sessions.is_empty() { 0 } else { prompts } {
        let of_session = chosen.entry(numbers.below(sessions.len())).or_default();
        *of_session = of_session.saturating_add(1);
    }
    let drawn = chosen.into_iter();
    drawn
        .filter_map(|(at, prompts)| Some((sessions.get(at)?.clone(), prompts)))
        .collect()
}

/// Asks the prompts of a list.
async fn ask_list(state: &RunnerState, model: &str, session: SessionId, prompts: Vec<NextPrompt>) {
    let count = |change: fn(usize, usize) -> usize, by: usize| {
        let mut open = state.open_prompts.lock();
        let of_model = open.entry(model.to_owned()).or_default();
        *of_model = change(*of_model, by);
    };
    count(usize::saturating_add, prompts.len());
    stream::iter(pace(prompts, state.settings.own_spread_s))
        .map(|(at, prompt)| async move {
            tokio::time::sleep_until(at).await;
            ask(state, session, prompt).await;
        })
        .buffer_unordered(AT_ONCE)
        .for_each(|()| {
            count(usize::saturating_sub, 1);
            std::future::ready(())
        })
        .await;
}

/// Gives each prompt a time within so many seconds, and puts them in this order: prompts that all came with a block
/// could be recognised by their time.
pub(crate) fn pace(prompts: Vec<NextPrompt>, spread_s: u64) -> Vec<(Instant, NextPrompt)> {
    let began = Instant::now();
    let mut due: Vec<(Instant, NextPrompt)> = prompts
        .into_iter()
        .map(|prompt| (began + draw_pause(spread_s), prompt))
        .collect();
    due.sort_by_key(|(at, _)| *at);
    due
}

/// Asks a prompt once. A session that did not take it is asked again.
async fn ask(state: &RunnerState, session: SessionId, prompt: NextPrompt) {
    let (list, position) = (prompt.list, prompt.position);
    if let Err(error) = state.store.note_sent(&list, position, state.clock.now()).await {
        state.fail(error);
        return;
    }
    let question = prompt.into_question();
    for _ in 0..MOST_TRIES {
        match state.gateway.ask(session, question.clone()).await {
            Ok(answer) => {
                if let Err(error) = state.store.note_answer(&list, position, &answer).await {
                    state.fail(error);
                }
                return;
            }
            Err(OpenAiError::QueueFull { .. }) => tokio::time::sleep(BUSY_PAUSE).await,
            Err(error) => {
                tracing::info!(%error, %session, "an own prompt was not answered");
                return;
            }
        }
    }
    tracing::info!(%session, "an own prompt was not asked: its session had no place");
}

/// A pause of at most `most_s` seconds, which nobody can foresee.
fn draw_pause(most_s: u64) -> Duration {
    let mut drawn = [0; 8];
    // Without random bytes there are no lists, and no prompts.
    let _ = getrandom::fill(&mut drawn);
    let most = most_s.saturating_mul(1_000).saturating_add(1);
    Duration::from_millis(u64::from_le_bytes(drawn) % most)
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

    #[test]
    fn every_prompt_has_a_session_and_every_session_is_drawn() {
        let drawn = choose_sessions(&["a", "b", "c"], 90, &[7; 32]);
        let of_all: usize = drawn.iter().map(|(_, prompts)| prompts).sum();
        assert_eq!((drawn.len(), of_all), (3, 90));
        assert!(
            drawn.iter().all(|(_, prompts)| (15..=45).contains(prompts)),
            "{drawn:?}"
        );
        assert_eq!(choose_sessions(&["a"], 2, &[7; 32]), [("a", 2)]);
        assert_eq!(choose_sessions::<&str>(&[], 2, &[7; 32]), []);
        assert_eq!(choose_sessions(&["a"], 0, &[7; 32]), []);
    }
}
