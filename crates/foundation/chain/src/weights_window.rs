//! The time to set weights: once a cycle, in its second half, computed only from the subnet's tempo and its last epoch.
//!
//! A cycle is one epoch of the chain: weights that are set in it decide the payments at its end. Chains count `tempo`
//! or `tempo + 1` blocks from one epoch to the next, so the chain's own record of the last epoch anchors a cycle, and
//! the cycle's first block is its name. With `e = tempo + 1`:
//!
//! ```text
//! start  = last_epoch + ((block - last_epoch) div e) * e      the last epoch itself, unless the chain's record is old
//! end    = start + e
//! opens  = start + e div 2
//! closes = end - max(1, e div 24)
//! ```
//!
//! The half and the margin are ComputeHorde's proportions (its margin is 15 of 361 blocks). On the public network,
//! where the tempo is 360, weights are due in `[start + 180, start + 346)`; in a development subnet with a tempo of
//! 20, in `[start + 10, start + 20)`.

use muster_protocol::{BlockNumber, Epoch};

/// The window closes this fraction of a cycle before its end, so that a late block still falls into the cycle.
const MARGIN: u64 = 24;

/// The cycle of a block, and the time to set its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The cycle, named by its first block. Later cycles have larger names.
    pub cycle: Epoch,
    /// The first block in which weights are due.
    pub opens: BlockNumber,
    /// The first block in which weights are too late.
    pub closes: BlockNumber,
    /// The block with which the next cycle is expected to begin.
    pub end: BlockNumber,
}

/// Whether weights are due now, and if not, why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowStatus {
    /// Weights are due now.
    Now,
    /// The window opens with this block.
    NotYet(BlockNumber),
    /// Weights were set in this cycle, in this block.
    Done(BlockNumber),
    /// The subnet's rate limit ends with this block.
    TooFast(BlockNumber),
    /// The window closed with this block.
    Missed(BlockNumber),
}

impl Window {
    /// The window of the cycle that `block` lies in.
    pub fn at(tempo: u16, last_epoch: BlockNumber, block: BlockNumber) -> Self {
        let length = u64::from(tempo) + 1;
        let elapsed = block.0.saturating_sub(last_epoch.0) / length;
        // Saturation is for heights that no chain reaches.
        let start = last_epoch.0.saturating_add(elapsed.saturating_mul(length));
        let end = start.saturating_add(length);
        let closes = end - (length / MARGIN).max(1);
        Self {
            cycle: Epoch(start),
            // In the shortest cycles the half would begin where the margin does: at least one block lies before it.
            opens: BlockNumber(
                start
                    .saturating_add(length / 2)
                    .min(closes.saturating_sub(1))
                    .max(start),
            ),
            closes: BlockNumber(closes),
            end: BlockNumber(end),
        }
    }

    /// Whether weights are due at `block`; `last_set` is the block of the last weights as the chain remembers it.
    ///
    /// `rate_limit` is the fewest blocks between two weights of one validator.
    pub fn due(&self, block: BlockNumber, last_set: Option<BlockNumber>, rate_limit: u64) -> WindowStatus {
        if let Some(set) = last_set.filter(|set| set.0 >= self.cycle.0 && set.0 > 0) {
            return WindowStatus::Done(set);
        }
        if block < self.opens {
            return WindowStatus::NotYet(self.opens);
        }
        if block >= self.closes {
            return WindowStatus::Missed(self.closes);
        }
        let allowed = last_set.map_or(0, |set| set.0.saturating_add(rate_limit));
        if block.0 >= allowed {
            WindowStatus::Now
        } else {
            WindowStatus::TooFast(BlockNumber(allowed))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: fn(u64) -> BlockNumber = BlockNumber;

    #[test]
    fn the_public_network_keeps_computehordes_proportions() {
        let window = Window::at(360, AT(72_200), AT(72_205));
        let expected = Window {
            cycle: Epoch(72_200),
            opens: AT(72_380),
            closes: AT(72_546),
            end: AT(72_561),
        };
        assert_eq!(window, expected);
    }

    #[test]
    fn weights_are_set_once_in_the_second_half() {
        let due = |block, set: Option<u64>| Window::at(20, AT(100), AT(block)).due(AT(block), set.map(AT), 0);
        assert_eq!(due(100, None), WindowStatus::NotYet(AT(110)));
        assert_eq!(due(110, None), WindowStatus::Now);
        assert_eq!(due(110, Some(99)), WindowStatus::Now);
        assert_eq!(due(119, Some(0)), WindowStatus::Now);
        assert_eq!(due(115, Some(110)), WindowStatus::Done(AT(110)));
        assert_eq!(due(120, Some(99)), WindowStatus::Missed(AT(120)));
        // The chain did not note an epoch at 120: the cycle goes on by itself.
        assert_eq!(due(121, Some(110)), WindowStatus::NotYet(AT(131)));
    }

    #[test]
    fn the_rate_limit_is_waited_for() {
        let window = Window::at(20, AT(100), AT(110));
        assert_eq!(
            window.due(AT(110), Some(AT(99)), 15),
            WindowStatus::TooFast(AT(114))
        );
        assert_eq!(window.due(AT(114), Some(AT(99)), 15), WindowStatus::Now);
    }

    proptest! {
        #[test]
        fn a_block_lies_in_its_cycle(tempo in prop_oneof![0_u16..6, any::<u16>()], last in 0..u64::MAX / 2, ahead in 0_u64..1_000_000) {
            let block = last + ahead;
            let window = Window::at(tempo, AT(last), AT(block));
            prop_assert!(window.cycle.0 <= block && block < window.end.0);
            prop_assert!(window.cycle.0 <= window.opens.0 && window.opens <= window.closes && window.closes < window.end);
            prop_assert!(tempo == 0 || window.opens < window.closes, "a cycle without a block to set in");
        }

        #[test]
        fn a_head_that_went_back_does_not_upset_it(tempo: u16, last: u64, block: u64) {
            let window = Window::at(tempo, AT(last), AT(block));
            prop_assert!(window.opens <= window.closes);
        }

        /// Epochs come every `tempo` or `tempo + 1` blocks; a validator that asks in every block sets weights exactly
        /// once in each.
        #[test]
        fn a_validator_that_asks_in_every_block_sets_once_a_cycle(tempo in 2_u16..60, first in 0_u64..1000, long: bool) {
            let period = u64::from(tempo) + u64::from(long);
            let mut set = None;
            let mut cycles = Vec::new();
            for block in first..first + 5 * period {
                let last = first + (block - first) / period * period;
                let window = Window::at(tempo, AT(last), AT(block));
                if window.due(AT(block), set, 0) == WindowStatus::Now {
                    set = Some(AT(block));
                    cycles.push(window.cycle.0);
                }
            }
            prop_assert_eq!(cycles, (0..5).map(|n| first + n * period).collect::<Vec<_>>());
        }
    }
}
