//! Fresh answers of accused miners: the validator's own prompts to a miner that appeals, or to a convict once a day, in
//! a session of their own; and the verdict about those of an appeal. Answers to clients count neither for an appeal nor
//! against it: the miner, or a friend of its, may be the client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{StreamExt as _, stream};
use muster_audit::Verdict;
use muster_gateway::logged_session::{LoggedSession, LoggedSessionError};
use muster_protocol::{Digest, MinerKey};
use muster_response_proof::BucketNumber;
use muster_store::StoreError;
use tokio::time::Instant;

use crate::appeals::appeal_end::{AppealEnd, AppealFacts, AppealStep};
use crate::appeals::stored_appeal::StoredAppeal;
use crate::audits::audit_run;
use crate::audits::reference_start::AuditPauses;
use crate::audits::subject::Subject;
use crate::own_prompts::asking::pace;
use crate::own_prompts::list_queue::NextPrompt;
use crate::own_prompts::sources::names_seeds;
use crate::phases::AuditPhase;
use crate::runner_state::RunnerState;

/// The own prompts that a convict is asked in a day.
const CONVICT_PROMPTS: usize = 4;
/// Prompts that one session is asked at once.
const AT_ONCE: usize = 4;

/// The sessions for fresh answers: one at a time for each appeal and convict, and one in a bucket, since a miner that
/// gives none would be asked for one at each block.
#[derive(Debug, Default)]
pub(crate) struct FreshSessions(parking_lot::Mutex<BTreeMap<AskedFor, Option<BucketNumber>>>);

/// Why a miner is asked for fresh answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AskedFor {
    /// An appeal against this bundle.
    Appeal(Digest),
    /// A conviction of this subject.
    Conviction(Subject),
}

impl FreshSessions {
    /// Begins a session in this bucket, unless there is one or there was one in it.
    fn begin(&self, asked_for: &AskedFor, bucket: BucketNumber) -> bool {
        let mut sessions = self.0.lock();
        let last = sessions.get(asked_for).copied();
        let is_free = last.is_none_or(|last| last.is_some_and(|last| last < bucket));
        if is_free {
            sessions.insert(asked_for.clone(), None);
        }
        is_free
    }

    fn end(&self, asked_for: AskedFor, bucket: BucketNumber) {
        self.0.lock().insert(asked_for, Some(bucket));
    }

    fn forget(&self, asked_for: &AskedFor) {
        self.0.lock().remove(asked_for);
    }
}

/// Opens a session with every miner whose open appeal lacks fresh answers, each as a task of its own that asks them.
pub(crate) async fn ask_fresh(state: &Arc<RunnerState>) -> Result<(), StoreError> {
    let now = state.clock.now();
    let bucket = BucketNumber::of_block(state.seen_block.load(Ordering::Acquire));
    for appeal in state.store.appeals(now).await? {
        if !appeal.is_open() || appeal.open_until <= now {
            continue;
        }
        let (asked, _) = state
            .store
            .count_fresh(&appeal.miner, &appeal.model, appeal.received_at)
            .await?;
        let missing = state.settings.appeal_answers.saturating_sub(asked);
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        let asked_for = AskedFor::Appeal(appeal.bundle);
        if missing == 0 || !state.asking.begin(&asked_for, bucket) {
            continue;
        }
        let asking = Arc::clone(state);
        drop(state.tasks.spawn("fresh answers", async move {
            ask(&asking, (appeal.miner, &appeal.model), missing, &asked_for).await;
            asking.asking.end(asked_for, bucket);
        }));
    }
    Ok(())
}

/// Asks the convicts that are due some own prompts, each in a session of its own, without pay.
pub(crate) async fn ask_convicts(state: &Arc<RunnerState>) -> Result<(), StoreError> {
    let bucket = BucketNumber::of_block(state.seen_block.load(Ordering::Acquire));
    for (subject, miner) in state.convicts_to_ask().await? {
        let asked_for = AskedFor::Conviction(subject.clone());
        // The fresh answers of an appeal are judged by themselves.
        if state.is_appealed(&subject).await? || !state.asking.begin(&asked_for, bucket) {
            continue;
        }
        let asking = Arc::clone(state);
        drop(state.tasks.spawn("answers of a convict", async move {
            ask(&asking, (miner, &subject.model), CONVICT_PROMPTS, &asked_for).await;
            asking.asking.end(asked_for, bucket);
        }));
    }
    Ok(())
}

/// Asks a miner own prompts in a session that is opened for them, once a header has committed to them and its draw
/// block is there.
async fn ask(state: &Arc<RunnerState>, (miner, model): (MinerKey, &str), count: usize, asked_for: &AskedFor) {
    state.enter(AuditPhase::AskingFreshAnswers).await;
    let asked = match state.gateway.open_session(miner, model).await {
        Ok(session) => {
            let asked = ask_in(state, &session, (model, count), asked_for).await;
            let closed = session.close().await.map_err(LoggedSessionError::from);
            asked.and_then(|answered| closed.map(|()| answered))
        }
        Err(error) => Err(error),
    };
    match asked {
        Ok(answered) => tracing::info!(%miner, model, answered, "fresh answers of an accused miner came"),
        Err(LoggedSessionError::Session(reason)) => {
            tracing::info!(%miner, model, reason, "an accused miner has no session for fresh answers");
        }
        Err(LoggedSessionError::Store(error)) => drop(state.fail(error)),
    }
}

/// Asks a session this many own prompts. Returns how many were answered.
async fn ask_in(
    state: &RunnerState,
    session: &LoggedSession,
    (model, count): (&str, usize),
    asked_for: &AskedFor,
) -> Result<usize, LoggedSessionError> {
    let list = state.stock.take(state, model, count).await?;
    let planned = state
        .lists
        .plan(session.sealed(), list, names_seeds(&state.settings, model));
    let Some(ready) = planned else { return Ok(0) };
    let stop = state.tasks.token();
    let Some(Ok(prompts)) = stop.run_until_cancelled(ready).await else {
        return Ok(0);
    };
    if let AskedFor::Conviction(subject) = asked_for {
        let (verdicts, now) = (&state.adopter.store, state.clock.now());
        verdicts.note_asked(&subject.coldkey, &subject.model, now).await?;
    }
    let asked: Vec<_> = stream::iter(pace(prompts, state.settings.own_spread_s))
        .map(|(at, prompt): (Instant, NextPrompt)| async move {
            tokio::time::sleep_until(at).await;
            ask_logged(state, session, prompt).await
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut answered = 0;
    for ended in asked {
        match ended {
            Ok(()) => answered += 1,
            Err(LoggedSessionError::Session(reason)) => {
                tracing::info!(model, reason, "a fresh question was not answered");
            }
            Err(error @ LoggedSessionError::Store(_)) => return Err(error),
        }
    }
    Ok(answered)
}

/// Asks a session of the validator's own one prompt, and notes the answer.
pub(crate) async fn ask_logged(
    state: &RunnerState,
    session: &LoggedSession,
    prompt: NextPrompt,
) -> Result<(), LoggedSessionError> {
    let (store, list, position) = (&state.store, prompt.list, prompt.position);
    store.note_sent(&list, position, state.clock.now()).await?;
    let answer = session.ask(prompt.into_question()).await?;
    store.note_answer(&list, position, &answer).await?;
    Ok(())
}

/// Judges the appeals whose fresh answers are there, and ends those whose time is over. One that cannot be judged now
/// is tried again after a pause.
pub(crate) async fn audit_appeals(
    state: &Arc<RunnerState>,
    pauses: &mut AuditPauses,
) -> Result<(), StoreError> {
    let now = state.clock.now();
    for appeal in state.store.appeals(now).await? {
        if !appeal.is_open() {
            continue;
        }
        // A process that was killed may have judged the fresh answers already.
        if let Some(judged) = state
            .store
            .judged_run(&appeal.subject(), appeal.received_at)
            .await?
        {
            let verdict = judged.verdict.as_deref().and_then(Verdict::of_name);
            let end = verdict.map_or(AppealEnd::Expired, AppealEnd::of_verdict);
            end_appeal(state, &appeal, end, judged.bundle).await?;
            continue;
        }
        let (_, drawn) = state
            .store
            .count_fresh(&appeal.miner, &appeal.model, appeal.received_at)
            .await?;
        let facts = AppealFacts {
            needed: state.settings.appeal_answers,
            drawn,
            is_over: appeal.open_until <= now,
        };
        let mut step = facts.before_audit();
        let mut fresh = None;
        if step == AppealStep::Audit {
            let subject = appeal.subject();
            if pauses.is_paused(&subject, now) && !facts.is_over {
                continue;
            }
            let (runs, audit) = audit_run::audit_fresh(state, subject.clone()).await?;
            pauses.note(&[subject], &runs, state.clock.now());
            fresh = runs.iter().find_map(|run| run.bundle);
            step = facts.after_audit(audit);
        }
        if let AppealStep::End(end) = step {
            end_appeal(state, &appeal, end, fresh).await?;
        }
    }
    Ok(())
}

async fn end_appeal(
    state: &RunnerState,
    appeal: &StoredAppeal,
    end: AppealEnd,
    fresh: Option<Digest>,
) -> Result<(), StoreError> {
    state.enter(AuditPhase::EndingAppeal).await;
    state
        .store
        .end_appeal(appeal, end, fresh, state.clock.now())
        .await?;
    state.asking.forget(&AskedFor::Appeal(appeal.bundle));
    Ok(())
}
