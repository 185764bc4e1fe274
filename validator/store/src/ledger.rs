//! The ledger of miners after a restart: restored from the attempts in the store.

use std::time::Duration;

use muster_protocol::Timestamp;
use muster_routing::miner_ledger::NO_SLOT_WINDOW;
use muster_routing::{AttemptMark, LedgerWindows, MinerLedger};
use muster_store::StoreError;

use crate::Store;

/// Restores the miners' records from the stored attempts. Which images and inputs a miner has at hand is not stored and
/// is learned again.
pub async fn restore_ledger(
    store: &Store,
    windows: LedgerWindows,
    now: Timestamp,
) -> Result<MinerLedger, StoreError> {
    let before = |window: Duration| {
        let span = i64::try_from(window.as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros(now.micros().saturating_sub(span))
    };
    let mut ledger = MinerLedger::new(windows);
    for ended in store.ended_offers(before(NO_SLOT_WINDOW)).await? {
        ledger.record_ended_offers(ended.miner, ended.offers, ended.at);
        ledger.restore_no_slots(ended.miner, ended.no_slots, ended.at);
    }
    for group in store
        .history(before(windows.record), before(windows.given))
        .await?
    {
        for _ in 0..group.count {
            ledger.record_offer(group.miner, group.started_at);
            match group.ended {
                // Counted by the hour, over a longer time.
                Some((_, AttemptMark::NoSlot)) => {}
                Some((at, mark)) => ledger.record_mark(group.miner, mark, at),
                None => ledger.open_attempt(group.miner, group.class),
            }
        }
    }
    Ok(ledger)
}
