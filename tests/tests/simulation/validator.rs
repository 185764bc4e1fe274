//! A simulated validator: the real machine of an attempt and the real reading of a miner's messages, with a store in
//! memory and a shell that does what the real one does, in its order.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_job_messages::incoming::{MessageMeaning, implied_events, interpret};
use muster_job_queue::{QueueAccount, QueueTicket, WaitingJob};
use muster_protocol::job::{Attempt, Effect, Event, Outcome};
use muster_protocol::receipt::ReceiptPayload;
use muster_protocol::wire::facilitator::JobStatusUpdate;
use muster_protocol::wire::miner::{FromMiner, ToMiner};
use muster_protocol::wire::muster::CancelJob;
use muster_protocol::{AttemptId, JobId, JobStatus, MinerKey, ReceiptKind, Timestamp};
use muster_routing::retry::{self, NextStep, RetryContext};

use crate::choosing::{CALLED_OFF, was_busy};
use crate::faults::Mutation;
use crate::invariants::Invariant;
use crate::miner::miner_key;
use crate::papers::{deliver, job_request};
use crate::waiting::{FULL, WaitingLines};
use crate::world::{Frame, Happening, Line, MINERS, Node, World};

/// How long a lost connection to a miner may stay lost.
pub(crate) const RECONNECT: Duration = Duration::from_secs(60);
/// How long the miner's half of the last receipt is waited for.
const RECEIPT_WAIT: Duration = Duration::from_secs(2);

/// One receipt of the validator's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Own {
    pub(crate) payload: ReceiptPayload,
    pub(crate) countersigned: bool,
}

/// An attempt, as the store has it.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    pub(crate) id: AttemptId,
    pub(crate) miner: usize,
    pub(crate) machine: Attempt,
    pub(crate) receipts: Vec<Own>,
    pub(crate) began: Timestamp,
}

/// A job, as the store has it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) attempts: Vec<Tried>,
    pub(crate) closed: Option<Outcome>,
    pub(crate) called_off: bool,
    /// Its row in the queue.
    pub(crate) waits: Option<WaitingJob>,
    /// When it was admitted.
    pub(crate) since: Timestamp,
    /// When it has waited too long. The time of attempts does not count.
    pub(crate) deadline: Timestamp,
}

impl Job {
    pub(crate) fn new(since: Timestamp, deadline: Timestamp) -> Self {
        Self {
            attempts: vec![],
            closed: None,
            called_off: false,
            waits: None,
            since,
            deadline,
        }
    }
}

impl Tried {
    pub(crate) fn miner_key(&self) -> MinerKey {
        miner_key(self.miner)
    }
}

/// The state outside the store.
#[derive(Clone, Debug, Default)]
struct Link {
    job: Option<JobId>,
    line: Option<Line>,
    dialling: bool,
    interrupted: bool,
    lenient_until: Option<Timestamp>,
    /// Set once the attempt is over: until when the connection is kept for the last receipt.
    leaves_at: Option<Timestamp>,
}

/// The peer that it dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Facilitator,
    Miner(AttemptId),
}

#[derive(Debug, Default)]
pub(crate) struct Validator {
    pub(crate) up: bool,
    pub(crate) life: u64,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    /// The last turn of each account, as the store has it.
    pub(crate) turns: BTreeMap<QueueAccount, QueueTicket>,
    pub(crate) lines: WaitingLines,
    /// The updates that the facilitator has not answered, oldest first, by number.
    pub(crate) outbox: BTreeMap<usize, JobStatusUpdate>,
    next_report: usize,
    links: BTreeMap<AttemptId, Link>,
    door: Option<Line>,
    under_way: Option<usize>,
}

/// Everything that one event changes, written in one go.
struct Written {
    job: JobId,
    attempt: Tried,
    reports: Vec<JobStatus>,
}

impl Validator {
    pub(crate) fn die(&mut self) {
        self.up = false;
        self.life += 1;
        self.links.clear();
        self.lines = WaitingLines::default();
        self.door = None;
        self.under_way = None;
    }

    fn find(&self, attempt: AttemptId) -> Option<(JobId, usize)> {
        self.jobs.iter().find_map(|(job, stored)| {
            let index = stored.attempts.iter().position(|tried| tried.id == attempt)?;
            Some((*job, index))
        })
    }

    pub(crate) fn attempt(&self, attempt: AttemptId) -> Option<&Tried> {
        let (job, index) = self.find(attempt)?;
        self.jobs.get(&job)?.attempts.get(index)
    }

    pub(crate) fn attempt_mut(&mut self, attempt: AttemptId) -> Option<&mut Tried> {
        let (job, index) = self.find(attempt)?;
        self.jobs.get_mut(&job)?.attempts.get_mut(index)
    }

    pub(crate) fn report(&mut self, job: JobId, status: JobStatus) {
        let update = JobStatusUpdate {
            uuid: job,
            status,
            metadata: None,
        };
        self.outbox.insert(self.next_report, update);
        self.next_report += 1;
    }
}

impl World {
    pub(crate) fn open_validator(&mut self) {
        self.validator.up = true;
        self.validator_dials(Call::Facilitator, 0);
        if self.mutated(Mutation::ValidatorForgetsJobs) {
            return;
        }
        let life = self.validator.life;
        self.restore_queue();
        if self.life(Node::Validator) != Some(life) {
            return;
        }
        let open: Vec<_> = self
            .validator
            .jobs
            .iter()
            .filter(|(_, job)| job.closed.is_none() && job.waits.is_none())
            .map(|(id, _)| *id)
            .collect();
        for job in open {
            self.drive(job, true);
        }
    }

    fn validator_dials(&mut self, call: Call, most: u64) {
        let (span, life) = (self.dice.millis(0, most), self.validator.life);
        self.after(span, Happening::Dial(call, life));
    }

    /// Takes a job up where the store says it is.
    pub(crate) fn drive(&mut self, job: JobId, resumed: bool) {
        let last = self
            .validator
            .jobs
            .get(&job)
            .and_then(|stored| stored.attempts.last())
            .cloned();
        let Some(last) = last else { return };
        let link = Link {
            job: Some(job),
            interrupted: resumed,
            lenient_until: resumed.then(|| self.now.plus(RECONNECT)),
            ..Link::default()
        };
        self.validator.links.insert(last.id, link);
        if last.machine.outcome().is_some() {
            return self.ended(last.id);
        }
        if resumed {
            self.apply(last.id, Event::Disconnected);
        } else {
            self.redial(last.id, 0);
        }
        if self.is_called_off(job) {
            self.apply(last.id, Event::Cancelled(CALLED_OFF.to_owned()));
        }
        self.look_later(last.id);
    }

    fn redial(&mut self, attempt: AttemptId, most: u64) {
        let Some(link) = self.validator.links.get_mut(&attempt) else {
            return;
        };
        if link.dialling || link.line.is_some() {
            return;
        }
        link.dialling = true;
        self.validator_dials(Call::Miner(attempt), most);
    }

    pub(crate) fn dial(&mut self, call: Call) {
        match call {
            Call::Facilitator => {
                self.validator.under_way = None;
                self.validator.door = self.connect(Node::Validator, Node::Facilitator);
                match self.validator.door {
                    Some(_) => self.report_next(),
                    None => self.validator_dials(Call::Facilitator, 3000),
                }
            }
            Call::Miner(attempt) => {
                let Some(miner) = self.validator.attempt(attempt).map(|tried| tried.miner) else {
                    return;
                };
                let line = self.connect(Node::Validator, Node::Miner(miner));
                let Some(link) = self.validator.links.get_mut(&attempt) else {
                    return;
                };
                link.dialling = false;
                link.line = line;
                match line {
                    Some(_) => self.up(attempt),
                    None => self.down(attempt),
                }
            }
        }
    }

    fn up(&mut self, attempt: AttemptId) {
        let now = self.now;
        if let Some(link) = self.validator.links.get_mut(&attempt)
            && link.lenient_until.is_some()
        {
            link.lenient_until = Some(now.plus(RECEIPT_WAIT));
        }
        let receipts = self
            .validator
            .attempt(attempt)
            .map(|tried| tried.receipts.clone())
            .unwrap_or_default();
        for own in receipts.iter().filter(|own| !own.countersigned) {
            match own.payload.kind() {
                ReceiptKind::Started => {}
                ReceiptKind::Accepted | ReceiptKind::Finished => {
                    if let Some(message) = deliver(&own.payload) {
                        self.tell(attempt, message);
                    }
                }
            }
        }
        self.apply(attempt, Event::Connected);
        self.look_later(attempt);
    }

    fn down(&mut self, attempt: AttemptId) {
        let Some(link) = self.validator.links.get_mut(&attempt) else {
            return;
        };
        link.interrupted = true;
        let over = link.leaves_at.is_some();
        if over {
            self.redial(attempt, 500);
        } else {
            self.apply(attempt, Event::Disconnected);
        }
    }

    fn tell(&mut self, attempt: AttemptId, message: ToMiner) {
        if let Some(line) = self.validator.links.get(&attempt).and_then(|link| link.line) {
            self.send(line, 0, Frame::To(Box::new(message)));
        }
    }

    pub(crate) fn validator_loses(&mut self, line: Line) {
        if self.validator.door == Some(line) {
            self.validator.door = None;
            return self.validator_dials(Call::Facilitator, 3000);
        }
        let attempt = self
            .validator
            .links
            .iter()
            .find(|(_, link)| link.line == Some(line))
            .map(|(id, _)| *id);
        let Some(attempt) = attempt else { return };
        if let Some(link) = self.validator.links.get_mut(&attempt) {
            link.line = None;
        }
        self.down(attempt);
    }

    pub(crate) fn validator_hears(&mut self, line: Line, frame: Frame) {
        match frame {
            Frame::Job(job) => self.take_job(job),
            Frame::Cancel(job) => self.take_cancel(job),
            Frame::Answer(number) => {
                self.validator.outbox.remove(&number);
                if self.validator.under_way == Some(number) {
                    self.validator.under_way = None;
                }
                self.report_next();
            }
            Frame::From(message) => {
                let attempt = self
                    .validator
                    .links
                    .iter()
                    .find(|(_, link)| link.line == Some(line))
                    .map(|(id, _)| *id);
                if let Some(attempt) = attempt {
                    self.on_message(attempt, *message);
                }
            }
            Frame::Status(..) | Frame::To(_) => {}
        }
    }

    fn take_job(&mut self, job: JobId) {
        if let Some(known) = self.validator.jobs.get(&job) {
            let again = known.closed.as_ref().map(Outcome::status);
            self.validator.report(job, again.unwrap_or(JobStatus::Received));
            return self.report_next();
        }
        self.admit(job);
    }

    /// One at a time, the next only after the answer to the one before.
    pub(crate) fn report_next(&mut self) {
        let (Some(line), None) = (self.validator.door, self.validator.under_way) else {
            return;
        };
        let next = self
            .validator
            .outbox
            .first_key_value()
            .map(|(number, update)| (*number, update.clone()));
        if let Some((number, update)) = next {
            self.validator.under_way = Some(number);
            self.send(line, 0, Frame::Status(number, Box::new(update)));
        }
    }

    fn on_message(&mut self, attempt: AttemptId, message: FromMiner) {
        let about = message.attempt();
        match interpret(message) {
            MessageMeaning::Countersigned(receipt) => {
                let (of, kind) = (receipt.payload.attempt(), receipt.payload.kind());
                let own = self
                    .validator
                    .attempt_mut(of)
                    .and_then(|tried| tried.receipts.iter_mut().find(|own| own.payload.kind() == kind));
                if let Some(own) = own
                    && own.payload == receipt.payload
                {
                    own.countersigned = true;
                }
                self.leave_if_settled(attempt);
            }
            MessageMeaning::Event(event) => match about {
                Some(other) if other != attempt => self.on_other(attempt, other, &event),
                Some(_) | None => {
                    self.told_what_is_stored(attempt, &event);
                    self.on_event(attempt, event);
                }
            },
            MessageMeaning::Manifest(_)
            | MessageMeaning::Complaint(_)
            | MessageMeaning::Live(_)
            | MessageMeaning::Hardware(_)
            | MessageMeaning::Ignored => {}
        }
    }

    /// A miner's messages about an attempt must be in its store: it may be killed at this moment.
    fn told_what_is_stored(&mut self, attempt: AttemptId, event: &Event) {
        if matches!(event, Event::Declined(_)) {
            return;
        }
        let Some(miner) = self.validator.attempt(attempt).map(|tried| tried.miner) else {
            return;
        };
        let known = self
            .miners
            .get(miner)
            .is_some_and(|miner| miner.records().iter().any(|record| record.attempt == attempt));
        if !known {
            let how = format!("miner {miner} spoke of attempt {attempt} and has not written it down");
            self.violate(Invariant::WrittenBeforeSaid, how);
        }
    }

    fn on_event(&mut self, attempt: AttemptId, event: Event) {
        let interrupted = self
            .validator
            .links
            .get(&attempt)
            .is_some_and(|link| link.interrupted);
        if interrupted && let Some(tried) = self.validator.attempt(attempt) {
            let missing = implied_events(tried.machine.state(), &event, false);
            for event in missing {
                self.apply(attempt, event);
            }
        }
        self.apply(attempt, event);
        self.look_later(attempt);
    }

    /// The end of an attempt that is over for us: its miner has missed our last word.
    fn on_other(&mut self, attempt: AttemptId, other: AttemptId, event: &Event) {
        let is_end = matches!(
            event,
            Event::Finished(_) | Event::Failed(_) | Event::HordeFailed(_)
        );
        let here = self.validator.attempt(attempt).map(|tried| tried.miner);
        let Some(tried) = self
            .validator
            .attempt(other)
            .filter(|tried| Some(tried.miner) == here)
        else {
            return;
        };
        if !is_end || tried.machine.outcome().is_none() {
            return;
        }
        let written = tried
            .receipts
            .iter()
            .find(|own| own.payload.kind() == ReceiptKind::Finished)
            .cloned();
        let own = written.unwrap_or_else(|| {
            let payload = self.receipt_payload(other, ReceiptKind::Finished, false);
            Own {
                payload,
                countersigned: false,
            }
        });
        if let Some(tried) = self.validator.attempt_mut(other)
            && !tried
                .receipts
                .iter()
                .any(|held| held.payload.kind() == ReceiptKind::Finished)
        {
            tried.receipts.push(own.clone());
        }
        if let Some(message) = deliver(&own.payload) {
            self.tell(attempt, message);
        }
    }

    /// One event through the machine; what it changed is written before anything is sent because of it.
    pub(crate) fn apply(&mut self, attempt: AttemptId, event: Event) {
        let Some((job, _)) = self.validator.find(attempt) else {
            return;
        };
        let Some(mut tried) = self.validator.attempt(attempt).cloned() else {
            return;
        };
        let Ok((machine, effects)) = tried.machine.clone().apply(event, self.now) else {
            return;
        };
        if machine == tried.machine && effects.is_empty() {
            return;
        }
        let was_over = tried.machine.outcome().is_some();
        let held_executor = tried.machine.holds_executor();
        tried.machine = machine;
        let (mut frames, mut reports, mut dial) = (Vec::new(), Vec::new(), false);
        for effect in effects {
            let receipt = match effect {
                Effect::SendOffer => Some((ReceiptKind::Started, false)),
                Effect::SendAcceptedReceipt => Some((ReceiptKind::Accepted, false)),
                Effect::SendFinishedReceipt { paid } => Some((ReceiptKind::Finished, paid)),
                Effect::SendJob => {
                    frames.push(ToMiner::V0JobRequest(Box::new(job_request(attempt))));
                    None
                }
                Effect::SendCancel => {
                    let reason = "the time for it is over".to_owned();
                    frames.push(ToMiner::MusterCancelJob(CancelJob {
                        job_uuid: attempt,
                        reason,
                    }));
                    None
                }
                Effect::Reconnect => {
                    dial = true;
                    None
                }
                Effect::Report(status, _) if status.is_terminal() => None,
                Effect::Report(status, _) => {
                    reports.push(status);
                    None
                }
            };
            if let Some((kind, paid)) = receipt {
                let held = tried
                    .receipts
                    .iter()
                    .find(|own| own.payload.kind() == kind)
                    .cloned();
                let own = held.unwrap_or_else(|| {
                    let payload = self.receipt_payload(attempt, kind, paid);
                    let own = Own {
                        payload,
                        countersigned: false,
                    };
                    tried.receipts.push(own.clone());
                    own
                });
                frames.extend(deliver(&own.payload));
            }
        }
        let over = tried.machine.outcome().is_some() && !was_over;
        let makes_room = held_executor && !tried.machine.holds_executor();
        let written = Written {
            job,
            attempt: tried,
            reports,
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
            self.wake_dispatcher();
        }
        self.report_next();
        if dial {
            self.redial(attempt, 3000);
        }
        for frame in frames {
            self.tell(attempt, frame);
        }
        if over {
            self.ended(attempt);
        }
    }

    fn save(&mut self, written: Written) {
        let Written {
            job,
            attempt,
            reports,
        } = written;
        for status in reports {
            self.validator.report(job, status);
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

    /// Continues after the end of an attempt: with another miner, or by telling the user.
    fn ended(&mut self, attempt: AttemptId) {
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
        let busy = stored
            .attempts
            .iter()
            .take(index + 1)
            .filter(|tried| was_busy(tried));
        let busy: Vec<_> = busy.map(|tried| (tried.id, tried.miner)).collect();
        if let Some((_, miner)) = busy.iter().find(|(id, _)| *id == attempt) {
            self.validator.lines.full.insert(*miner, full_until);
        }
        let facts = RetryContext {
            attempts: u32::try_from(index + 1 - busy.len()).unwrap_or(u32::MAX),
            max_attempts: u32::try_from(MINERS).unwrap_or(u32::MAX),
            slow_images: 0,
            image_elsewhere: false,
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
        self.validator.report(job, status);
        if !self.may_die_here(Node::Validator) {
            self.report_next();
        }
    }

    /// Says goodbye once the last receipt has both signatures.
    fn leave_if_settled(&mut self, attempt: AttemptId) {
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
            machine.deadline().max(link.lenient_until)
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

    /// Jobs that a link is open for; for messages of failing schedules.
    pub(crate) fn open_links(&self) -> Vec<Option<JobId>> {
        self.validator.links.values().map(|link| link.job).collect()
    }
}
