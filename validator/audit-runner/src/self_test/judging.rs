//! A test ends: the references judge its answers, and its verdict is measured and published.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_audit::{ReplayError, ReplayedBundle, Verdict, replay_with_bundle};
use muster_process::error::Causes;
use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp};
use muster_store::StoreError;
use muster_verdict_exchange::{
    Forgery, ForgeryTrial, RecordError, SelfTestOutcome, record_self_test, try_forgeries,
};

use crate::audits::reference_pair::{CollectedEvidence, ReferencePair};
use crate::audits::stored_evidence::{AuditScope, AuditedSubject};
use crate::runner_state::RunnerState;
use crate::store::audit_store::AuditStore;
use crate::store::self_tests::{SelfTest, SelfTestState};

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
    conclude(state, test, text).await
}

/// Ends a test by the verdict of its bundle.
async fn conclude(state: &RunnerState, mut test: SelfTest, text: String) -> Result<(), StoreError> {
    // Signatures and resampling take seconds.
    let replaying = tokio::task::spawn_blocking(move || (judge_text(&text), text));
    let Ok((judged, text)) = replaying.await else {
        return end(state, &mut test, "the replay ended early".to_owned()).await;
    };
    let (replayed, trial) = match judged {
        Ok(judged) => judged,
        Err(error) => {
            let reason = format!("the bundle has no verdict: {}", Causes(&error));
            return end(state, &mut test, reason).await;
        }
    };
    if let Some(trial) = trial {
        for forgery in Forgery::ALL {
            let refusal = match trial.refusals.get(&forgery) {
                Some(refusal) => refusal.as_deref().unwrap_or("it is adopted"),
                None => "not tried: the bundle gives nothing to forge",
            };
            tracing::info!(model = test.model, %forgery, refusal, "a forged bundle was judged");
        }
        if let Some(defect) = trial.defect() {
            tracing::error!(
                model = test.model,
                defect,
                "adopters of verdicts cannot be relied on"
            );
            measure(&test.model, false);
            return end(state, &mut test, defect).await;
        }
    }
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

/// The verdict of a test's bundle, and if it convicts, what adopters do with it and with forged ones.
fn judge_text(text: &str) -> Result<(ReplayedBundle, Option<ForgeryTrial>), ReplayError> {
    let (replayed, bundle) = replay_with_bundle(text)?;
    let trial = matches!(replayed.verdict, Verdict::Convicted).then(|| try_forgeries(&bundle));
    Ok((replayed, trial))
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

/// Ends a test without a verdict.
pub(super) async fn end(state: &RunnerState, test: &mut SelfTest, reason: String) -> Result<(), StoreError> {
    tracing::warn!(model = test.model, reason, "the spot checks could not be tested");
    test.state = SelfTestState::Ended;
    test.ended_at = Some(state.clock.now());
    test.reason = Some(reason);
    state.store.update_self_test(test, None).await
}
