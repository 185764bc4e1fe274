//! The watchers of transactions.

use crate::pool::{News, Status};
use muster_devchain_runtime::BlockNumber;
use sp_core::H256;
use std::collections::HashMap;
use tokio::sync::broadcast;

/// How many changes a watcher may be behind.
const BEHIND: usize = 64;
/// After this many blocks on top of a transaction's block, nobody waits for its finality any longer. As in Substrate.
const FINALITY_TIMEOUT: BlockNumber = 512;
/// Watchers that went away are looked for when there are this many.
const MANY: usize = 1024;

struct Watched {
    tell: broadcast::Sender<Status>,
    /// The block it is in.
    place: Option<(BlockNumber, H256)>,
}

/// The watchers of each transaction, by its hash.
#[derive(Default)]
pub struct Watchers(HashMap<H256, Watched>);

impl Watchers {
    /// Watches a transaction from now on.
    pub fn watch(&mut self, hash: H256) -> broadcast::Receiver<Status> {
        if self.0.len() >= MANY {
            self.0.retain(|_, watched| watched.tell.receiver_count() > 0);
        }
        let watched = self.0.entry(hash).or_insert_with(|| Watched {
            tell: broadcast::Sender::new(BEHIND),
            place: None,
        });
        watched.tell.subscribe()
    }

    /// Reports what changed in the pool.
    pub fn tell(&mut self, news: News) {
        for (hash, status) in news {
            self.say(hash, status);
        }
    }

    /// Reports that transactions are in a block.
    pub fn in_block(&mut self, transactions: impl Iterator<Item = H256>, number: BlockNumber, block: H256) {
        if self.0.is_empty() {
            return;
        }
        for hash in transactions {
            if let Some(watched) = self.0.get_mut(&hash) {
                watched.place = Some((number, block));
                self.say(hash, Status::InBlock(block));
            }
        }
    }

    /// Reports that transactions are no longer in a block.
    pub fn retracted(&mut self, transactions: impl Iterator<Item = H256>, block: H256) {
        for hash in transactions {
            if let Some(watched) = self.0.get_mut(&hash) {
                watched.place = None;
                self.say(hash, Status::Retracted(block));
            }
        }
    }

    /// Reports what is final, and what was not in time.
    pub fn finality(&mut self, finalised: BlockNumber, best: BlockNumber) {
        let fate = |(number, block): (BlockNumber, H256)| {
            if number <= finalised {
                Some(Status::Finalized(block))
            } else if best.saturating_sub(number) >= FINALITY_TIMEOUT {
                Some(Status::FinalityTimeout(block))
            } else {
                None
            }
        };
        let placed = self
            .0
            .iter()
            .filter_map(|(hash, watched)| Some((*hash, fate(watched.place?)?)));
        self.tell(placed.collect());
    }

    fn say(&mut self, hash: H256, status: Status) {
        let Some(watched) = self.0.get(&hash) else { return };
        // Nobody listening is as good as anybody.
        let _ = watched.tell.send(status);
        match status {
            Status::Future | Status::Ready | Status::InBlock(_) | Status::Retracted(_) => {}
            Status::FinalityTimeout(_)
            | Status::Finalized(_)
            | Status::Usurped(_)
            | Status::Dropped
            | Status::Invalid => drop(self.0.remove(&hash)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: H256 = H256::repeat_byte(1);
    const BLOCK: H256 = H256::repeat_byte(9);

    #[test]
    fn a_transaction_is_followed_to_its_end() {
        let mut watchers = Watchers::default();
        let (mut one, mut again) = (watchers.watch(ONE), watchers.watch(ONE));
        watchers.in_block([ONE, BLOCK].into_iter(), 5, BLOCK);
        watchers.finality(4, 6);
        watchers.retracted([ONE].into_iter(), BLOCK);
        watchers.finality(5, 6);
        watchers.in_block([ONE].into_iter(), 6, BLOCK);
        watchers.finality(6, 7);
        for told in [
            Status::InBlock(BLOCK),
            Status::Retracted(BLOCK),
            Status::InBlock(BLOCK),
            Status::Finalized(BLOCK),
        ] {
            assert_eq!((one.try_recv(), again.try_recv()), (Ok(told), Ok(told)));
        }
        assert!(watchers.0.is_empty() && one.try_recv().is_err());
    }

    #[test]
    fn finality_is_not_awaited_for_ever() {
        let mut watchers = Watchers::default();
        let mut one = watchers.watch(ONE);
        watchers.in_block([ONE].into_iter(), 5, BLOCK);
        watchers.finality(4, 5 + FINALITY_TIMEOUT - 1);
        watchers.finality(4, 5 + FINALITY_TIMEOUT);
        assert_eq!(one.try_recv(), Ok(Status::InBlock(BLOCK)));
        assert_eq!(one.try_recv(), Ok(Status::FinalityTimeout(BLOCK)));
        assert!(watchers.0.is_empty());
    }

    #[test]
    fn watchers_that_went_away_are_forgotten() {
        let mut watchers = Watchers::default();
        for n in 0..10 * MANY {
            watchers.watch(H256::from_low_u64_be(u64::try_from(n).unwrap()));
        }
        assert!(watchers.0.len() <= MANY, "{}", watchers.0.len());
    }
}
