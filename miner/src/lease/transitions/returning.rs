//! The part of a lease's transitions that is about executors that go away, come back, or are succeeded.

use std::time::Duration;

use muster_protocol::wire::executor::{LeaseHeld, OneTimeSecret};
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::miner::AttemptNotice;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{HordeFailureReason, Timestamp, ValidatorKey};

use super::super::return_secrets::Hold;
use super::super::trace::LeaseTrace;
use super::super::{
    Effect, FetchStage, LeaseRefusal, LeaseSnapshot, LeaseStage, LeaseState, LeaseTimeouts, ReturningExecutor,
};
use super::{Lease, MAX_SUCCESSORS, RestoredLease, Step};

impl Lease {
    /// A lease that an earlier process of this miner opened. Its executor has until `patience.reattach` from `now` to
    /// come back.
    pub fn restore(
        validator: ValidatorKey,
        snapshot: LeaseSnapshot,
        patience: LeaseTimeouts,
        now: Timestamp,
    ) -> Self {
        let until = now.plus(patience.reattach);
        let mut hold = Hold::new(snapshot.fence);
        hold.away_until = Some(until);
        Self {
            validator,
            class: snapshot.class,
            patience,
            state: LeaseState::Preparing,
            deadline: until,
            offer: None,
            job: None,
            hold: Some(hold),
            restored: Some(RestoredLease { job_until: None }),
            image_time_limit: snapshot.image_time_limit,
            account: snapshot.account,
            private_image: snapshot.private_image,
            registry: String::new(),
            seated_by: now,
            apart: snapshot.apart,
            waits_for: String::new(),
            keeps_executor: false,
            streaming: snapshot.streaming,
            closed_told: false,
            volume_offered: snapshot.volume_offered,
            job_time: Duration::from_millis(snapshot.job_ms),
            lend: snapshot.lend_ms.map(Duration::from_millis),
            drain_at: None,
            specs_reported: false,
            trace: snapshot.traced.map(|kept| LeaseTrace::restored(kept, now)),
            history: vec![MinerToValidator::V0AcceptJobRequest(AttemptNotice {
                job_uuid: snapshot.token.attempt(),
            })],
            token: snapshot.token,
        }
    }

    /// The executor comes back. It gets again the order that it may have missed, and repeats the reports that the miner
    /// may have missed.
    pub(super) fn on_reattached(&mut self, back: ReturningExecutor, now: Timestamp) -> Step {
        let refused = LeaseRefusal::NotHeld(self.attempt());
        let hold = self.hold.as_mut().ok_or_else(|| refused.clone())?;
        hold.fence = hold.fence.admit(&back.shown, &back.next).ok_or(refused)?;
        hold.away_until = None;
        hold.process_over = None;
        if self.restored.is_some() {
            let job_until = back
                .job_age
                .map(|age| now.plus(self.job_time.saturating_sub(age)));
            self.restored = Some(RestoredLease { job_until });
            self.deadline = now.plus(self.patience.prepare);
        }
        let mut effects = self.hold_effects(back.next);
        effects.extend(self.missed_order(back.job_age.is_some()));
        Ok(effects)
    }

    /// Whether an earlier process of this miner gave the job to the executor, which has come back.
    pub(super) fn has_begun_job(&self) -> bool {
        self.restored.is_some_and(|restored| restored.job_until.is_some())
    }

    /// Makes the lease durable, and sends the executor its way back.
    pub(super) fn hold_effects(&self, secret: OneTimeSecret) -> Vec<Effect> {
        let Some(hold) = &self.hold else {
            return vec![];
        };
        let held = LeaseHeld {
            job_uuid: self.attempt(),
            epoch: hold.fence.epoch(),
            secret,
            reattach_s: self.patience.reattach.as_secs(),
        };
        let snapshot = LeaseSnapshot {
            class: self.class,
            token: self.token.clone(),
            fence: hold.fence,
            apart: self.apart,
            image_time_limit: self.image_time_limit,
            account: self.account.clone(),
            private_image: self.private_image,
            streaming: self.streaming.clone(),
            volume_offered: self.volume_offered,
            job_ms: u64::try_from(self.job_time.as_millis()).unwrap_or(u64::MAX),
            lend_ms: self
                .lend
                .map(|lend| u64::try_from(lend.as_millis()).unwrap_or(u64::MAX)),
            traced: self.trace.as_ref().map(|trace| trace.kept),
        };
        vec![
            Effect::Hold(Box::new(snapshot)),
            Effect::Order(Box::new(MinerToExecutor::MusterLeaseHeld(held))),
        ]
    }

    /// The order that an executor without an answer to it may not have got. An executor ignores an order that it has.
    fn missed_order(&self, has_job: bool) -> Option<Effect> {
        match self.state {
            LeaseState::Preparing => {
                let offer = self.offer.clone()?;
                Some(Effect::Order(Box::new(MinerToExecutor::V0InitialJobRequest(
                    offer,
                ))))
            }
            LeaseState::Fetching(FetchStage::Granted) => Some(self.fetch_order()),
            LeaseState::Running(LeaseStage::Fetching) if !has_job => {
                let job = self.job.clone()?;
                Some(Effect::Order(Box::new(MinerToExecutor::V0JobRequest(job))))
            }
            LeaseState::WaitingForExecutor
            | LeaseState::Fetching(FetchStage::Waiting | FetchStage::Arrived)
            | LeaseState::WaitingForPayload
            | LeaseState::Running(_)
            | LeaseState::Ended(_) => None,
        }
    }

    /// A lease whose executor can come back waits for it. If the executor's process has ended, another process takes
    /// its place, as long as there is a container for it to take over.
    pub(super) fn on_gone(&mut self, now: Timestamp) -> Step {
        let until = now.plus(self.patience.reattach);
        if let Some(hold) = &mut self.hold
            && !matches!(self.state, LeaseState::Ended(_))
        {
            hold.away_until = Some(until);
            return self.succeed_process();
        }
        let reason = HordeFailureReason::ExecutorDisconnected;
        let text = format!(
            "the executor's connection closed while the job was {}",
            self.state.name()
        );
        self.lose(reason, text)
    }

    /// Before an executor dials in, its exit is the only sign of it; later its socket shows more, in order with its
    /// last messages.
    pub(super) fn on_exited(&mut self, how: String, now: Timestamp) -> Step {
        match self.state {
            LeaseState::WaitingForExecutor => {
                let text = format!("the executor did not start: {how}");
                self.lose(HordeFailureReason::ExecutorSpinupFailed, text)
            }
            LeaseState::Preparing
            | LeaseState::Fetching(_)
            | LeaseState::WaitingForPayload
            | LeaseState::Running(_) => {
                // An engine that reports that an executor elsewhere is gone proves nothing: it may run on, and come
                // back.
                let Some(hold) = self.hold.as_mut().filter(|_| self.apart) else {
                    return Ok(vec![]);
                };
                hold.process_over = Some(how);
                if hold.away_until.is_some() {
                    hold.away_until = Some(now.plus(self.patience.reattach));
                    return self.succeed_process();
                }
                Ok(vec![])
            }
            LeaseState::Ended(_) => Ok(vec![]),
        }
    }

    /// Acts on the end of a process whose connection is closed.
    fn succeed_process(&mut self) -> Step {
        let has_container = matches!(
            self.state,
            LeaseState::Running(LeaseStage::Executing | LeaseStage::Serving | LeaseStage::Delivering)
        );
        // How far a restored lease has come is known once its executor is back.
        let has_container = has_container || self.restored.is_some();
        let Some(hold) = &mut self.hold else {
            return Ok(vec![]);
        };
        let Some(how) = hold.process_over.take() else {
            return Ok(vec![]);
        };
        if has_container && hold.successors < MAX_SUCCESSORS {
            hold.successors += 1;
            return Ok(vec![Effect::StartSuccessor]);
        }
        let reason = HordeFailureReason::ExecutorDisconnected;
        let text = format!(
            "the executor ended while the job was {}: {how}",
            self.state.name()
        );
        self.lose(reason, text)
    }

    pub(super) fn on_miner_stops(&mut self) -> Step {
        if self.hold.is_some() {
            return Ok(vec![]);
        }
        let text = "the miner stopped while the job was on its executor".to_owned();
        self.lose(HordeFailureReason::ExecutorDisconnected, text)
    }
}
