//! One audit of a model: references are started, the answers that wait are scored, and each coldkey gets its verdict.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use muster_audit::Calibration;
use muster_process::error::Causes;
use muster_store::StoreError;
use muster_validator_store::AuditOrigin;
use uuid::Uuid;

use crate::appeals::appeal_end::FreshAudit;
use crate::audits::adoption::AdoptionRefusal;
use crate::audits::reference_pair::{CollectedEvidence, ReferencePair};
use crate::audits::run_record::{AuditRun, RunState};
use crate::audits::stored_evidence::{AuditScope, AuditedSubject};
use crate::audits::subject::Subject;
use crate::audits::unauditable_answers::settle_unauditable;
use crate::own_prompts::sources::write_prompts;
use crate::phases::AuditPhase;
use crate::reference::plan::calibrated_service;
use crate::runner_state::RunnerState;

/// Audits these subjects, which are all of one model. Returns the audits as they ended.
///
/// # Errors
/// The database fails.
pub(crate) async fn audit_model(
    state: &Arc<RunnerState>,
    model: &str,
    subjects: Vec<Subject>,
) -> Result<Vec<AuditRun>, StoreError> {
    state.enter(AuditPhase::Gathering).await;
    let calibration = match calibrated_service(state, model) {
        Ok((_, calibration)) => calibration,
        Err(reason) => return end_all(state, begin_all(state, subjects).await?, &reason).await,
    };
    // A machine costs money: nobody waits for one in vain.
    let mut waiting = Vec::new();
    for subject in subjects {
        if has_waiting_answers(state, &subject, &calibration).await? {
            waiting.push(subject);
        }
    }
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    let (runs, _) = audit_subjects(state, model, waiting).await?;
    Ok(runs)
}

/// Audits the fresh answers of an appeal about this subject. Their verdict counts only if references scored as many of
/// them as an appeal asks for. Returns the audits, and what the bundle proves; `None` if there is no bundle.
///
/// # Errors
/// The database fails.
pub(crate) async fn audit_fresh(
    state: &Arc<RunnerState>,
    subject: Subject,
) -> Result<(Vec<AuditRun>, Option<FreshAudit>), StoreError> {
    state.enter(AuditPhase::Gathering).await;
    let model = subject.model.clone();
    let (runs, audits) = audit_subjects(state, &model, vec![subject]).await?;
    Ok((runs, audits.into_iter().next()))
}

async fn audit_subjects(
    state: &Arc<RunnerState>,
    model: &str,
    subjects: Vec<Subject>,
) -> Result<(Vec<AuditRun>, Vec<FreshAudit>), StoreError> {
    let mut runs = begin_all(state, subjects).await?;
    // One pair at a time: the own miner may have room for one only.
    let _machines = state.machines.lock().await;
    let mut references = match ReferencePair::open(state, model).await {
        Ok(references) => references,
        Err(reason) => return Ok((end_all(state, runs, &reason).await?, Vec::new())),
    };
    let mut audits = Vec::new();
    for run in &mut runs {
        audits.extend(audit_subject(&mut references, state, run).await?);
    }
    if let Some(first) = references.first() {
        write_prompts(state, model, first).await?;
    }
    state.enter(AuditPhase::ReleasingMachines).await;
    drop(references);
    Ok((runs, audits))
}

/// Stores that audits of these subjects begin.
async fn begin_all(state: &RunnerState, subjects: Vec<Subject>) -> Result<Vec<AuditRun>, StoreError> {
    let now = state.clock.now();
    let runs: Vec<AuditRun> = subjects
        .into_iter()
        .map(|subject| AuditRun {
            run: Uuid::new_v4().to_string(),
            coldkey: subject.coldkey,
            model: subject.model,
            state: RunState::Starting,
            answers: 0,
            scored: 0,
            began_at: now,
            ended_at: None,
            bundle: None,
            verdict: None,
            reason: None,
        })
        .collect();
    for run in &runs {
        state.store.insert_run(run).await?;
    }
    Ok(runs)
}

/// Ends audits for which there is no reference.
async fn end_all(
    state: &RunnerState,
    mut runs: Vec<AuditRun>,
    reason: &str,
) -> Result<Vec<AuditRun>, StoreError> {
    tracing::warn!(reason, "no reference was started");
    for run in &mut runs {
        end(state, run, reason.to_owned()).await?;
    }
    Ok(runs)
}

/// Whether a verdict about a subject can prove more now: a reference can score an answer, or answers are missing, or an
/// earlier process did not end its audit. Answers that nobody can audit any more get their finding.
async fn has_waiting_answers(
    state: &RunnerState,
    subject: &Subject,
    calibration: &Calibration,
) -> Result<bool, StoreError> {
    let scope = AuditScope::of(state, subject).await?;
    let read = AuditedSubject::read(state, scope, calibration).await?;
    settle_unauditable(state, &read).await?;
    let judged = state.store.newest_judged().await?.get(subject).copied();
    Ok(read.has_unscored()
        || read.has_unjudged_missing(judged)
        || state.store.is_interrupted(subject, read.scope.since).await?)
}

/// Ends an audit without a verdict.
async fn end(state: &RunnerState, run: &mut AuditRun, reason: String) -> Result<(), StoreError> {
    run.state = RunState::Ended;
    run.ended_at = Some(state.clock.now());
    run.reason = Some(reason);
    state.store.update_run(run).await
}

/// Audits one subject. The verdict about an appeal counts only if references scored as many answers as an appeal
/// asks for. Returns what the bundle proves; `None` if there is none, or it proves nothing.
async fn audit_subject(
    references: &mut ReferencePair,
    state: &RunnerState,
    run: &mut AuditRun,
) -> Result<Option<FreshAudit>, StoreError> {
    let scope = AuditScope::of(state, &run.subject()).await?;
    let least_scored = if scope.is_appeal {
        state.settings.appeal_answers
    } else {
        0
    };
    let subject = AuditedSubject::read(state, scope, references.calibration()).await?;
    run.state = RunState::Scoring;
    run.answers = u64::try_from(subject.waiting().len()).unwrap_or(u64::MAX);
    state.store.update_run(run).await?;
    let (bundle, answers) = match references.collect_evidence(state, subject, Some(run)).await? {
        CollectedEvidence::Whole { bundle, answers } => (bundle, answers),
        CollectedEvidence::Inconsistent => {
            end(state, run, "the stored log does not fit together".to_owned()).await?;
            return Ok(None);
        }
        // The sessions end with the validator, and its next process ends this audit.
        CollectedEvidence::Stopped => return Ok(None),
    };
    state.enter(AuditPhase::StoringVerdict).await;
    match state.adopter.adopt(bundle, AuditOrigin::Own, least_scored).await {
        Ok(adoption) => {
            let (adopted, scored) = (adoption.audit, adoption.scored);
            state.enter(AuditPhase::RevealingOutcomes).await;
            state
                .store
                .reveal_scores(answers.iter(), state.clock.now())
                .await?;
            state.outcomes_due.store(true, Ordering::SeqCst);
            let verdict = adopted.verdict;
            metrics::counter!("muster_audit_verdicts_total", "verdict" => verdict.clone()).increment(1);
            tracing::info!(coldkey = %run.coldkey, model = run.model, verdict, bundle = %adopted.digest, "an audit has its verdict");
            run.state = RunState::Judged;
            run.ended_at = Some(state.clock.now());
            run.bundle = Some(adopted.digest);
            run.verdict = Some(verdict);
            state.enter(AuditPhase::EndingAudit).await;
            state.store.update_run(run).await?;
            let verdict = adoption.verdict;
            Ok(Some(FreshAudit { verdict, scored }))
        }
        Err(AdoptionRefusal::Store(error)) => Err(error),
        Err(refused) => {
            let reason = format!("the bundle has no verdict: {}", Causes(&refused));
            end(state, run, reason).await?;
            Ok(refused.too_few())
        }
    }
}
