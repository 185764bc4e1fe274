//! Slots and what they hold: a finished text stays until its slot is needed, as a prefix for whoever begins alike.

/// The engine's record of the backend's slots. No numbers of the model are here.
pub(super) struct Slots(Vec<Slot>);

#[derive(Default)]
struct Slot {
    tokens: Vec<u32>,
    busy: bool,
    /// When it was last used, in uses.
    used: u64,
}

/// The work needed to begin a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The slot it gets.
    pub(super) slot: usize,
    /// The slot whose beginning it takes, if that is another one.
    pub(super) copy: Option<usize>,
    /// How many of its tokens are at hand.
    pub(super) known: usize,
}

/// A prefix shorter than this is computed again rather than copied.
const WORTH: usize = 8;

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Slot::default()).collect())
    }

    /// A place for a text of which at most `most` tokens may be taken from elsewhere; none while all are busy.
    ///
    /// The longest common beginning wins. Its slot is taken over where nothing of it is lost, and copied from
    /// otherwise.
    pub(super) fn place(&mut self, tokens: &[u32], most: usize, now: u64) -> Option<Place> {
        let common = |slot: &Slot| {
            slot.tokens
                .iter()
                .zip(tokens)
                .take(most)
                .take_while(|(a, b)| a == b)
                .count()
        };
        let (source, known) = self
            .0
            .iter()
            .map(common)
            .enumerate()
            .max_by_key(|(index, known)| (*known, std::cmp::Reverse(*index)))
            .filter(|(_, known)| *known >= WORTH)
            .map_or((None, 0), |(index, known)| (Some(index), known));
        let whole = source.filter(|index| {
            self.0
                .get(*index)
                .is_some_and(|slot| !slot.busy && slot.tokens.len() == known)
        });
        let oldest = || {
            let free = self.0.iter().enumerate().filter(|(_, slot)| !slot.busy);
            free.min_by_key(|(index, slot)| (slot.used, Some(*index) == source))
                .map(|(index, _)| index)
        };
        let slot = whole.or_else(oldest)?;
        let taken = self.0.get_mut(slot)?;
        taken.busy = true;
        taken.used = now;
        taken.tokens = tokens.get(..known).unwrap_or_default().to_vec();
        Some(Place {
            slot,
            copy: source.filter(|source| *source != slot),
            known,
        })
    }

    /// Writes down what the backend has taken in.
    pub(super) fn extend(&mut self, slot: usize, tokens: &[u32]) {
        if let Some(slot) = self.0.get_mut(slot) {
            slot.tokens.extend_from_slice(tokens);
        }
    }

    pub(super) fn free(&mut self, slot: usize) {
        if let Some(slot) = self.0.get_mut(slot) {
            slot.busy = false;
        }
    }

    /// Nothing in it can be trusted any more.
    pub(super) fn forget(&mut self, slot: usize) {
        if let Some(slot) = self.0.get_mut(slot) {
            slot.tokens.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_goes_on_takes_its_slot_over_and_one_that_branches_copies() {
        let mut slots = Slots::new(3);
        let text: Vec<u32> = (0..20).collect();
        let first = slots.place(&text, 19, 1).unwrap();
        assert_eq!((first.copy, first.known), (None, 0));
        slots.extend(first.slot, &text);
        // Still busy: copied from.
        let second = slots.place(&text, 19, 2).unwrap();
        assert_eq!((second.copy, second.known), (Some(first.slot), 19));
        slots.free(first.slot);
        let longer: Vec<u32> = (0..25).collect();
        let third = slots.place(&longer, 24, 3).unwrap();
        assert_eq!(
            third,
            Place {
                slot: first.slot,
                copy: None,
                known: 20
            }
        );
    }

    #[test]
    fn the_oldest_goes_first_and_none_is_left_when_all_are_busy() {
        let mut slots = Slots::new(2);
        let a = slots.place(&[1], 0, 1).unwrap().slot;
        let b = slots.place(&[2], 0, 2).unwrap().slot;
        assert_ne!(a, b);
        assert_eq!(slots.place(&[3], 0, 3), None);
        slots.free(b);
        slots.free(a);
        assert_eq!(slots.place(&[3], 0, 4).unwrap().slot, a);
    }
}
