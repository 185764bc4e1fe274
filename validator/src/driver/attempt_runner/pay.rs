//! The pay of an attempt that ends: what it took, what the same work usually takes, and the blocks that cover it.

use std::time::Duration;

use muster_job_messages::outgoing::AttemptPay;
use muster_job_messages::pay::{MeasuredWork, WorkedAttempt, is_paid_end, usual_time, work_digest};
use muster_job_messages::{AttemptStep, StepMessage};
use muster_openai::TokenUsage;
use muster_protocol::job::Attempt;
use muster_protocol::{ReceiptKind, ReceiptPayload, Timestamp};
use muster_store::StoreError;

use super::AttemptRunner;
use crate::driver::covered_pay::cover_pay;
use crate::store::EndedWork;

impl AttemptRunner<'_> {
    /// The work that a step's finished receipt pays for; `None` if the step issues none, or one that pays nothing.
    pub(super) async fn measure_work(
        &mut self,
        step: &AttemptStep,
        now: Timestamp,
    ) -> Result<Option<MeasuredWork>, StoreError> {
        let pays = |message: &StepMessage| {
            let (kind, paid) = (ReceiptKind::Finished, true);
            *message == StepMessage::Receipt { kind, paid }
        };
        // The validator's operator pays for the trusted miner, and nobody for a check: a miner that appeals could
        // answer slowly and be paid for the session.
        let state = &self.deps.state;
        if self.request.on_trusted_miner || state.is_own_check(self.request) || state.is_trial(self.request) {
            return Ok(None);
        }
        let own = self.deps.state.is_openly_own(self.request);
        let is_paid = step.machine.outcome().is_some_and(|end| is_paid_end(end, own));
        if !is_paid || !step.messages.iter().any(pays) || self.receipt(ReceiptKind::Finished).is_some() {
            return Ok(None);
        }
        let rated = self.rated_micros().await?;
        let usual = match work_digest(self.request).filter(|_| !own) {
            Some(work) => usual_time(&self.deps.state.store.attempts_at(work).await?),
            None => None,
        };
        let took = self.time_at_work(&step.machine, now);
        Ok(Some(self.messages().measured_work(took, usual, rated)))
    }

    /// The work of an attempt whose program has run to its end, from which others learn how long it usually takes.
    pub(super) fn ended_work(&self, machine: &Attempt, now: Timestamp) -> Option<EndedWork> {
        machine.outcome().filter(|outcome| outcome.ran_to_its_end())?;
        machine.ready_at()?;
        if self.request.on_trusted_miner {
            return None;
        }
        let work = work_digest(self.request).filter(|_| !self.deps.state.is_openly_own(self.request))?;
        let metagraph = self.deps.state.subnet.last_metagraph()?;
        let coldkey = metagraph.find(&self.attempt.miner.0)?.coldkey;
        let took = self.time_at_work(machine, now);
        Some(EndedWork {
            work,
            attempt: WorkedAttempt {
                coldkey,
                took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            },
        })
    }

    /// The time since the executor was ready. Of an attempt that an older version stored, the time since it began.
    fn time_at_work(&self, machine: &Attempt, now: Timestamp) -> Duration {
        now.since(machine.ready_at().unwrap_or_else(|| self.start_time()))
    }

    /// The most that a session of the gateway is paid, in executor-microseconds: the time that the tokens of its proven
    /// answers take at the rated speed of the model. `None` for any other job.
    async fn rated_micros(&mut self) -> Result<Option<u64>, StoreError> {
        let Some(service) = self.deps.state.gateway_service(self.request) else {
            return Ok(None);
        };
        let (job, miner) = (self.request.uuid, self.attempt.miner);
        let work = self.deps.state.store.session_work(job, miner).await?;
        if work.unproven > 0 || work.fault.is_some() {
            let (attempt, unproven) = (self.attempt.id, work.unproven);
            tracing::warn!(%attempt, %miner, unproven, fault = work.fault, "answers of a session are not proven and pay nothing");
        }
        Ok(Some(service.rated_micros(TokenUsage {
            input: work.input_tokens,
            output: work.output_tokens,
        })))
    }

    /// Names the blocks that cover a pay.
    pub(super) fn cover(&self, micros: u64, started: Timestamp, now: Timestamp) -> AttemptPay {
        cover_pay(&self.deps.state, &self.attempt, micros, started, now)
    }

    /// When the attempt began for both sides: the time of its started receipt.
    pub(super) fn start_time(&self) -> Timestamp {
        match self
            .receipt(ReceiptKind::Started)
            .map(|receipt| &receipt.offered.payload)
        {
            Some(ReceiptPayload::Started(receipt)) => receipt.timestamp,
            Some(ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_)) | None => self.attempt.started_at,
        }
    }
}
