//! The part of a lease's transitions that is about its image and the executor that becomes ready with it.

use std::time::Duration;

use muster_protocol::job::{IMAGE_FETCH_KEY, ImageFetchFailure, SLOT_LEASES_KEY};
use muster_protocol::wire::executor::{ExecutorUp, FetchImage};
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::miner::{ExecutorReady, HordeFailed};
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{HordeFailureReason, ParticipantType, Timestamp};
use serde_json::{Value, json};

use super::super::{Effect, FetchStage, LeaseEnding, LeaseStage, LeaseState, SlotHolders};
use super::{Lease, Step};

/// Characters of a registry's name that are kept; no host name is longer.
const MAX_REGISTRY: usize = 255;

impl Lease {
    /// The image has to be fetched. A validator without a time limit for images receives nothing, and the fetch counts
    /// as part of the preparation.
    pub(super) fn on_up(&mut self, up: ExecutorUp, now: Timestamp) -> Step {
        match self.state {
            // Its earlier process received it. The job shows that the image is there and the lease has its executor.
            LeaseState::Preparing if self.has_begun_job() => return Ok(vec![]),
            LeaseState::Preparing => {}
            // Repeated.
            LeaseState::Fetching(_) | LeaseState::WaitingForPayload | LeaseState::Running(_) => {
                return Ok(vec![]);
            }
            LeaseState::WaitingForExecutor | LeaseState::Ended(_) => {
                return Err(self.out_of_order("the fetch of an image"));
            }
        }
        self.offer = None;
        self.registry = up.registry.chars().take(MAX_REGISTRY).collect();
        let Some(limit) = self.image_time_limit else {
            return Ok(vec![self.fetch_order()]);
        };
        let allowed = Duration::from_secs(limit.min(up.image_s)).min(self.patience.image);
        self.seated_by = now.plus(allowed);
        // Only the miner knows that no slot became free, so its clock comes before the validator's.
        self.enter(LeaseState::Fetching(FetchStage::Waiting), self.seated_by);
        let told = ExecutorUp {
            job_uuid: self.attempt(),
            registry: self.registry.clone(),
            image_s: allowed.as_secs(),
        };
        Ok(vec![self.tell(MinerToValidator::MusterExecutorUp(told))])
    }

    pub(super) fn on_fetch_granted(&mut self) -> Step {
        if self.state != LeaseState::Fetching(FetchStage::Waiting) {
            return Err(self.out_of_order("a slot for a fetch"));
        }
        let until = self.seated_by.plus(self.patience.margin);
        self.enter(LeaseState::Fetching(FetchStage::Granted), until);
        Ok(vec![self.fetch_order()])
    }

    pub(super) fn on_ready(&mut self, now: Timestamp) -> Step {
        let job_until = self.restored.and_then(|restored| restored.job_until);
        if let (LeaseState::Preparing | LeaseState::Fetching(_), Some(until)) = (self.state, job_until) {
            // The executor got the job from an earlier process of this miner.
            self.offer = None;
            self.job = None;
            self.restored = None;
            self.enter(LeaseState::Running(LeaseStage::Fetching), until);
            return Ok(vec![self.report_ready()]);
        }
        match self.state {
            LeaseState::Preparing => self.await_payload(now),
            // The time of the image goes on: an executor must become free within it. Only the miner knows that the
            // image is there, so its clock comes first from here on.
            LeaseState::Fetching(FetchStage::Granted) => {
                self.enter(LeaseState::Fetching(FetchStage::Arrived), self.seated_by.max(now));
                Ok(vec![])
            }
            // Its earlier process granted the slot.
            LeaseState::Fetching(FetchStage::Waiting) if self.restored.is_some() => {
                self.enter(LeaseState::Fetching(FetchStage::Arrived), self.seated_by.max(now));
                Ok(vec![])
            }
            // Repeated.
            LeaseState::Fetching(FetchStage::Arrived)
            | LeaseState::WaitingForPayload
            | LeaseState::Running(_) => Ok(vec![]),
            LeaseState::WaitingForExecutor
            | LeaseState::Fetching(FetchStage::Waiting)
            | LeaseState::Ended(_) => Err(self.out_of_order("a ready executor")),
        }
    }

    pub(super) fn on_seated(&mut self, now: Timestamp) -> Step {
        if self.state != LeaseState::Fetching(FetchStage::Arrived) {
            return Err(self.out_of_order("a free executor"));
        }
        self.await_payload(now)
    }

    pub(super) fn await_payload(&mut self, now: Timestamp) -> Step {
        self.offer = None;
        self.enter(LeaseState::WaitingForPayload, now.plus(self.patience.payload));
        let mut effects = vec![self.report_ready()];
        self.restored = None;
        if let Some(job) = self.job.take() {
            // It came from a validator that was notified of the executor by an earlier process of this miner.
            effects.extend(self.on_payload(job, now)?);
        }
        Ok(effects)
    }

    pub(super) fn report_ready(&mut self) -> Effect {
        let ready = ExecutorReady {
            job_uuid: self.attempt(),
            executor_token: None,
        };
        self.tell(MinerToValidator::V0ExecutorReadyRequest(ready))
    }

    /// The miner ends the attempt because other leases held its slots for too long, and shows these leases.
    pub(super) fn lose_slot(&mut self, holders: &SlotHolders) -> Step {
        let text = format!(
            "the miner had no slot for the fetch of the image in time; fetches of other jobs in its slots: {}",
            holders.leases
        );
        let failure = ImageFetchFailure::NoSlot;
        let context = match holders.receipts.as_slice() {
            [] => json!({ IMAGE_FETCH_KEY: failure }),
            receipts => json!({ IMAGE_FETCH_KEY: failure, SLOT_LEASES_KEY: receipts }),
        };
        self.lose_image(&text, context)
    }

    /// The miner ends the attempt because its image does not come, or comes too late for an executor. `context` has
    /// the reason.
    pub(super) fn lose_image(&mut self, text: &str, context: Value) -> Step {
        let order = self.cancel_order(text.to_owned());
        let message = MinerToValidator::V0HordeFailedRequest(HordeFailed {
            job_uuid: self.attempt(),
            reported_by: ParticipantType::Miner,
            message: text.to_owned(),
            reason: HordeFailureReason::GenericError,
            context: Some(context),
        });
        let mut effects = self.end(LeaseEnding::HordeFailed, message);
        let before_stop = effects.len().saturating_sub(1);
        effects.insert(before_stop, order);
        Ok(effects)
    }

    pub(super) fn fetch_order(&self) -> Effect {
        let fetch = FetchImage {
            job_uuid: self.attempt(),
        };
        Effect::Order(Box::new(MinerToExecutor::MusterFetchImage(fetch)))
    }
}
