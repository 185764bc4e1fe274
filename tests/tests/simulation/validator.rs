//! A simulated validator: the real machine of an attempt with its steps and its connection, the real reading of a
//! miner's messages and the real admission, with a store in memory and a shell that does what the real one does, in its
//! order.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_facilitator_link::UpdateWindow;
use muster_job_messages::AttemptConnection;
use muster_job_messages::attempt_connection::is_repeated;
use muster_job_messages::incoming::{MessageMeaning, interpret};
use muster_job_queue::{QueueAccount, QueueTicket, WaitingJob};
use muster_protocol::job::{Attempt, Event, Outcome};
use muster_protocol::receipt::ReceiptPayload;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{AttemptId, JobId, MinerKey, ReceiptKind, Timestamp};
use muster_routing::admission::{
    AllowedUsers, PriorAnswer, PriorRequest, SignatureCheck, check_request, resolve_prior,
};

use crate::choosing::CALLED_OFF;
use crate::documents::{deliver, user_request};
use crate::faults::Mutation;
use crate::invariants::Invariant;
use crate::miner::{miner_key, validator_key};
use crate::network::Line;
use crate::outbox::Outbox;
use crate::waiting::QueueMemory;
use crate::world::{Frame, Happening, Node, World};

/// How long a lost connection to a miner may stay lost.
pub(crate) const RECONNECT: Duration = Duration::from_secs(60);
/// How long it may stay lost if the miner keeps its leases meanwhile.
const REATTACH: Duration = Duration::from_secs(180);
/// How long the miner's half of the last receipt is waited for.
pub(crate) const RECEIPT_WAIT: Duration = Duration::from_secs(2); // paused time

/// One receipt of the validator's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Own {
    pub(crate) payload: ReceiptPayload,
    pub(crate) countersigned: bool,
}

/// An attempt on one miner, as the running process and its store have it.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    pub(crate) id: AttemptId,
    pub(crate) miner: usize,
    pub(crate) machine: Attempt,
    /// The machine as the store has it.
    pub(crate) stored: Attempt,
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
pub(crate) struct Link {
    job: Option<JobId>,
    pub(crate) line: Option<Line>,
    dialling: bool,
    pub(crate) connection: AttemptConnection,
    /// Set once the attempt is over: until when the connection is kept for the last receipt.
    pub(crate) leaves_at: Option<Timestamp>,
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
    pub(crate) queue: QueueMemory,
    pub(crate) outbox: Outbox,
    pub(crate) links: BTreeMap<AttemptId, Link>,
    /// The connection to the facilitator, and the updates on their way over it.
    pub(crate) facilitator_line: Option<(Line, UpdateWindow)>,
}

impl Validator {
    pub(crate) fn die(&mut self) {
        self.up = false;
        self.life += 1;
        self.links.clear();
        self.queue = QueueMemory::default();
        for tried in self.jobs.values_mut().flat_map(|job| &mut job.attempts) {
            tried.machine = tried.stored.clone();
        }
        self.facilitator_line = None;
    }

    pub(crate) fn find(&self, attempt: AttemptId) -> Option<(JobId, usize)> {
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

    /// Takes a job up from its state in the store.
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
            connection: if resumed {
                AttemptConnection::resumed(self.now, RECONNECT)
            } else {
                AttemptConnection::default()
            },
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

    pub(crate) fn redial(&mut self, attempt: AttemptId, most: u64) {
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
                let most = if self.traits.reattaches {
                    UpdateWindow::MUSTER
                } else {
                    UpdateWindow::OTHERS
                };
                let line = self.connect(Node::Validator, Node::Facilitator);
                self.validator.facilitator_line = line.map(|line| (line, UpdateWindow::new(most)));
                match line {
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
        if let Some(link) = self.validator.links.get_mut(&attempt) {
            link.connection.come_up(now, RECEIPT_WAIT);
        }
        let receipts = self
            .validator
            .attempt(attempt)
            .map(|tried| tried.receipts.clone())
            .unwrap_or_default();
        for own in receipts {
            if is_repeated(own.payload.kind(), own.countersigned)
                && let Some(message) = deliver(&own.payload, self.traits.reattaches)
            {
                self.tell(attempt, message);
            }
        }
        if self.traits.reattaches
            && let Some(tried) = self.validator.attempt_mut(attempt)
        {
            tried.machine = tried.machine.clone().with_reconnect(REATTACH);
        }
        self.apply(attempt, Event::Connected);
        self.look_later(attempt);
    }

    fn down(&mut self, attempt: AttemptId) {
        let Some(link) = self.validator.links.get_mut(&attempt) else {
            return;
        };
        link.connection.go_down();
        let over = link.leaves_at.is_some();
        if over {
            self.redial(attempt, 500);
        } else {
            self.apply(attempt, Event::Disconnected);
        }
    }

    pub(crate) fn tell(&mut self, attempt: AttemptId, message: ValidatorToMiner) {
        if let Some(line) = self.validator.links.get(&attempt).and_then(|link| link.line) {
            self.send(line, 0, Frame::ToMiner(Box::new(message)));
        }
    }

    pub(crate) fn validator_loses(&mut self, line: Line) {
        if self
            .validator
            .facilitator_line
            .as_ref()
            .is_some_and(|(open, _)| *open == line)
        {
            self.validator.facilitator_line = None;
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

    pub(crate) fn validator_receives(&mut self, line: Line, frame: Frame) {
        match frame {
            Frame::Job(job) => self.take_job(job),
            Frame::Cancel(job) => self.take_cancel(job),
            Frame::Answer => self.update_answered(),
            Frame::FromMiner(message) => {
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
            Frame::Status(_) | Frame::ToMiner(_) | Frame::ToExecutor(_) | Frame::FromExecutor(_) => {}
        }
    }

    fn take_job(&mut self, job: JobId) {
        let (request, me) = (user_request(job), validator_key().0);
        let checked = check_request(&request, SignatureCheck::Holds, &AllowedUsers::Any.into(), me);
        let is_known = self.validator.jobs.contains_key(&job);
        let answer = match (is_known, checked) {
            (true, checked) => resolve_prior(PriorRequest::Job, checked.err()),
            (false, Ok(())) => return self.admit(job),
            (false, Err(fault)) => PriorAnswer::Refuse(fault.into_refusal()),
        };
        match answer {
            PriorAnswer::Repeat => {
                self.validator.outbox.repeat(job);
                self.report_next();
            }
            PriorAnswer::Refuse(details) => {
                self.validator.jobs.insert(job, Job::new(self.now, self.now));
                self.close_job(job, Outcome::Rejected(details));
            }
        }
    }

    fn on_message(&mut self, attempt: AttemptId, message: MinerToValidator) {
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
            | MessageMeaning::Specs(_)
            | MessageMeaning::Machines(_)
            | MessageMeaning::Checkpoint(_)
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
        let link = self.validator.links.get(&attempt);
        let missing = match (link, self.validator.attempt(attempt)) {
            (Some(link), Some(tried)) => link.connection.events_before(&tried.machine, &event),
            (Some(_) | None, _) => vec![],
        };
        for event in missing {
            self.apply(attempt, event);
        }
        self.apply(attempt, event);
        self.look_later(attempt);
    }

    /// The end of an attempt that is over for us: its miner has missed our last message.
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
        let mut written = tried
            .receipts
            .iter()
            .find(|own| own.payload.kind() == ReceiptKind::Finished)
            .cloned();
        if self.mutated(Mutation::ValidatorPaysLateResults) && matches!(event, Event::Finished(_)) {
            written = self.pay_late(other);
        }
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
        if let Some(message) = deliver(&own.payload, self.traits.reattaches) {
            self.tell(attempt, message);
        }
    }

    /// Replaces the finished receipt of an attempt that was given up by one that pays: the broken rule.
    fn pay_late(&mut self, attempt: AttemptId) -> Option<Own> {
        let payload = self.receipt_payload(attempt, ReceiptKind::Finished, true);
        let paid = Own {
            payload,
            countersigned: false,
        };
        let tried = self.validator.attempt_mut(attempt)?;
        tried
            .receipts
            .retain(|held| held.payload.kind() != ReceiptKind::Finished);
        tried.receipts.push(paid.clone());
        Some(paid)
    }

    /// Jobs that a link is open for; for messages of failing schedules.
    pub(crate) fn open_links(&self) -> Vec<Option<JobId>> {
        self.validator.links.values().map(|link| link.job).collect()
    }
}
