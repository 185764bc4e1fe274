//! The checkpoints of an attempt: where it begins, and what it leaves.

use muster_facilitator_link::live_output::checkpoints_message;
use muster_protocol::Feature;
use muster_protocol::job::JobState;
use muster_protocol::wire::checkpoints::CheckpointNotice;
use muster_store::StoreError;

use super::AttemptRunner;
use crate::driver::checkpoint_record::{CheckpointRecord, NoticedCheckpoint};
use crate::driver::partial_pay::pay_partly;
use crate::store::StoredAttempt;

impl AttemptRunner<'_> {
    /// Decides where the attempt begins that follows `earlier`, and stores it before anything is sent.
    pub(in crate::driver) async fn begin_checkpoints(
        &mut self,
        earlier: &[StoredAttempt],
    ) -> Result<(), StoreError> {
        let store = &self.deps.state.store;
        let Some(mut record) = CheckpointRecord::read(store, self.request).await? else {
            return Ok(());
        };
        let beginning = record.begin(self.attempt.id, earlier);
        store.set_beginning(self.attempt.id, beginning).await?;
        record.note_beginning(self.attempt.id, beginning);
        if matches!(
            self.attempt.machine.state(),
            JobState::Connecting | JobState::Offered
        ) {
            let left = record.left_secs(earlier);
            self.attempt.machine = self.attempt.machine.clone().with_execution_limit(left);
        }
        if let Some(ordinal) = beginning.from {
            tracing::info!(job = %self.request.uuid, attempt = %self.attempt.id, ordinal, "the attempt goes on from a checkpoint");
        }
        let order = record.order(&self.attempt);
        self.checkpoints = Some((record, order));
        Ok(())
    }

    /// Stores a checkpoint, and answers. A repetition is answered again.
    pub(super) async fn on_checkpoint(&mut self, notice: &CheckpointNotice) -> Result<(), StoreError> {
        let Some((record, _)) = &mut self.checkpoints else {
            return Ok(());
        };
        let ordinal = match record.judge(notice, self.deps.state.clock.now()) {
            NoticedCheckpoint::Known(ordinal) => ordinal,
            NoticedCheckpoint::New(facts, dropped) => {
                let ordinal = facts.ordinal;
                self.deps
                    .state
                    .store
                    .keep_checkpoint(self.request.uuid, &facts, &dropped)
                    .await?;
                tracing::info!(job = %self.request.uuid, attempt = %self.attempt.id, ordinal, bytes = facts.bytes, "a checkpoint is kept");
                record.note_kept(*facts, &dropped);
                self.attempt.has_checkpoint = true;
                let ended = self.attempt.ordinal.saturating_sub(1);
                self.deps
                    .live_output
                    .send(checkpoints_message(record.list(ended)));
                self.pay_predecessor().await?;
                ordinal
            }
            NoticedCheckpoint::Refused(reason) => {
                self.log_violation(&reason);
                return Ok(());
            }
        };
        let frame = self.messages().checkpoint_kept(notice.number, ordinal);
        self.channel.send(frame).await;
        Ok(())
    }

    /// Reports to the facilitator that the attempt has ended, so that its executor's URLs end, and what is kept, so
    /// that its other blocks may go. A lost report is made up for when the next attempt uses its URL.
    pub(in crate::driver) fn report_end(&self) {
        if let Some((record, _)) = &self.checkpoints {
            let list = record.list(self.attempt.ordinal);
            self.deps.live_output.send(checkpoints_message(list));
        }
    }

    /// Pays the attempt that left the checkpoint from which this one has gone on.
    pub(in crate::driver) async fn pay_predecessor(&mut self) -> Result<(), StoreError> {
        let record = self.checkpoints.as_ref().map(|(record, _)| record);
        match record.and_then(|record| record.began_from(self.attempt.id)) {
            Some(from) if !self.request.on_trusted_miner => pay_partly(self.deps, from).await,
            Some(_) | None => Ok(()),
        }
    }

    /// Whether the attempt begins from a checkpoint, so that its miner must know how.
    pub(super) fn needs_checkpoints(&self) -> Option<Feature> {
        let (record, _) = self.checkpoints.as_ref()?;
        record.resumes(self.attempt.id).then_some(Feature::Checkpoints)
    }
}
