//! The times of a subnet's epochs, and of the reveal of weights that are committed now. Pure.
//!
//! The chain's own record of its epochs decides: the block of the last epoch, the tempo, an epoch that the owner asked
//! for, and the number of epochs. A call that is sent while `block` is the head lands in `block + 1` at the earliest.
//! An epoch runs at the beginning of its block, so a call in an epoch's block already belongs to the new epoch. With
//! `due = min(last + tempo, pending)` and `next = max(due, block + 1)`:
//!
//! ```text
//! enters  = next                      if next == block + 1: the call belongs to the epoch that begins there
//!           (the present epoch)       otherwise
//! reveals = next + (period - 1) * tempo          in the present epoch
//!           next +  period      * tempo          in the one that begins with the call's own block
//! moment  = time of the head + (reveals - block + 3) * block time
//! round   = (moment - genesis) div period of the beacon
//! ```
//!
//! The three blocks come from the official library: a chain stores a round a little after its publication, and a round
//! that is out too early would reveal the weights before their epoch. `tests/vectors/timelock.json` compares these
//! rounds with that library's, second by second.

use muster_protocol::BlockNumber;

use crate::timelock::Beacon;

/// Blocks between the beginning of the revealing epoch and the chosen round.
const SAFETY: u64 = 3;

/// A subnet's epochs, as the chain recorded them at one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The block at which all of this was read.
    pub block: BlockNumber,
    /// The time of that block, in milliseconds since 1970, UTC.
    pub time_ms: u64,
    /// The duration of a block, in milliseconds, as the chain states it.
    pub block_ms: u64,
    /// Blocks between two epochs.
    pub tempo: u16,
    /// The block of the last epoch.
    pub last: BlockNumber,
    /// The block of an epoch that the subnet's owner asked for; `None` without one.
    pub pending: Option<BlockNumber>,
    /// The number of epochs so far.
    pub index: u64,
    /// Epochs between a commit and its reveal.
    pub reveal_period: u64,
}

/// The epoch and the reveal of a commit that is sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevealForecast {
    /// The number of the epoch that the commit belongs to.
    pub epoch: u64,
    /// The first block of the epoch that reveals the commit.
    pub reveals: BlockNumber,
}

impl Schedule {
    /// The forecast for a commit that is sent now; `None` on a subnet that has no epochs.
    pub fn foresee(&self) -> Option<RevealForecast> {
        if self.tempo == 0 {
            return None;
        }
        let tempo = u64::from(self.tempo);
        let lands = self.block.0.saturating_add(1);
        let due = self.last.0.saturating_add(tempo);
        let due = self.pending.map_or(due, |pending| due.min(pending.0));
        let next = due.max(lands);
        let begins = u64::from(next == lands);
        // The first epoch after the commit's own is `next`, unless the commit's own begins there.
        let periods = self.reveal_period.saturating_add(begins).saturating_sub(1);
        Some(RevealForecast {
            epoch: self.index.saturating_add(begins),
            reveals: BlockNumber(next.saturating_add(periods.saturating_mul(tempo))),
        })
    }

    /// The epoch of a block at or before the head, provided that the tempo has not changed since; `None` without
    /// epochs.
    pub fn epoch_of(&self, block: BlockNumber) -> Option<u64> {
        let behind = self.last.0.saturating_sub(block.0);
        let epochs = behind.div_ceil(Some(u64::from(self.tempo)).filter(|tempo| *tempo > 0)?);
        Some(self.index.saturating_sub(epochs))
    }

    /// The beacon's round that opens a commit which is sent now.
    pub fn round(&self, beacon: &Beacon) -> Option<u64> {
        let reveals = self.foresee()?.reveals;
        let blocks = reveals.0.saturating_sub(self.block.0).saturating_add(SAFETY);
        let moment = self.time_ms.saturating_add(blocks.saturating_mul(self.block_ms));
        Some(beacon.round_at(moment))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(block: u64, last: u64, pending: Option<u64>, reveal_period: u64) -> Schedule {
        Schedule {
            block: BlockNumber(block),
            time_ms: 1_700_000_000_000,
            block_ms: 12_000,
            tempo: 20,
            last: BlockNumber(last),
            pending: pending.map(BlockNumber),
            index: 7,
            reveal_period,
        }
    }

    fn foreseen(block: u64, pending: Option<u64>, reveal_period: u64) -> (u64, u64) {
        let foreseen = at(block, 100, pending, reveal_period).foresee().unwrap();
        (foreseen.epoch, foreseen.reveals.0)
    }

    #[test]
    fn a_commit_is_revealed_so_many_epochs_after_its_own() {
        assert_eq!(foreseen(105, None, 1), (7, 120));
        assert_eq!(foreseen(105, None, 2), (7, 140));
        assert_eq!(foreseen(118, None, 1), (7, 120));
        // The call lands in the block in which the next epoch begins, or an overdue one does.
        assert_eq!(foreseen(119, None, 1), (8, 140));
        assert_eq!(foreseen(120, None, 1), (8, 141));
        assert_eq!(foreseen(125, None, 1), (8, 146));
        // The owner asked for an epoch.
        assert_eq!(foreseen(105, Some(108), 1), (7, 108));
        assert_eq!(foreseen(105, Some(106), 1), (8, 126));
        assert_eq!(foreseen(105, Some(130), 1), (7, 120));
        let epoch_of = |block| at(125, 100, None, 1).epoch_of(BlockNumber(block));
        assert_eq!([125, 100, 99, 80, 79].map(epoch_of), [7, 7, 6, 6, 5].map(Some));
        let still = Schedule {
            tempo: 0,
            ..at(5, 0, None, 1)
        };
        assert_eq!((still.foresee(), still.round(&Beacon::quicknet())), (None, None));
    }

    /// The official library's choices, second by second: `tests/python/make_chain_vectors.py`.
    #[test]
    fn rounds_are_the_official_librarys() {
        const GOLDEN: &str = include_str!("../../../../tests/vectors/timelock.json");
        let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        let schedules = golden["schedules"].as_array().unwrap();
        assert!(schedules.len() > 15);
        for given in schedules {
            let number = |name: &str| given[name].as_u64().unwrap();
            let block_ms: f64 = given["block_time"].as_f64().unwrap() * 1000.0;
            let schedule = Schedule {
                block: BlockNumber(number("current_block")),
                time_ms: number("now") * 1000,
                block_ms: format!("{block_ms:.0}").parse().unwrap(),
                tempo: u16::try_from(number("tempo")).unwrap(),
                last: BlockNumber(number("last_epoch_block")),
                pending: Some(number("pending_epoch_at"))
                    .filter(|block| *block > 0)
                    .map(BlockNumber),
                index: number("subnet_epoch_index"),
                reveal_period: number("subnet_reveal_period_epochs"),
            };
            let ours = schedule.round(&Beacon::quicknet()).unwrap();
            // It saw the clock somewhere within that second, which moves the round by one at most.
            let later = Schedule {
                time_ms: schedule.time_ms + 999,
                ..schedule
            };
            let latest = later.round(&Beacon::quicknet()).unwrap();
            assert!((ours..=latest).contains(&number("round")), "{given}: {ours}");
        }
    }

    proptest! {
        /// A chain that runs its epochs by these rules reveals a commit in the forecast block.
        #[test]
        fn foreseen_epochs_happen(
            tempo in 1_u16..50, last in 0_u64..100, ahead in 0_u64..120, pending in proptest::option::of(0_u64..260), period in 1_u64..4,
        ) {
            let schedule = Schedule {
                tempo,
                pending: pending.map(BlockNumber),
                reveal_period: period,
                ..at(last + ahead, last, None, 1)
            };
            let foreseen = schedule.foresee().unwrap();
            let (mut last, mut pending, mut index) = (last, pending, schedule.index);
            let mut own = None;
            for block in schedule.block.0 + 1.. {
                let due = last + u64::from(tempo);
                if pending.map_or(due, |pending| due.min(pending)) <= block {
                    (last, pending, index) = (block, None, index + 1);
                    if own.is_some_and(|own| index == own + period) {
                        prop_assert_eq!(foreseen.reveals.0, block);
                        break;
                    }
                }
                own.get_or_insert(index);
                prop_assert!(block < 2000, "never revealed");
            }
            prop_assert_eq!(own, Some(foreseen.epoch));
        }
    }
}
