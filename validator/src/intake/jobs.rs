//! Users' jobs: taken, repeated, refused or called off, and durable before anything follows from it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_identity::{VerifyError, open_credentials, verify_job};
use muster_job_messages::job_spans::begin_trace;
use muster_job_queue::{QueueFull, WaitingJob};
use muster_protocol::job::Outcome;
use muster_protocol::status::{JobRejectionReason, ParticipantType};
use muster_protocol::wire::facilitator::{RejectionDetails, UserJobRequest};
use muster_protocol::wire::muster::CancelRequest;
use muster_protocol::wire::{WireError, decode};
use muster_protocol::{JobId, Timestamp};
use muster_routing::admission::{
    PriorAnswer, PriorRequest, RequestFault, SignatureCheck, check_request, resolve_prior,
};
use muster_routing::budget::{BudgetExceeded, BudgetedAccount};
use muster_store::StoreError;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::driver::{FirstAttempt, FirstStep, JobDrivers};
use crate::outcome_counts::count_job;
use crate::store::JobAdmission;
use crate::validator_state::ValidatorState;

/// The time over which an account's daily jobs are counted.
const DAY: Duration = Duration::from_secs(86_400);
/// The characters of a user's reason for calling a job off that are kept.
const MAX_REASON_CHARS: usize = 500;

/// The first step of an admitted job, which is in the store if the job is new.
enum IntakeStep {
    /// The job is stored with its first attempt.
    Starts(FirstAttempt),
    /// The job is stored with its place in the queue.
    Waits(WaitingJob),
    /// The job, its signature or its id is known.
    Known(PriorRequest),
    /// No further job may wait. Nothing is stored.
    Full(QueueFull),
    /// The account that a facilitator signed for has all jobs that it may have. Nothing is stored.
    OverBudget(BudgetExceeded),
}

/// Takes users' jobs and starts their drivers.
pub(crate) struct JobIntake {
    state: Arc<ValidatorState>,
    drivers: Arc<JobDrivers>,
    /// Held from the count of an account's jobs until the next one is stored, so that none slips in between.
    budget: Mutex<()>,
}

impl JobIntake {
    pub(crate) fn new(state: Arc<ValidatorState>, drivers: Arc<JobDrivers>) -> Self {
        Self {
            state,
            drivers,
            budget: Mutex::new(()),
        }
    }

    /// Takes, repeats or refuses a job; `frame` is the message that brought it. A new job costs one write and no read:
    /// the write itself fails if the job is known.
    ///
    /// `acknowledged` ends once every answer is stored that the facilitator sent before the frame. Only a repeated job
    /// waits for it.
    pub(crate) async fn take(
        &self,
        mut request: UserJobRequest,
        frame: &str,
        acknowledged: BoxFuture<'static, ()>,
    ) -> Result<(), StoreError> {
        let state = &self.state;
        let id = request.uuid;
        let now = state.clock.now();
        let signature = match verify_job(&request) {
            Ok(_) => {
                let age = state.config.users.signature_age();
                age.check(request.signature.timestamp_ns, now)
            }
            Err(VerifyError::Terms { .. }) => SignatureCheck::WrongTerms,
            Err(_) => SignatureCheck::Wrong,
        };
        begin_trace(&mut request);
        let fault = match self.check(&request, signature) {
            Ok(()) => match self.store_within_budget(&request, frame, now).await? {
                IntakeStep::Starts(first) => {
                    self.drivers.start(request, now, Some(first));
                    return Ok(());
                }
                IntakeStep::Waits(waiting) => {
                    self.drivers.queue.wait(waiting, &request);
                    return Ok(());
                }
                IntakeStep::Known(prior) => {
                    let answer = resolve_prior(prior, None);
                    return self.answer_known(id, frame, answer, acknowledged).await;
                }
                IntakeStep::Full(full) => RequestFault::Limits(full.to_string()),
                IntakeStep::OverBudget(exceeded) => RequestFault::Limits(exceeded.to_string()),
            },
            Err(fault) => fault,
        };
        match state.store.find_prior(id, &request.signature).await? {
            Some(prior) => {
                let answer = resolve_prior(prior, Some(fault));
                self.answer_known(id, frame, answer, acknowledged).await
            }
            None => self.refuse(id, frame, fault.into_refusal()).await,
        }
    }

    /// Checks the request itself, and that this validator can open the login at a registry that it brings.
    fn check(&self, request: &UserJobRequest, signature: SignatureCheck) -> Result<(), RequestFault> {
        let state = &self.state;
        check_request(
            request,
            signature,
            &state.config.user_rules(),
            state.keypair.hotkey(),
        )?;
        let opens = |sealed| open_credentials(&state.keypair, &request.docker_image, sealed).is_ok();
        if request.sealed_credentials().is_none_or(opens) {
            return Ok(());
        }
        Err(RequestFault::Limits(
            "the registry login was sealed for another validator or another image; submit the job again"
                .to_owned(),
        ))
    }

    /// Answers a request that the store knows. A status is repeated once `acknowledged` has ended.
    async fn answer_known(
        &self,
        job: JobId,
        frame: &str,
        answer: PriorAnswer,
        acknowledged: BoxFuture<'static, ()>,
    ) -> Result<(), StoreError> {
        match answer {
            PriorAnswer::Repeat => {
                tracing::debug!(%job, "the facilitator repeats a job");
                acknowledged.await;
                let metadata = self.state.store.final_metadata(job).await?;
                self.state.store.repeat(job, metadata.as_ref()).await
            }
            PriorAnswer::Refuse(details) => self.refuse(job, frame, details).await,
        }
    }

    /// As [`Self::store_first_step`], unless the account that a facilitator signed for has all jobs that it may have.
    async fn store_within_budget(
        &self,
        request: &UserJobRequest,
        frame: &str,
        now: Timestamp,
    ) -> Result<IntakeStep, StoreError> {
        let Some(account) = BudgetedAccount::of(request) else {
            return self.store_first_step(request, frame, now).await;
        };
        let _counted = self.budget.lock().await;
        let mut used = self.state.store.account_use(account, now.minus(DAY)).await?;
        let broken = self.state.broken_images.lock().count(account, now);
        used.account_open = used.account_open.saturating_add(broken);
        match self.state.config.users.budget.bounds().check(used) {
            Ok(()) => self.store_first_step(request, frame, now).await,
            Err(exceeded) => Ok(IntakeStep::OverBudget(exceeded)),
        }
    }

    /// Decides and stores the first step of an admitted job, unless the job is known.
    async fn store_first_step(
        &self,
        request: &UserJobRequest,
        frame: &str,
        now: Timestamp,
    ) -> Result<IntakeStep, StoreError> {
        let (store, job) = (&self.state.store, request.uuid);
        let (user, class) = (request.signature.signatory, request.executor_class);
        match self.drivers.queue.prepare(request) {
            FirstStep::Attempt(first) => match store.admit(request, frame, now, Some(&*first.attempt)).await?
            {
                JobAdmission::New => {
                    tracing::info!(%job, %user, %class, "job taken");
                    Ok(IntakeStep::Starts(first))
                }
                JobAdmission::Known(prior) => {
                    self.drivers.records.withdraw_attempt(&first.attempt.attempt);
                    Ok(IntakeStep::Known(prior))
                }
            },
            FirstStep::Wait(waiting) => match store.admit_waiting(request, frame, &waiting).await? {
                JobAdmission::New => {
                    tracing::info!(%job, %user, %class, "job taken into the queue");
                    Ok(IntakeStep::Waits(waiting))
                }
                JobAdmission::Known(prior) => {
                    self.drivers.queue.give_back(&waiting);
                    Ok(IntakeStep::Known(prior))
                }
            },
            FirstStep::Full(full) => Ok(IntakeStep::Full(full)),
            FirstStep::Known => {
                let prior = store.known_prior(job, &request.signature).await?;
                Ok(IntakeStep::Known(prior))
            }
        }
    }

    /// Refuses a frame that cannot be read as a job although it names one, so that the user does not wait in vain. Any
    /// other frame is only logged.
    pub(crate) async fn refuse_malformed(&self, frame: &str, error: &WireError) -> Result<(), StoreError> {
        tracing::warn!(%error, "the facilitator sent a malformed frame");
        let value: Value = decode(frame).unwrap_or_default();
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let job = text("uuid").and_then(|uuid| uuid.parse::<JobId>().ok());
        match (text("message_type"), job) {
            (Some("V2JobRequest"), Some(job)) => {
                let details = RejectionDetails {
                    rejected_by: ParticipantType::Validator,
                    reason: JobRejectionReason::NoMinerForJob,
                    message: format!("the request cannot be read: {}", error.reason),
                    context: None,
                };
                self.refuse(job, frame, details).await
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// Calls a job off for its user. The cancellation is durable before the driver learns of it, so that no attempt
    /// begins after a restart either. The answer is the job's last status, which is sent again if the job is over
    /// already.
    pub(crate) async fn cancel(&self, request: &CancelRequest) -> Result<(), StoreError> {
        let store = &self.state.store;
        let job = request.uuid;
        let reason: String = request.reason.chars().take(MAX_REASON_CHARS).collect();
        if store.cancel(job, &reason).await? {
            tracing::info!(%job, reason, "a user calls a job off");
            return self.drivers.cancel(job, &reason).await;
        }
        match store.final_metadata(job).await? {
            Some(metadata) => store.repeat(job, Some(&metadata)).await,
            None => {
                tracing::debug!(%job, "a user calls off a job that is unknown or is being called off already");
                Ok(())
            }
        }
    }

    async fn refuse(&self, job: JobId, frame: &str, details: RejectionDetails) -> Result<(), StoreError> {
        tracing::info!(%job, reason = %details.reason, message = details.message, "job refused");
        let (outcome, now) = (Outcome::Rejected(details), self.state.clock.now());
        count_job(&outcome);
        self.state.store.refuse(job, frame, &outcome, now).await
    }
}
