//! Handles the messages of the attempt's miner, and the ups and downs of the connection to it.

use muster_chain::Metagraph;
use muster_facilitator_link::live_output::{log_message, metrics_message, progress_message};
use muster_gateway::backend::JobNews;
use muster_identity::{verify_countersigned, verify_receipts};
use muster_job_messages::attempt_connection::is_repeated;
use muster_job_messages::hardware::{describe_hardware, read_specs};
use muster_job_messages::incoming::{LiveUpdate, MessageMeaning, interpret};
use muster_miner_link::ChannelEvent;
use muster_protocol::job::{Event, JobState, take_slot_leases};
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::wire::facilitator::RejectionDetails;
use muster_protocol::wire::miner::DeclineJob;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{
    Feature, JobRejectionReason, ParticipantType, Receipt, ReceiptPayload, Timestamp, ValidatorKey,
};
use muster_routing::busy_excuse::{BusyEvidence, BusyRejection, weigh_excuse};
use muster_routing::slot_excuse::{SlotEvidence, SlotRefusal};
use muster_store::StoreError;
use serde_json::Value;

use super::AttemptRunner;
use crate::driver::unmatched;

/// The receipts of a refusal that are checked at most: two for each executor, of more executors than any miner has.
const MAX_EXCUSES: usize = 2_048;

/// Bytes that a metric counts in the budget of live output: its longest name, and a number.
const METRIC_BYTES: usize = 96;

impl AttemptRunner<'_> {
    pub(super) async fn on_channel(&mut self, event: ChannelEvent) -> Result<(), StoreError> {
        match event {
            ChannelEvent::Up => self.on_connected().await,
            ChannelEvent::Down(reason) => {
                tracing::info!(attempt = %self.attempt.id, miner = %self.attempt.miner, %reason, "the miner is not connected");
                self.connection.go_down();
                self.apply(Event::Disconnected).await
            }
            ChannelEvent::Message(message) => self.on_message(*message).await,
            ChannelEvent::Malformed(error) => {
                self.log_violation(&error);
                Ok(())
            }
        }
    }

    async fn on_connected(&mut self) -> Result<(), StoreError> {
        let now = self.deps.state.clock.now();
        self.connection
            .come_up(now, self.deps.state.config.timing.receipt_wait());
        for receipt in &self.receipts {
            if is_repeated(receipt.kind(), receipt.miner_signature.is_some()) {
                let frame = self.messages().receipt_message(&receipt.offered);
                self.channel.send(frame).await;
            }
        }
        let features = self.channel.features();
        self.deps.records.record_features(self.attempt.miner, features);
        if features.has(Feature::Reattach) {
            let reattach = self.deps.state.config.timing.reattach();
            self.attempt.machine = self.attempt.machine.clone().with_reconnect(reattach);
        }
        self.apply(Event::Connected).await?;
        match (self.missing_feature(), self.attempt.machine.state()) {
            (Some(feature), JobState::Offered) => {
                // The miner is only older than the job needs.
                self.excused = true;
                let message = format!(
                    "the miner does not know {:?}, which this job needs; another miner may",
                    feature.name()
                );
                self.apply(Event::Declined(RejectionDetails {
                    rejected_by: ParticipantType::Validator,
                    reason: JobRejectionReason::NoMinerForJob,
                    message,
                    context: None,
                }))
                .await
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// The first feature that the job's offer needs and the connected miner has not shown.
    pub(super) fn missing_feature(&self) -> Option<Feature> {
        let needed = self.request.has_private_image().then_some(Feature::PrivateImages);
        let folders = self.request.needs_folders().then_some(Feature::Folders);
        let patterns = self.request.needs_patterns().then_some(Feature::OutputPatterns);
        let starts = self.request.terms().start.is_some();
        let needed = needed
            .into_iter()
            .chain(self.needs_checkpoints())
            .chain(folders)
            .chain(patterns)
            .chain(starts.then_some(Feature::ProgramStart));
        self.channel.features().lacks(needed.collect())
    }

    async fn on_message(&mut self, mut message: MinerToValidator) -> Result<(), StoreError> {
        let about = message.attempt();
        if about.is_some_and(|about| about != self.attempt.id) {
            // A ComputeHorde miner may speak of another attempt on this attempt's connection.
            if let Some(frame) = unmatched::answer(self.deps, self.attempt.miner, message).await? {
                self.channel.send(frame).await;
            }
            return Ok(());
        }
        if let MinerToValidator::V0DeclineJobRequest(decline) = &message {
            let evidence = self.weigh_refusal(decline);
            self.excused = evidence.is_excuse();
            if let BusyEvidence::AtWork(at_work) = evidence {
                self.deps.own_jobs.note_at_work(self.request.uuid, at_work);
            }
        }
        if let MinerToValidator::V0HordeFailedRequest(failed) = &mut message {
            let shown = take_slot_leases(&mut failed.context);
            if !shown.is_empty() {
                self.excused = self.weigh_slots(shown).is_excuse();
            }
        }
        let own_jobs = &self.deps.own_jobs;
        let mut session_ready = None;
        if let MinerToValidator::V0StreamingJobReadyRequest(ready) = &message
            && own_jobs.contains(self.request.uuid)
        {
            session_ready = Some(Box::new(ready.clone()));
        }
        if let MinerToValidator::MusterSessionClosed(closed) = &message
            && about == Some(self.attempt.id)
        {
            // The executor signed this; the gateway that ordered the session checks it.
            own_jobs.notify(self.request.uuid, JobNews::Closed(closed.close.clone()));
        }
        match interpret(message) {
            MessageMeaning::Manifest(shown) => {
                self.deps.records.record_manifest(self.attempt.miner, shown);
            }
            MessageMeaning::Specs(specs) => self.note_specs(&specs),
            MessageMeaning::Machines(notice) => {
                self.deps
                    .records
                    .claims
                    .note_machines(self.attempt.miner, *notice);
            }
            MessageMeaning::Live(update) => {
                if let LiveUpdate::Progress(progress) = &update
                    && progress.of == ProgressOf::ImagePull
                {
                    self.apply(Event::ImageProgress).await?;
                }
                self.pass_on(update);
            }
            MessageMeaning::Complaint(complaint) => {
                tracing::warn!(attempt = %self.attempt.id, miner = %self.attempt.miner, complaint, "the miner complains");
                self.complaint = Some(complaint);
            }
            MessageMeaning::Checkpoint(notice) => self.on_checkpoint(&notice).await?,
            MessageMeaning::Countersigned(receipt) => return self.on_countersigned(*receipt).await,
            MessageMeaning::Event(event) => {
                self.on_event(event).await?;
                if let Some(ready) =
                    session_ready.filter(|_| *self.attempt.machine.state() == JobState::Streaming)
                {
                    let miner = self.attempt.miner;
                    self.deps
                        .own_jobs
                        .notify(self.request.uuid, JobNews::Ready { miner, ready });
                }
                return Ok(());
            }
            MessageMeaning::Ignored => {}
        }
        Ok(())
    }

    /// Notes what the miner claims of the machine that runs the attempt.
    fn note_specs(&self, specs: &Value) {
        let (miner, class) = (self.attempt.miner, self.attempt.machine.plan().class);
        let specs_read = read_specs(specs, class, self.deps.state.clock.now());
        self.deps.records.claims.note_specs(miner, specs_read);
        if let Some(hardware) = describe_hardware(specs) {
            self.deps.records.ledger().record_hardware(miner, class, hardware);
        }
    }

    /// Weighs the receipts of a refusal as busy as evidence about the miner's executors.
    fn weigh_refusal(&self, decline: &DeclineJob) -> BusyEvidence {
        if decline.reason != JobRejectionReason::Busy {
            return BusyEvidence::Lacking;
        }
        let now = self.deps.state.clock.now();
        let class = self.attempt.machine.plan().class;
        let executors = {
            let (ledger, miner) = (self.deps.records.ledger(), self.attempt.miner);
            let all = ledger.executors(miner, class, now);
            // The executors that do not take the image may well be free.
            let takers = ledger.private_executors(miner, class, now);
            let takers = takers.filter(|_| self.request.has_private_image());
            takers.or(all)
        };
        let refusal = BusyRejection {
            miner: self.attempt.miner,
            validator: self.deps.state.key(),
            attempt: self.attempt.id,
            class,
            at: now,
            executors,
        };
        let shown = decline.receipts.iter().take(MAX_EXCUSES).cloned().collect();
        weigh_excuse(&refusal, &check_receipts(shown, now), self.counting_validators())
    }

    /// Weighs the receipts of the leases in a miner's slots as evidence for an end without a slot.
    fn weigh_slots(&self, shown: Vec<Receipt>) -> SlotEvidence {
        let now = self.deps.state.clock.now();
        let (miner, account) = (self.attempt.miner, self.request.account());
        let refusal = SlotRefusal {
            miner,
            validator: self.deps.state.key(),
            attempt: self.attempt.id,
            account: &account,
            at: now,
        };
        let payloads = check_receipts(shown, now);
        let records = &self.deps.records;
        let evidence = {
            let (ledger, counts) = (records.ledger(), self.counting_validators());
            let is_elsewhere = |image| ledger.is_elsewhere(image, miner, now);
            records
                .fetching()
                .weigh(&refusal, &payloads, counts, is_elsewhere)
        };
        let (leases, own_account) = (evidence.leases, evidence.own_account);
        tracing::info!(attempt = %self.attempt.id, %miner, leases, own_account, "the miner had no slot for the fetch of an image, and shows the leases in its slots");
        evidence
    }

    /// Selects the validators whose receipts are evidence: this one and those with a permit.
    fn counting_validators(&self) -> impl Fn(ValidatorKey) -> bool + use<> {
        let (own_key, subnet) = (self.deps.state.key(), self.deps.state.subnet.last_metagraph());
        move |validator| {
            let permitted =
                |metagraph: &Metagraph| metagraph.find(&validator.0).is_some_and(|neuron| neuron.permit);
            validator == own_key || subnet.as_deref().is_some_and(permitted)
        }
    }

    /// Passes live output or progress on to the user, as far as the attempt's budget allows.
    fn pass_on(&mut self, update: LiveUpdate) {
        let size = match &update {
            LiveUpdate::Log(piece) => piece.data.as_bytes().len(),
            LiveUpdate::Progress(_) => 0,
            LiveUpdate::Metrics(metrics) => metrics.report.metrics.len().saturating_mul(METRIC_BYTES),
        };
        let live_output = &self.deps.live_output;
        if !self.live_budget.take(size, self.deps.state.clock.now()) {
            live_output.count_dropped();
            return;
        }
        let job = self.request.uuid;
        live_output.send(match update {
            LiveUpdate::Log(piece) => log_message(job, *piece),
            LiveUpdate::Progress(progress) => progress_message(job, progress),
            LiveUpdate::Metrics(metrics) => metrics_message(job, *metrics),
        });
    }

    async fn on_event(&mut self, event: Event) -> Result<(), StoreError> {
        for missing in self.connection.events_before(&self.attempt.machine, &event) {
            let readies = missing == Event::ExecutorReady;
            self.apply(missing).await?;
            if readies {
                // The executor may have been ready since the begin; it is stored with the event that follows.
                let (machine, began) = (self.attempt.machine.clone(), self.start_time());
                self.attempt.machine = machine.assume_ready_since(began);
            }
        }
        self.apply(event).await
    }

    async fn on_countersigned(&mut self, receipt: Receipt) -> Result<(), StoreError> {
        let kind = receipt.payload.kind();
        let Some(own) = self.receipts.iter_mut().find(|own| own.kind() == kind) else {
            self.log_violation(&"it signed a receipt that this validator never issued");
            return Ok(());
        };
        match verify_countersigned(receipt, &own.offered, self.deps.state.clock.now()) {
            Ok(receipt) => {
                own.miner_signature = Some(receipt.miner_signature);
                self.deps
                    .state
                    .store
                    .countersign(&receipt, self.deps.state.own_page())
                    .await?;
            }
            Err(error) => self.log_violation(&error),
        }
        Ok(())
    }
}

/// The receipts of a peer whose signatures are right.
fn check_receipts(shown: Vec<Receipt>, now: Timestamp) -> Vec<ReceiptPayload> {
    let verified = verify_receipts(shown, now).into_iter();
    verified
        .filter_map(|receipt| Some(receipt.ok()?.into_inner().payload))
        .collect()
}
