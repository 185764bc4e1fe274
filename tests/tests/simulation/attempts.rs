//! The simulated validator's attempts: each step is written before anything is sent because of it, and an end leads to
//! another miner or to the user.

use std::time::Duration;

use muster_job_messages::{AttemptStep, MinerAbilities, StepMessage};
use muster_protocol::job::{Event, Outcome};
use muster_protocol::wire::muster::CancelJob;
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{AttemptId, JobId, JobStatus, ReceiptKind, Timestamp};
use muster_routing::earlier_attempts::{AskedFor, EarlierAttempt, count_attempts};
use muster_routing::retry::{self, NextStep, RetryContext};

use crate::choosing::earlier_attempts;
use crate::documents::{deliver, job_request};
use crate::faults::Mutation;
use crate::invariants::Invariant;
use crate::validator::{Own, RECEIPT_WAIT, Tried};
use crate::waiting::FULL;
use crate::world::{Happening, MINERS, Node, World};

/// Everything that one event changes, written in one go.
struct Written {
    job: JobId,
    attempt: Tried,
    reports: Vec<JobStatus>,
    /// Whether it is written at all: a connection that comes or goes is not, and is lost with the process.
    is_stored: bool,
}

impl World {
    /// One event through the machine; what it changed is written before anything is sent because of it.
    pub(crate) fn apply(&mut self, attempt: AttemptId, event: Event) {
        let Some((job, _)) = self.validator.find(attempt) else {
            return;
        };
        let Some(mut tried) = self.validator.attempt(attempt).cloned() else {
            return;
        };
        let abilities = MinerAbilities {
            offer: true,
            cancellation: true,
        };
        let Ok(Some(step)) = AttemptStep::take(&tried.machine, event, self.now, abilities) else {
            return;
        };
        let was_over = tried.machine.outcome().is_some();
        let held_executor = tried.machine.holds_executor();
        let receipts_before = tried.receipts.len();
        let mut frames = Vec::new();
        for message in &step.messages {
            frames.extend(self.frame(&mut tried, *message));
        }
        let is_stored = step.is_stored(&tried.machine, tried.receipts.len() > receipts_before);
        tried.machine = step.machine;
        let reports = step.reports.into_iter().map(|(status, _)| status).collect();
        let over = tried.machine.outcome().is_some() && !was_over;
        let makes_room = held_executor && !tried.machine.holds_executor();
        let written = Written {
            job,
            attempt: tried,
            reports,
            is_stored,
        };
        if self.mutated(Mutation::ValidatorSpeaksFirst) {
            for frame in frames.drain(..) {
                self.tell(attempt, frame);
            }
            if self.may_die_here(Node::Validator) {
                return;
            }
        }
        self.save(written);
        if self.may_die_here(Node::Validator) {
            return;
        }
        if makes_room {
            self.note_room();
        } else if over {
            // A refusal makes no room, but newcomers are looked at again.
            self.validator.queue.lines.note_room();
        }
        self.report_next();
        if step.reconnects {
            self.redial(attempt, 3000);
        }
        for frame in frames {
            self.tell(attempt, frame);
        }
        if over {
            self.ended(attempt);
        }
    }

    /// The frame of a message; a receipt that was not issued before is added to the attempt.
    fn frame(&self, tried: &mut Tried, message: StepMessage) -> Option<ValidatorToMiner> {
        let (kind, paid) = match message {
            StepMessage::Receipt { kind, paid } => (kind, paid),
            StepMessage::Job => return Some(ValidatorToMiner::V0JobRequest(Box::new(job_request(tried.id)))),
            StepMessage::Cancellation => {
                return Some(ValidatorToMiner::MusterCancelJob(CancelJob {
                    job_uuid: tried.id,
                    reason: "the time for it is over".to_owned(),
                }));
            }
        };
        let held = tried.receipts.iter().find(|own| own.payload.kind() == kind);
        let own = held.cloned().unwrap_or_else(|| Own {
            payload: self.receipt_payload(tried.id, kind, paid),
            countersigned: false,
        });
        if !tried.receipts.contains(&own) {
            tried.receipts.push(own.clone());
        }
        deliver(&own.payload, self.traits.reattaches)
    }

    fn save(&mut self, written: Written) {
        let Written {
            job,
            mut attempt,
            reports,
            is_stored,
        } = written;
        if is_stored {
            attempt.stored = attempt.machine.clone();
        }
        for status in reports {
            self.validator.outbox.add(job, status);
        }
        let before = self
            .validator
            .attempt(attempt.id)
            .and_then(|tried| tried.machine.outcome().cloned());
        if let Some(before) = before
            && Some(&before) != attempt.machine.outcome()
        {
            let how = format!("attempt {} had ended as {}", attempt.id, before.status());
            self.violate(Invariant::OneEnd, how);
        }
        if let Some(stored) = self.validator.attempt_mut(attempt.id) {
            *stored = attempt;
        }
    }

    /// Continues after the end of an attempt: with another miner, or by notifying the user.
    pub(crate) fn ended(&mut self, attempt: AttemptId) {
        let Some((job, index)) = self.validator.find(attempt) else {
            return;
        };
        let Some(outcome) = self
            .validator
            .attempt(attempt)
            .and_then(|tried| tried.machine.outcome().cloned())
        else {
            return;
        };
        let until = self.now.plus(RECEIPT_WAIT);
        if let Some(link) = self.validator.links.get_mut(&attempt) {
            link.leaves_at = Some(until);
        }
        self.redial(attempt, 500);
        self.look_later(attempt);
        self.leave_if_settled(attempt);
        let began = self
            .validator
            .attempt(attempt)
            .map_or(self.now, |tried| tried.began);
        let (took, full_until) = (self.now.since(began), self.now.plus(FULL));
        let Some(stored) = self.validator.jobs.get_mut(&job) else {
            return;
        };
        stored.deadline = stored.deadline.plus(took);
        let so_far = stored.attempts.get(..=index).unwrap_or_default();
        let earlier = earlier_attempts(so_far);
        let is_busy = earlier.last().is_some_and(EarlierAttempt::was_declined_as_busy);
        let attempts = count_attempts(earlier, AskedFor::default());
        if let Some(last) = so_far.last().filter(|_| is_busy) {
            self.validator.queue.full.insert(last.miner, full_until);
        }
        let facts = RetryContext {
            goes_on: None,
            attempts,
            max_attempts: u32::try_from(MINERS).unwrap_or(u32::MAX),
            slow_images: 0,
            image_elsewhere: false,
            started_elsewhere: false,
            cancelled: self.is_called_off(job),
            address_told: false,
        };
        match retry::next_step(&outcome, facts) {
            NextStep::TryAnother => self.begin(job),
            NextStep::Report(_) => self.close_job(job, outcome),
        }
    }

    pub(crate) fn close_job(&mut self, job: JobId, outcome: Outcome) {
        let Some(stored) = self.validator.jobs.get_mut(&job) else {
            return;
        };
        if let Some(before) = &stored.closed {
            let how = format!(
                "job {job} had ended as {}, then as {}",
                before.status(),
                outcome.status()
            );
            return self.violate(Invariant::OneEnd, how);
        }
        let status = outcome.status();
        stored.closed = Some(outcome);
        self.validator.outbox.add(job, status);
        if !self.may_die_here(Node::Validator) {
            self.report_next();
        }
    }

    /// Closes the connection once the last receipt has both signatures.
    pub(crate) fn leave_if_settled(&mut self, attempt: AttemptId) {
        let unsigned = self.validator.attempt(attempt).is_some_and(|tried| {
            tried
                .receipts
                .iter()
                .any(|own| own.payload.kind() == ReceiptKind::Finished && !own.countersigned)
        });
        let over = self
            .validator
            .links
            .get(&attempt)
            .is_some_and(|link| link.leaves_at.is_some());
        if over && !unsigned {
            self.goodbye(attempt);
        }
    }

    fn goodbye(&mut self, attempt: AttemptId) {
        let link = self.validator.links.remove(&attempt);
        if let Some(line) = link.and_then(|link| link.line) {
            self.close(line, 0);
        }
    }

    fn due(&self, attempt: AttemptId) -> Option<Timestamp> {
        let link = self.validator.links.get(&attempt)?;
        link.leaves_at.or_else(|| {
            let machine = &self.validator.attempt(attempt)?.machine;
            link.connection.due(machine)
        })
    }

    pub(crate) fn look_later(&mut self, attempt: AttemptId) {
        if let Some(due) = self.due(attempt) {
            let life = self.validator.life;
            self.at(
                due.plus(Duration::from_millis(1)),
                Happening::Wake(Node::Validator, life),
            );
        }
    }

    pub(crate) fn validator_wakes(&mut self) {
        let attempts: Vec<_> = self.validator.links.keys().copied().collect();
        for attempt in attempts {
            if self.life(Node::Validator).is_none() {
                return;
            }
            let Some(due) = self.due(attempt) else { continue };
            if due > self.now {
                continue;
            }
            if self
                .validator
                .links
                .get(&attempt)
                .is_some_and(|link| link.leaves_at.is_some())
            {
                self.goodbye(attempt);
            } else {
                self.apply(attempt, Event::Tick);
                self.look_later(attempt);
            }
        }
    }
}
