//! A simulated miner: the real book and the real store, with a shell of a page around them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::FutureExt as _;
use muster_miner::lease::{ExecutorReport, LeaseTimeouts};
use muster_miner::lease_table::{
    ConnectionId, DialId, Effect, Event, FetchRules, JobOffer, LeaseRecord, LeaseRules, LeaseTable,
};
use muster_miner::store::Store;
use muster_miner::validator_shares::shares::{ShareRules, ValidatorStakes};
use muster_miner::validator_shares::unpaid::UnpaidRules;
use muster_protocol::receipt::ReceiptPayload;
use muster_protocol::wire::decode;
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::wire::miner::InitialJobRequest;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{
    AttemptId, ExecutorClass, ExecutorToken, FeatureSet, Hotkey, Manifest, MinerKey, Receipt, Signature,
    Timestamp, ValidatorKey,
};

use crate::faults::{Fault, Mutation};
use crate::invariants::Invariant;
use crate::network::Line;
use crate::world::{Frame, Happening, Node, World, WorldTraits};

pub(crate) const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

/// How long a lease waits for its executor.
const REATTACH: Duration = Duration::from_secs(150);

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
    pub(crate) traits: WorldTraits,
    pub(crate) book: Option<LeaseTable>,
    pub(crate) store: Store,
    pub(crate) executors: BTreeMap<AttemptId, Line>,
    pub(crate) processes: BTreeMap<AttemptId, u64>,
    /// Connections of executors that were not admitted yet, with whether they come back.
    pub(crate) dialling: BTreeMap<Line, (AttemptId, bool)>,
    /// Restored leases whose executors have not reported how far they are.
    pub(crate) restored: BTreeSet<AttemptId>,
    /// When it looks at its deadlines next.
    wakes_at: Option<Timestamp>,
}

impl Miner {
    pub(crate) fn new(index: usize, traits: WorldTraits) -> Self {
        Self {
            index,
            up: false,
            life: 0,
            traits,
            book: None,
            store: Store::memory(),
            executors: BTreeMap::new(),
            processes: BTreeMap::new(),
            dialling: BTreeMap::new(),
            restored: BTreeSet::new(),
            wakes_at: None,
        }
    }

    pub(crate) fn die(&mut self) {
        self.up = false;
        self.life += 1;
        self.book = None;
        self.executors.clear();
        self.processes.clear();
        self.dialling.clear();
        self.restored.clear();
        self.wakes_at = None;
    }

    fn rules(&self, mutation: Option<Mutation>) -> LeaseRules {
        let count = match mutation {
            Some(Mutation::MinerTakesEverything) => 1000,
            Some(_) | None => self.traits.capacity,
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
                lend: None,
                reattach: if self.traits.reattaches {
                    REATTACH
                } else {
                    Duration::ZERO
                },
            },
            memory: Duration::from_secs(24 * 3600),
            fetch: FetchRules {
                slots: 2,
                per_account: 1,
                per_registry: 2,
                waiting: 3,
            },
            shares: ShareRules {
                floor: 1,
                beyond: Duration::from_secs(3_600),
            },
            unpaid: UnpaidRules {
                course: Duration::from_secs(600),
                percent: 5,
                window: Duration::from_secs(86_400),
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

    pub(crate) fn history(&self, attempt: AttemptId) -> Vec<MinerToValidator> {
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
        self.wake_later(index);
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

    pub(crate) fn miner_notices(&mut self, index: usize, line: Line) {
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
                let executor = self.executors.get(&id);
                let showing = executor.filter(|executor| executor.link.first == Some(line));
                // An executor that comes back speaks first.
                if let Some(token) = showing.map(|executor| executor.token.clone()) {
                    let dial = DialId(line);
                    let secret = self.draw_secret();
                    let attempt = token.attempt();
                    self.ledger.fences.entry(attempt).or_default().offer(&secret);
                    if let Some(miner) = self.miners.get_mut(index) {
                        miner.dialling.insert(line, (attempt, false));
                    }
                    let apart = !self.traits.remote;
                    self.feed(
                        index,
                        Event::Dialled {
                            dial,
                            token,
                            executor_ip: None,
                            apart,
                            features: FeatureSet::ours(),
                            secret,
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
                if let Some(miner) = self.miners.get_mut(index) {
                    miner.dialling.remove(&line);
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

    pub(crate) fn miner_receives(&mut self, index: usize, line: Line, frame: Frame) {
        match frame {
            Frame::ToMiner(message) => self.validator_says(index, line, *message),
            Frame::FromExecutor(message) => self.executor_says(index, line, *message),
            Frame::FromMiner(_)
            | Frame::ToExecutor(_)
            | Frame::Job(_)
            | Frame::Cancel(_)
            | Frame::Status(_)
            | Frame::Answer => {}
        }
    }

    fn validator_says(&mut self, index: usize, line: Line, message: ValidatorToMiner) {
        let connection = ConnectionId(line);
        let event = match message {
            ValidatorToMiner::V0InitialJobRequest(request) => {
                let token = ExecutorToken::new(request.job_uuid, self.dice.uuid());
                let offer = Box::new(offered(request));
                Event::Offered {
                    connection,
                    offer,
                    token,
                }
            }
            ValidatorToMiner::V0JobRequest(request) => Event::Payload { connection, request },
            ValidatorToMiner::V0JobAcceptedReceiptRequest(request) => Event::ReceiptOffered {
                connection,
                receipt: Box::new(countersigned(ReceiptPayload::Accepted(request.payload))),
            },
            ValidatorToMiner::V0JobFinishedReceiptRequest(request) => Event::ReceiptOffered {
                connection,
                receipt: Box::new(countersigned(ReceiptPayload::Finished(request.payload))),
            },
            ValidatorToMiner::MusterCancelJob(cancel) => Event::Cancelled { connection, cancel },
            ValidatorToMiner::ValidatorAuthForMiner(_)
            | ValidatorToMiner::V0MainHotkeyMessage(_)
            | ValidatorToMiner::GenericError(_)
            | ValidatorToMiner::MusterCheckpointKept(_)
            | ValidatorToMiner::MusterDrain(_)
            | ValidatorToMiner::MusterAudit(_)
            | ValidatorToMiner::MusterWhitelist(_) => return,
        };
        self.feed(index, event);
    }

    fn executor_says(&mut self, index: usize, line: Line, message: ExecutorToMiner) {
        let Some(attempt) = message.attempt() else { return };
        let report = match message {
            ExecutorToMiner::MusterExecutorUp(up) => ExecutorReport::Up(up),
            ExecutorToMiner::V0ExecutorReadyRequest(_) => ExecutorReport::Ready,
            ExecutorToMiner::V0VolumesReadyRequest(_) => ExecutorReport::VolumesReady,
            ExecutorToMiner::V0ExecutionDoneRequest(_) => ExecutorReport::ExecutionDone,
            ExecutorToMiner::V0MachineSpecsRequest(specs) => ExecutorReport::Specs(Box::new(specs)),
            ExecutorToMiner::V0JobFinishedRequest(result) => ExecutorReport::Finished(Box::new(result)),
            ExecutorToMiner::V0HordeFailedRequest(failure) => ExecutorReport::HordeFailed(Box::new(failure)),
            ExecutorToMiner::MusterReattach(back) => return self.executor_returns(index, line, back),
            // Simulated executors send nothing else.
            ExecutorToMiner::V0StreamingJobReadyRequest(_)
            | ExecutorToMiner::V0StreamingJobNotReadyRequest(_)
            | ExecutorToMiner::V0JobFailedRequest(_)
            | ExecutorToMiner::V0ExecutorFailedRequest(_)
            | ExecutorToMiner::GenericError(_)
            | ExecutorToMiner::MusterJobLog(_)
            | ExecutorToMiner::MusterJobProgress(_)
            | ExecutorToMiner::MusterJobMetrics(_)
            | ExecutorToMiner::MusterCheckpoint(_)
            | ExecutorToMiner::MusterExecutorMetrics(_)
            | ExecutorToMiner::MusterSessionProofs(_)
            | ExecutorToMiner::MusterExecutorHello(_)
            | ExecutorToMiner::MusterEnrolExecutor(_)
            | ExecutorToMiner::MusterSealSession(_)
            | ExecutorToMiner::MusterSessionClosed(_)
            | ExecutorToMiner::MusterLeaseOver(_) => return,
        };
        // One whose frames pass each other may skip the fetch of its image, which the lease then cannot know.
        if matches!(report, ExecutorReport::Ready)
            && !self.weather.contains_key(&Fault::Reordered)
            && let Some(miner) = self.miners.get_mut(index)
        {
            miner.restored.remove(&attempt);
        }
        self.executor_reports(index, line, attempt, report);
    }

    fn feed(&mut self, index: usize, event: Event) {
        let effects = self.ask(index, event);
        self.settle(index, effects);
    }

    /// The decision of the lease table.
    pub(crate) fn ask(&mut self, index: usize, event: Event) -> Vec<Effect> {
        let now = self.now;
        let book = self.miners.get_mut(index).and_then(|miner| miner.book.as_mut());
        let effects = book.map(|book| book.apply(event, now)).unwrap_or_default();
        for effect in &effects {
            if let Effect::Admit { dial, attempt } = effect {
                self.ledger.serving.insert(*attempt, dial.0);
            }
        }
        effects
    }

    pub(crate) fn settle(&mut self, index: usize, effects: Vec<Effect>) {
        self.carry_out(index, effects);
        self.wake_later(index);
        self.within_capacity(index);
    }

    pub(crate) fn wake_later(&mut self, index: usize) {
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
    }

    fn within_capacity(&mut self, index: usize) {
        let Some(miner) = self.miners.get(index) else {
            return;
        };
        let Some(book) = &miner.book else { return };
        // A restored lease counts as one at work until its executor has reported how far it is.
        let attempts = book.open_attempts();
        let unknown = miner.restored.intersection(&attempts).count();
        let open = book.working_leases().saturating_sub(unknown);
        let capacity = miner.traits.capacity;
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
        // The simulation has one validator.
        stakes: ValidatorStakes::default(),
        unaffordable: None,
    }
}

fn countersigned(payload: ReceiptPayload) -> Receipt {
    Receipt {
        payload,
        validator_signature: SIGNED,
        miner_signature: SIGNED,
    }
}
