//! Takes an attempt's steps: stores what an event changes, and sends what follows from it.

use std::time::Duration;

use muster_job_messages::last_status::describe;
use muster_job_messages::pay::MeasuredWork;
use muster_job_messages::{AttemptStep, IssuedReceipt, MinerAbilities, StepMessage};
use muster_protocol::job::{Event, ImageFetchFailure, JobState, Outcome, forget_another_image};
use muster_protocol::wire::facilitator::RejectionDetails;
use muster_protocol::wire::miner::ShorterJob;
use muster_protocol::{HordeFailureReason, JobFailureReason, JobRejectionReason, ReceiptKind, Timestamp};
use muster_routing::slot_excuse::FetchingLease;
use muster_routing::start_claims::is_start_claim;
use muster_routing::trials::TrialVerdict;
use muster_routing::{AttemptMark, CacheKey, MarkEvidence, MarkedJob, mark_attempt};
use muster_store::StoreError;

use super::AttemptRunner;
use crate::driver::attempt_deps::program_of;
use crate::driver::miner_pool::line_of;
use crate::store::AttemptChange;

impl AttemptRunner<'_> {
    /// Applies one event to the state machine, stores what changed, then sends what the step calls for.
    pub(super) async fn apply(&mut self, mut event: Event) -> Result<(), StoreError> {
        if let Event::Failed(details) = &mut event {
            forget_another_image(details, &self.request.docker_image);
        }
        let now = self.deps.state.clock.now();
        let miner = MinerAbilities {
            // `on_connected` ends the attempt of a miner that does not know the offer.
            offer: self.missing_feature().is_none(),
            cancellation: self.channel.is_muster(),
        };
        let step = match AttemptStep::take(&self.attempt.machine, event, now, miner) {
            Ok(Some(step)) => step,
            Ok(None) => return Ok(()),
            Err(illegal) => {
                self.log_violation(&illegal);
                return Ok(());
            }
        };
        let left_mark = step.machine.outcome().map(|outcome| {
            let evidence = MarkEvidence {
                excused: self.excused,
                free_no_slot: self.deps.records.has_free_no_slot(self.attempt.miner),
                job: self.deps.marked_job(self.request, self.attempt.miner),
                started_elsewhere: self
                    .deps
                    .is_started_elsewhere(self.request, self.attempt.miner, outcome),
                image_elsewhere: self
                    .deps
                    .records
                    .is_image_elsewhere(&self.request.docker_image, self.attempt.miner),
            };
            mark_attempt(outcome, evidence)
        });
        let work = self.measure_work(&step, now).await?;
        let mut receipts = Vec::new();
        // The pay of what led to a checkpoint is known once another attempt has gone on from it.
        let is_withheld =
            self.attempt.has_checkpoint && step.machine.outcome().is_some_and(|end| !end.is_paid());
        let is_sent = |message: &&StepMessage| match message {
            StepMessage::Receipt { kind, .. } => !is_withheld || *kind != ReceiptKind::Finished,
            StepMessage::Job | StepMessage::Cancellation => true,
        };
        let frames: Vec<_> = step
            .messages
            .iter()
            .filter(is_sent)
            .map(|message| self.frame(*message, work, now, &mut receipts))
            .collect();
        let is_stored = step.is_stored(&self.attempt.machine, !receipts.is_empty());
        let change = AttemptChange {
            job: self.request.uuid,
            attempt: self.attempt.id,
            worked: self.ended_work(&step.machine, now),
            machine: step.machine,
            mark: left_mark,
            receipts,
            reports: step.reports,
            block: self.deps.state.subnet.head(),
            now,
        };
        // Before the executor of a lease that fetches is free for the next job.
        self.note_fetch(change.machine.state());
        if is_stored {
            self.store_change(&change).await?;
        }
        self.attempt.machine = change.machine;
        self.receipts.extend(change.receipts);
        if step.reconnects {
            self.channel.dial();
        }
        for frame in frames {
            self.channel.send(frame).await;
        }
        Ok(())
    }

    /// Notes a change in the ledger and stores it. The ledger comes first: the user receives the change as soon as it
    /// is stored, and the user's next job must find the executor free. If the store fails, the process ends.
    async fn store_change(&mut self, change: &AttemptChange) -> Result<(), StoreError> {
        if let Some(outcome) = change.machine.outcome() {
            // Before the executor is free: the job that gets it moves others up, and their estimates rest on this.
            let took = change.now.since(self.attempt.started_at);
            self.note_duration(outcome, took);
        }
        self.update_ledger(change);
        let ends_bench = self.judge_trial(change);
        self.deps.state.store.save(change).await?;
        if ends_bench {
            let state = &self.deps.state;
            let since = change.now.minus(state.config.routing.windows().record);
            state.store.end_bench(self.attempt.miner, since).await?;
        }
        if matches!(change.machine.state(), JobState::Ready) {
            self.mark_attempts_without_image(change.now).await?;
        }
        if let Some(outcome) = change.machine.outcome() {
            self.judge_start_claims(outcome, change.mark, change.now).await?;
        }
        Ok(())
    }

    /// Notes that a trial has to follow, or what one showed. Returns whether it ends a bench.
    fn judge_trial(&self, change: &AttemptChange) -> bool {
        let (Some(outcome), Some(mark)) = (change.machine.outcome(), change.mark) else {
            return false;
        };
        let (records, miner) = (&self.deps.records, self.attempt.miner);
        match self.deps.marked_job(self.request, miner) {
            MarkedJob::Users { is_tried: true } if mark == AttemptMark::Suspect => {
                records.note_suspect(miner, change.machine.plan().class);
                false
            }
            MarkedJob::Users { .. } | MarkedJob::Own => false,
            MarkedJob::Trial { .. } => {
                let verdict = TrialVerdict::of(outcome, mark);
                match verdict {
                    TrialVerdict::Passed => tracing::info!(%miner, "a miner under suspicion passed a trial"),
                    TrialVerdict::Failed => {
                        let benched = mark == AttemptMark::FailedTrial;
                        tracing::warn!(%miner, outcome = describe(outcome), benched, "a miner under suspicion failed a trial");
                    }
                    TrialVerdict::Unclear => {
                        tracing::info!(%miner, outcome = describe(outcome), "a trial showed nothing about its miner");
                    }
                }
                records.note_trial(miner, verdict)
            }
        }
    }

    /// Remembers that the program started, or that the miner says that it cannot be started. A start shows the claims
    /// of other owners' miners to be wrong: they become incidents after all.
    async fn judge_start_claims(
        &mut self,
        outcome: &Outcome,
        mark: Option<AttemptMark>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let Some(program) = program_of(self.request, outcome) else {
            return Ok(());
        };
        let miner = self.attempt.miner;
        let owner = self.deps.state.owner_of(miner);
        let job = self.deps.marked_job(self.request, miner);
        if mark.is_some_and(|mark| is_start_claim(outcome, mark, job)) {
            let claim = (self.attempt.id, miner, owner);
            self.deps.records.note_start_claim(program, claim);
        }
        if !outcome.ran_to_its_end() {
            return Ok(());
        }
        for wrong in self.deps.records.note_program_start(program, owner) {
            tracing::warn!(attempt = %wrong.attempt, miner = %wrong.miner, by = %miner, "another owner's miner started the program that this one said cannot be started");
            self.deps
                .state
                .store
                .replace_mark(wrong.attempt, AttemptMark::Incident)
                .await?;
            self.deps
                .records
                .ledger()
                .record_mark(wrong.miner, AttemptMark::Incident, now);
        }
        Ok(())
    }

    /// Notes how long a program kept its executor, from which waiting times are estimated. A job whose program never
    /// ran keeps it for a moment, and would make everybody's estimate too short.
    fn note_duration(&self, outcome: &Outcome, took: Duration) {
        let timed_out = match outcome {
            Outcome::Failed(details) => details.reason == JobFailureReason::Timeout,
            Outcome::Completed(_) | Outcome::Rejected(_) | Outcome::HordeFailed(_) => false,
        };
        if timed_out || outcome.ran_to_its_end() {
            self.deps.waiting.note_duration(line_of(self.request), took);
        }
    }

    /// The image has come to this miner, so it was there to be had for those before it.
    async fn mark_attempts_without_image(&mut self, now: Timestamp) -> Result<(), StoreError> {
        for (attempt, miner) in std::mem::take(&mut self.without_image) {
            self.deps
                .state
                .store
                .replace_mark(attempt, AttemptMark::Excuse)
                .await?;
            self.deps
                .records
                .ledger()
                .record_mark(miner, AttemptMark::Excuse, now);
        }
        Ok(())
    }

    /// Notes whether the image is on its way: such a lease may hold a slot of its miner.
    pub(super) fn note_fetch(&self, state: &JobState) {
        let mut fetching = self.deps.records.fetching();
        if *state == JobState::Fetching {
            let lease = FetchingLease {
                miner: self.attempt.miner,
                account: self.request.account(),
                image: CacheKey::image(&self.request.docker_image),
            };
            fetching.insert(self.attempt.id, lease);
        } else {
            fetching.remove(self.attempt.id);
        }
    }

    /// Notes the change in the miner's record.
    fn update_ledger(&self, change: &AttemptChange) {
        let miner = self.attempt.miner;
        let class = self.attempt.machine.plan().class;
        let mut ledger = self.deps.records.ledger();
        let lasts_s = self.attempt.machine.plan().executor_seconds();
        let held = self.attempt.machine.holds_executor();
        let holds = change.machine.holds_executor();
        match (held, holds) {
            (true, false) => {
                ledger.close_attempt(miner, class);
                // A fetch gives its place away, too, but its miner may still have no other one.
                match change.machine.outcome() {
                    Some(Outcome::Completed(_) | Outcome::Failed(_) | Outcome::HordeFailed(_)) => {
                        ledger.record_freed(miner, class);
                    }
                    Some(Outcome::Rejected(_)) | None => {}
                }
            }
            (false, true) => ledger.open_attempt(miner, class),
            (true, true) | (false, false) => {}
        }
        if let Some(mark) = change.mark {
            ledger.record_mark(miner, mark, change.now);
            if !self.deps.state.is_own(self.request) {
                ledger.record_ended_offers(miner, 1, change.now);
            }
        }
        match change.machine.state() {
            JobState::Ready => {
                ledger.record_cached(miner, [CacheKey::image(&self.request.docker_image)], change.now)
            }
            JobState::VolumesReady => {
                ledger.record_cached(miner, CacheKey::inputs(self.request.volume.as_ref()), change.now);
            }
            JobState::Ended(Outcome::Rejected(details)) if details.reason == JobRejectionReason::Busy => {
                match longest_taken(details, lasts_s) {
                    Some(longest_s) => ledger.record_length_limit(miner, class, longest_s, change.now),
                    None => ledger.record_full(miner, class, change.now),
                }
            }
            JobState::Ended(outcome) if outcome.image_fetch_failure() == Some(ImageFetchFailure::NoSlot) => {
                ledger.record_full(miner, class, change.now);
            }
            // Only this miner runs the job, so it is asked again after a while.
            JobState::Ended(Outcome::HordeFailed(details))
                if self.request.on_trusted_miner
                    && details.reason == HordeFailureReason::MinerConnectionFailed =>
            {
                ledger.record_full(miner, class, change.now);
            }
            JobState::Accepted => ledger.record_accepted(miner, class, lasts_s),
            JobState::Connecting
            | JobState::Offered
            | JobState::Fetching
            | JobState::Streaming
            | JobState::Executed
            | JobState::Ended(_) => {}
        }
        drop(ledger);
        // A fetch gives the executor to a job that waits.
        if change.mark.is_some() || (held && !holds) {
            self.deps.waiting.note_room();
        }
    }

    /// The frame of a message. A receipt that was not issued before is added to `issued`; a finished one pays for
    /// `work`, or nothing.
    fn frame(
        &self,
        message: StepMessage,
        work: Option<MeasuredWork>,
        now: Timestamp,
        issued: &mut Vec<IssuedReceipt>,
    ) -> String {
        let messages = self.messages();
        let kind = match message {
            StepMessage::Receipt { kind, .. } => kind,
            StepMessage::Job => return messages.job(),
            StepMessage::Cancellation => {
                let reason = self.cancel_reason.as_deref().unwrap_or("the time for it is over");
                return messages.cancellation(reason);
            }
        };
        if let Some(known) = self.receipt(kind) {
            return messages.receipt_message(&known.offered);
        }
        let receipt = match kind {
            ReceiptKind::Started => messages.started_receipt(now),
            ReceiptKind::Accepted => messages.accepted_receipt(now),
            ReceiptKind::Finished => {
                let started = self.start_time();
                let micros = work.map_or(0, |work| work.pay_us());
                messages.finished_receipt(self.cover(micros, started, now), started, now)
            }
        };
        let frame = messages.receipt_message(&receipt.offered);
        issued.push(receipt);
        frame
    }
}

/// The longest job, in executor-seconds, that a miner takes which declined one of `lasts_s` as busy; `None` if it takes
/// none.
fn longest_taken(details: &RejectionDetails, lasts_s: u64) -> Option<u64> {
    let shorter_by_s = ShorterJob::of_context(details.context.as_ref())?.shorter_by_s;
    (1..lasts_s)
        .contains(&shorter_by_s)
        .then(|| lasts_s.saturating_sub(shorter_by_s))
}

#[cfg(test)]
mod tests {
    use muster_protocol::ParticipantType;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_miner_that_takes_a_shorter_job_says_by_how_much() {
        let longest = |context| {
            let details = RejectionDetails {
                rejected_by: ParticipantType::Miner,
                reason: JobRejectionReason::Busy,
                message: String::new(),
                context,
            };
            longest_taken(&details, 3_675)
        };
        assert_eq!(
            longest(Some(ShorterJob { shorter_by_s: 75 }.context())),
            Some(3_600)
        );
        // A miner that offers nothing, or nonsense, has no executor.
        assert_eq!(longest(None), None);
        for nonsense in [0, 3_675, u64::MAX] {
            assert_eq!(
                longest(Some(json!({ "shorter_by_s": nonsense }))),
                None,
                "{nonsense}"
            );
        }
        assert_eq!(longest(Some(json!({ "shorter_by_s": "much" }))), None);
        assert_eq!(longest(Some(json!("busy"))), None);
    }
}
