//! One attempt from its offer to its end: the shell around [`muster_protocol::job::Attempt`].
//!
//! Every event goes through the machine; what it changed is durable before anything is sent because of it. The shell
//! keeps the connection, the receipts and the clock, and decides nothing about the job.

use std::sync::Arc;

use muster_chain::Metagraph;
use muster_gateway::backend::JobNews;
use muster_identity::{verify_countersigned, verify_receipts};
use muster_process::store::StoreError;
use muster_protocol::job::{Effect, Event, JobState, Outcome};
use muster_protocol::wire::facilitator::JobRequest;
use muster_protocol::wire::miner::{DeclineJob, FromMiner};
use muster_protocol::{JobRejectionReason, Receipt, ReceiptKind, ReceiptPayload, Timestamp, ValidatorKey};
use muster_routing::excuse::{Refusal, excused};
use muster_routing::{Thing, mark};
use muster_websocket::lines::{Heard, Line};

use super::messages::{Live, Meaning, implied, meaning};
use super::papers::Papers;
use super::strays;
use crate::live::Budget;
use crate::shared::{CancelEar, Shared};
use crate::store::{OwnReceipt, Step, StoredAttempt};

/// Excuses that are looked at: more executors than any miner has.
const MAX_EXCUSES: usize = 1_024;

/// How an attempt's loop ended.
pub(super) enum Flow {
    /// The validator stops; the attempt is resumed by the next process.
    Stopped,
    /// The attempt is over.
    Ended(Outcome),
}

pub(super) struct Conduct<'a> {
    shared: &'a Arc<Shared>,
    request: &'a JobRequest,
    attempt: StoredAttempt,
    receipts: Vec<OwnReceipt>,
    line: Line,
    /// Whether messages may have gone down with a connection.
    interrupted: bool,
    /// No deadline is enforced before this: a miner gets the chance to deliver what it finished while we were away.
    lenient_until: Option<Timestamp>,
    /// What the miner complained of last, for whoever reads why an attempt failed.
    complaint: Option<String>,
    /// Whether the miner's refusal, if there is one, is backed.
    excused: bool,
    /// Why the user called the job off, for the miner.
    called_off: Option<String>,
    /// What the miner may still pass on of the job's output.
    live: Budget,
}

impl<'a> Conduct<'a> {
    /// Takes up an attempt that is in the store with its receipts, `resumed` if another process began it.
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        request: &'a JobRequest,
        attempt: StoredAttempt,
        receipts: Vec<OwnReceipt>,
        line: Line,
        resumed: bool,
    ) -> Self {
        let now = shared.clock.now();
        let lenient_until = resumed.then(|| now.plus(shared.config.timing.reconnect()));
        Self {
            shared,
            request,
            attempt,
            receipts,
            line,
            interrupted: resumed,
            lenient_until,
            complaint: None,
            excused: false,
            called_off: None,
            live: Budget::new(now),
        }
    }

    /// The attempt as it stands.
    pub(super) fn attempt(&self) -> &StoredAttempt {
        &self.attempt
    }

    /// What the miner complained of last.
    pub(super) fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref()
    }

    /// Sees the attempt through to its end, or to its user's calling it off.
    pub(super) async fn run(&mut self, cancel: &mut CancelEar) -> Result<Flow, StoreError> {
        if self.attempt.machine.outcome().is_none() {
            if self.interrupted {
                self.apply(Event::Disconnected).await?;
            }
            self.line.dial();
        }
        let stop = self.shared.tasks.token();
        loop {
            if let Some(outcome) = self.attempt.machine.outcome() {
                return Ok(Flow::Ended(outcome.clone()));
            }
            // An attempt that has not ended has a deadline.
            let due = self
                .attempt
                .machine
                .deadline()
                .max(self.lenient_until)
                .unwrap_or(self.attempt.started_at);
            let too_late = self.shared.clock.sleep_until(due);
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(Flow::Stopped),
                reason = cancel.wait() => {
                    self.called_off = Some(reason.clone());
                    self.apply(Event::Cancelled(reason)).await?;
                }
                heard = self.line.next() => self.on_heard(heard).await?,
                () = too_late => self.apply(Event::Tick).await?,
            }
        }
    }

    /// Gives the miner a bounded time to sign the finished receipt, so that the user gets it with both signatures. The
    /// attempt's receipts, or `None` if the validator stops meanwhile.
    pub(super) async fn settle(mut self) -> Result<Option<Vec<OwnReceipt>>, StoreError> {
        let stop = self.shared.tasks.token();
        let too_late = self.shared.clock.sleep(self.shared.config.timing.receipt_wait());
        tokio::pin!(too_late);
        while self
            .receipt(ReceiptKind::Finished)
            .is_some_and(|receipt| receipt.miner_signature.is_none())
        {
            // Only Muster sends its half; ComputeHorde's is read from its pages.
            if self.line.is_up() && !self.line.is_muster() {
                break;
            }
            self.line.dial();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(None),
                heard = self.line.next() => self.on_heard(heard).await?,
                () = &mut too_late => break,
            }
        }
        let receipts = std::mem::take(&mut self.receipts);
        self.leave().await;
        Ok(Some(receipts))
    }

    /// Says goodbye to the miner.
    pub(super) async fn leave(self) {
        self.line.close().await;
    }

    fn papers(&self) -> Papers<'_> {
        Papers {
            keypair: &self.shared.keypair,
            attempt: self.attempt.id,
            miner: self.attempt.miner,
            request: self.request,
            plan: self.attempt.machine.plan(),
        }
    }

    fn receipt(&self, kind: ReceiptKind) -> Option<&OwnReceipt> {
        self.receipts.iter().find(|receipt| receipt.kind() == kind)
    }

    async fn on_heard(&mut self, heard: Heard) -> Result<(), StoreError> {
        match heard {
            Heard::Up => self.on_up().await,
            Heard::Down(reason) => {
                tracing::info!(attempt = %self.attempt.id, miner = %self.attempt.miner, %reason, "the miner is not connected");
                self.interrupted = true;
                self.apply(Event::Disconnected).await
            }
            Heard::Message(message) => self.on_message(*message).await,
            Heard::Malformed(error) => {
                self.miners_defect(&error);
                Ok(())
            }
        }
    }

    async fn on_up(&mut self) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        if self.lenient_until.is_some() {
            self.lenient_until = Some(now.plus(self.shared.config.timing.receipt_wait()));
        }
        // Receipts of an earlier connection may not have arrived; a miner takes each once.
        for receipt in self
            .receipts
            .iter()
            .filter(|receipt| receipt.miner_signature.is_none())
        {
            match receipt.kind() {
                ReceiptKind::Started => {}
                ReceiptKind::Accepted | ReceiptKind::Finished => {
                    self.line.send(self.papers().deliver(&receipt.offered)).await
                }
            }
        }
        self.apply(Event::Connected).await
    }

    async fn on_message(&mut self, message: FromMiner) -> Result<(), StoreError> {
        let about = message.attempt();
        if about.is_some_and(|about| about != self.attempt.id) {
            // Of another attempt, on a connection of our own.
            if let Some(frame) = strays::answer(self.shared, self.attempt.miner, message).await? {
                self.line.send(frame).await;
            }
            return Ok(());
        }
        if let FromMiner::V0DeclineJobRequest(decline) = &message {
            self.excused = self.judge_refusal(decline);
        }
        let mut own = None;
        if let FromMiner::V0StreamingJobReadyRequest(ready) = &message
            && self.shared.is_own(self.request.uuid)
        {
            own = Some(Box::new(ready.clone()));
        }
        if let FromMiner::MusterSessionClosed(closed) = &message
            && about == Some(self.attempt.id)
        {
            // It is signed by the session itself; only the gateway, if it is its own, knows what it is worth.
            self.shared
                .tell(self.request.uuid, JobNews::Closed(closed.close.clone()));
        }
        match meaning(message) {
            Meaning::Manifest(manifest) => {
                let now = self.shared.clock.now();
                self.shared.ledger().announced(self.attempt.miner, manifest, now);
            }
            Meaning::Live(live) => self.pass_on(live),
            Meaning::Complaint(complaint) => {
                tracing::warn!(attempt = %self.attempt.id, miner = %self.attempt.miner, complaint, "the miner complains");
                self.complaint = Some(complaint);
            }
            Meaning::Countersigned(receipt) => return self.on_countersigned(*receipt).await,
            Meaning::Event(event) => {
                self.on_event(event).await?;
                if let Some(ready) = own.filter(|_| *self.attempt.machine.state() == JobState::Streaming) {
                    let miner = self.attempt.miner;
                    self.shared
                        .tell(self.request.uuid, JobNews::Ready { miner, ready });
                }
                return Ok(());
            }
            Meaning::Nothing => {}
        }
        Ok(())
    }

    /// Whether a refusal is backed: the miner shows that its executors are at work, or nobody knows how many it has.
    fn judge_refusal(&self, decline: &DeclineJob) -> bool {
        if decline.reason != JobRejectionReason::Busy {
            return false;
        }
        let now = self.shared.clock.now();
        let class = self.attempt.machine.plan().class;
        let refusal = Refusal {
            miner: self.attempt.miner,
            attempt: self.attempt.id,
            class,
            at: now,
            executors: self.shared.ledger().executors(self.attempt.miner, class, now),
        };
        let shown: Vec<_> = decline.receipts.iter().take(MAX_EXCUSES).cloned().collect();
        let verified = verify_receipts(shown, now);
        let started = verified
            .iter()
            .filter_map(|receipt| match &receipt.as_ref().ok()?.payload {
                ReceiptPayload::Started(started) => Some(started),
                ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_) => None,
            });
        let (me, subnet) = (self.shared.me(), self.shared.outlook.seen());
        let counts = |validator: ValidatorKey| {
            let permitted =
                |metagraph: &Metagraph| metagraph.find(&validator.0).is_some_and(|neuron| neuron.permit);
            validator == me || subnet.as_deref().is_some_and(permitted)
        };
        excused(&refusal, started, counts)
    }

    /// Passes on what the job prints or how far it is, as long as the miner keeps within bounds.
    fn pass_on(&mut self, live: Live) {
        let size = match &live {
            Live::Log(piece) => piece.data.as_bytes().len(),
            Live::Progress(_) => 0,
        };
        if !self.live.take(size, self.shared.clock.now()) {
            self.shared.live.drop_one();
            return;
        }
        let job = self.request.uuid;
        self.shared.live.tell(match live {
            Live::Log(piece) => crate::live::log(job, *piece),
            Live::Progress(progress) => crate::live::progress(job, progress),
        });
    }

    async fn on_event(&mut self, event: Event) -> Result<(), StoreError> {
        if self.interrupted {
            let streaming = self.attempt.machine.plan().streaming;
            for missing in implied(self.attempt.machine.state(), &event, streaming) {
                self.apply(missing).await?;
            }
        }
        self.apply(event).await
    }

    async fn on_countersigned(&mut self, receipt: Receipt) -> Result<(), StoreError> {
        let kind = receipt.payload.kind();
        let Some(own) = self.receipts.iter_mut().find(|own| own.kind() == kind) else {
            self.miners_defect(&"it signed a receipt that we never wrote");
            return Ok(());
        };
        match verify_countersigned(receipt, &own.offered, self.shared.clock.now()) {
            Ok(receipt) => {
                own.miner_signature = Some(receipt.miner_signature);
                self.shared.store.countersign(&receipt).await?;
            }
            Err(error) => self.miners_defect(&error),
        }
        Ok(())
    }

    /// Takes one event through the machine, makes what it changed durable, then does what follows from it.
    async fn apply(&mut self, event: Event) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        let (machine, effects) = match self.attempt.machine.clone().apply(event, now) {
            Ok(step) => step,
            Err(illegal) => {
                self.miners_defect(&illegal);
                return Ok(());
            }
        };
        if machine == self.attempt.machine && effects.is_empty() {
            return Ok(());
        }
        let left = machine.outcome().map(|outcome| mark(outcome, self.excused));
        let mut step = Step {
            job: self.request.uuid,
            attempt: self.attempt.id,
            machine,
            mark: left,
            receipts: Vec::new(),
            reports: Vec::new(),
            block: self.shared.outlook.head(),
            now,
        };
        let mut frames = Vec::new();
        let mut dial = false;
        for effect in effects {
            match effect {
                Effect::SendOffer => frames.push(self.receipt_frame(ReceiptKind::Started, false, &mut step)),
                Effect::SendAcceptedReceipt => {
                    frames.push(self.receipt_frame(ReceiptKind::Accepted, false, &mut step))
                }
                Effect::SendFinishedReceipt { paid } => {
                    frames.push(self.receipt_frame(ReceiptKind::Finished, paid, &mut step))
                }
                Effect::SendJob => frames.push(self.papers().job()),
                Effect::SendCancel if self.line.is_muster() => {
                    let reason = self.called_off.as_deref().unwrap_or("the time for it is over");
                    frames.push(self.papers().cancel(reason));
                }
                Effect::SendCancel => {}
                Effect::Reconnect => dial = true,
                // The end is told once it is clear that nobody else is asked, and with the receipts.
                Effect::Report(status, _) if status.is_terminal() => {}
                Effect::Report(status, metadata) => {
                    step.reports.push((status, metadata.map(|metadata| *metadata)))
                }
            }
        }
        // A connection that came or went is not worth a write: whoever resumes begins without one. That the offer goes out now
        // was written down when the attempt began.
        let known = matches!(step.machine.state(), JobState::Offered);
        if (!known && step.machine.state() != self.attempt.machine.state())
            || !step.receipts.is_empty()
            || !step.reports.is_empty()
        {
            self.shared.store.save(&step).await?;
            self.note(&step);
        }
        self.attempt.machine = step.machine;
        self.receipts.extend(step.receipts);
        if dial {
            self.line.dial();
        }
        for frame in frames {
            self.line.send(frame).await;
        }
        Ok(())
    }

    /// Keeps what is known of the miner up to date.
    fn note(&self, step: &Step) {
        let miner = self.attempt.miner;
        let class = self.attempt.machine.plan().class;
        let mut ledger = self.shared.ledger();
        if let Some(left) = step.mark {
            ledger.closed(miner, class);
            ledger.marked(miner, left, step.now);
        }
        match step.machine.state() {
            JobState::Ready => ledger.warmed(miner, [Thing::image(&self.request.docker_image)], step.now),
            JobState::VolumesReady => {
                ledger.warmed(miner, Thing::inputs(self.request.volume.as_ref()), step.now);
            }
            JobState::Ended(Outcome::Rejected(details)) if details.reason == JobRejectionReason::Busy => {
                ledger.full(miner, class, step.now);
            }
            JobState::Connecting
            | JobState::Offered
            | JobState::Accepted
            | JobState::Streaming
            | JobState::Executed
            | JobState::Ended(_) => {}
        }
    }

    /// The frame that carries a receipt: the one written before, or a new one that goes into `step`.
    fn receipt_frame(&self, kind: ReceiptKind, paid: bool, step: &mut Step) -> String {
        let papers = self.papers();
        if let Some(written) = self.receipt(kind) {
            return papers.deliver(&written.offered);
        }
        let receipt = match kind {
            ReceiptKind::Started => papers.started(step.now),
            ReceiptKind::Accepted => papers.accepted(step.now),
            ReceiptKind::Finished => papers.finished(paid, self.began(), step.now),
        };
        let frame = papers.deliver(&receipt.offered);
        step.receipts.push(receipt);
        frame
    }

    /// When the attempt began in the eyes of both: the time of its started receipt.
    fn began(&self) -> Timestamp {
        match self
            .receipt(ReceiptKind::Started)
            .map(|receipt| &receipt.offered.payload)
        {
            Some(ReceiptPayload::Started(receipt)) => receipt.timestamp,
            Some(ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_)) | None => self.attempt.started_at,
        }
    }

    fn miners_defect(&self, defect: &dyn std::fmt::Display) {
        tracing::warn!(attempt = %self.attempt.id, miner = %self.attempt.miner, %defect, "the miner broke the protocol");
    }
}
