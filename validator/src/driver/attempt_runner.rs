//! Runs one attempt from its offer to its end: the shell around the state machine [`muster_protocol::job::Attempt`].
//!
//! Every event goes through the machine, and the changed state is durable before any message is sent because of it. The
//! runner keeps the connection, the receipts and the clock, and decides nothing about the job: [`AttemptStep`](muster_job_messages::AttemptStep) and
//! [`AttemptConnection`] decide, here and in the simulation of whole clusters. [`messages`] handles
//! what comes from the miner, [`checkpoints`] keeps what its programs leave, [`transition`] applies an event, [`pay`]
//! measures what an attempt is paid for.

mod checkpoints;
mod messages;
mod pay;
mod transition;

use std::time::Duration;

use muster_checkpoints::attempt_url;
use muster_facilitator_link::live_output::LiveBudget;
use muster_job_messages::outgoing::OutgoingMessages;
use muster_job_messages::{AttemptConnection, IssuedReceipt};
use muster_miner_link::MinerChannel;
use muster_protocol::job::{Event, Outcome};
use muster_protocol::wire::checkpoints::{CheckpointOrder, OutputOrder};
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{AttemptId, MinerKey, ReceiptKind};
use muster_store::StoreError;

use super::attempt_deps::AttemptDeps;
use crate::driver::checkpoint_record::CheckpointRecord;
use crate::driver::running_jobs::CancelSignal;
use crate::store::StoredAttempt;

/// How long the cancellation of an attempt of an earlier process waits for the miner.
const CANCELLATION_WAIT: Duration = Duration::from_secs(30);

/// The result of running an attempt.
pub(super) enum AttemptEnd {
    /// The validator stops; the next process resumes the attempt.
    Stopped,
    /// The attempt is over.
    Ended(Outcome),
}

pub(super) struct AttemptRunner<'a> {
    deps: &'a AttemptDeps,
    request: &'a UserJobRequest,
    attempt: StoredAttempt,
    receipts: Vec<IssuedReceipt>,
    channel: MinerChannel,
    connection: AttemptConnection,
    /// Earlier attempts of the job to which its image did not come. They are marked if it comes to this one.
    without_image: Vec<(AttemptId, MinerKey)>,
    /// The miner's last complaint, which may explain why the attempt failed.
    complaint: Option<String>,
    /// Whether the receipts in the miner's refusal show that its executors are at work, or its slots taken.
    excused: bool,
    /// The user's reason for calling the job off, for the miner.
    cancel_reason: Option<String>,
    live_budget: LiveBudget,
    /// The checkpoints of the job, and the executor's order about them; `None` for a job without.
    checkpoints: Option<(CheckpointRecord, CheckpointOrder)>,
    /// The executor's order about the streams that the program prints.
    output: Option<OutputOrder>,
}

impl<'a> AttemptRunner<'a> {
    /// Takes up an attempt that is in the store with its receipts; `resumed` if an earlier process began it.
    pub(super) fn new(
        deps: &'a AttemptDeps,
        request: &'a UserJobRequest,
        attempt: StoredAttempt,
        receipts: Vec<IssuedReceipt>,
        channel: MinerChannel,
        resumed: bool,
    ) -> Self {
        let now = deps.state.clock.now();
        if resumed && attempt.machine.outcome().is_none() && !attempt.machine.holds_executor() {
            // The restored ledger counts every open attempt as one that holds an executor.
            let class = attempt.machine.plan().class;
            deps.records.ledger().close_attempt(attempt.miner, class);
        }
        let connection = if resumed {
            AttemptConnection::resumed(now, deps.state.config.timing.reconnect())
        } else {
            AttemptConnection::default()
        };
        let output = output_order(request, attempt.ordinal);
        let runner = Self {
            deps,
            request,
            attempt,
            receipts,
            channel,
            connection,
            without_image: Vec::new(),
            complaint: None,
            excused: false,
            cancel_reason: None,
            live_budget: LiveBudget::new(now),
            checkpoints: None,
            output,
        };
        // An earlier process may have heard that the image is on its way.
        runner.note_fetch(runner.attempt.machine.state());
        runner
    }

    /// Names the earlier attempts of the job, to learn what their failures are worth.
    pub(super) fn after(mut self, earlier: &[StoredAttempt]) -> Self {
        let without_image = earlier.iter().filter(|attempt| attempt.image_failure().is_some());
        self.without_image = without_image.map(|attempt| (attempt.id, attempt.miner)).collect();
        self
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
    ///
    /// An attempt of an earlier process is called off once the miner is connected, or after a bounded time: the
    /// miner would keep its executor, and a machine that was provisioned for it.
    pub(super) async fn run(&mut self, cancel: &mut CancelSignal) -> Result<AttemptEnd, StoreError> {
        let resumed = self.connection.is_interrupted();
        let waits_until = self.deps.state.clock.now().plus(CANCELLATION_WAIT);
        if self.attempt.machine.outcome().is_none() {
            if self.connection.is_interrupted() {
                self.apply(Event::Disconnected).await?;
            }
            self.channel.dial();
        }
        let stop = self.deps.state.tasks.token();
        loop {
            if let Some(outcome) = self.attempt.machine.outcome() {
                return Ok(AttemptEnd::Ended(outcome.clone()));
            }
            // An attempt that has not ended has a deadline.
            let due = self
                .connection
                .due(&self.attempt.machine)
                .unwrap_or(self.attempt.started_at);
            let too_late = self.deps.state.clock.sleep_until(due);
            let must_wait = resumed && !self.channel.is_up() && self.deps.state.clock.now() < waits_until;
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(AttemptEnd::Stopped),
                reason = cancel.wait(), if !must_wait => {
                    self.cancel_reason = Some(reason.clone());
                    self.apply(Event::Cancelled(reason)).await?;
                }
                event = self.channel.next() => self.on_channel(event).await?,
                () = self.deps.state.clock.sleep_until(waits_until), if must_wait => {}
                () = too_late => self.apply(Event::Tick).await?,
            }
        }
    }

    /// Gives the miner a bounded time to sign the finished receipt, so that the user gets it with both signatures.
    /// Returns the attempt's receipts, or `None` if the validator stops meanwhile.
    pub(super) async fn settle(mut self) -> Result<Option<Vec<IssuedReceipt>>, StoreError> {
        let stop = self.deps.state.tasks.token();
        let too_late = self
            .deps
            .state
            .clock
            .sleep(self.deps.state.config.timing.receipt_wait());
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
                event = self.channel.next() => self.on_channel(event).await?,
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
            keypair: &self.deps.state.keypair,
            attempt: self.attempt.id,
            miner: self.attempt.miner,
            request: self.request,
            plan: self.attempt.machine.plan(),
            features: self.channel.features(),
            checkpoints: self.checkpoints.as_ref().map(|(_, order)| order),
            output: self.output.as_ref(),
        }
    }

    fn receipt(&self, kind: ReceiptKind) -> Option<&IssuedReceipt> {
        self.receipts.iter().find(|receipt| receipt.kind() == kind)
    }

    fn log_violation(&self, defect: &dyn std::fmt::Display) {
        tracing::warn!(attempt = %self.attempt.id, miner = %self.attempt.miner, %defect, "the miner broke the protocol");
    }
}

/// The order for the executor of the attempt with this number about the streams that its program prints; `None` where
/// the facilitator granted no place.
fn output_order(request: &UserJobRequest, ordinal: u32) -> Option<OutputOrder> {
    let grant = request.muster.as_ref()?.output.as_ref()?;
    let blocks = attempt_url(&grant.blocks, ordinal)?;
    Some(OutputOrder { blocks })
}
