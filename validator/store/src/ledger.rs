//! The ledger of miners and their trials after a restart: restored from the attempts in the store.

use std::time::Duration;

use muster_protocol::Timestamp;
use muster_routing::miner_ledger::NO_SLOT_WINDOW;
use muster_routing::trials::TrialSchedule;
use muster_routing::{AttemptMark, LedgerWindows, MinerLedger};
use muster_store::StoreError;

use crate::Store;

/// The miners' records as the store has them.
#[derive(Clone, Debug)]
pub struct RestoredMiners {
    /// The knowledge by which jobs are routed.
    pub ledger: MinerLedger,
    /// The miners under suspicion. One that passed a trial before the restart is tried again.
    pub trials: TrialSchedule,
}

/// Restores the miners' records from the stored attempts. Which images and inputs a miner has at hand is not stored and
/// is learned again.
pub async fn restore_ledger(
    store: &Store,
    windows: LedgerWindows,
    now: Timestamp,
) -> Result<RestoredMiners, StoreError> {
    let before = |window: Duration| {
        let span = i64::try_from(window.as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros(now.micros().saturating_sub(span))
    };
    let (mut ledger, mut trials) = (MinerLedger::new(windows), TrialSchedule::new(windows.record));
    for ended in store.ended_offers(before(NO_SLOT_WINDOW)).await? {
        ledger.record_ended_offers(ended.miner, ended.offers, ended.at);
        ledger.restore_no_slots(ended.miner, ended.no_slots, ended.at);
    }
    for group in store
        .history(before(windows.record), before(windows.given))
        .await?
    {
        match group.ended {
            Some((at, AttemptMark::Suspect)) => trials.note_suspect(group.miner, group.class, at),
            Some((at, AttemptMark::FailedTrial)) => trials.restore_bench(group.miner, group.class, at),
            Some(_) | None => {}
        }
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
    Ok(RestoredMiners { ledger, trials })
}
