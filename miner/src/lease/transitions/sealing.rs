//! The part of a lease's transitions that is about sealed sessions.

use muster_protocol::Timestamp;
use muster_protocol::wire::executor::{SessionClosed, SessionSealed};
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::validator_socket::MinerToValidator;

use super::super::{Effect, LeaseStage, LeaseState, LeaseTerms, SealingRequest, check_attestation};
use super::{Lease, Step};

impl Lease {
    /// The signature leaves the miner only if the statement is true.
    pub(super) fn on_seal(&mut self, sealing: SealingRequest, now: Timestamp) -> Step {
        if matches!(
            self.state,
            LeaseState::Running(LeaseStage::Serving | LeaseStage::Delivering)
        ) {
            // Repeated: the session serves.
            return Ok(vec![]);
        }
        let (LeaseState::Running(LeaseStage::Executing), Some(details)) = (self.state, &self.streaming)
        else {
            return Err(self.out_of_order("a session to attest"));
        };
        let lent = LeaseTerms {
            attempt: self.attempt(),
            validator: self.validator,
            details,
            ends: self.deadline,
            skew: self.patience.skew,
        };
        let (attestation, refusal) = match check_attestation(&sealing.stated, &lent, now) {
            Ok(()) => (Some(sealing.signed), None),
            Err(unsealable) => (None, Some(unsealable.to_string())),
        };
        let answer = SessionSealed {
            job_uuid: self.attempt(),
            attestation,
            refusal,
        };
        Ok(vec![Effect::Order(Box::new(
            MinerToExecutor::MusterSessionSealed(answer),
        ))])
    }

    pub(super) fn on_closed(&mut self, closed: SessionClosed) -> Step {
        let serves = matches!(
            self.state,
            LeaseState::Running(LeaseStage::Serving | LeaseStage::Delivering)
        );
        if !serves {
            return Err(self.out_of_order("a session's closing statement"));
        }
        if self.closed_told {
            return Ok(vec![]);
        }
        self.closed_told = true;
        // Only a validator that gave terms understands it.
        let sealed = self
            .streaming
            .as_ref()
            .is_some_and(|details| details.muster.is_some());
        if !sealed {
            return Ok(vec![]);
        }
        Ok(vec![self.tell(MinerToValidator::MusterSessionClosed(closed))])
    }
}
