//! Which blocks are read next for the transfers into an account, so that a run of blocks is known without a gap.

use std::collections::BTreeMap;

use muster_chain::{AccountTransfer, BlockNumber, next_transfer_piece};
use muster_protocol::Hotkey;

/// Blocks before the first one that is needed which stay known: a commit that is lost opens an earlier cycle again.
const KEPT_BEFORE: u64 = 50_000;

/// Blocks without a gap, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// The first block.
    pub first: BlockNumber,
    /// The last block.
    pub last: BlockNumber,
}

impl BlockRun {
    /// Whether all blocks of another run lie in this one.
    pub fn holds(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// The next blocks to be read, and the run that is known once they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurnReading {
    /// The block after which the reading begins.
    pub after: BlockNumber,
    /// The blocks that are known afterwards; its last block is the last of the reading.
    pub run: BlockRun,
}

/// The next reading, if block `first` and all after it through `head` are needed. A run that cannot be continued
/// without a gap is begun anew.
pub fn next_reading(read: Option<BlockRun>, first: BlockNumber, head: BlockNumber) -> Option<BurnReading> {
    let before = |block: BlockNumber, blocks: u64| BlockNumber(block.0.saturating_sub(blocks));
    let (begin, after) = match read {
        Some(run) if run.first <= first && before(first, 1) <= run.last => {
            (run.first.max(before(first, KEPT_BEFORE)), run.last)
        }
        Some(_) | None => (first, before(first, 1)),
    };
    let last = next_transfer_piece(after, head)?;
    Some(BurnReading {
        after,
        run: BlockRun { first: begin, last },
    })
}

/// The payments into the account in rao, summed up for each block and payer.
pub fn sum_payments(
    transfers: &[(BlockNumber, AccountTransfer)],
    account: &Hotkey,
) -> BTreeMap<(BlockNumber, Hotkey), u64> {
    let mut sums = BTreeMap::<(BlockNumber, Hotkey), u64>::new();
    for (block, transfer) in transfers {
        if transfer.to == *account && transfer.from != *account {
            let sum = sums.entry((*block, transfer.from)).or_default();
            *sum = sum.saturating_add(transfer.amount.0);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use muster_protocol::Rao;

    const AT: fn(u64) -> BlockNumber = BlockNumber;

    fn run(first: u64, last: u64) -> BlockRun {
        BlockRun {
            first: AT(first),
            last: AT(last),
        }
    }

    fn next(read: Option<BlockRun>, first: u64, head: u64) -> Option<(u64, u64, u64)> {
        let reading = next_reading(read, AT(first), AT(head))?;
        Some((reading.after.0, reading.run.first.0, reading.run.last.0))
    }

    #[test]
    fn a_reading_goes_on_where_it_was_and_begins_anew_after_a_gap() {
        assert_eq!(next(None, 10, 30), Some((9, 10, 30)));
        assert_eq!(next(Some(run(10, 30)), 20, 200), Some((30, 10, 94)));
        assert_eq!(next(Some(run(10, 30)), 31, 200), Some((30, 10, 94)));
        assert_eq!(
            next(Some(run(10, 30)), 32, 200),
            Some((31, 32, 95)),
            "block 31 is unknown"
        );
        assert_eq!(
            next(Some(run(10, 30)), 5, 30),
            Some((4, 5, 30)),
            "an earlier cycle is open again"
        );
        assert_eq!(next(Some(run(10, 30)), 20, 30), None);
        let kept = next(Some(run(10, 90_000)), 80_000, 90_001);
        assert_eq!(kept, Some((90_000, 30_000, 90_001)));
    }

    #[test]
    fn only_payments_into_the_account_are_burns() {
        let key = |seed| Hotkey::from_bytes([seed; 32]);
        let transfer = |block, from, to, amount| {
            let transfer = AccountTransfer {
                from: key(from),
                to: key(to),
                amount: Rao(amount),
            };
            (AT(block), transfer)
        };
        let transfers = [
            transfer(1, 5, 9, 10),
            transfer(1, 5, 9, 7),
            transfer(2, 5, 9, 1),
            transfer(2, 9, 5, 100),
            transfer(2, 9, 9, 100),
        ];
        let sums = sum_payments(&transfers, &key(9));
        assert_eq!(sums, [((AT(1), key(5)), 17), ((AT(2), key(5)), 1)].into());
    }

    proptest! {
        #[test]
        fn a_run_that_is_read_has_no_gap(
            steps in proptest::collection::vec((0_u64..400, 0_u64..300, 1_usize..6), 1..20),
        ) {
            let (mut read, mut known) = (None, std::collections::BTreeSet::new());
            let (mut first, mut head) = (1, 1);
            for (needed, more, pieces) in steps {
                head += more;
                first = if needed % 3 == 0 { first } else { (head.saturating_sub(needed)).max(1) };
                for _ in 0..pieces {
                    let Some(reading) = next_reading(read, AT(first), AT(head)) else { break };
                    known.extend(reading.after.0 + 1..=reading.run.last.0);
                    read = Some(reading.run);
                }
                if let Some(run) = read {
                    prop_assert!((run.first.0..=run.last.0).all(|block| known.contains(&block)), "{:?}", run);
                }
            }
        }
    }
}
