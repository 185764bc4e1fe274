//! One audit of a model: references are started, the answers that wait are scored, and each coldkey gets its verdict.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::{Calibration, OpenedWords, ReferenceMachine, Statistic, UnusableReason};
use muster_gateway::store::{AnswerWords, LoggedAnswer, WordConsent};
use muster_process::error::Causes;
use muster_response_proof::{Envelope, ResponseProof};
use muster_session_pool::Service;
use muster_store::StoreError;
use muster_validator_store::AuditOrigin;
use uuid::Uuid;

use crate::RunnerState;
use crate::adoption::AdoptionRefusal;
use crate::answer_words::{FoundIds, find_ids, signed_body};
use crate::appeal_rule::FreshAudit;
use crate::audited_subject::{AuditScope, AuditedSubject};
use crate::evidence::{BothOutcomes, ReferenceOutcome, assemble};
use crate::gathering::Subject;
use crate::phases::AuditPhase;
use crate::prompt_sources::write_prompts;
use crate::reference::Reference;
use crate::reference_engine::{ReferencePlan, Sampling};
use crate::score_request::{ScoreFailure, ScoreRequest, ask_about};
use crate::session_check::leave_out_unprovable;
use crate::session_choice::max_own_bundle;
use crate::store::{AuditRun, RunState};
use crate::unshown_answers::settle_unshown;

/// How often a reference that has died is started again in one audit.
const MAX_RESTARTS: usize = 2;

/// The most bytes of a response that is kept for a bundle.
const MAX_RESPONSE: usize = 1024 * 1024;

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
/// them as an appeal asks for. Returns the audits, and what the bundle says; `None` if there is no bundle.
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
        audits.extend(references.audit(state, run).await?);
    }
    if let [Some(first), _] = &references.references {
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

/// The whitelisted service of a model, and the calibration of its image.
///
/// # Errors
/// There is none, or the calibration is of another image: what to configure, in words.
pub(crate) fn calibrated_service(state: &RunnerState, model: &str) -> Result<(Service, Calibration), String> {
    let listed = state.services.iter().find(|service| service.model == model);
    let service = listed.cloned().ok_or("the whitelist has no such model")?;
    let calibration = state
        .settings
        .calibration(model)
        .ok_or("the model has no calibration: [audit.calibrations] names one")?;
    if calibration.engine != service.image.0 {
        return Err(format!(
            "the calibration is of the image {}, and the whitelist has {}: measure the whitelisted image, and name its \
             calibration in [audit.calibrations]",
            calibration.engine, service.image.0
        ));
    }
    Ok((service, calibration))
}

/// Whether a verdict about a subject can say more now: a reference can score an answer, or answers are missing, or an
/// earlier process did not end its audit. Answers that nobody can audit any more get their finding.
async fn has_waiting_answers(
    state: &RunnerState,
    subject: &Subject,
    calibration: &Calibration,
) -> Result<bool, StoreError> {
    let scope = AuditScope::of(state, subject).await?;
    let read = AuditedSubject::read(state, scope, calibration).await?;
    settle_unshown(state, &read).await?;
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

/// The evidence about a subject.
#[derive(Debug)]
pub(crate) enum CollectedEvidence {
    /// The text of the bundle, and the ids of the answers that it shows.
    Whole { bundle: String, answers: Vec<String> },
    /// The stored log does not fit together.
    Inconsistent,
    /// The validator is stopping.
    Stopped,
}

/// The references of one model, side by side.
pub(crate) struct ReferencePair {
    calibration: Calibration,
    /// The calibration of answers whose seeds nobody knows, if the engine draws by seeds of its own.
    unseeded: Option<Calibration>,
    plans: [ReferencePlan; 2],
    /// `None` once a reference is gone for good.
    references: [Option<Reference>; 2],
    machines: Vec<ReferenceMachine>,
    restarts: usize,
}

impl ReferencePair {
    /// Starts the references of a model.
    ///
    /// # Errors
    /// The reason why there is no reference, in words.
    pub(crate) async fn open(state: &RunnerState, model: &str) -> Result<Self, String> {
        let (service, calibration) = calibrated_service(state, model)?;
        let plan = ReferencePlan::new(&state.settings, &service, &calibration)?;
        let second = plan.second(&state.settings);
        let first = Reference::start(state, &plan).await?;
        let machine = first.machine();
        // Without a second reference nobody is convicted, and suspicion needs none.
        let other = match Reference::start(state, &second).await {
            Ok(other) if other.machine() != machine => Some(other),
            // The same machine again confirms nothing.
            Ok(_) => None,
            Err(reason) => {
                tracing::info!(model, reason, "there is no second reference");
                None
            }
        };
        let none = || ReferenceMachine {
            machine: "none".to_owned(),
            gpu: "none".to_owned(),
            engine: second.service.image.0,
        };
        let machines = vec![machine, other.as_ref().map_or_else(none, Reference::machine)];
        let unseeded = state.settings.unseeded_calibration(model);
        let unseeded = unseeded.filter(|unseeded| unseeded.is_unseeded_of(&calibration));
        Ok(Self {
            unseeded,
            calibration,
            plans: [plan, second],
            references: [Some(first), other],
            machines,
            restarts: 0,
        })
    }

    /// The calibration by which the references judge.
    pub(crate) const fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// The calibration of answers whose seeds nobody knows.
    pub(crate) const fn unseeded(&self) -> Option<&Calibration> {
        self.unseeded.as_ref()
    }

    /// The machines of the first and of the second reference.
    pub(crate) fn machines(&self) -> &[ReferenceMachine] {
        &self.machines
    }

    /// The sampler of the answers.
    fn sampling(&self) -> &Sampling {
        let [first, _] = &self.plans;
        &first.sampling
    }

    /// Whether the seed of an answer is needed and nobody knows it.
    fn is_without_calibration(&self, asked: &ScoreRequest) -> bool {
        asked.is_unseeded && self.calibration.statistic == Statistic::Margin && self.unseeded.is_none()
    }

    /// Audits one subject. The verdict about an appeal counts only if references scored as many answers as an appeal
    /// asks for. Returns what the bundle says; `None` if there is none, or it proves nothing.
    async fn audit(
        &mut self,
        state: &RunnerState,
        run: &mut AuditRun,
    ) -> Result<Option<FreshAudit>, StoreError> {
        let scope = AuditScope::of(state, &run.subject()).await?;
        let least_scored = if scope.is_appeal {
            state.settings.appeal_answers
        } else {
            0
        };
        let subject = AuditedSubject::read(state, scope, &self.calibration).await?;
        run.state = RunState::Scoring;
        run.answers = u64::try_from(subject.waiting().len()).unwrap_or(u64::MAX);
        state.store.update_run(run).await?;
        let (bundle, answers) = match self.collect_evidence(state, subject, Some(run)).await? {
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

    /// Has every answer of a subject scored that waits for it, and assembles the bundle. The progress is stored with
    /// `run`, if there is one.
    ///
    /// # Errors
    /// The database fails.
    pub(crate) async fn collect_evidence(
        &mut self,
        state: &RunnerState,
        mut subject: AuditedSubject,
        mut run: Option<&mut AuditRun>,
    ) -> Result<CollectedEvidence, StoreError> {
        for answer in subject.waiting() {
            if state.tasks.token().is_cancelled() {
                return Ok(CollectedEvidence::Stopped);
            }
            let known = subject.outcomes.remove(&answer.id).unwrap_or_default();
            let is_own = subject.canaries.contains_key(&answer.id);
            self.score(state, &answer, is_own, &known).await?;
            if let Some(run) = &mut run {
                run.scored = run.scored.saturating_add(1);
                state.store.update_run(run).await?;
            }
        }
        state.enter(AuditPhase::AssemblingBundle).await;
        let scope = &subject.scope;
        subject.outcomes = state.store.outcomes(&scope.model, scope.since).await?;
        subject.words = state.store.opened_words(&scope.model, scope.since).await?;
        let nonce_keys = subject.reveal_nonce_keys(state).await?;
        let inputs = subject.into_inputs(state, self, nonce_keys);
        let Some(mut inputs) = inputs else {
            return Ok(CollectedEvidence::Inconsistent);
        };
        // Paths, texts and the check of every signature take seconds.
        let assembling = tokio::task::spawn_blocking(move || {
            let sessions = inputs.sessions.len();
            let left_out = leave_out_unprovable(&mut inputs);
            let bundle = assemble(&inputs, max_own_bundle()).filter(|_| !inputs.sessions.is_empty());
            let judged = inputs.sessions.iter().flat_map(|session| &session.answers);
            let answers = judged.map(|answer| answer.id.clone()).collect();
            let whole = bundle.map(|bundle| CollectedEvidence::Whole {
                bundle: bundle.to_text(),
                answers,
            });
            (whole, left_out, sessions)
        });
        let Ok((assembled, left_out, sessions)) = assembling.await else {
            return Ok(CollectedEvidence::Stopped);
        };
        if let Some(run) = &mut run
            && left_out > 0
        {
            run.reason = Some(format!(
                "{left_out} of {sessions} sessions were left out, because their miner signed what does not fit together"
            ));
        }
        Ok(assembled.unwrap_or(CollectedEvidence::Inconsistent))
    }

    /// Has an answer scored by the references of which no finding is known. Every failure is the answer's outcome, and
    /// the next one goes on.
    async fn score(
        &mut self,
        state: &RunnerState,
        answer: &LoggedAnswer,
        is_own: bool,
        known: &BothOutcomes,
    ) -> Result<(), StoreError> {
        let proven = match state.log.store().find_words(&answer.id).await? {
            None => Err(UnusableReason::NotAudited),
            Some(words) => proof_of(answer)
                .map(|proof| ProvenWords { proof, words })
                .ok_or(UnusableReason::TruncatedBody),
        };
        let asked = match &proven {
            Err(reason) => Err(ScoreFailure::Unusable(*reason)),
            Ok(proven) => {
                if let Some(opened) = publishable(answer, is_own, proven) {
                    state
                        .store
                        .put_words(&answer.id, &opened, state.clock.now())
                        .await?;
                }
                ask_about(&answer.model, &proven.proof, &proven.words, self.sampling())
            }
        };
        // Answers without seeds are judged by their own calibration, or by none.
        let asked = match asked {
            Ok(asked) if self.is_without_calibration(&asked) => Err(UnusableReason::NoSeed.into()),
            other => other,
        };
        let mut both = 0;
        for (place, finding) in known.iter().enumerate() {
            let outcome = match &asked {
                _ if finding.is_some() => finding.clone(),
                // Evidence against the miner is confirmed by a second reference or not at all.
                Err(ScoreFailure::FalseIds(_)) if !self.has_reference(place) => None,
                Err(failure) => Some(ReferenceOutcome::from(*failure)),
                Ok(asked) => self.score_by(state, place, asked).await,
            };
            if let Some(mut outcome) = outcome {
                both += 1;
                if let (ReferenceOutcome::FalseIds(_), Ok(proven)) = (&outcome, &proven)
                    && !keep_response(state, answer, is_own, proven).await?
                {
                    outcome = ReferenceOutcome::Unusable(UnusableReason::TruncatedBody);
                }
                state
                    .store
                    .put_outcome(&answer.id, place, &outcome, state.clock.now())
                    .await?;
            }
        }
        if both == self.references.len() {
            state.log.store().drop_words(&answer.id).await?;
        }
        Ok(())
    }

    fn has_reference(&self, place: usize) -> bool {
        self.references.get(place).is_some_and(Option::is_some)
    }

    /// The outcome by one reference; `None` if it does not exist.
    async fn score_by(
        &mut self,
        state: &RunnerState,
        place: usize,
        asked: &ScoreRequest,
    ) -> Option<ReferenceOutcome> {
        let reference = self.references.get(place)?.as_ref()?;
        let phase = match place {
            0 => AuditPhase::Scoring,
            _ => AuditPhase::Confirming,
        };
        state.enter(phase).await;
        let failure = match reference.score(state, asked).await {
            Ok(tokens) if asked.is_unseeded && self.calibration.statistic == Statistic::Margin => {
                return Some(ReferenceOutcome::Unseeded(tokens));
            }
            Ok(tokens) => return Some(ReferenceOutcome::Scored(tokens)),
            Err(failure) => failure,
        };
        let is_lost = matches!(
            failure,
            ScoreFailure::Unusable(UnusableReason::ReferenceDied | UnusableReason::ReferenceStalled)
        );
        if is_lost && !reference.is_healthy().await {
            self.replace(state, place).await;
        }
        // The answer has its finding even if no reference comes up any more: it may end each one that is asked.
        Some(failure.into())
    }

    /// Starts a reference in place of one that an answer may have ended. Without one, the answers that follow wait for
    /// the next audit.
    async fn replace(&mut self, state: &RunnerState, place: usize) {
        let (Some(slot), Some(plan)) = (self.references.get_mut(place), self.plans.get(place)) else {
            return;
        };
        drop(slot.take());
        if self.restarts >= MAX_RESTARTS {
            tracing::warn!("a reference died too often; the rest of the audit goes on without it");
            return;
        }
        self.restarts += 1;
        match Reference::start(state, plan).await {
            Ok(reference) => *slot = Some(reference),
            Err(reason) => tracing::warn!(reason, "a reference that died was not started again"),
        }
    }
}

/// An answer's words beside the proof of its session.
struct ProvenWords {
    proof: ResponseProof,
    words: AnswerWords,
}

/// The words of an answer that a bundle may open: those to own prompts, and of consenting clients if the session signed
/// their ids.
fn publishable(answer: &LoggedAnswer, is_own: bool, proven: &ProvenWords) -> Option<OpenedWords> {
    let request = match (is_own, answer.consent) {
        (true, _) => None,
        (false, WordConsent::Publish) => Some(STANDARD.encode(&proven.words.request)),
        (false, WordConsent::Private | WordConsent::Declined) => return None,
    };
    let (prompt, output, response) = match find_ids(&proven.proof, &proven.words).ok()? {
        FoundIds::Signed(ids) => (ids.prompt, ids.output, None),
        FoundIds::Missing => (Vec::new(), Vec::new(), None),
        FoundIds::Unsigned => (Vec::new(), Vec::new(), Some(text_response(is_own, proven)?)),
    };
    Some(OpenedWords {
        prompt,
        output,
        request,
        response,
    })
}

/// The response, base64, in whose text another reference finds the tokens of an own prompt's answer; `None` if it is
/// not the one that the session signed, or is too long to be shown.
fn text_response(is_own: bool, proven: &ProvenWords) -> Option<String> {
    let body = signed_body(&proven.proof, &proven.words).filter(|_| is_own)?;
    (body.len() <= MAX_RESPONSE).then(|| STANDARD.encode(body))
}

/// Keeps the response of an answer with false ids, if a bundle may open it. `false` if the stored body is not the one
/// that the session signed, so that nothing in it speaks against the miner.
async fn keep_response(
    state: &RunnerState,
    answer: &LoggedAnswer,
    is_own: bool,
    proven: &ProvenWords,
) -> Result<bool, StoreError> {
    let Some(body) = signed_body(&proven.proof, &proven.words) else {
        tracing::error!(
            answer = answer.id,
            "a stored answer is not the one that its session signed"
        );
        return Ok(false);
    };
    if body.len() <= MAX_RESPONSE
        && let Some(opened) = publishable(answer, is_own, proven)
    {
        let opened = OpenedWords {
            response: Some(STANDARD.encode(body)),
            ..opened
        };
        state
            .store
            .put_words(&answer.id, &opened, state.clock.now())
            .await?;
    }
    Ok(true)
}

/// The proof of an answer's session; `None` if it cannot be read.
pub(crate) fn proof_of(answer: &LoggedAnswer) -> Option<ResponseProof> {
    Envelope::<ResponseProof>::from_text(&answer.proof)
        .ok()?
        .statement()
        .ok()
}
