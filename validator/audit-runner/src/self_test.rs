//! The validator's test of its own spot checks: its own miner answers prompts of a committed list, a part of them with
//! a cheaper engine, and log, draw, references and statistic have to convict it.
//!
//! A validator whose spot checks do not find a cheat that it has planted itself cannot be relied on. The test takes the
//! way of every audit; only the scores of the subnet never see it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use muster_audit::own_prompts::Repeats;
use muster_audit::{SeededNumbers, Verdict, replay};
use muster_gateway::Gateway;
use muster_gateway::logged_session::{LoggedSession, LoggedSessionError};
use muster_gateway::miner_sessions::SessionTimes;
use muster_process::error::Causes;
use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp};
use muster_response_proof::BucketNumber;
use muster_store::StoreError;
use muster_verdict_exchange::{RecordError, SelfTestOutcome, record_self_test};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::RunnerState;
use crate::audit_run::{CollectedEvidence, ReferencePair};
use crate::audited_subject::{AuditScope, AuditedSubject};
use crate::prompt_sources::begin_list;
use crate::prompts::NextPrompt;
use crate::self_test_store::{SelfTest, SelfTestState};
use crate::settings::SelfTestSettings;
use crate::store::AuditStore;

/// Prompts that are asked at once.
const AT_ONCE: usize = 8;
/// The pause before a model is tested again after a test that ended without a verdict.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(6 * 3_600);
/// A million, of which the share of planted cheats is a part.
const MILLION: usize = 1_000_000;

/// The test that runs, and the models whose test the operator has ordered.
#[derive(Debug, Default)]
pub(crate) struct SelfTests {
    ordered: Mutex<BTreeSet<String>>,
    running: Mutex<Option<RunningTest>>,
    /// Whether a test is due and waits until no prompt of the list in use is open.
    is_waiting: AtomicBool,
}

/// A test between its first question and its verdict.
#[derive(Clone, Debug)]
struct RunningTest {
    test: SelfTest,
    miner: MinerKey,
    /// The seed of its list, until the prompts of the list are asked.
    prepared: Option<[u8; 32]>,
    /// The bucket of the last answer; `None` while prompts are asked.
    asked_in: Option<BucketNumber>,
}

impl SelfTests {
    /// Orders a test of this model, which begins once the next bucket is closed.
    pub(crate) fn order(&self, model: String) {
        self.ordered.lock().insert(model);
    }

    /// Whether no other prompts are asked, and no other list is begun, now that this bucket has ended: a test waits for
    /// open ones, asks its own, or has answers in a bucket whose header has to name its list.
    pub(crate) fn needs_list(&self, ended: BucketNumber) -> bool {
        let running = self.running.lock();
        let is_unclosed = |one: &RunningTest| one.asked_in.is_none_or(|last| last > ended);
        self.is_waiting.load(Ordering::Acquire) || running.as_ref().is_some_and(is_unclosed)
    }

    /// The first ordered model of these.
    fn find_ordered(&self, models: &[&String]) -> Option<String> {
        let ordered = self.ordered.lock();
        ordered.iter().find(|model| models.contains(model)).cloned()
    }

    fn forget_order(&self, model: &str) {
        self.ordered.lock().remove(model);
    }

    /// The prepared test as it is while its prompts are asked, and the seed of its list.
    fn find_prepared(&self) -> Option<(RunningTest, [u8; 32])> {
        let mut asking = self.running.lock().clone()?;
        let seed = asking.prepared.take()?;
        Some((asking, seed))
    }

    fn replace(&self, running: Option<RunningTest>) {
        *self.running.lock() = running;
    }

    /// The test whose last bucket is drawn from at this block, and that bucket.
    fn find_drawn(&self, block: u64) -> Option<(RunningTest, BucketNumber)> {
        let running = self.running.lock();
        let one = running.as_ref()?;
        let last = one.asked_in.filter(|last| last.draw_block() <= block)?;
        Some((one.clone(), last))
    }
}

/// The model whose test is due: the one that was tested longest ago, or never.
pub(crate) fn due_model(
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

/// Prepares the test that was ordered or is due, right after a bucket was closed: the list of own prompts changes only
/// then. Its prompts are asked once a header has committed to the list. Nothing happens while another test runs, or
/// without a miner of the validator's own.
///
/// # Errors
/// The database fails.
pub(crate) async fn prepare_due(state: &Arc<RunnerState>) -> Result<(), StoreError> {
    let Some(trusted) = &state.trusted else {
        return Ok(());
    };
    state.self_tests.is_waiting.store(false, Ordering::Release);
    if state.self_tests.running.lock().is_some() {
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
    // Answers to the list in use would stand under a header that names another one, and count as a client's. No further
    // prompt is asked until the open ones are answered.
    if state.prompts.has_open() || !state.asking.lock().is_empty() {
        state.self_tests.is_waiting.store(true, Ordering::Release);
        return Ok(());
    }
    let mut seed = [0; 32];
    if getrandom::fill(&mut seed).is_err() {
        tracing::error!("the system gives no random bytes: the spot checks are not tested");
        return Ok(());
    }
    state.self_tests.forget_order(&model);
    let rounds = usize::try_from(settings.answers).unwrap_or(usize::MAX);
    let list = begin_list(state, [&model], Repeats(rounds), &seed).await?;
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
    state.prompts.replace(list);
    state.self_tests.replace(Some(RunningTest {
        test,
        miner: trusted.miner,
        prepared: Some(seed),
        asked_in: None,
    }));
    Ok(())
}

/// Asks the prompts of the test that was prepared, if its list is committed to.
pub(crate) fn begin_prepared(state: &Arc<RunnerState>) {
    let Some((running, seed)) = state.self_tests.find_prepared() else {
        return;
    };
    let Some(prompts) = state.prompts.take_all() else {
        return;
    };
    state.self_tests.replace(Some(running.clone()));
    let asking = Arc::clone(state);
    drop(state.tasks.spawn("self-test", async move {
        if let Err(error) = ask_all(&asking, running, prompts, &seed).await {
            asking.fail(error);
        }
    }));
}

/// Asks all prompts, and leaves the test to be judged once its answers are drawn.
async fn ask_all(
    state: &Arc<RunnerState>,
    mut running: RunningTest,
    prompts: Vec<NextPrompt>,
    seed: &[u8; 32],
) -> Result<(), StoreError> {
    tracing::info!(
        model = running.test.model,
        test = running.test.test,
        "the spot checks are tested"
    );
    match ask_both(state, &mut running.test, prompts, seed).await {
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

/// Asks each prompt of the list the honest engine or the cheaper one.
async fn ask_both(
    state: &Arc<RunnerState>,
    test: &mut SelfTest,
    prompts: Vec<NextPrompt>,
    seed: &[u8; 32],
) -> Result<(), LoggedSessionError> {
    let unusable = |reason: &str| LoggedSessionError::Session(reason.to_owned());
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
    let open = async |service| LoggedSession::open(gateway, trusted, service, times).await;
    let truthful = open(honest).await?;
    let cheating = open(&planted.service(honest)).await?;
    let mut numbers = SeededNumbers::new("muster/self-test/1", seed);
    let share = usize::try_from(planted.share_ppm).unwrap_or(MILLION);
    let questions = prompts
        .into_iter()
        .map(|prompt| (prompt, numbers.below(MILLION) < share));
    let (answers, cheated) = (AtomicU64::new(0), AtomicU64::new(0));
    let failures = stream::iter(questions)
        .map(|(prompt, is_cheat): (NextPrompt, bool)| {
            let session = if is_cheat { &cheating } else { &truthful };
            let (answers, cheated) = (&answers, &cheated);
            async move {
                let asked = ask_one(state, session, prompt).await;
                if asked.is_ok() {
                    answers.fetch_add(1, Ordering::Relaxed);
                    cheated.fetch_add(u64::from(is_cheat), Ordering::Relaxed);
                }
                asked
            }
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(|asked| async move { asked.err() })
        .collect::<Vec<_>>()
        .await;
    (test.answers, test.cheated) = (answers.into_inner(), cheated.into_inner());
    for session in [truthful, cheating] {
        session.close().await?;
    }
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

async fn ask_one(
    state: &RunnerState,
    session: &LoggedSession,
    prompt: NextPrompt,
) -> Result<(), LoggedSessionError> {
    let store = &state.store;
    let now = state.clock.now();
    store.note_sent(&prompt.root, prompt.position, now).await?;
    let (root, position) = (prompt.root, prompt.position);
    let answer = session.ask(prompt.into_question()).await?;
    store.note_answer(&root, position, &answer).await?;
    Ok(())
}

/// Judges the test whose answers are all drawn from, if there is one.
///
/// # Errors
/// The database fails.
pub(crate) async fn judge_drawn(state: &Arc<RunnerState>, block: u64) -> Result<(), StoreError> {
    let Some((running, last)) = state.self_tests.find_drawn(block) else {
        return Ok(());
    };
    let undrawn = state.log.store().undrawn_buckets().await?;
    if undrawn.iter().any(|bucket| bucket.bucket <= last) {
        return Ok(());
    }
    judge(state, running.test, running.miner).await?;
    state.self_tests.replace(None);
    Ok(())
}

async fn judge(state: &Arc<RunnerState>, mut test: SelfTest, miner: MinerKey) -> Result<(), StoreError> {
    test.state = SelfTestState::Scoring;
    state.store.update_self_test(&test, None).await?;
    let _machines = state.machines.lock().await;
    let mut references = match ReferencePair::open(state, &test.model).await {
        Ok(references) => references,
        Err(reason) => return end(state, &mut test, reason).await,
    };
    // The miner is not registered, so the chain knows no coldkey of it: it stands for its own owner.
    let scope = AuditScope {
        coldkey: miner.0,
        model: test.model.clone(),
        since: test.began_at,
        is_appeal: false,
        owners: BTreeMap::<MinerKey, Hotkey>::from([(miner, miner.0)]),
    };
    let subject = AuditedSubject::read(state, scope, references.calibration()).await?;
    let evidence = references.collect_evidence(state, subject, None).await?;
    let text = match evidence {
        CollectedEvidence::Whole { bundle, answers: _ } => bundle,
        CollectedEvidence::Inconsistent => {
            return end(
                state,
                &mut test,
                "the stored log does not fit together".to_owned(),
            )
            .await;
        }
        CollectedEvidence::Stopped => return Ok(()),
    };
    // Signatures and resampling take seconds.
    let replaying = tokio::task::spawn_blocking(move || (replay(&text), text));
    let Ok((replayed, text)) = replaying.await else {
        return end(state, &mut test, "the replay ended early".to_owned()).await;
    };
    let replayed = match replayed {
        Ok(replayed) => replayed,
        Err(error) => {
            let reason = format!("the bundle has no verdict: {}", Causes(&error));
            return end(state, &mut test, reason).await;
        }
    };
    let verdict = replayed.verdict.name();
    let is_convicted = matches!(replayed.verdict, Verdict::Convicted);
    measure(&test.model, is_convicted);
    if is_convicted {
        tracing::info!(
            model = test.model,
            answers = test.answers,
            cheated = test.cheated,
            "the spot checks found the planted cheat"
        );
    } else {
        tracing::error!(
            model = test.model,
            verdict,
            answers = test.answers,
            cheated = test.cheated,
            "the spot checks did not convict a cheat that was planted: their verdicts cannot be relied on"
        );
    }
    let now = state.clock.now();
    publish(state, &test.model, replayed.verdict, replayed.bundle, now).await?;
    test.state = SelfTestState::Judged;
    test.ended_at = Some(now);
    test.verdict = Some(verdict.to_owned());
    test.bundle = Some(replayed.bundle);
    state.store.update_self_test(&test, Some(&text)).await
}

/// Signs the result for other validators, which adopt nothing of a validator whose spot checks find no planted cheat.
async fn publish(
    state: &RunnerState,
    model: &str,
    verdict: Verdict,
    bundle: Digest,
    tested_at: Timestamp,
) -> Result<(), StoreError> {
    let Some(auditor) = state.auditor() else {
        return Ok(());
    };
    let share = state
        .settings
        .self_test
        .cheats
        .get(model)
        .map(|cheat| cheat.share_ppm);
    let outcome = SelfTestOutcome {
        kind: format!(
            "a cheaper engine in {} ppm of the answers",
            share.unwrap_or_default()
        ),
        tested_at,
        verdict,
        bundle,
    };
    let store = &state.adopter.store;
    match record_self_test(store, &state.keypair, auditor.netuid, outcome, &state.clock).await {
        Ok(_) => Ok(()),
        Err(RecordError::Store(error)) => Err(error),
        Err(error @ (RecordError::Kind | RecordError::NoChain)) => {
            tracing::warn!(error = %Causes(&error), "the result of a self-test is not published");
            Ok(())
        }
    }
}

/// States the results of the newest tests, as a restarted validator knows them.
///
/// # Errors
/// The database fails.
pub(crate) async fn measure_newest(store: &AuditStore) -> Result<(), StoreError> {
    for test in store.newest_self_tests().await? {
        if let Some(verdict) = &test.verdict {
            measure(&test.model, verdict == Verdict::Convicted.name());
        }
    }
    Ok(())
}

fn measure(model: &str, is_convicted: bool) {
    let gauge = metrics::gauge!("muster_audit_self_test_convicted", "model" => model.to_owned());
    gauge.set(f64::from(u8::from(is_convicted)));
}

async fn end(state: &RunnerState, test: &mut SelfTest, reason: String) -> Result<(), StoreError> {
    tracing::warn!(model = test.model, reason, "the spot checks could not be tested");
    test.state = SelfTestState::Ended;
    test.ended_at = Some(state.clock.now());
    test.reason = Some(reason);
    state.store.update_self_test(test, None).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::PlantedCheat;

    fn tested(model: &str, began: i64, verdict: Option<&str>) -> SelfTest {
        SelfTest {
            test: "t".to_owned(),
            model: model.to_owned(),
            state: SelfTestState::Judged,
            answers: 1,
            cheated: 1,
            began_at: Timestamp::from_secs(began),
            ended_at: None,
            verdict: verdict.map(str::to_owned),
            reason: None,
            bundle: None,
        }
    }

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

    #[test]
    fn a_test_is_judged_after_the_draw_of_its_last_bucket() {
        let tests = SelfTests::default();
        assert!(tests.find_drawn(1_000).is_none());
        let mut running = RunningTest {
            test: tested("a", 0, None),
            miner: MinerKey(Hotkey::from_bytes([1; 32])),
            prepared: None,
            asked_in: None,
        };
        tests.replace(Some(running.clone()));
        assert!(tests.needs_list(BucketNumber(9)));
        assert!(tests.find_drawn(1_000).is_none(), "it still asks");
        running.asked_in = Some(BucketNumber(2));
        tests.replace(Some(running));
        assert!(
            tests.needs_list(BucketNumber(1)),
            "the header of its last answers is not signed"
        );
        assert!(!tests.needs_list(BucketNumber(2)));
        let draw = BucketNumber(2).draw_block();
        assert!(tests.find_drawn(draw - 1).is_none());
        assert_eq!(
            tests.find_drawn(draw).map(|(_, last)| last),
            Some(BucketNumber(2))
        );
    }
}
