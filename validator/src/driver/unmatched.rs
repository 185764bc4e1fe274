//! What miners say about attempts that nobody drives: over for us and not for them, or about none at all.

use std::sync::Arc;

use muster_identity::verify_countersigned;
use muster_process::store::StoreError;
use muster_protocol::job::Event;
use muster_protocol::wire::miner::FromMiner;
use muster_protocol::{AttemptId, MinerKey, Receipt, ReceiptKind};
use muster_websocket::lines::Strays;

use super::messages::{Meaning, meaning};
use super::papers::{finished, finished_frame};
use crate::shared::Shared;

/// Looks at strays until the validator stops.
pub(crate) async fn run(shared: Arc<Shared>, mut strays: Strays) -> Result<(), StoreError> {
    let stop = shared.tasks.token();
    while let Some(Some(stray)) = stop.run_until_cancelled(strays.recv()).await {
        if let Some(frame) = answer(&shared, stray.miner, stray.message).await? {
            stray.reply.send(frame).await;
        }
    }
    Ok(())
}

/// What is answered to it, if anything is.
pub(super) async fn answer(
    shared: &Shared,
    miner: MinerKey,
    message: FromMiner,
) -> Result<Option<String>, StoreError> {
    let about = message.attempt();
    match meaning(message) {
        Meaning::Manifest(manifest) => {
            let now = shared.clock.now();
            shared.ledger().announced(miner, manifest, now);
        }
        // Nobody watches, or too much is said for who does.
        Meaning::Live(_) => shared.live.drop_one(),
        Meaning::Complaint(complaint) => tracing::warn!(%miner, complaint, "a miner complains"),
        Meaning::Countersigned(receipt) => countersigned(shared, miner, *receipt).await?,
        Meaning::Event(event) => {
            if let Some(attempt) = about {
                return last_word(shared, miner, attempt, &event).await;
            }
        }
        Meaning::Nothing => {}
    }
    Ok(None)
}

/// A message about an attempt that has no driver here. If it is over for us and the miner still delivers its end, it has missed
/// our last word, which is said again; a message about one that is under way belongs on its own connection.
async fn last_word(
    shared: &Shared,
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
        | Event::ExecutorReady
        | Event::VolumesReady
        | Event::StreamingReady(_)
        | Event::ExecutionDone
        | Event::Cancelled(_)
        | Event::Tick => return Ok(None),
    }
    let known = shared
        .store
        .attempt(attempt)
        .await?
        .filter(|known| known.miner == miner);
    let ended = known.filter(|known| known.machine.outcome().is_some());
    tracing::debug!(%miner, %attempt, ended = ended.is_some(), "a message about an attempt that nobody drives");
    let Some(ended) = ended else { return Ok(None) };
    let receipts = shared.store.receipts_of(attempt).await?;
    let written = receipts
        .into_iter()
        .find(|receipt| receipt.kind() == ReceiptKind::Finished);
    let receipt = match written {
        Some(receipt) => receipt,
        // We gave it up before it was accepted, and the miner ran it all the same: nothing is paid, and it is over.
        None => {
            let now = shared.clock.now();
            let receipt = finished(&shared.keypair, attempt, miner, 0, ended.started_at, now);
            let head = shared.outlook.head();
            shared.store.keep_receipt(&receipt, head).await?;
            receipt
        }
    };
    Ok(finished_frame(&receipt.offered))
}

/// The receipt of an attempt that ended before, on a miner that only now has signed it.
async fn countersigned(shared: &Shared, miner: MinerKey, receipt: Receipt) -> Result<(), StoreError> {
    let kind = receipt.payload.kind();
    let defect =
        |defect: &dyn std::fmt::Display| tracing::warn!(%miner, %defect, "the miner broke the protocol");
    let receipts = shared.store.receipts_of(receipt.payload.attempt()).await?;
    let Some(own) = receipts.into_iter().find(|own| own.kind() == kind) else {
        defect(&"it signed a receipt that we never wrote");
        return Ok(());
    };
    match verify_countersigned(receipt, &own.offered, shared.clock.now()) {
        Ok(receipt) => {
            shared.store.countersign(&receipt).await?;
        }
        Err(error) => defect(&error),
    }
    Ok(())
}
