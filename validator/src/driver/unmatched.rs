//! Messages of miners about attempts that have no driver: attempts that are over here and not for the miner, or no
//! attempt at all.

use std::sync::Arc;

use muster_identity::verify_countersigned;
use muster_job_messages::incoming::{MessageMeaning, interpret};
use muster_job_messages::outgoing::{AttemptPay, finished_receipt_message, sign_finished_receipt};
use muster_miner_link::UnmatchedMessages;
use muster_protocol::job::Event;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{AttemptId, MinerKey, Receipt, ReceiptKind};
use muster_store::StoreError;

use super::attempt_deps::AttemptDeps;

/// Answers unmatched messages until the validator stops.
pub(super) async fn answer_all(
    deps: Arc<AttemptDeps>,
    mut messages: UnmatchedMessages,
) -> Result<(), StoreError> {
    let stop = deps.state.tasks.token();
    while let Some(Some(unmatched)) = stop.run_until_cancelled(messages.recv()).await {
        if let Some(frame) = answer(&deps, unmatched.miner, unmatched.message).await? {
            unmatched.reply.send(frame).await;
        }
    }
    Ok(())
}

/// Handles one unmatched message; returns the frame that answers it, if one does.
pub(super) async fn answer(
    deps: &AttemptDeps,
    miner: MinerKey,
    message: MinerToValidator,
) -> Result<Option<String>, StoreError> {
    let about = message.attempt();
    match interpret(message) {
        MessageMeaning::Manifest(shown) => deps.records.record_manifest(miner, shown),
        // No driver passes this output on, so it is dropped.
        MessageMeaning::Live(_) => deps.live_output.count_dropped(),
        MessageMeaning::Complaint(complaint) => tracing::warn!(%miner, complaint, "a miner complains"),
        MessageMeaning::Countersigned(receipt) => store_countersigned(deps, miner, *receipt).await?,
        MessageMeaning::Event(event) => {
            if let Some(attempt) = about {
                return answer_event(deps, miner, attempt, &event).await;
            }
        }
        MessageMeaning::Machines(notice) => deps.records.claims.note_machines(miner, *notice),
        // Specs are worth nothing without the class of their attempt.
        MessageMeaning::Specs(_) | MessageMeaning::Ignored => {}
        // The attempt is over here; its executor goes on reporting until it has ended there.
        MessageMeaning::Checkpoint(_) => {}
    }
    Ok(None)
}

/// Answers an event of an attempt that has no driver. If the attempt is over here and the miner still delivers its
/// result, the miner has missed the finished receipt, which is sent again. An event of an attempt under way belongs on
/// the attempt's own connection.
async fn answer_event(
    deps: &AttemptDeps,
    miner: MinerKey,
    attempt: AttemptId,
    event: &Event,
) -> Result<Option<String>, StoreError> {
    match event {
        Event::Finished(_) | Event::Failed(_) | Event::HordeFailed(_) => {}
        Event::Connected
        | Event::Disconnected
        | Event::Accepted
        | Event::Declined(_)
        | Event::ExecutorUp { .. }
        | Event::ImageProgress
        | Event::ExecutorReady
        | Event::VolumesReady
        | Event::StreamingReady(_)
        | Event::ExecutionDone
        | Event::Cancelled(_)
        | Event::Tick => return Ok(None),
    }
    let state = &*deps.state;
    let known = state
        .store
        .attempt(attempt)
        .await?
        .filter(|known| known.miner == miner);
    let ended = known.filter(|known| known.machine.outcome().is_some());
    tracing::debug!(%miner, %attempt, ended = ended.is_some(), "a message about an attempt that has no driver");
    let Some(ended) = ended else { return Ok(None) };
    let receipts = state.store.receipts_of(attempt).await?;
    let issued = receipts
        .into_iter()
        .find(|receipt| receipt.kind() == ReceiptKind::Finished);
    let receipt = match issued {
        Some(receipt) => receipt,
        // Its pay is known once another attempt has gone on from its checkpoint, or the job is over.
        None if ended.has_checkpoint && state.store.is_open_attempt(attempt).await? => return Ok(None),
        // The validator gave the attempt up before the miner accepted it, and the miner ran it all the same: it is
        // over, and pays nothing.
        None => {
            let now = state.clock.now();
            let receipt = sign_finished_receipt(
                &state.keypair,
                attempt,
                miner,
                AttemptPay::default(),
                ended.started_at,
                now,
            );
            let head = state.subnet.head();
            state.store.keep_receipt(&receipt, head).await?;
            receipt
        }
    };
    Ok(finished_receipt_message(&receipt.offered))
}

/// Stores the miner's signature on a receipt of an attempt that ended before.
async fn store_countersigned(
    deps: &AttemptDeps,
    miner: MinerKey,
    receipt: Receipt,
) -> Result<(), StoreError> {
    let state = &*deps.state;
    let kind = receipt.payload.kind();
    let log_violation =
        |defect: &dyn std::fmt::Display| tracing::warn!(%miner, %defect, "the miner broke the protocol");
    let receipts = state.store.receipts_of(receipt.payload.attempt()).await?;
    let Some(own) = receipts.into_iter().find(|own| own.kind() == kind) else {
        log_violation(&"it signed a receipt that this validator never issued");
        return Ok(());
    };
    match verify_countersigned(receipt, &own.offered, state.clock.now()) {
        Ok(receipt) => {
            state.store.countersign(&receipt, state.own_page()).await?;
        }
        Err(error) => log_violation(&error),
    }
    Ok(())
}
