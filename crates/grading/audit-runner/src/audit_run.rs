//! One audit of a model: references are started, the answers that wait are scored, and each coldkey gets its verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::{
    Calibration, OpenedCanary, OpenedWords, ReferenceMachine, RevealedNonceKey, UnusableReason,
};
use muster_gateway::store::{AnswerWords, LoggedAnswer, WordConsent};
use muster_process::error::Causes;
use muster_protocol::{Hotkey, MinerKey, Timestamp};
use muster_response_proof::{Envelope, ResponseProof, SessionId};
use muster_session_pool::Service;
use muster_store::StoreError;
use muster_validator_store::AuditOrigin;
use uuid::Uuid;

use crate::adoption::AdoptionRefusal;
use crate::evidence::{
    BothOutcomes, DrawnBucket, EvidenceInputs, ReferenceOutcome, WholeSession, assemble, nonce_periods,
    whole_session,
};
use crate::gathering::Subject;
use crate::log_keeper::leaf_hashes;
use crate::reference::Reference;
use crate::score_request::{
    AnswerIds, ScoreRequest, check_text_scores, find_ids, score_request, text_request,
};
use crate::store::{AuditRun, RunState};
use crate::{HiddenKey, RunnerState};

/// How often a reference that has died is started again in one audit.
const MAX_RESTARTS: usize = 2;

/// Audits these subjects, which are all of one model. Returns the audits as they ended.
///
/// # Errors
/// The database fails.
pub(crate) async fn audit_model(
    state: &Arc<RunnerState>,
    model: &str,
    subjects: Vec<Subject>,
) -> Result<Vec<AuditRun>, StoreError> {
    let now = state.clock.now();
    let mut runs: Vec<AuditRun> = subjects
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
    // One bench at a time: the own miner may have room for one only.
    let _machines = state.machines.lock().await;
    let mut bench = match Bench::open(state, model).await {
        Ok(bench) => bench,
        Err(reason) => {
            tracing::warn!(model, reason, "no reference was started");
            for run in &mut runs {
                end(state, run, reason.clone()).await?;
            }
            return Ok(runs);
        }
    };
    for run in &mut runs {
        bench.audit(state, run).await?;
    }
    Ok(runs)
}

/// Ends an audit without a verdict.
async fn end(state: &RunnerState, run: &mut AuditRun, reason: String) -> Result<(), StoreError> {
    run.state = RunState::Ended;
    run.ended_at = Some(state.clock.now());
    run.reason = Some(reason);
    state.store.update_run(run).await
}

/// The coldkey and the model that are judged, and the answers that are evidence.
#[derive(Clone, Debug)]
pub(crate) struct AuditScope {
    pub(crate) coldkey: Hotkey,
    pub(crate) model: String,
    /// Answers that ended earlier are no part of the evidence.
    pub(crate) since: Timestamp,
    /// The owner of every miner.
    pub(crate) owners: BTreeMap<MinerKey, Hotkey>,
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
pub(crate) struct Bench {
    calibration: Calibration,
    services: [Service; 2],
    /// `None` once a reference is gone for good.
    references: [Option<Reference>; 2],
    machines: Vec<ReferenceMachine>,
    restarts: usize,
}

impl Bench {
    /// Starts the references of a model.
    ///
    /// # Errors
    /// The reason why there is no reference, in words.
    pub(crate) async fn open(state: &RunnerState, model: &str) -> Result<Self, String> {
        let services = state.backend.services();
        let service = services
            .into_iter()
            .find(|service| service.model == model)
            .ok_or("the whitelist has no such model")?;
        let calibration = state
            .settings
            .calibration(model)
            .ok_or("the model has no calibration: [audit.calibrations] names one")?;
        let second = state.settings.second_service(&service);
        let first = Reference::start(state, &service).await?;
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
            engine: second.image.0,
        };
        let machines = vec![machine, other.as_ref().map_or_else(none, Reference::machine)];
        Ok(Self {
            calibration,
            services: [service, second],
            references: [Some(first), other],
            machines,
            restarts: 0,
        })
    }

    async fn audit(&mut self, state: &RunnerState, run: &mut AuditRun) -> Result<(), StoreError> {
        let scope = AuditScope {
            coldkey: run.coldkey,
            model: run.model.clone(),
            since: state.judged_since(&run.subject()).await?,
            owners: state.owners(),
        };
        let subject = AuditedSubject::read(state, scope).await?;
        run.state = RunState::Scoring;
        run.answers = u64::try_from(subject.waiting().len()).unwrap_or(u64::MAX);
        state.store.update_run(run).await?;
        let (bundle, answers) = match self.collect_evidence(state, subject, Some(run)).await? {
            CollectedEvidence::Whole { bundle, answers } => (bundle, answers),
            CollectedEvidence::Inconsistent => {
                return end(state, run, "the stored log does not fit together".to_owned()).await;
            }
            // The sessions end with the validator, and its next process ends this audit.
            CollectedEvidence::Stopped => return Ok(()),
        };
        match state.adopter.adopt(bundle, AuditOrigin::Own).await {
            Ok(adopted) => {
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
                state.store.update_run(run).await
            }
            Err(AdoptionRefusal::Store(error)) => Err(error),
            Err(refused) => {
                end(
                    state,
                    run,
                    format!("the bundle has no verdict: {}", Causes(&refused)),
                )
                .await
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
        let scope = &subject.scope;
        subject.outcomes = state.store.outcomes(&scope.model, scope.since).await?;
        subject.words = state.store.opened_words(&scope.model, scope.since).await?;
        let nonce_keys = subject.reveal_nonce_keys(state).await?;
        let inputs = subject.into_inputs(state, &self.calibration, &self.machines, nonce_keys);
        let Some(inputs) = inputs else {
            return Ok(CollectedEvidence::Inconsistent);
        };
        let Some(bundle) = assemble(&inputs) else {
            return Ok(CollectedEvidence::Inconsistent);
        };
        let judged = inputs.sessions.iter().flat_map(|session| &session.answers);
        Ok(CollectedEvidence::Whole {
            bundle: bundle.to_text(),
            answers: judged.map(|answer| answer.id.clone()).collect(),
        })
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
        let asked = match state.log.store().find_words(&answer.id).await? {
            None => Err(UnusableReason::NotAudited),
            Some(words) => match readable(answer, &words) {
                Err(reason) => Err(reason),
                Ok((proof, None)) => text_request(&answer.model, &proof, &words),
                Ok((proof, Some(ids))) => {
                    if let Some(opened) = publishable(answer, is_own, &proof, &words, &ids) {
                        state
                            .store
                            .put_words(&answer.id, &opened, state.clock.now())
                            .await?;
                    }
                    score_request(&answer.model, &proof, &words.request, &ids)
                }
            },
        };
        let mut both = 0;
        for (place, finding) in known.iter().enumerate() {
            let outcome = match &asked {
                _ if finding.is_some() => finding.clone(),
                Err(reason) => Some(ReferenceOutcome::Unusable(*reason)),
                Ok(asked) => self.score_by(state, place, asked).await,
            };
            if let Some(outcome) = outcome {
                both += 1;
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

    /// The outcome by one reference; `None` if it does not exist.
    async fn score_by(
        &mut self,
        state: &RunnerState,
        place: usize,
        asked: &ScoreRequest,
    ) -> Option<ReferenceOutcome> {
        let reference = self.references.get(place)?.as_ref()?;
        let scored = reference.score(state, asked.body.clone()).await;
        let scored = match asked.is_text {
            true => scored.and_then(check_text_scores),
            false => scored,
        };
        let reason = match scored {
            Ok(tokens) => return Some(ReferenceOutcome::Scored(tokens)),
            Err(reason) => reason,
        };
        let is_lost = matches!(
            reason,
            UnusableReason::ReferenceDied | UnusableReason::ReferenceStalled
        );
        if is_lost && !reference.is_healthy().await && self.restart(state, place).await == Restart::Failed {
            // Nobody can tell whether the answer ended the reference: it is asked about in the next audit.
            return None;
        }
        Some(ReferenceOutcome::Unusable(reason))
    }

    /// Starts a reference again that an answer may have ended: the answer is not asked about again.
    async fn restart(&mut self, state: &RunnerState, place: usize) -> Restart {
        let (Some(slot), Some(service)) = (self.references.get_mut(place), self.services.get(place)) else {
            return Restart::Failed;
        };
        drop(slot.take());
        if self.restarts >= MAX_RESTARTS {
            tracing::warn!("a reference died too often; the rest of the audit goes on without it");
            return Restart::GivenUp;
        }
        self.restarts += 1;
        match Reference::start(state, service).await {
            Ok(reference) => {
                *slot = Some(reference);
                Restart::Done
            }
            Err(reason) => {
                tracing::warn!(reason, "a reference that died was not started again");
                Restart::Failed
            }
        }
    }
}

/// The end of an attempt to start a reference again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    /// It serves again.
    Done,
    /// It died too often.
    GivenUp,
    /// It does not come up.
    Failed,
}

/// An answer's proof and the ids of its tokens, if the response states them.
fn readable(
    answer: &LoggedAnswer,
    words: &AnswerWords,
) -> Result<(ResponseProof, Option<AnswerIds>), UnusableReason> {
    let proof = proof_of(answer).ok_or(UnusableReason::TruncatedBody)?;
    let ids = find_ids(&proof, words)?;
    Ok((proof, ids))
}

/// The words of an answer that a bundle may open: those to own prompts and of consenting clients, if the session
/// signed their ids.
fn publishable(
    answer: &LoggedAnswer,
    is_own: bool,
    proof: &ResponseProof,
    words: &AnswerWords,
    ids: &AnswerIds,
) -> Option<OpenedWords> {
    proof.tokens?;
    let request = match (is_own, answer.consent) {
        (true, _) => None,
        (false, WordConsent::Publish) => Some(STANDARD.encode(&words.request)),
        (false, WordConsent::Private | WordConsent::Declined) => return None,
    };
    Some(OpenedWords {
        prompt: ids.prompt.clone(),
        output: ids.output.clone(),
        request,
    })
}

fn proof_of(answer: &LoggedAnswer) -> Option<ResponseProof> {
    Envelope::<ResponseProof>::from_text(&answer.proof)
        .ok()?
        .statement()
        .ok()
}

/// All that is stored about one coldkey and one model.
pub(crate) struct AuditedSubject {
    scope: AuditScope,
    sessions: Vec<WholeSession>,
    buckets: BTreeMap<u64, DrawnBucket>,
    canaries: BTreeMap<String, OpenedCanary>,
    outcomes: BTreeMap<String, BothOutcomes>,
    words: BTreeMap<String, OpenedWords>,
}

impl AuditedSubject {
    pub(crate) async fn read(state: &RunnerState, scope: AuditScope) -> Result<Self, StoreError> {
        let log = state.log.store();
        let mut answers = log.answers_of_model(&scope.model, scope.since).await?;
        answers.retain(|answer| scope.owners.get(&answer.miner) == Some(&scope.coldkey));
        let numbers: BTreeSet<u64> = answers.iter().map(|answer| answer.bucket.0).collect();
        let mut buckets = BTreeMap::new();
        for number in numbers {
            if let Some(bucket) = read_bucket(state, number).await? {
                buckets.insert(number, bucket);
            }
        }
        let mut by_session: BTreeMap<Uuid, Vec<LoggedAnswer>> = BTreeMap::new();
        for answer in answers {
            by_session.entry(answer.session.0).or_default().push(answer);
        }
        let mut sessions = Vec::new();
        for (session, answers) in by_session {
            let others = state.log.store().other_proofs(SessionId(session)).await?;
            let is_drawn = |answer: &LoggedAnswer| buckets.contains_key(&answer.bucket.0);
            sessions.extend(whole_session(answers, others, is_drawn));
        }
        Ok(Self {
            canaries: open_canaries(state, scope.since, &sessions, &buckets).await?,
            outcomes: state.store.outcomes(&scope.model, scope.since).await?,
            words: BTreeMap::new(),
            sessions,
            buckets,
            scope,
        })
    }

    /// The audited answers that a reference was not asked about, in the order of the log.
    pub(crate) fn waiting(&self) -> Vec<LoggedAnswer> {
        let owed = |answer: &&LoggedAnswer| {
            let is_audited = answer.is_drawn || self.canaries.contains_key(&answer.id);
            let is_scored = self
                .outcomes
                .get(&answer.id)
                .is_some_and(|both| both.iter().all(Option::is_some));
            is_audited && !is_scored
        };
        let answers = self.sessions.iter().flat_map(|session| &session.answers);
        let mut waiting: Vec<LoggedAnswer> = answers.filter(owed).cloned().collect();
        waiting.sort_by_key(|answer| (answer.bucket, answer.position));
        waiting
    }

    fn into_inputs(
        self,
        state: &RunnerState,
        calibration: &Calibration,
        machines: &[ReferenceMachine],
        nonce_keys: Vec<RevealedNonceKey>,
    ) -> Option<EvidenceInputs> {
        Some(EvidenceInputs {
            auditor: state.auditor()?,
            coldkey: self.scope.coldkey,
            model: self.scope.model,
            calibration: calibration.clone(),
            references: machines.to_vec(),
            sessions: self.sessions,
            buckets: self.buckets,
            canaries: self.canaries,
            nonce_keys,
            outcomes: self.outcomes,
            words: self.words,
        })
    }

    /// The keys of the audited answers' nonces, as far as they are public. Answers of the last two hours are shown
    /// without.
    async fn reveal_nonce_keys(&self, state: &RunnerState) -> Result<Vec<RevealedNonceKey>, StoreError> {
        let answers = self.sessions.iter().flat_map(|session| &session.answers);
        let audited = answers.filter(|answer| answer.is_drawn || self.canaries.contains_key(&answer.id));
        let mut keys = Vec::new();
        for period in nonce_periods(audited) {
            match state.reveal_nonce_key(period).await {
                Ok(told) => keys.push(told.revealed),
                Err(HiddenKey::Store(error)) => return Err(error),
                Err(hidden @ (HiddenKey::NotYet(_) | HiddenKey::NotUsed | HiddenKey::NoChain)) => {
                    tracing::info!(period = period.0, %hidden, "a bundle lacks a key of nonces");
                }
            }
        }
        Ok(keys)
    }
}

/// A bucket with its leaves; `None` if nothing was drawn from it yet.
async fn read_bucket(state: &RunnerState, number: u64) -> Result<Option<DrawnBucket>, StoreError> {
    let corrupt = |what, error: &dyn std::fmt::Display| StoreError::corrupt(what, error.to_string());
    let bucket = muster_response_proof::BucketNumber(number);
    let Some(stored) = state.log.store().find_bucket(bucket).await? else {
        return Ok(None);
    };
    let Some(draw) = &stored.draw else { return Ok(None) };
    let answers = state.log.store().answers_of_bucket(bucket).await?;
    let leaves = leaf_hashes(&answers).ok_or_else(|| corrupt("proof", &"no signed proof"))?;
    Ok(Some(DrawnBucket {
        shares: serde_json::from_str(&stored.shares).map_err(|error| corrupt("shares", &error))?,
        block_hash: draw.block_hash,
        draw: serde_json::from_str(&draw.text).map_err(|error| corrupt("draw", &error))?,
        leaves,
        stored,
    }))
}

/// Opens the places of own prompts whose answers stand in buckets that commit to the prompt's list.
async fn open_canaries(
    state: &RunnerState,
    since: Timestamp,
    sessions: &[WholeSession],
    buckets: &BTreeMap<u64, DrawnBucket>,
) -> Result<BTreeMap<String, OpenedCanary>, StoreError> {
    let answered = state.store.answered_prompts(since).await?;
    let mut lists = BTreeMap::new();
    let mut opened = BTreeMap::new();
    for answer in sessions.iter().flat_map(|session| &session.answers) {
        let Some((root, position)) = answered.get(&answer.id) else {
            continue;
        };
        let committed = buckets
            .get(&answer.bucket.0)
            .map(|bucket| bucket.stored.canary_list);
        if committed != Some(*root) {
            continue;
        }
        if !lists.contains_key(root) {
            lists.insert(*root, state.store.read_list(root).await?.list);
        }
        if let Some(place) = lists.get(root).and_then(|list| list.open(*position)) {
            opened.insert(answer.id.clone(), place);
        }
    }
    Ok(opened)
}
