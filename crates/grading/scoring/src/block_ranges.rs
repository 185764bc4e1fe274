//! Sets of blocks as ranges of consecutive ones.

use std::collections::BTreeMap;

/// A set of blocks: disjoint ranges that do not touch, by their first blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockRanges(BTreeMap<u64, u64>);

impl BlockRanges {
    /// Adds the blocks from `first` to `last`.
    pub(crate) fn insert(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        // Every known range that overlaps or touches becomes a part of the new one.
        while let Some((begin, end)) = self.touching(first, last) {
            self.0.remove(&begin);
            (first, last) = (first.min(begin), last.max(end));
        }
        self.0.insert(first, last);
    }

    /// Removes the blocks from `first` to `last`.
    pub(crate) fn remove(&mut self, first: u64, last: u64) {
        while let Some((begin, end)) = self.0.range(..=last).next_back().map(|(begin, end)| (*begin, *end))
            && end >= first
        {
            self.0.remove(&begin);
            if let Some(after) = last.checked_add(1).filter(|after| *after <= end) {
                self.0.insert(after, end);
            }
            if let Some(before) = first.checked_sub(1).filter(|before| *before >= begin) {
                self.0.insert(begin, before);
            }
        }
    }

    /// The ranges, lowest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        self.0.iter().map(|(first, last)| (*first, *last))
    }

    /// The blocks from `first` to `last` that are not in the set, as ranges, highest first.
    pub(crate) fn gaps(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        // One above the highest block that is looked at next.
        let mut above = last.saturating_add(1);
        for (begin, end) in self.0.range(..=last).rev() {
            if above <= first || *end < first {
                break;
            }
            if end.saturating_add(1) < above {
                gaps.push((end.saturating_add(1), above.saturating_sub(1)));
            }
            above = *begin;
        }
        if first < above {
            gaps.push((first, above.saturating_sub(1)));
        }
        gaps
    }

    fn touching(&self, first: u64, last: u64) -> Option<(u64, u64)> {
        let until = last.saturating_add(1);
        let (begin, end) = self.0.range(..=until).next_back()?;
        (end.saturating_add(1) >= first).then_some((*begin, *end))
    }
}

/// Numbers as ranges of consecutive ones, sorted; a repeated number counts once.
pub(crate) fn to_ranges(blocks: &[u64]) -> Vec<(u64, u64)> {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    let mut ranges = Vec::<(u64, u64)>::new();
    for block in sorted {
        match ranges.last_mut() {
            Some((_, last)) if block <= last.saturating_add(1) => *last = block.max(*last),
            Some(_) | None => ranges.push((block, block)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_hold_the_same_blocks_as_a_set(
            changes in proptest::collection::vec((any::<bool>(), 0_u64..60, 0_u64..12), 0..40), from in 0_u64..70,
            length in 0_u64..30,
        ) {
            let (mut ranges, mut set) = (BlockRanges::default(), BTreeSet::new());
            for (adds, first, more) in changes {
                let blocks = first..=first + more;
                if adds {
                    ranges.insert(first, first + more);
                    set.extend(blocks);
                } else {
                    ranges.remove(first, first + more);
                    set.retain(|block| !blocks.contains(block));
                }
            }
            let held: Vec<u64> = ranges.iter().flat_map(|(first, last)| first..=last).collect();
            let sorted: Vec<u64> = set.iter().copied().collect();
            prop_assert_eq!(&held, &sorted);
            let list: Vec<_> = ranges.iter().collect();
            prop_assert_eq!(&to_ranges(&sorted), &list, "no two ranges touch");
            let mut gaps: Vec<u64> =
                ranges.gaps(from, from + length).into_iter().flat_map(|(first, last)| (first..=last).rev()).collect();
            prop_assert!(gaps.is_sorted_by(|a, b| a > b), "highest first: {:?}", gaps);
            gaps.reverse();
            let free: Vec<u64> = (from..=from + length).filter(|block| !set.contains(block)).collect();
            prop_assert_eq!(gaps, free);
        }
    }

    #[test]
    fn the_highest_block_is_no_exception() {
        let mut ranges = BlockRanges::default();
        ranges.insert(u64::MAX, u64::MAX);
        ranges.insert(0, 3);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 3), (u64::MAX, u64::MAX)]);
        ranges.remove(1, u64::MAX);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 0)]);
    }
}
