//! The two references of a model, and the evidence that they collect about a subject.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::{Calibration, OpenedText, ReferenceMachine, Statistic, UnusableReason};
use muster_gateway::store::{AnswerText, BodyForm, LoggedAnswer, TextConsent};
use muster_response_proof::ResponseProof;
use muster_store::StoreError;

use crate::answer_text::{FoundIds, find_ids, signed_body};
use crate::audits::run_record::AuditRun;
use crate::audits::stored_evidence::{AuditedSubject, ReferenceFacts};
use crate::evidence::assemble::assemble;
use crate::evidence::outcome::{BothOutcomes, ReferenceOutcome};
use crate::evidence::session_check::leave_out_unprovable;
use crate::evidence::session_choice::max_own_bundle;
use crate::log::leaves::proof_of;
use crate::phases::AuditPhase;
use crate::reference::plan::{ReferencePlan, calibrated_service};
use crate::reference::reference_machine::Reference;
use crate::reference::score_request::{ScoreFailure, ScoreRequest, ask_about};
use crate::reference::scoring_engine::Sampling;
use crate::runner_state::RunnerState;

/// How often a reference that has died is started again in one audit.
const MAX_RESTARTS: usize = 2;

/// The most bytes of a response that is kept for a bundle.
const MAX_RESPONSE: usize = 1024 * 1024;

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
    /// The reason why there is no reference, as text.
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

    /// The two references, as a bundle states them.
    fn facts(&self) -> ReferenceFacts {
        ReferenceFacts {
            calibration: self.calibration.clone(),
            unseeded: self.unseeded.clone(),
            machines: self.machines.clone(),
        }
    }

    /// The first reference, while it serves.
    pub(crate) const fn first(&self) -> Option<&Reference> {
        let [first, _] = &self.references;
        first.as_ref()
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
        subject.words = state.store.opened_text(&scope.model, scope.since).await?;
        let nonce_keys = subject.reveal_nonce_keys(state).await?;
        let inputs = subject.into_inputs(state, self.facts(), nonce_keys);
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
        let proven = match state.log.store().find_text(&answer.id).await? {
            None => Err(UnusableReason::NotAudited),
            Some(words) => proof_of(answer)
                .map(|proof| ProvenText { proof, words })
                .ok_or(UnusableReason::TruncatedBody),
        };
        let asked = match &proven {
            Err(reason) => Err(ScoreFailure::Unusable(*reason)),
            Ok(proven) => {
                if let Some(opened) = publishable(answer, is_own, proven) {
                    state
                        .store
                        .put_opened_text(&answer.id, &opened, state.clock.now())
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
            state.log.store().drop_text(&answer.id).await?;
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

/// An answer's text beside the proof of its session.
struct ProvenText {
    proof: ResponseProof,
    words: AnswerText,
}

/// The text of an answer, if a bundle may open it: the answer is one to an own prompt, or one to a consenting client
/// whose ids the session signed.
fn publishable(answer: &LoggedAnswer, is_own: bool, proven: &ProvenText) -> Option<OpenedText> {
    let request = match (is_own, answer.consent) {
        (true, _) => None,
        (false, TextConsent::Publish) => Some(STANDARD.encode(&proven.words.request)),
        (false, TextConsent::Private | TextConsent::Declined) => return None,
    };
    let (prompt, output, response) = match find_ids(&proven.proof, &proven.words).ok()? {
        FoundIds::Signed(ids) => (ids.prompt, ids.output, None),
        FoundIds::Missing => (Vec::new(), Vec::new(), None),
        FoundIds::Unsigned => (Vec::new(), Vec::new(), Some(text_response(is_own, proven)?)),
    };
    Some(OpenedText {
        prompt,
        output,
        request,
        response,
    })
}

/// The response, base64, in whose text another reference finds the tokens of an own prompt's answer; `None` if it is
/// not the one that the session signed, or is too long to be shown.
fn text_response(is_own: bool, proven: &ProvenText) -> Option<String> {
    let body = signed_body(&proven.proof, &proven.words).filter(|_| is_own)?;
    (body.len() <= MAX_RESPONSE).then(|| STANDARD.encode(body))
}

/// Keeps the response of an answer with false ids, if a bundle may open it. `false` if the stored body is not the one
/// that the session signed, so that nothing in it speaks against the miner.
async fn keep_response(
    state: &RunnerState,
    answer: &LoggedAnswer,
    is_own: bool,
    proven: &ProvenText,
) -> Result<bool, StoreError> {
    if proven.words.form == BodyForm::Read {
        // The gateway compared the whole body with the proof when it arrived, and nobody can open what is left of it.
        return Ok(true);
    }
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
        let opened = OpenedText {
            response: Some(STANDARD.encode(body)),
            ..opened
        };
        state
            .store
            .put_opened_text(&answer.id, &opened, state.clock.now())
            .await?;
    }
    Ok(true)
}
