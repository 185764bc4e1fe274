//! Runs one attempt from its offer to its end: the shell around the state machine [`muster_protocol::job::Attempt`].
//!
//! Every event goes through the machine, and the changed state is durable before any message is sent because of it. The
//! runner keeps the connection, the receipts and the clock, and decides nothing about the job.

use muster_chain::Metagraph;
use muster_facilitator_link::live_output::{LiveBudget, log_message, progress_message};
use muster_gateway::host::News;
use muster_identity::{verify_countersigned, verify_receipts};
use muster_job_messages::IssuedReceipt;
use muster_job_messages::incoming::{LiveUpdate, MessageMeaning, implied_events, interpret};
use muster_job_messages::outgoing::OutgoingMessages;
use muster_process::store::StoreError;
use muster_protocol::job::{Effect, Event, JobState, Outcome};
use muster_protocol::wire::facilitator::JobRequest;
use muster_protocol::wire::miner::{DeclineJob, FromMiner};
use muster_protocol::{JobRejectionReason, Receipt, ReceiptKind, ReceiptPayload, Timestamp, ValidatorKey};
use muster_routing::excuse::{Refusal, excused};
use muster_routing::{Thing, mark};
use muster_websocket::lines::{Heard, Line};

use super::cancellation::CancelSignal;
use super::{JobDrivers, unmatched};
use crate::state::ValidatorState;
use crate::store::{AttemptChange, StoredAttempt};

/// The receipts of a refusal that are checked at most: more executors than any miner has.
const MAX_EXCUSES: usize = 1_024;

/// The result of running an attempt.
pub(super) enum AttemptEnd {
    /// The validator stops; the next process resumes the attempt.
    Stopped,
    /// The attempt is over.
    Ended(Outcome),
}

pub(super) struct AttemptRunner<'a> {
    drivers: &'a JobDrivers,
    state: &'a ValidatorState,
    request: &'a JobRequest,
    attempt: StoredAttempt,
    receipts: Vec<IssuedReceipt>,
    channel: Line,
    /// Whether messages may have been lost with a connection.
    interrupted: bool,
    /// No deadline is enforced before this time, so that a miner can deliver what it finished while the validator was
    /// down.
    lenient_until: Option<Timestamp>,
    /// The miner's last complaint, which may explain why the attempt failed.
    complaint: Option<String>,
    /// Whether the receipts in the miner's refusal show that its executors are at work.
    excused: bool,
    /// The user's reason for calling the job off, for the miner.
    cancel_reason: Option<String>,
    live_budget: LiveBudget,
}

impl<'a> AttemptRunner<'a> {
    /// Takes up an attempt that is in the store with its receipts; `resumed` if an earlier process began it.
    pub(super) fn new(
        drivers: &'a JobDrivers,
        request: &'a JobRequest,
        attempt: StoredAttempt,
        receipts: Vec<IssuedReceipt>,
        channel: Line,
        resumed: bool,
    ) -> Self {
        let state = &*drivers.state;
        let now = state.clock.now();
        let lenient_until = resumed.then(|| now.plus(state.config.timing.reconnect()));
        Self {
            drivers,
            state,
            request,
            attempt,
            receipts,
            channel,
            interrupted: resumed,
            lenient_until,
            complaint: None,
            excused: false,
            cancel_reason: None,
            live_budget: LiveBudget::new(now),
        }
    }

    /// The attempt in its present state.
    pub(super) fn attempt(&self) -> &StoredAttempt {
        &self.attempt
    }

    /// The miner's last complaint.
    pub(super) fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref()
    }

    /// Runs the attempt until it ends or the validator stops. If the user calls the job off, the attempt ends with
    /// that.
    pub(super) async fn run(&mut self, cancel: &mut CancelSignal) -> Result<AttemptEnd, StoreError> {
        if self.attempt.machine.outcome().is_none() {
            if self.interrupted {
                self.apply(Event::Disconnected).await?;
            }
            self.channel.dial();
        }
        let stop = self.state.tasks.token();
        loop {
            if let Some(outcome) = self.attempt.machine.outcome() {
                return Ok(AttemptEnd::Ended(outcome.clone()));
            }
            // An attempt that has not ended has a deadline.
            let due = self
                .attempt
                .machine
                .deadline()
                .max(self.lenient_until)
                .unwrap_or(self.attempt.started_at);
            let too_late = self.state.clock.sleep_until(due);
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(AttemptEnd::Stopped),
                reason = cancel.wait() => {
                    self.cancel_reason = Some(reason.clone());
                    self.apply(Event::Cancelled(reason)).await?;
                }
                heard = self.channel.next() => self.on_channel(heard).await?,
                () = too_late => self.apply(Event::Tick).await?,
            }
        }
    }

    /// Gives the miner a bounded time to sign the finished receipt, so that the user gets it with both signatures.
    /// Returns the attempt's receipts, or `None` if the validator stops meanwhile.
    pub(super) async fn settle(mut self) -> Result<Option<Vec<IssuedReceipt>>, StoreError> {
        let stop = self.state.tasks.token();
        let too_late = self.state.clock.sleep(self.state.config.timing.receipt_wait());
        tokio::pin!(too_late);
        while self
            .receipt(ReceiptKind::Finished)
            .is_some_and(|receipt| receipt.miner_signature.is_none())
        {
            // Only a Muster miner sends its signature; ComputeHorde's is read from the miner's receipt pages.
            if self.channel.is_up() && !self.channel.is_muster() {
                break;
            }
            self.channel.dial();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(None),
                heard = self.channel.next() => self.on_channel(heard).await?,
                () = &mut too_late => break,
            }
        }
        let receipts = std::mem::take(&mut self.receipts);
        self.hang_up().await;
        Ok(Some(receipts))
    }

    /// Closes the channel to the miner.
    pub(super) async fn hang_up(self) {
        self.channel.close().await;
    }

    fn messages(&self) -> OutgoingMessages<'_> {
        OutgoingMessages {
            keypair: &self.state.keypair,
            attempt: self.attempt.id,
            miner: self.attempt.miner,
            request: self.request,
            plan: self.attempt.machine.plan(),
        }
    }

    fn receipt(&self, kind: ReceiptKind) -> Option<&IssuedReceipt> {
        self.receipts.iter().find(|receipt| receipt.kind() == kind)
    }

    async fn on_channel(&mut self, heard: Heard) -> Result<(), StoreError> {
        match heard {
            Heard::Up => self.on_connected().await,
            Heard::Down(reason) => {
                tracing::info!(attempt = %self.attempt.id, miner = %self.attempt.miner, %reason, "the miner is not connected");
                self.interrupted = true;
                self.apply(Event::Disconnected).await
            }
            Heard::Message(message) => self.on_message(*message).await,
            Heard::Malformed(error) => {
                self.log_violation(&error);
                Ok(())
            }
        }
    }

    async fn on_connected(&mut self) -> Result<(), StoreError> {
        let now = self.state.clock.now();
        if self.lenient_until.is_some() {
            self.lenient_until = Some(now.plus(self.state.config.timing.receipt_wait()));
        }
        // Receipts sent over an earlier connection may not have arrived; a miner takes each receipt once.
        for receipt in self
            .receipts
            .iter()
            .filter(|receipt| receipt.miner_signature.is_none())
        {
            match receipt.kind() {
                ReceiptKind::Started => {}
                ReceiptKind::Accepted | ReceiptKind::Finished => {
                    self.channel
                        .send(self.messages().receipt_message(&receipt.offered))
                        .await
                }
            }
        }
        self.apply(Event::Connected).await
    }

    async fn on_message(&mut self, message: FromMiner) -> Result<(), StoreError> {
        let about = message.attempt();
        if about.is_some_and(|about| about != self.attempt.id) {
            // A ComputeHorde miner may speak of another attempt on this attempt's connection.
            if let Some(frame) = unmatched::answer(self.drivers, self.attempt.miner, message).await? {
                self.channel.send(frame).await;
            }
            return Ok(());
        }
        if let FromMiner::V0DeclineJobRequest(decline) = &message {
            self.excused = self.is_refusal_excused(decline);
        }
        let own_jobs = &self.drivers.own_jobs;
        let mut session_ready = None;
        if let FromMiner::V0StreamingJobReadyRequest(ready) = &message
            && own_jobs.contains(self.request.uuid)
        {
            session_ready = Some(Box::new(ready.clone()));
        }
        if let FromMiner::MusterSessionClosed(closed) = &message
            && about == Some(self.attempt.id)
        {
            // The executor signed this; the gateway that ordered the session checks it.
            own_jobs.notify(self.request.uuid, News::Closed(closed.close.clone()));
        }
        match interpret(message) {
            MessageMeaning::Manifest(manifest) => {
                let now = self.state.clock.now();
                self.drivers.ledger().announced(self.attempt.miner, manifest, now);
            }
            MessageMeaning::Live(update) => self.pass_on(update),
            MessageMeaning::Complaint(complaint) => {
                tracing::warn!(attempt = %self.attempt.id, miner = %self.attempt.miner, complaint, "the miner complains");
                self.complaint = Some(complaint);
            }
            MessageMeaning::Countersigned(receipt) => return self.on_countersigned(*receipt).await,
            MessageMeaning::Event(event) => {
                self.on_event(event).await?;
                if let Some(ready) =
                    session_ready.filter(|_| *self.attempt.machine.state() == JobState::Streaming)
                {
                    let miner = self.attempt.miner;
                    self.drivers
                        .own_jobs
                        .notify(self.request.uuid, News::Ready { miner, ready });
                }
                return Ok(());
            }
            MessageMeaning::Ignored => {}
        }
        Ok(())
    }

    /// Whether a refusal as busy is excused: the miner shows receipts of work on all its executors, or it is not known
    /// how many it has.
    fn is_refusal_excused(&self, decline: &DeclineJob) -> bool {
        if decline.reason != JobRejectionReason::Busy {
            return false;
        }
        let now = self.state.clock.now();
        let class = self.attempt.machine.plan().class;
        let refusal = Refusal {
            miner: self.attempt.miner,
            attempt: self.attempt.id,
            class,
            at: now,
            executors: self.drivers.ledger().executors(self.attempt.miner, class, now),
        };
        let shown: Vec<_> = decline.receipts.iter().take(MAX_EXCUSES).cloned().collect();
        let verified = verify_receipts(shown, now);
        let started = verified
            .iter()
            .filter_map(|receipt| match &receipt.as_ref().ok()?.payload {
                ReceiptPayload::Started(started) => Some(started),
                ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_) => None,
            });
        let (own_key, subnet) = (self.state.key(), self.state.subnet.last_metagraph());
        let counts = |validator: ValidatorKey| {
            let permitted =
                |metagraph: &Metagraph| metagraph.find(&validator.0).is_some_and(|neuron| neuron.permit);
            validator == own_key || subnet.as_deref().is_some_and(permitted)
        };
        excused(&refusal, started, counts)
    }

    /// Passes live output or progress on to the user, as far as the attempt's budget allows.
    fn pass_on(&mut self, update: LiveUpdate) {
        let size = match &update {
            LiveUpdate::Log(piece) => piece.data.as_bytes().len(),
            LiveUpdate::Progress(_) => 0,
        };
        let live_output = &self.drivers.live_output;
        if !self.live_budget.take(size, self.state.clock.now()) {
            live_output.count_dropped();
            return;
        }
        let job = self.request.uuid;
        live_output.send(match update {
            LiveUpdate::Log(piece) => log_message(job, *piece),
            LiveUpdate::Progress(progress) => progress_message(job, progress),
        });
    }

    async fn on_event(&mut self, event: Event) -> Result<(), StoreError> {
        if self.interrupted {
            let streaming = self.attempt.machine.plan().streaming;
            for missing in implied_events(self.attempt.machine.state(), &event, streaming) {
                self.apply(missing).await?;
            }
        }
        self.apply(event).await
    }

    async fn on_countersigned(&mut self, receipt: Receipt) -> Result<(), StoreError> {
        let kind = receipt.payload.kind();
        let Some(own) = self.receipts.iter_mut().find(|own| own.kind() == kind) else {
            self.log_violation(&"it signed a receipt that we never wrote");
            return Ok(());
        };
        match verify_countersigned(receipt, &own.offered, self.state.clock.now()) {
            Ok(receipt) => {
                own.miner_signature = Some(receipt.miner_signature);
                self.state.store.countersign(&receipt).await?;
            }
            Err(error) => self.log_violation(&error),
        }
        Ok(())
    }

    /// Applies one event to the state machine, stores what changed, then carries out the machine's effects.
    async fn apply(&mut self, event: Event) -> Result<(), StoreError> {
        let now = self.state.clock.now();
        let (machine, effects) = match self.attempt.machine.clone().apply(event, now) {
            Ok(step) => step,
            Err(illegal) => {
                self.log_violation(&illegal);
                return Ok(());
            }
        };
        if machine == self.attempt.machine && effects.is_empty() {
            return Ok(());
        }
        let left_mark = machine.outcome().map(|outcome| mark(outcome, self.excused));
        let mut change = AttemptChange {
            job: self.request.uuid,
            attempt: self.attempt.id,
            machine,
            mark: left_mark,
            receipts: Vec::new(),
            reports: Vec::new(),
            block: self.state.subnet.head(),
            now,
        };
        let mut frames = Vec::new();
        let mut redial = false;
        for effect in effects {
            match effect {
                Effect::SendOffer => {
                    frames.push(self.receipt_frame(ReceiptKind::Started, false, &mut change))
                }
                Effect::SendAcceptedReceipt => {
                    frames.push(self.receipt_frame(ReceiptKind::Accepted, false, &mut change))
                }
                Effect::SendFinishedReceipt { paid } => {
                    frames.push(self.receipt_frame(ReceiptKind::Finished, paid, &mut change))
                }
                Effect::SendJob => frames.push(self.messages().job()),
                Effect::SendCancel if self.channel.is_muster() => {
                    let reason = self.cancel_reason.as_deref().unwrap_or("the time for it is over");
                    frames.push(self.messages().cancellation(reason));
                }
                Effect::SendCancel => {}
                Effect::Reconnect => redial = true,
                // The driver reports the end, with the receipts, once it knows that there is no further attempt.
                Effect::Report(status, _) if status.is_terminal() => {}
                Effect::Report(status, metadata) => {
                    change.reports.push((status, metadata.map(|metadata| *metadata)))
                }
            }
        }
        // A connection that came or went is not stored, since a resumed attempt begins without one. That the offer is
        // sent was stored when the attempt began.
        let already_stored = matches!(change.machine.state(), JobState::Offered);
        if (!already_stored && change.machine.state() != self.attempt.machine.state())
            || !change.receipts.is_empty()
            || !change.reports.is_empty()
        {
            self.state.store.save(&change).await?;
            self.update_ledger(&change);
        }
        self.attempt.machine = change.machine;
        self.receipts.extend(change.receipts);
        if redial {
            self.channel.dial();
        }
        for frame in frames {
            self.channel.send(frame).await;
        }
        Ok(())
    }

    /// Notes the change in the miner's record.
    fn update_ledger(&self, change: &AttemptChange) {
        let miner = self.attempt.miner;
        let class = self.attempt.machine.plan().class;
        let mut ledger = self.drivers.ledger();
        if let Some(mark) = change.mark {
            ledger.closed(miner, class);
            ledger.marked(miner, mark, change.now);
        }
        match change.machine.state() {
            JobState::Ready => ledger.warmed(miner, [Thing::image(&self.request.docker_image)], change.now),
            JobState::VolumesReady => {
                ledger.warmed(miner, Thing::inputs(self.request.volume.as_ref()), change.now);
            }
            JobState::Ended(Outcome::Rejected(details)) if details.reason == JobRejectionReason::Busy => {
                ledger.full(miner, class, change.now);
            }
            JobState::Connecting
            | JobState::Offered
            | JobState::Accepted
            | JobState::Streaming
            | JobState::Executed
            | JobState::Ended(_) => {}
        }
    }

    /// The frame that carries a receipt: one that was issued before, or a new one, which is added to `change`.
    fn receipt_frame(&self, kind: ReceiptKind, paid: bool, change: &mut AttemptChange) -> String {
        let messages = self.messages();
        if let Some(issued) = self.receipt(kind) {
            return messages.receipt_message(&issued.offered);
        }
        let receipt = match kind {
            ReceiptKind::Started => messages.started_receipt(change.now),
            ReceiptKind::Accepted => messages.accepted_receipt(change.now),
            ReceiptKind::Finished => messages.finished_receipt(paid, self.start_time(), change.now),
        };
        let frame = messages.receipt_message(&receipt.offered);
        change.receipts.push(receipt);
        frame
    }

    /// When the attempt began for both sides: the time of its started receipt.
    fn start_time(&self) -> Timestamp {
        match self
            .receipt(ReceiptKind::Started)
            .map(|receipt| &receipt.offered.payload)
        {
            Some(ReceiptPayload::Started(receipt)) => receipt.timestamp,
            Some(ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_)) | None => self.attempt.started_at,
        }
    }

    fn log_violation(&self, defect: &dyn std::fmt::Display) {
        tracing::warn!(attempt = %self.attempt.id, miner = %self.attempt.miner, %defect, "the miner broke the protocol");
    }
}
