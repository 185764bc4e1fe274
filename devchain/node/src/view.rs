//! Which blocks the node holds in memory, with their states: the last finalised ones, those above them that are not
//! final yet, and those that a reorganisation has given up. Everything older is in the store, without its state.

use crate::block::Entry;
use muster_devchain_runtime::BlockNumber;
use sp_core::H256;
use std::collections::{HashMap, VecDeque};

/// How many blocks that were given up are still answered for.
const ABANDONED: usize = 256;

/// The blocks in memory.
pub struct View {
    /// Finalised, the last of them last. Never empty.
    finalised: VecDeque<Entry>,
    /// Above them, up to the best.
    tail: Vec<Entry>,
    abandoned: VecDeque<Entry>,
    /// Of all of them.
    numbers: HashMap<H256, BlockNumber>,
    /// How many finalised states are held.
    states: usize,
    /// The last finalised block again: `finalised` cannot show that it is never empty.
    last: Entry,
}

fn number(entry: &Entry) -> BlockNumber {
    entry.block.header.number
}

impl View {
    /// Begins with finalised blocks in their order, the last of which is `last`.
    #[must_use]
    pub fn new(before: Vec<Entry>, last: Entry, states: u32) -> Self {
        let numbers = before
            .iter()
            .chain([&last])
            .map(|entry| (entry.block.hash, number(entry)));
        Self {
            numbers: numbers.collect(),
            finalised: before.into_iter().chain([last.clone()]).collect(),
            tail: Vec::new(),
            abandoned: VecDeque::new(),
            states: usize::try_from(states).unwrap_or(usize::MAX).max(1),
            last,
        }
    }

    /// The last block.
    #[must_use]
    pub fn best(&self) -> &Entry {
        self.tail.last().unwrap_or(&self.last)
    }

    /// The last finalised block.
    #[must_use]
    pub fn finalised(&self) -> &Entry {
        &self.last
    }

    /// The blocks above the last finalised one, in their order.
    #[must_use]
    pub fn tail(&self) -> &[Entry] {
        &self.tail
    }

    /// The block with a number on the way to the best one, if it is held.
    #[must_use]
    pub fn at(&self, wanted: BlockNumber) -> Option<&Entry> {
        let within = |first: &Entry| usize::try_from(wanted.checked_sub(number(first))?).ok();
        if let Some(place) = self.tail.first().and_then(within) {
            return self.tail.get(place);
        }
        let place = self.finalised.front().and_then(within)?;
        self.finalised.get(place)
    }

    /// A block by its hash, if it is held.
    #[must_use]
    pub fn find(&self, hash: &H256) -> Option<&Entry> {
        let on_the_way = self.at(*self.numbers.get(hash)?);
        on_the_way
            .filter(|entry| entry.block.hash == *hash)
            .or_else(|| self.abandoned.iter().find(|entry| entry.block.hash == *hash))
    }

    /// Adds a block on top of the best one.
    pub fn push(&mut self, entry: Entry) {
        self.numbers.insert(entry.block.hash, number(&entry));
        self.tail.push(entry);
    }

    /// Gives up the last `depth` blocks, which must not be final, and puts others in their place. Returns what was
    /// given up.
    pub fn replace(&mut self, depth: usize, by: Vec<Entry>) -> Vec<Entry> {
        let kept = self.tail.len().saturating_sub(depth);
        let given_up = self.tail.split_off(kept);
        for entry in &given_up {
            self.abandoned.push_back(Entry {
                changes: Vec::new(),
                ..entry.clone()
            });
        }
        while self.abandoned.len() > ABANDONED {
            if let Some(oldest) = self.abandoned.pop_front() {
                self.numbers.remove(&oldest.block.hash);
            }
        }
        by.into_iter().for_each(|entry| self.push(entry));
        given_up
    }

    /// Makes the first `count` blocks above the finalised ones final, and forgets states that are too old.
    pub fn finalise(&mut self, count: usize) {
        let count = count.min(self.tail.len());
        for mut entry in self.tail.drain(..count) {
            entry.changes = Vec::new();
            self.last = entry.clone();
            self.finalised.push_back(entry);
        }
        while self.finalised.len() > self.states {
            if let Some(oldest) = self.finalised.pop_front() {
                self.numbers.remove(&oldest.block.hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::state::State;
    use muster_devchain_runtime::Header;
    use sp_runtime::traits::Header as _;
    use std::sync::Arc;

    /// A block on a branch; the branch is in its hash.
    fn entry(number: BlockNumber, branch: u8) -> Entry {
        let root = H256::repeat_byte(branch);
        let header = Header::new(number, root, root, root, sp_runtime::Digest::default());
        Entry {
            block: Arc::new(Block {
                hash: header.hash(),
                header,
                body: vec![],
                timestamp: None,
            }),
            state: State::default(),
            changes: vec![],
        }
    }

    fn view(blocks: BlockNumber, states: u32) -> View {
        let mut view = View::new(vec![], entry(0, 0), states);
        (1..=blocks).for_each(|n| view.push(entry(n, 0)));
        view
    }

    #[test]
    fn finality_follows_the_best_block() {
        let mut view = view(10, 4);
        assert_eq!((number(view.best()), number(view.finalised())), (10, 0));
        view.finalise(7);
        assert_eq!((number(view.best()), number(view.finalised())), (10, 7));
        assert_eq!(view.tail().len(), 3);
        let held: Vec<_> = (0..=11).filter(|n| view.at(*n).is_some()).collect();
        assert_eq!(
            held,
            [4, 5, 6, 7, 8, 9, 10],
            "four finalised ones and those above"
        );
        assert!(view.find(&entry(3, 0).block.hash).is_none());
        assert_eq!(view.numbers.len(), 7, "nothing is left of what was forgotten");
    }

    #[test]
    fn a_replaced_block_is_still_found() {
        let mut view = view(5, 100);
        view.finalise(2);
        let given_up = view.replace(2, vec![entry(4, 1), entry(5, 1), entry(6, 1)]);
        assert_eq!(given_up.iter().map(number).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(view.at(4).map(|e| e.block.hash), Some(entry(4, 1).block.hash));
        assert!(view.find(&entry(4, 0).block.hash).is_some());
        assert_eq!(number(view.best()), 6);
        // A final block cannot be given up.
        assert_eq!(view.replace(9, vec![]).len(), 4);
        assert_eq!(number(view.best()), 2);
    }

    #[test]
    fn memory_is_bounded() {
        let mut view = view(1, 10);
        view.finalise(1);
        for n in 2..2000 {
            view.push(entry(n, 0));
            view.replace(1, vec![entry(n, 1)]);
            view.finalise(1);
        }
        assert!(view.numbers.len() <= ABANDONED + 10, "{}", view.numbers.len());
    }
}
