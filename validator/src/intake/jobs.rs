//! Users' jobs: taken, repeated, refused or called off, and durable before anything follows from it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_identity::{VerifyError, verify_job};
use muster_protocol::JobId;
use muster_protocol::job::Outcome;
use muster_protocol::status::{JobRejectionReason, ParticipantType};
use muster_protocol::wire::facilitator::{CheatReport, JobRequest, RejectionDetails};
use muster_protocol::wire::muster::CancelRequest;
use muster_protocol::wire::{WireError, decode};
use muster_routing::admission::{Admission, PriorRequest, SignatureCheck, decide_admission};
use muster_store::StoreError;
use serde_json::Value;

use crate::driver::{JobDrivers, read_final_metadata};
use crate::state::ValidatorState;
use crate::store::JobAdmission;

/// The characters of a user's reason for calling a job off that are kept.
const MAX_REASON_CHARS: usize = 500;

/// Takes users' jobs and starts their drivers.
pub(crate) struct JobIntake {
    state: Arc<ValidatorState>,
    drivers: Arc<JobDrivers>,
}

impl JobIntake {
    pub(crate) fn new(state: Arc<ValidatorState>, drivers: Arc<JobDrivers>) -> Self {
        Self { state, drivers }
    }

    /// Takes, repeats or refuses a job; `frame` is the message that brought it. A new job costs one write and no read:
    /// the write itself fails if the job is known.
    ///
    /// `acknowledged` ends once every answer is stored that the facilitator sent before the frame. Only a repeated job
    /// waits for it.
    pub(crate) async fn take(
        &self,
        request: JobRequest,
        frame: &str,
        acknowledged: BoxFuture<'static, ()>,
    ) -> Result<(), StoreError> {
        let state = &self.state;
        let id = request.uuid;
        let signature = match verify_job(&request) {
            Ok(_) => SignatureCheck::Holds,
            Err(VerifyError::Terms { .. }) => SignatureCheck::WrongTerms,
            Err(_) => SignatureCheck::Wrong,
        };
        let now = state.clock.now();
        let (users, own_key) = (state.config.users.rule(), state.keypair.hotkey());
        let seen = match decide_admission(&request, signature, PriorRequest::Never, &users, own_key) {
            Admission::Admit => {
                // The miner is dialled while the job is being stored; it is told nothing of the job yet.
                let first = self.drivers.prepare(&request);
                let attempt = first.as_ref().map(|first| &*first.attempt);
                match state.store.admit(&request, frame, now, attempt).await? {
                    JobAdmission::New => {
                        tracing::info!(job = %id, user = %request.signature.signatory, class = %request.executor_class, "job taken");
                        self.drivers.start(request, first);
                        return Ok(());
                    }
                    JobAdmission::Known(seen) => {
                        if let Some(first) = first {
                            self.drivers.withdraw(first);
                        }
                        seen
                    }
                }
            }
            Admission::Refuse(_) | Admission::Repeat => state.store.find_seen(id, &request.signature).await?,
        };
        match decide_admission(&request, signature, seen, &users, own_key) {
            // `Admit` cannot come here: the store knows the job, or its signature.
            Admission::Repeat | Admission::Admit => {
                tracing::debug!(job = %id, "the facilitator repeats a job");
                acknowledged.await;
                let metadata = read_final_metadata(&state.store, id).await?;
                state.store.repeat(id, metadata.as_ref()).await
            }
            Admission::Refuse(details) => self.refuse(id, frame, details).await,
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
            self.drivers.cancel(job, &reason);
            return Ok(());
        }
        match read_final_metadata(store, job).await? {
            Some(metadata) => store.repeat(job, Some(&metadata)).await,
            None => {
                tracing::debug!(%job, "a user calls off a job that is unknown or is being called off already");
                Ok(())
            }
        }
    }

    /// Keeps a user's report of cheating for people to judge.
    pub(crate) async fn keep_cheat_report(&self, report: &CheatReport) -> Result<(), StoreError> {
        tracing::info!(job = report.job_uuid, user = %report.signature.signatory, "a user reports cheating");
        let now = self.state.clock.now();
        self.state.store.keep_cheat_report(report, now).await
    }

    async fn refuse(&self, job: JobId, frame: &str, details: RejectionDetails) -> Result<(), StoreError> {
        tracing::info!(%job, reason = %details.reason, message = details.message, "job refused");
        let (outcome, now) = (Outcome::Rejected(details), self.state.clock.now());
        self.state.store.refuse(job, frame, &outcome, now).await
    }
}
