//! A simulated miner: the real book and the real store, with a shell of a page around them.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use muster_miner::lease::{ExecutorReport, LeaseTimeouts};
use muster_miner::lease_table::{
    ConnectionId, DialId, Effect, Event, FetchRules, JobOffer, LeaseRecord, LeaseRules, LeaseTable,
    LeaseWrite,
};
use muster_miner::store::Store;
use muster_protocol::receipt::ReceiptPayload;
use muster_protocol::wire::decode;
use muster_protocol::wire::miner::{FromMiner, GenericError, InitialJobRequest, ToMiner};
use muster_protocol::wire::muster::ReceiptCountersigned;
use muster_protocol::{
    AttemptId, ExecutorClass, ExecutorToken, FeatureSet, Hotkey, Manifest, MinerKey, Receipt, Signature,
    Timestamp, ValidatorKey,
};

use crate::faults::{Fault, Mutation};
use crate::invariants::Invariant;
use crate::world::{Frame, Happening, Line, Node, World};

pub(crate) const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

/// Everybody's signature: what signatures mean is tested where they are made.
pub(crate) const SIGNED: Signature = Signature::from_bytes([7; 64]);

pub(crate) fn validator_key() -> ValidatorKey {
    ValidatorKey(Hotkey::from_bytes([1; 32]))
}

pub(crate) fn miner_key(index: usize) -> MinerKey {
    MinerKey(Hotkey::from_bytes(
        [u8::try_from(index).unwrap_or_default() + 2; 32],
    ))
}

#[derive(Debug)]
pub(crate) struct Miner {
    index: usize,
    pub(crate) up: bool,
    pub(crate) life: u64,
    capacity: u32,
    book: Option<LeaseTable>,
    pub(crate) store: Store,
    executors: BTreeMap<AttemptId, Line>,
    processes: BTreeMap<AttemptId, u64>,
    /// When it looks at its deadlines next.
    wakes_at: Option<Timestamp>,
}

impl Miner {
    pub(crate) fn new(index: usize, capacity: u32) -> Self {
        Self {
            index,
            up: false,
            life: 0,
            capacity,
            book: None,
            store: Store::memory(),
            executors: BTreeMap::new(),
            processes: BTreeMap::new(),
            wakes_at: None,
        }
    }

    pub(crate) fn die(&mut self) {
        self.up = false;
        self.life += 1;
        self.book = None;
        self.executors.clear();
        self.processes.clear();
        self.wakes_at = None;
    }

    fn rules(&self, mutation: Option<Mutation>) -> LeaseRules {
        let count = match mutation {
            Some(Mutation::MinerTakesEverything) => 1000,
            Some(_) | None => self.capacity,
        };
        LeaseRules {
            manifest: Manifest::new([(CLASS, count)]),
            patience: LeaseTimeouts {
                startup: Duration::from_secs(30),
                prepare: Duration::from_secs(120),
                image: Duration::from_secs(600),
                payload: Duration::from_secs(600),
                margin: Duration::from_secs(60),
                skew: Duration::from_secs(2),
            },
            memory: Duration::from_secs(24 * 3600),
            fetch: FetchRules {
                slots: 2,
                per_account: 1,
                per_registry: 2,
                waiting: 3,
            },
        }
    }

    /// The records in its store. The store in memory answers at once.
    pub(crate) fn records(&self) -> Vec<LeaseRecord> {
        self.store
            .records()
            .now_or_never()
            .and_then(Result::ok)
            .unwrap_or_default()
    }

    pub(crate) fn receipts(&self) -> Vec<Receipt> {
        let lines = self
            .store
            .lines_since(0)
            .now_or_never()
            .and_then(Result::ok)
            .unwrap_or_default();
        lines.iter().filter_map(|line| decode(&line.line).ok()).collect()
    }

    fn history(&self, attempt: AttemptId) -> Vec<FromMiner> {
        let history = self
            .store
            .history(attempt)
            .now_or_never()
            .and_then(Result::ok)
            .unwrap_or_default();
        history.iter().filter_map(|frame| decode(frame).ok()).collect()
    }
}

impl World {
    pub(crate) fn open_miner(&mut self, index: usize) {
        let (now, mutation) = (self.now, self.mutation);
        let Some(miner) = self.miners.get_mut(index) else {
            return;
        };
        let records = match mutation {
            Some(Mutation::MinerForgetsLeases) => vec![],
            Some(_) | None => miner.records(),
        };
        let (book, pending) = LeaseTable::open(miner.rules(mutation), records, now);
        miner.book = Some(book);
        miner.up = true;
        self.carry_out(index, pending);
    }

    pub(crate) fn miner_wakes(&mut self, index: usize) {
        let now = self.now;
        match self.miners.get_mut(index) {
            // Set before it was known that something is due sooner.
            Some(miner) if miner.wakes_at.is_some_and(|when| when > now) => return,
            Some(miner) => miner.wakes_at = None,
            None => return,
        }
        self.feed(index, Event::Tick);
    }

    pub(crate) fn miner_hears_of(&mut self, index: usize, line: Line) {
        let dialled = self
            .lines
            .get(&line)
            .and_then(|connection| connection.ends.first())
            .copied();
        match dialled {
            Some(Node::Validator) => self.feed(
                index,
                Event::Joined {
                    connection: ConnectionId(line),
                    validator: validator_key(),
                    muster: true,
                    features: FeatureSet::ours(),
                },
            ),
            Some(Node::Executor(id)) => {
                let token = self.executors.get(&id).map(|executor| executor.token.clone());
                if let Some(token) = token {
                    let dial = DialId(line);
                    self.feed(
                        index,
                        Event::Dialled {
                            dial,
                            token,
                            executor_ip: None,
                            apart: true,
                            features: FeatureSet::ours(),
                        },
                    );
                }
            }
            Some(Node::Facilitator | Node::Miner(_)) | None => {}
        }
    }

    pub(crate) fn miner_loses(&mut self, index: usize, line: Line) {
        match self
            .lines
            .get(&line)
            .and_then(|connection| connection.ends.first())
            .copied()
        {
            Some(Node::Validator) => self.feed(index, Event::Left(ConnectionId(line))),
            Some(Node::Executor(id)) => {
                let Some(attempt) = self.executors.get(&id).map(|executor| executor.attempt) else {
                    return;
                };
                if let Some(miner) = self.miners.get_mut(index)
                    && miner.executors.get(&attempt) == Some(&line)
                {
                    miner.executors.remove(&attempt);
                }
                let dial = DialId(line);
                self.feed(index, Event::ExecutorGone { dial, attempt });
            }
            Some(Node::Facilitator | Node::Miner(_)) | None => {}
        }
    }

    /// A process that the present life of the miner started has ended.
    pub(crate) fn executor_exited(&mut self, miner: usize, life: u64, attempt: AttemptId) {
        if self.life(Node::Miner(miner)) == Some(life) {
            if let Some(its) = self.miners.get_mut(miner) {
                its.processes.remove(&attempt);
            }
            let how = "its process ended".to_owned();
            self.feed(miner, Event::ExecutorExited { attempt, how });
        }
    }

    pub(crate) fn miner_hears(&mut self, index: usize, line: Line, to: usize, frame: Frame) {
        match frame {
            Frame::To(message) if to == 1 => self.validator_says(index, line, *message),
            Frame::From(message) if to == 1 => self.executor_says(index, line, *message),
            Frame::To(_)
            | Frame::From(_)
            | Frame::Job(_)
            | Frame::Cancel(_)
            | Frame::Status(..)
            | Frame::Answer(_) => {}
        }
    }

    fn validator_says(&mut self, index: usize, line: Line, message: ToMiner) {
        let connection = ConnectionId(line);
        let event = match message {
            ToMiner::V0InitialJobRequest(request) => {
                let token = ExecutorToken::new(request.job_uuid, self.dice.uuid());
                let offer = Box::new(offered(request));
                Event::Offered {
                    connection,
                    offer,
                    token,
                }
            }
            ToMiner::V0JobRequest(request) => Event::Payload { connection, request },
            ToMiner::V0JobAcceptedReceiptRequest(request) => Event::ReceiptOffered {
                connection,
                receipt: Box::new(countersigned(ReceiptPayload::Accepted(request.payload))),
            },
            ToMiner::V0JobFinishedReceiptRequest(request) => Event::ReceiptOffered {
                connection,
                receipt: Box::new(countersigned(ReceiptPayload::Finished(request.payload))),
            },
            ToMiner::MusterCancelJob(cancel) => Event::Cancelled { connection, cancel },
            ToMiner::ValidatorAuthForMiner(_)
            | ToMiner::V0MainHotkeyMessage(_)
            | ToMiner::GenericError(_)
            | ToMiner::MusterExecutorEnrolled(_)
            | ToMiner::MusterSessionSealed(_)
            | ToMiner::MusterFetchImage(_)
            | ToMiner::MusterWhitelist(_) => return,
        };
        self.feed(index, event);
    }

    fn executor_says(&mut self, index: usize, line: Line, message: FromMiner) {
        let Some(attempt) = message.attempt() else { return };
        let report = match message {
            FromMiner::MusterExecutorUp(up) => ExecutorReport::Up(up),
            FromMiner::V0ExecutorReadyRequest(_) => ExecutorReport::Ready,
            FromMiner::V0VolumesReadyRequest(_) => ExecutorReport::VolumesReady,
            FromMiner::V0ExecutionDoneRequest(_) => ExecutorReport::ExecutionDone,
            FromMiner::V0MachineSpecsRequest(specs) => ExecutorReport::Specs(Box::new(specs)),
            FromMiner::V0JobFinishedRequest(result) => ExecutorReport::Finished(Box::new(result)),
            FromMiner::V0HordeFailedRequest(failure) => ExecutorReport::HordeFailed(Box::new(failure)),
            // Simulated executors say nothing else.
            FromMiner::V0ExecutorManifestRequest(_)
            | FromMiner::V0MainHotkeyMessage(_)
            | FromMiner::V0AcceptJobRequest(_)
            | FromMiner::V0DeclineJobRequest(_)
            | FromMiner::V0StreamingJobReadyRequest(_)
            | FromMiner::V0StreamingJobNotReadyRequest(_)
            | FromMiner::V0JobFailedRequest(_)
            | FromMiner::V0ExecutorFailedRequest(_)
            | FromMiner::GenericError(_)
            | FromMiner::UnauthorizedError(_)
            | FromMiner::MusterReceiptCountersigned(_)
            | FromMiner::MusterJobLog(_)
            | FromMiner::MusterJobProgress(_)
            | FromMiner::MusterExecutorMetrics(_)
            | FromMiner::MusterExecutorHello(_)
            | FromMiner::MusterEnrolExecutor(_)
            | FromMiner::MusterSealSession(_)
            | FromMiner::MusterSessionClosed(_)
            | FromMiner::MusterLeaseOver(_) => return,
        };
        let said = Event::Said {
            dial: DialId(line),
            attempt,
            report: Box::new(report),
        };
        self.feed(index, said);
    }

    fn feed(&mut self, index: usize, event: Event) {
        let now = self.now;
        let book = self.miners.get_mut(index).and_then(|miner| miner.book.as_mut());
        let Some(effects) = book.map(|book| book.apply(event, now)) else {
            return;
        };
        self.carry_out(index, effects);
        let next = self.miners.get_mut(index).and_then(|miner| {
            let when = miner.book.as_ref()?.next_tick().plus(Duration::from_millis(1));
            let sooner = miner.wakes_at.is_none_or(|known| when < known);
            sooner.then(|| {
                miner.wakes_at = Some(when);
                (when, miner.life)
            })
        });
        if let Some((when, life)) = next {
            self.at(when, Happening::Wake(Node::Miner(index), life));
        }
        self.within_capacity(index);
    }

    /// Writes first, then speaks; killed in between if it is its time.
    fn carry_out(&mut self, index: usize, effects: Vec<Effect>) {
        let (writes, rest): (Vec<_>, Vec<_>) = effects
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Write(_)));
        let writes: Vec<LeaseWrite> = writes
            .into_iter()
            .filter_map(|effect| {
                if let Effect::Write(write) = effect {
                    Some(write)
                } else {
                    None
                }
            })
            .collect();
        let away = self.weather.contains_key(&Fault::LoseDatabase);
        if away && !writes.is_empty() && !self.mutated(Mutation::MinerSpeaksFirst) {
            self.weather.remove(&Fault::LoseDatabase);
            return self.kill(Node::Miner(index));
        }
        if self.mutated(Mutation::MinerSpeaksFirst) {
            for effect in rest {
                self.outward(index, effect);
            }
            if !self.may_die_here(Node::Miner(index)) {
                self.write(index, &writes);
            }
            return;
        }
        self.write(index, &writes);
        if !writes.is_empty() && self.may_die_here(Node::Miner(index)) {
            return;
        }
        for effect in rest {
            self.outward(index, effect);
        }
    }

    fn write(&mut self, index: usize, writes: &[LeaseWrite]) {
        let Some(miner) = self.miners.get(index) else {
            return;
        };
        let written = miner.store.commit(writes, 0).now_or_never();
        if let Some(Err(error)) = written {
            self.violate(
                Invariant::RunOnce,
                format!("miner {index} cannot write {writes:?}: {error}"),
            );
        }
    }

    fn outward(&mut self, index: usize, effect: Effect) {
        match effect {
            Effect::Write(_) => {}
            Effect::Tell { to, message } | Effect::Live { to, message } => {
                for ConnectionId(line) in to {
                    self.send(line, 1, Frame::From(message.clone()));
                }
            }
            Effect::Retell { to, attempt } => {
                if self.mutated(Mutation::MinerTellsOnce) {
                    return;
                }
                let history = self
                    .miners
                    .get(index)
                    .map(|miner| miner.history(attempt))
                    .unwrap_or_default();
                for message in history {
                    self.send(to.0, 1, Frame::From(Box::new(message)));
                }
            }
            Effect::RepeatReceipt { to, attempt, kind } => {
                let receipts = self.miners.get(index).map(Miner::receipts).unwrap_or_default();
                let held = receipts
                    .into_iter()
                    .find(|receipt| receipt.payload.attempt() == attempt && receipt.payload.kind() == kind);
                if let Some(receipt) = held {
                    let message =
                        FromMiner::MusterReceiptCountersigned(Box::new(ReceiptCountersigned { receipt }));
                    self.send(to.0, 1, Frame::From(Box::new(message)));
                }
            }
            Effect::Start { token, .. } => {
                let attempt = token.attempt();
                let life = self.miners.get(index).map(|miner| miner.life).unwrap_or_default();
                let id = self.start_executor(index, life, token);
                if let Some(miner) = self.miners.get_mut(index) {
                    miner.processes.insert(attempt, id);
                }
            }
            Effect::Admit { dial, attempt } => {
                if let Some(miner) = self.miners.get_mut(index) {
                    miner.executors.insert(attempt, dial.0);
                }
            }
            Effect::Dismiss { dial, details } => {
                let details = Some(details);
                let message = ToMiner::GenericError(GenericError {
                    details,
                    job_uuid: None,
                });
                self.send(dial.0, 1, Frame::To(Box::new(message)));
                self.close(dial.0, 1);
            }
            Effect::Order { attempt, message } => {
                let line = self
                    .miners
                    .get(index)
                    .and_then(|miner| miner.executors.get(&attempt).copied());
                if let Some(line) = line {
                    self.send(line, 1, Frame::To(message));
                }
            }
            // Simulated executors have every image.
            Effect::Shelve(_) => {}
            Effect::StopExecutor { attempt } => {
                let Some(miner) = self.miners.get_mut(index) else {
                    return;
                };
                let (line, process) = (
                    miner.executors.remove(&attempt),
                    miner.processes.get(&attempt).copied(),
                );
                if let Some(line) = line {
                    self.close(line, 1);
                }
                if let Some(id) = process {
                    self.leave(id);
                }
            }
        }
    }

    fn within_capacity(&mut self, index: usize) {
        let Some(miner) = self.miners.get(index) else {
            return;
        };
        let open = miner
            .book
            .as_ref()
            .map(LeaseTable::working_leases)
            .unwrap_or_default();
        let capacity = miner.capacity;
        if open > usize::try_from(capacity).unwrap_or(usize::MAX) {
            let how = format!(
                "miner {} has {open} leases at work and {capacity} executors",
                miner.index
            );
            self.violate(Invariant::WithinCapacity, how);
        }
    }

    pub(crate) fn open_leases(&self) -> usize {
        let books = self.miners.iter().filter_map(|miner| miner.book.as_ref());
        books.map(LeaseTable::open_leases).sum()
    }
}

fn offered(request: Box<InitialJobRequest>) -> JobOffer {
    let payload = ReceiptPayload::Started(request.job_started_receipt_payload.clone());
    JobOffer {
        receipt: Ok(countersigned(payload)),
        request,
        served: true,
    }
}

fn countersigned(payload: ReceiptPayload) -> Receipt {
    Receipt {
        payload,
        validator_signature: SIGNED,
        miner_signature: SIGNED,
    }
}
