//! The pay of an attempt that was lost after it had left a checkpoint: its time up to that checkpoint, once another
//! attempt has gone on from it (`docs/adr/0099`).

use std::sync::Arc;
use std::time::Duration;

use muster_job_messages::IssuedReceipt;
use muster_job_messages::outgoing::{finished_receipt_message, sign_finished_receipt};
use muster_miner_link::{MinerChannel, ask_for_signature};
use muster_protocol::job::KeptCheckpoint;
use muster_protocol::{ReceiptKind, ReceiptPayload};
use muster_store::StoreError;

use super::attempt_deps::AttemptDeps;
use super::checkpoint_record::partial_pay_us;
use super::covered_pay::cover_pay;
use crate::validator_state::ValidatorState;

/// How long the miner of the earlier attempt is tried for its signature. A miner that is away gets the receipt when it
/// delivers the end of its attempt.
const DELIVERY: Duration = Duration::from_secs(60);

/// Pays the attempt that left this checkpoint, unless it has its finished receipt: the seconds from its ready
/// executor to the checkpoint.
pub(super) async fn pay_partly(deps: &AttemptDeps, from: &KeptCheckpoint) -> Result<(), StoreError> {
    let state = &deps.state;
    let Some(earlier) = state.store.attempt(from.attempt).await? else {
        return Ok(());
    };
    let is_unpaid = earlier.machine.outcome().is_some_and(|end| !end.is_paid());
    let receipts = state.store.receipts_of(earlier.id).await?;
    let has_finished = receipts
        .iter()
        .any(|receipt| receipt.kind() == ReceiptKind::Finished);
    let Some(ready_at) = earlier.machine.ready_at().filter(|_| is_unpaid && !has_finished) else {
        return Ok(());
    };
    let started = receipts
        .iter()
        .find_map(|receipt| match &receipt.offered.payload {
            ReceiptPayload::Started(started) => Some(started.timestamp),
            ReceiptPayload::Accepted(_) | ReceiptPayload::Finished(_) => None,
        });
    let (started, now) = (started.unwrap_or(earlier.started_at), state.clock.now());
    let worked_us = partial_pay_us(&earlier, ready_at, from);
    let pay = cover_pay(state, &earlier, worked_us, started, now);
    tracing::info!(attempt = %earlier.id, miner = %earlier.miner, ordinal = from.ordinal, paid_us = pay.micros, "another attempt went on from a checkpoint; what led to it is paid");
    let receipt = sign_finished_receipt(&state.keypair, earlier.id, earlier.miner, pay, started, now);
    state.store.keep_receipt(&receipt, state.subnet.head()).await?;
    let channel = deps.channels.open_for(&earlier);
    let delivering = deliver(Arc::clone(state), channel, receipt);
    state.spawn("partial pay", delivering);
    Ok(())
}

/// Has a receipt signed by its miner, if the miner can be reached.
async fn deliver(
    state: Arc<ValidatorState>,
    channel: MinerChannel,
    receipt: IssuedReceipt,
) -> Result<(), StoreError> {
    let Some(frame) = finished_receipt_message(&receipt.offered) else {
        return Ok(());
    };
    let until = state.clock.now().plus(DELIVERY);
    let asked = ask_for_signature(
        channel,
        &receipt.offered,
        frame,
        (&state.clock, until),
        state.tasks.token(),
    );
    if let Some(signed) = asked.await {
        state.store.countersign(&signed, state.own_page()).await?;
    }
    Ok(())
}
