//! The one task that every event passes through: it applies events to the lease table in the order of their arrival and
//! carries out the effects. Races between sockets, processes and deadlines become order here.
//!
//! Events are taken in batches: one commit makes all decisions of a batch durable, and only then is any of them sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use muster_process::backoff::random_jitter;
use muster_process::error::Causes;
use muster_process::{Backoff, SharedClock, Tasks};
use muster_protocol::receipt::page_of;
use muster_protocol::wire::checkpoints::RequestExtension;
use muster_protocol::wire::encode;
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::miner::{GenericError, InitialJobRequest};
use muster_protocol::wire::muster::{ListedImage, OfferExtension};
use muster_protocol::{
    AttemptId, ExecutorClass, ExecutorToken, Feature, FeatureSet, ParticipantType, Timestamp,
};
use muster_span_export::{SpanBatch, spans_of};
use muster_store::StoreError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::lease::read_trace;
use crate::lease_table::{ConnectionId, DialId, Effect, Event, LeaseTable, LeaseWrite};
use crate::manager::{ExecutorManager, Notice, Order, Running};
use crate::metrics::count_effects;
use crate::miner_state::LeaseGauge;
use crate::operator::{OperatorBoard, failure_of};
use crate::persistent::ExecutorPool;
use crate::receipt_pages::Pages;
use crate::session_queues::{Attachment, DispatcherInput, Inbox, Outbox, Outgoing};
use crate::store::{PageLine, Store};

/// Events decided together at most.
const BATCH: usize = 256;
/// How a store that fails is tried again, and how often.
const RETRY: Backoff = Backoff {
    base: Duration::from_millis(100),
    max: Duration::from_secs(5),
};
const RETRIES: u32 = 6;
/// How often old pages and greetings are thrown away.
const TIDY_EVERY: Duration = Duration::from_secs(300);

/// The dispatcher with everything that it needs.
pub struct Dispatcher {
    /// The rules and the leases.
    pub leases: LeaseTable,
    /// The durable state.
    pub store: Store,
    /// Receipts for others to read.
    pub pages: Pages,
    /// The source of time.
    pub clock: SharedClock,
    /// The spawner of the tasks that wait for executors.
    pub tasks: Tasks,
    /// The manager that starts executors.
    pub manager: Arc<dyn ExecutorManager>,
    /// The URL that executors dial.
    pub miner_address: String,
    /// The persistent executors, which receive the whitelists.
    pub pool: ExecutorPool,
    /// The queue into this dispatcher, for the exits of executors.
    pub inbox: Inbox,
    /// How long to wait for leases when the miner stops.
    pub drain: Duration,
    /// Where the number of open leases is shown.
    pub gauge: Arc<LeaseGauge>,
    /// The board that the operator is shown.
    pub board: Arc<OperatorBoard>,
}

/// A connected executor.
struct RunningExecutor {
    dial: DialId,
    outbox: Outbox,
    muster: bool,
    features: FeatureSet,
}

/// An executor that has dialled in and waits for its admission.
struct PendingDial {
    outbox: Outbox,
    muster: bool,
    features: FeatureSet,
    verdict: oneshot::Sender<Result<(), String>>,
}

/// The peers that are connected.
#[derive(Default)]
struct Peers {
    validators: HashMap<ConnectionId, Outbox>,
    executors: HashMap<AttemptId, RunningExecutor>,
    dialling: HashMap<DialId, PendingDial>,
    /// Cancelled to let an executor go; gone once its process is.
    processes: HashMap<AttemptId, CancellationToken>,
}

impl Dispatcher {
    /// Works until `stop` is cancelled and every open lease has ended. `pending` are the effects of building the table.
    ///
    /// # Errors
    /// The store failed for good, so nothing more may be promised. Open leases end at the next start.
    pub async fn run(
        mut self,
        mut events: mpsc::Receiver<DispatcherInput>,
        pending: Vec<Effect>,
        stop: CancellationToken,
    ) -> Result<(), StoreError> {
        let mut peers = Peers::default();
        self.carry_out(pending, &mut peers).await?;
        self.show();
        let mut batch = Vec::with_capacity(BATCH);
        let mut drained_by: Option<Timestamp> = None;
        let mut tidy_at = self.clock.now();
        loop {
            let now = self.clock.now();
            if now >= tidy_at {
                tidy_at = now.plus(TIDY_EVERY);
                self.tidy(now).await;
            }
            let over = drained_by.is_some_and(|by| now >= by || self.leases.open_leases() == 0);
            if over {
                let effects = self.leases.apply(Event::Stop, now);
                return self.carry_out(effects, &mut peers).await;
            }
            let wake = drained_by
                .map_or(self.leases.next_tick(), |by| by.min(self.leases.next_tick()))
                .min(tidy_at);
            tokio::select! {
                biased;
                () = stop.cancelled(), if drained_by.is_none() => {
                    drained_by = Some(self.clock.now().plus(self.drain));
                    batch.push(Event::Closing.into());
                }
                _ = events.recv_many(&mut batch, BATCH) => {}
                () = self.clock.sleep_until(wake) => batch.push(Event::Tick.into()),
            }
            let now = self.clock.now();
            let mut effects = Vec::new();
            for DispatcherInput {
                mut event,
                attachment,
            } in batch.drain(..)
            {
                self.check_spend(&mut event);
                peers.take_in(&event, attachment);
                effects.extend(self.leases.apply(event, now));
            }
            self.carry_out(effects, &mut peers).await?;
            self.show();
        }
    }

    /// Adds to an offer why no machine may be provisioned for it, if none may.
    fn check_spend(&self, event: &mut Event) {
        if let Event::Offered { offer, .. } = event {
            let lasts = self.leases.timeouts().longest_of_offer(&offer.request);
            let spent = self.manager.check_spend(lasts).err();
            offer.unaffordable = spent.map(|spent| spent.to_string());
        }
    }

    /// Shows the state of the leases to whoever asks about this miner.
    fn show(&self) {
        let leases = &self.leases;
        self.gauge.show(
            leases.open_leases(),
            leases.working_leases(),
            leases.is_draining(),
        );
        self.board.answer(|| leases.leases());
    }

    async fn carry_out(&mut self, effects: Vec<Effect>, peers: &mut Peers) -> Result<(), StoreError> {
        count_effects(&effects);
        self.board.note_effects(&effects, self.clock.now());
        export_ended(&effects);
        let (writes, rest) = split(effects);
        if !writes.is_empty() {
            let lines = self.commit(&writes).await?;
            if let Err(error) = self.pages.append(&lines).await {
                // The receipts are safe in the store, and the page is made anew at the next start.
                tracing::error!(error = %Causes(&error), "a receipt page could not be written");
            }
        }
        for effect in rest {
            match effect {
                OutwardEffect::Start(wanted) => self.start(wanted, peers, |manager, order, stop| {
                    Some(manager.run(order, stop))
                }),
                OutwardEffect::Resume(wanted, apart) => {
                    self.start(wanted, peers, |manager, order, stop| {
                        manager.resume(order, apart, stop)
                    });
                }
                OutwardEffect::Shelve(images) => self.pool.set_whitelist(images),
                OutwardEffect::Peers(effect) => peers.carry_out(effect),
            }
        }
        Ok(())
    }

    /// A store may be away for a moment; nothing goes out until it is back. Writes that may be durable are not
    /// repeated: the miner ends, and its next process reads them or does not find them.
    async fn commit(&self, writes: &[LeaseWrite]) -> Result<Vec<PageLine>, StoreError> {
        let mut failures = 0;
        loop {
            match self.store.commit(writes, page_of(self.clock.now())).await {
                Ok(lines) => return Ok(lines),
                Err(error @ StoreError::Unknown { .. }) => return Err(error),
                Err(error) if failures >= RETRIES => return Err(error),
                Err(error) => {
                    tracing::warn!(error = %Causes(&error), "the store failed; trying again");
                    self.clock.sleep(RETRY.delay(failures, random_jitter())).await;
                    failures += 1;
                }
            }
        }
    }

    async fn tidy(&self, now: Timestamp) {
        if let Err(error) = self.pages.prune(now).await {
            tracing::warn!(error = %Causes(&error), "old receipt pages stay");
        }
        if let Err(error) = self.store.forget_greetings(now).await {
            tracing::warn!(error = %Causes(&error), "old greetings stay");
        }
    }

    fn start(
        &self,
        wanted: WantedExecutor,
        peers: &mut Peers,
        run: impl FnOnce(&dyn ExecutorManager, Order, CancellationToken) -> Option<Running>,
    ) {
        let attempt = wanted.token.attempt();
        let stop = CancellationToken::new();
        let order = Order {
            token: wanted.token,
            class: wanted.class,
            private_image: wanted.private_image,
            miner_address: self.miner_address.clone(),
            lasts: wanted.lasts,
            notice: Notice::default(),
        };
        let mut reasons = order.notice.follow();
        let Some(running) = run(&*self.manager, order, stop.clone()) else {
            return;
        };
        peers.processes.insert(attempt, stop.clone());
        let (inbox, stopping) = (self.inbox.clone(), self.tasks.token());
        self.tasks.spawn("executor", async move {
            let told = async {
                while reasons.changed().await.is_ok() {
                    let reason = reasons.borrow_and_update().clone();
                    inbox.send(Event::ExecutorWaits { attempt, reason }).await;
                }
                // The manager has nothing more to report.
                std::future::pending::<()>().await;
            };
            // An executor whose lease goes on outlives this process, and comes back to the next one.
            let left = async {
                stopping.cancelled().await;
                if stop.is_cancelled() {
                    std::future::pending::<()>().await;
                }
            };
            let ended = tokio::select! {
                ended = running => ended,
                () = told => return,
                () = left => return,
            };
            let how = ended.unwrap_or_else(|error| Causes(&error).to_string());
            tracing::debug!(%attempt, how, "the executor is gone");
            inbox.send(Event::ExecutorExited { attempt, how }).await;
        });
    }
}

/// An executor that a lease waits for.
struct WantedExecutor {
    token: ExecutorToken,
    class: ExecutorClass,
    private_image: bool,
    lasts: Duration,
}

/// An effect that is carried out after the writes.
enum OutwardEffect {
    Start(WantedExecutor),
    /// With whether it was started on this machine for its lease alone.
    Resume(WantedExecutor, bool),
    Shelve(Vec<ListedImage>),
    Peers(PeerEffect),
}

/// An effect that needs only the connected peers.
enum PeerEffect {
    Validators {
        to: Vec<ConnectionId>,
        outgoing: Outgoing,
    },
    /// Output or progress that a validator may miss.
    Live {
        to: Vec<ConnectionId>,
        outgoing: Outgoing,
    },
    Admit {
        dial: DialId,
        attempt: AttemptId,
    },
    Dismiss {
        dial: DialId,
        details: String,
    },
    Order {
        attempt: AttemptId,
        message: Box<MinerToExecutor>,
    },
    Stop {
        attempt: AttemptId,
    },
}

fn split(effects: Vec<Effect>) -> (Vec<LeaseWrite>, Vec<OutwardEffect>) {
    let (mut writes, mut rest) = (Vec::new(), Vec::with_capacity(effects.len()));
    for effect in effects {
        rest.push(match effect {
            Effect::Write(write) => {
                writes.push(write);
                continue;
            }
            Effect::Start {
                token,
                class,
                private_image,
                lasts,
            } => OutwardEffect::Start(WantedExecutor {
                token,
                class,
                private_image,
                lasts,
            }),
            Effect::Resume {
                token,
                class,
                private_image,
                apart,
                lasts,
            } => {
                let wanted = WantedExecutor {
                    token,
                    class,
                    private_image,
                    lasts,
                };
                OutwardEffect::Resume(wanted, apart)
            }
            Effect::Tell { to, message } => {
                let frame = Outgoing::Frame(encode(&*message).into());
                OutwardEffect::Peers(PeerEffect::Validators { to, outgoing: frame })
            }
            Effect::Live { to, message } => {
                let outgoing = Outgoing::Frame(encode(&*message).into());
                OutwardEffect::Peers(PeerEffect::Live { to, outgoing })
            }
            Effect::Retell { to, attempt } => OutwardEffect::Peers(PeerEffect::Validators {
                to: vec![to],
                outgoing: Outgoing::History(attempt),
            }),
            Effect::RepeatReceipt { to, attempt, kind } => {
                let outgoing = Outgoing::Receipt(attempt, kind);
                OutwardEffect::Peers(PeerEffect::Validators {
                    to: vec![to],
                    outgoing,
                })
            }
            Effect::Admit { dial, attempt } => OutwardEffect::Peers(PeerEffect::Admit { dial, attempt }),
            Effect::Dismiss { dial, details } => OutwardEffect::Peers(PeerEffect::Dismiss { dial, details }),
            Effect::Order { attempt, message } => {
                OutwardEffect::Peers(PeerEffect::Order { attempt, message })
            }
            Effect::Shelve(images) => OutwardEffect::Shelve(images),
            Effect::StopExecutor { attempt } => OutwardEffect::Peers(PeerEffect::Stop { attempt }),
        });
    }
    (writes, rest)
}

impl Peers {
    /// Notes the handles that come with an event, and lets go of those that end with it.
    fn take_in(&mut self, event: &Event, attachment: Attachment) {
        match (event, attachment) {
            (Event::Joined { connection, .. }, Attachment::Validator(outbox)) => {
                self.validators.insert(*connection, outbox);
            }
            (
                Event::Dialled { dial, .. } | Event::Reattached { dial, .. },
                Attachment::Executor {
                    outbox,
                    muster,
                    features,
                    verdict,
                },
            ) => {
                self.dialling.insert(
                    *dial,
                    PendingDial {
                        outbox,
                        muster,
                        features,
                        verdict,
                    },
                );
            }
            (Event::Left(connection), _) => {
                self.validators.remove(connection);
            }
            (Event::ExecutorGone { dial, attempt }, _) => {
                if self
                    .executors
                    .get(attempt)
                    .is_some_and(|executor| executor.dial == *dial)
                {
                    self.executors.remove(attempt);
                }
            }
            (Event::ExecutorExited { attempt, .. }, _) => {
                self.processes.remove(attempt);
            }
            (
                Event::ExecutorWaits { .. }
                | Event::DrainAttempts(_)
                | Event::Joined { .. }
                | Event::Dialled { .. }
                | Event::Reattached { .. }
                | Event::Offered { .. }
                | Event::Payload { .. }
                | Event::Cancelled { .. }
                | Event::Forwarded { .. }
                | Event::Listed { .. }
                | Event::Permitted(_)
                | Event::ReceiptOffered { .. }
                | Event::Said { .. }
                | Event::Capacity(_)
                | Event::Drain(_)
                | Event::Closing
                | Event::Stop
                | Event::Tick,
                _,
            ) => {}
        }
    }

    fn carry_out(&mut self, effect: PeerEffect) {
        match effect {
            PeerEffect::Validators { to, outgoing } => {
                for connection in to {
                    let kept_up = self
                        .validators
                        .get(&connection)
                        .is_none_or(|outbox| outbox.push(outgoing.clone()));
                    if !kept_up {
                        tracing::warn!(?connection, "a validator does not keep up and is cut off");
                        self.validators.remove(&connection);
                    }
                }
            }
            PeerEffect::Live { to, outgoing } => {
                for outbox in to.iter().filter_map(|connection| self.validators.get(connection)) {
                    outbox.push_live(outgoing.clone());
                }
            }
            PeerEffect::Admit { dial, attempt } => {
                if let Some(PendingDial {
                    outbox,
                    muster,
                    features,
                    verdict,
                }) = self.dialling.remove(&dial)
                {
                    // If it left meanwhile, its session reports that next.
                    let _ = verdict.send(Ok(()));
                    let executor = RunningExecutor {
                        dial,
                        outbox,
                        muster,
                        features,
                    };
                    self.executors.insert(attempt, executor);
                }
            }
            PeerEffect::Dismiss { dial, details } => match self.dialling.remove(&dial) {
                Some(dialling) => {
                    let _ = dialling.verdict.send(Err(details));
                }
                None => self.dismiss(dial, details),
            },
            PeerEffect::Order { attempt, message } => self.order(&attempt, *message),
            PeerEffect::Stop { attempt } => {
                self.executors.remove(&attempt);
                if let Some(process) = self.processes.get(&attempt) {
                    process.cancel();
                }
            }
        }
    }

    /// Sends an executor what it can read of a message.
    fn order(&self, attempt: &AttemptId, mut message: MinerToExecutor) {
        let Some(executor) = self.executors.get(attempt) else {
            return;
        };
        let knows_checkpoints = executor.features.has(Feature::Checkpoints);
        if let MinerToExecutor::V0JobRequest(job) = &mut message {
            if let Some(extension) = &mut job.muster {
                extension.fit_to(executor.features);
                if **extension == RequestExtension::default() {
                    job.muster = None;
                }
            }
            if let Some(upload) = &mut job.output_upload {
                if !executor.features.has(Feature::Folders) {
                    upload.forget_kinds();
                }
                if !executor.features.has(Feature::OutputPatterns) {
                    upload.forget_patterns();
                }
            }
        }
        if let MinerToExecutor::V0InitialJobRequest(offer) = &mut message {
            drop_unknown_terms(offer, executor.features);
        }
        // A message of ours means nothing to an executor of ComputeHorde: its process is stopped anyway.
        let about_checkpoints = matches!(
            message,
            MinerToExecutor::MusterCheckpointKept(_) | MinerToExecutor::MusterDrain(_)
        );
        let ours = matches!(
            message,
            MinerToExecutor::MusterCancelJob(_)
                | MinerToExecutor::MusterFetchImage(_)
                | MinerToExecutor::MusterLeaseHeld(_)
                | MinerToExecutor::MusterEndStored(_)
        );
        let is_read = if about_checkpoints {
            executor.muster && knows_checkpoints
        } else {
            executor.muster || !ours
        };
        if is_read {
            // The deadline of its lease ends an executor that does not read.
            let _ = executor.outbox.push(Outgoing::Frame(encode(&message).into()));
        }
    }

    /// An executor that sends a message after its lease has ended is notified, and let go.
    fn dismiss(&mut self, dial: DialId, details: String) {
        let found = self
            .executors
            .iter()
            .find(|(_, executor)| executor.dial == dial)
            .map(|(attempt, _)| *attempt);
        if let Some(executor) = found.and_then(|attempt| self.executors.remove(&attempt)) {
            let message = MinerToExecutor::GenericError(GenericError {
                details: Some(details),
                job_uuid: None,
            });
            let _ = executor.outbox.push(Outgoing::Frame(encode(&message).into()));
        }
    }
}

/// Exports the stages of the leases that have ended, if this process exports spans.
fn export_ended(effects: &[Effect]) {
    if !muster_span_export::is_on() {
        return;
    }
    for effect in effects {
        if let Effect::Write(LeaseWrite::Ended { attempt, history, .. }) = effect
            && let Some(last) = history.last()
            && let Some(trace) = read_trace(last)
        {
            muster_span_export::export(|| SpanBatch {
                spans: spans_of(
                    &trace,
                    ParticipantType::Miner,
                    attempt.as_uuid(),
                    Some(trace.traceparent.span),
                ),
                sampled: trace.traceparent.sampled,
                failed: failure_of(last),
                labels: vec![("muster.attempt", attempt.to_string())],
            });
        }
    }
}

/// Removes the terms that an executor has not shown to know. It fetches its image at once then, or reports that the
/// image is missing.
fn drop_unknown_terms(offer: &mut InitialJobRequest, features: FeatureSet) {
    let Some(terms) = &mut offer.muster else { return };
    if !features.has(Feature::Fetching) {
        terms.image_time_limit = None;
        terms.account = None;
    }
    if !features.has(Feature::PrivateImages) {
        terms.image_archive = None;
        terms.credentials = None;
    }
    if !features.has(Feature::Metrics) {
        terms.metrics = Vec::new();
    }
    if !features.has(Feature::ProgramStart) {
        terms.start = None;
    }
    if !features.has(Feature::Trace) {
        terms.traceparent = None;
    }
    if **terms == OfferExtension::default() {
        offer.muster = None;
    }
}
