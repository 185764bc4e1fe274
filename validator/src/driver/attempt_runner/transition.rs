//! Applies events to the attempt's state machine, and carries out the effects.

use muster_protocol::job::{Effect, Event, JobState, Outcome};
use muster_protocol::{JobRejectionReason, ReceiptKind, ReceiptPayload, Timestamp};
use muster_routing::{AttemptMark, CacheKey, MarkEvidence, mark_attempt};
use muster_store::StoreError;

use super::AttemptRunner;
use crate::store::AttemptChange;

impl AttemptRunner<'_> {
    /// Applies one event to the state machine, stores what changed, then carries out the machine's effects.
    pub(super) async fn apply(&mut self, event: Event) -> Result<(), StoreError> {
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
        let left_mark = machine.outcome().map(|outcome| {
            let evidence = MarkEvidence {
                excused: self.excused,
                image_elsewhere: self.drivers.is_image_elsewhere(self.request, self.attempt.miner),
            };
            mark_attempt(outcome, evidence)
        });
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
                // `on_connected` ends the attempt.
                Effect::SendOffer if self.missing_feature().is_some() => {}
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
        self.store_change(&change).await?;
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

    /// Stores a change and notes it in the ledger. A connection that came or went is not stored, since a resumed
    /// attempt begins without one. That the offer is sent was stored when the attempt began.
    async fn store_change(&mut self, change: &AttemptChange) -> Result<(), StoreError> {
        let already_stored = matches!(change.machine.state(), JobState::Offered);
        let moved = !already_stored && change.machine.state() != self.attempt.machine.state();
        if !moved && change.receipts.is_empty() && change.reports.is_empty() {
            return Ok(());
        }
        self.state.store.save(change).await?;
        self.update_ledger(change);
        if matches!(change.machine.state(), JobState::Ready) {
            self.mark_attempts_without_image(change.now).await?;
        }
        Ok(())
    }

    /// The image has come to this miner, so it was there to be had for those before it.
    async fn mark_attempts_without_image(&mut self, now: Timestamp) -> Result<(), StoreError> {
        for (attempt, miner) in std::mem::take(&mut self.without_image) {
            self.state
                .store
                .replace_mark(attempt, AttemptMark::Excuse)
                .await?;
            self.drivers.ledger().record_mark(miner, AttemptMark::Excuse, now);
        }
        Ok(())
    }

    /// Notes the change in the miner's record.
    fn update_ledger(&self, change: &AttemptChange) {
        let miner = self.attempt.miner;
        let class = self.attempt.machine.plan().class;
        let mut ledger = self.drivers.ledger();
        let held = self.attempt.machine.holds_executor();
        let holds = change.machine.holds_executor();
        match (held, holds) {
            (true, false) => ledger.close_attempt(miner, class),
            (false, true) => ledger.open_attempt(miner, class),
            (true, true) | (false, false) => {}
        }
        if let Some(mark) = change.mark {
            ledger.record_mark(miner, mark, change.now);
        }
        match change.machine.state() {
            JobState::Ready => {
                ledger.record_cached(miner, [CacheKey::image(&self.request.docker_image)], change.now)
            }
            JobState::VolumesReady => {
                ledger.record_cached(miner, CacheKey::inputs(self.request.volume.as_ref()), change.now);
            }
            JobState::Ended(Outcome::Rejected(details)) if details.reason == JobRejectionReason::Busy => {
                ledger.record_full(miner, class, change.now);
            }
            JobState::Accepted => ledger.record_accepted(miner, class),
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
            self.drivers.waiting.note_room();
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
}
