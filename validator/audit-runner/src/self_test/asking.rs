//! A test begins: the honest engine and the cheaper one are started, and each is asked a list of own prompts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use muster_audit::SeededNumbers;
use muster_gateway::Gateway;
use muster_gateway::logged_session::{LoggedSession, LoggedSessionError};
use muster_gateway::miner_sessions::SessionTimes;
use muster_protocol::Timestamp;
use muster_response_proof::BucketNumber;
use muster_store::StoreError;
use uuid::Uuid;

use crate::appeals::fresh_answers::ask_logged;
use crate::own_prompts::list_queue::NextPrompt;
use crate::own_prompts::sources::names_seeds;
use crate::runner_state::RunnerState;
use crate::self_test::judging::end;
use crate::self_test::ordered_tests::RunningTest;
use crate::settings::SelfTestSettings;
use crate::store::self_tests::{SelfTest, SelfTestState};

/// Prompts that are asked at once.
const AT_ONCE: usize = 8;
/// The pause before a model is tested again after a test that ended without a verdict.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(6 * 3_600);
/// A million, of which the share of planted cheats is a part.
const MILLION: usize = 1_000_000;

/// The model whose test is due: the one that was tested longest ago, or never.
fn due_model(
    newest: &[SelfTest],
    settings: &SelfTestSettings,
    calibrated: &BTreeSet<String>,
    now: Timestamp,
) -> Option<String> {
    let interval = Duration::from_secs(settings.every_days.saturating_mul(86_400));
    let last = |model: &str| newest.iter().find(|test| test.model == model);
    let is_due = |model: &&String| match last(model) {
        None => true,
        Some(test) if test.verdict.is_some() => now.since(test.began_at) >= interval,
        Some(test) => now.since(test.began_at) >= PAUSE_AFTER_FAILURE,
    };
    if settings.every_days == 0 {
        return None;
    }
    settings
        .cheats
        .keys()
        .filter(|model| calibrated.contains(*model))
        .filter(is_due)
        .min_by_key(|model| last(model).map(|test| test.began_at))
        .cloned()
}

/// Begins the test that was ordered or is due, as a task of its own. Nothing happens while another test runs, or
/// without a miner of the validator's own.
///
/// # Errors
/// The database fails.
pub(crate) async fn begin_due(state: &Arc<RunnerState>) -> Result<(), StoreError> {
    let Some(trusted) = &state.trusted else {
        return Ok(());
    };
    if state.self_tests.is_running() {
        return Ok(());
    }
    let settings = &state.settings.self_test;
    let planted: Vec<&String> = settings.cheats.keys().collect();
    let model = match state.self_tests.find_ordered(&planted) {
        Some(model) => model,
        None => {
            let newest = state.store.newest_self_tests().await?;
            let calibrated = state.settings.calibrations.keys().cloned().collect();
            match due_model(&newest, settings, &calibrated, state.clock.now()) {
                Some(model) => model,
                None => return Ok(()),
            }
        }
    };
    state.self_tests.forget_order(&model);
    let test = SelfTest {
        test: Uuid::new_v4().to_string(),
        model,
        state: SelfTestState::Asking,
        answers: 0,
        cheated: 0,
        began_at: state.clock.now(),
        ended_at: None,
        verdict: None,
        reason: None,
        bundle: None,
    };
    state.store.insert_self_test(&test).await?;
    let running = RunningTest {
        test,
        miner: trusted.miner,
        asked_in: None,
    };
    state.self_tests.replace(Some(running.clone()));
    let asking = Arc::clone(state);
    drop(state.tasks.spawn("self-test", async move {
        if let Err(error) = ask_all(&asking, running).await {
            asking.fail(error);
        }
    }));
    Ok(())
}

/// Asks all prompts, and leaves the test to be judged once its answers are drawn.
async fn ask_all(state: &Arc<RunnerState>, mut running: RunningTest) -> Result<(), StoreError> {
    tracing::info!(
        model = running.test.model,
        test = running.test.test,
        "the spot checks are tested"
    );
    match ask_both(state, &mut running.test).await {
        Ok(()) => {
            let (block, _) = state.subnet.wait_for_block_after(0).await;
            running.asked_in = Some(BucketNumber::of_block(block));
            running.test.state = SelfTestState::Asked;
            state.store.update_self_test(&running.test, None).await?;
            state.self_tests.replace(Some(running));
            Ok(())
        }
        Err(LoggedSessionError::Store(error)) => Err(error),
        Err(LoggedSessionError::Session(reason)) => {
            state.self_tests.replace(None);
            end(state, &mut running.test, reason).await
        }
    }
}

fn unusable(reason: &str) -> LoggedSessionError {
    LoggedSessionError::Session(reason.to_owned())
}

/// Asks the honest engine and the cheaper one a list of prompts each.
async fn ask_both(state: &Arc<RunnerState>, test: &mut SelfTest) -> Result<(), LoggedSessionError> {
    let honest = state.services.iter().find(|service| service.model == test.model);
    let honest = honest.ok_or_else(|| unusable("the whitelist has no such model"))?;
    let settings = &state.settings.self_test;
    let planted = settings.cheats.get(&test.model);
    let planted =
        planted.ok_or_else(|| unusable("[audit.self_test.cheats] names no cheaper engine of the model"))?;
    let trusted = state.trusted.as_ref();
    let trusted = trusted.ok_or_else(|| unusable("this validator has no miner of its own"))?;
    let times = SessionTimes {
        start: Duration::from_secs(state.settings.start_s),
        lifetime: Duration::from_secs(state.settings.run_s),
    };
    let gateway: &Gateway = &state.gateway;
    let truthful = LoggedSession::open(gateway, trusted, honest, times).await?;
    let cheap = planted.service(honest);
    let cheating = match LoggedSession::open(gateway, trusted, &cheap, times).await {
        Ok(cheating) => cheating,
        Err(error) => {
            truthful.close().await?;
            return Err(error);
        }
    };
    let asked = ask_sessions(state, test, planted.share_ppm, (&truthful, &cheating)).await;
    for session in [truthful, cheating] {
        session.close().await?;
    }
    asked
}

/// Asks both sessions the prompts that a draw gives them, one list for each, at once.
async fn ask_sessions(
    state: &RunnerState,
    test: &mut SelfTest,
    share_ppm: u32,
    (truthful, cheating): (&LoggedSession, &LoggedSession),
) -> Result<(), LoggedSessionError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|_| unusable("the system gives no random bytes"))?;
    let mut numbers = SeededNumbers::new("muster/self-test/1", &seed);
    let (prompts, share) = (state.settings.self_test.answers, usize::try_from(share_ppm));
    let share = share.unwrap_or(MILLION);
    let of_cheat = (0..prompts).filter(|_| numbers.below(MILLION) < share).count();
    let of_honest = usize::try_from(prompts)
        .unwrap_or(usize::MAX)
        .saturating_sub(of_cheat);
    let mut waiting = Vec::new();
    for (is_cheat, session, count) in [(false, truthful, of_honest), (true, cheating, of_cheat)] {
        let list = state.stock.take(state, &test.model, count).await?;
        let planned = state
            .lists
            .plan(session.sealed(), list, names_seeds(&state.settings, &test.model));
        if count > 0 {
            let ready = planned.ok_or_else(|| unusable("there are no prompts to ask"))?;
            waiting.push((is_cheat, ready));
        }
    }
    let stop = state.tasks.token();
    let mut questions: Vec<(usize, bool, NextPrompt)> = Vec::new();
    for (is_cheat, ready) in waiting {
        let prompts = stop.run_until_cancelled(ready).await;
        let Some(Ok(prompts)) = prompts else {
            return Err(unusable("no header committed to its prompts"));
        };
        for prompt in prompts {
            questions.push((numbers.below(usize::MAX), is_cheat, prompt));
        }
    }
    // Answers of the two engines come in a drawn order, as those of a miner that cheats now and then.
    questions.sort_by_key(|(drawn, _, _)| *drawn);
    let (answers, cheated) = (AtomicU64::new(0), AtomicU64::new(0));
    let failures: Vec<LoggedSessionError> = stream::iter(questions)
        .map(|(_, is_cheat, prompt): (usize, bool, NextPrompt)| {
            let session = if is_cheat { cheating } else { truthful };
            let (answers, cheated) = (&answers, &cheated);
            async move {
                let asked = ask_logged(state, session, prompt).await;
                if asked.is_ok() {
                    answers.fetch_add(1, Ordering::Relaxed);
                    cheated.fetch_add(u64::from(is_cheat), Ordering::Relaxed);
                }
                asked
            }
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(|asked| async move { asked.err() })
        .collect()
        .await;
    (test.answers, test.cheated) = (answers.into_inner(), cheated.into_inner());
    for failure in failures {
        match failure {
            LoggedSessionError::Store(error) => return Err(error.into()),
            LoggedSessionError::Session(reason) => {
                tracing::warn!(
                    reason,
                    test = test.test,
                    "a prompt of the self-test was not answered"
                );
            }
        }
    }
    if test.answers == 0 {
        return Err(unusable("no prompt was answered"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::PlantedCheat;
    use crate::testing::self_test as tested;

    #[test]
    fn a_model_is_tested_weekly_and_sooner_after_a_test_without_a_verdict() {
        let settings = SelfTestSettings {
            cheats: ["a", "b", "c"]
                .map(|model| (model.to_owned(), PlantedCheat::default()))
                .into(),
            ..SelfTestSettings::default()
        };
        let calibrated: BTreeSet<String> = ["a".to_owned(), "b".to_owned()].into();
        let due =
            |newest: &[SelfTest], now| due_model(newest, &settings, &calibrated, Timestamp::from_secs(now));
        let some = |model: &str| Some(model.to_owned());
        assert_eq!(due(&[], 0), some("a"), "c has no calibration");
        let both = [
            tested("a", 0, Some("convicted")),
            tested("b", 10, Some("consistent")),
        ];
        assert_eq!(due(&both, 7 * 86_400 - 1), None);
        assert_eq!(due(&both, 7 * 86_400), some("a"));
        assert_eq!(due(&both, 8 * 86_400), some("a"), "the older one first");
        let failed = [tested("a", 0, None), tested("b", 10, Some("convicted"))];
        assert_eq!(due(&failed, 6 * 3_600 - 1), None);
        assert_eq!(due(&failed, 6 * 3_600), some("a"));
        let never = SelfTestSettings {
            every_days: 0,
            ..settings.clone()
        };
        assert_eq!(due_model(&[], &never, &calibrated, Timestamp::from_secs(0)), None);
    }
}
