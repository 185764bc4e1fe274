//! A bounded queue in which users take turns.

use std::collections::{BTreeMap, VecDeque};

/// Why an item cannot join the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// Every place is taken.
    Everyone,
    /// The user has as many places as one user may have.
    User,
}

/// A bounded queue in which users take turns, so that the many requests of one user do not delay those of others.
#[derive(Clone, Debug)]
pub struct FairQueue<U, T> {
    max: usize,
    max_of_one: usize,
    length: usize,
    /// The items of each user who waits, in the order of their arrival.
    items: BTreeMap<U, VecDeque<T>>,
    /// The users who wait, the next one first.
    turns: VecDeque<U>,
}

impl<U: Ord + Clone, T: PartialEq> FairQueue<U, T> {
    /// A queue of `max` places, of which one user may take `max_of_one`.
    pub const fn new(max: usize, max_of_one: usize) -> Self {
        Self {
            max,
            max_of_one,
            length: 0,
            items: BTreeMap::new(),
            turns: VecDeque::new(),
        }
    }

    /// The number of items that wait.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether no item waits.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The number of items of one user that wait.
    pub fn len_of(&self, user: &U) -> usize {
        self.items.get(user).map_or(0, VecDeque::len)
    }

    /// The number of items that [`Self::take`] takes before this one; `None` if it does not wait.
    pub fn ahead_of(&self, user: &U, item: &T) -> Option<usize> {
        let own = self.items.get(user)?.iter().position(|waiting| waiting == item)?;
        // Every user before this one has one turn more.
        let before = self.turns.iter().take_while(|waiting| *waiting != user);
        let before: Vec<&U> = before.collect();
        let others = self.items.iter().filter(|(waiting, _)| *waiting != user);
        let turns = others.map(|(waiting, items)| {
            let most = own.saturating_add(usize::from(before.contains(&waiting)));
            items.len().min(most)
        });
        Some(turns.fold(own, usize::saturating_add))
    }

    /// Adds an item after the user's other items.
    ///
    /// # Errors
    /// The queue is full, or the user's share of it.
    pub fn join(&mut self, user: U, item: T) -> Result<(), QueueFull> {
        if self.len_of(&user) >= self.max_of_one {
            return Err(QueueFull::User);
        }
        if self.length >= self.max {
            return Err(QueueFull::Everyone);
        }
        if self.len_of(&user) == 0 {
            self.turns.push_back(user.clone());
        }
        self.items.entry(user).or_default().push_back(item);
        self.length += 1;
        Ok(())
    }

    /// Puts an item back that was taken and could not be served. It is the next one, and it is taken even if the queue
    /// is full.
    pub fn rejoin(&mut self, user: U, item: T) {
        self.turns.retain(|waiting| *waiting != user);
        self.turns.push_front(user.clone());
        self.items.entry(user).or_default().push_front(item);
        self.length += 1;
    }

    /// The user of the item that [`Self::take`] would take.
    pub fn next_user(&self) -> Option<&U> {
        self.turns.front()
    }

    /// Takes the next item. Its user's next turn comes after those of all other users.
    pub fn take(&mut self) -> Option<T> {
        let user = self.turns.pop_front()?;
        let items = self.items.get_mut(&user)?;
        let item = items.pop_front();
        if items.is_empty() {
            self.items.remove(&user);
        } else {
            self.turns.push_back(user);
        }
        if item.is_some() {
            self.length -= 1;
        }
        item
    }

    /// Removes an item. `false` if it does not wait.
    pub fn leave(&mut self, user: &U, item: &T) -> bool {
        let Some(items) = self.items.get_mut(user) else {
            return false;
        };
        let before = items.len();
        items.retain(|waiting| waiting != item);
        let removed = before - items.len();
        if items.is_empty() {
            self.items.remove(user);
            self.turns.retain(|waiting| waiting != user);
        }
        self.length -= removed;
        removed > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places_are_bounded_for_all_and_for_each() {
        let mut queue = FairQueue::new(3, 2);
        assert_eq!(queue.join('a', 1), Ok(()));
        assert_eq!(queue.join('a', 2), Ok(()));
        assert_eq!(queue.join('a', 3), Err(QueueFull::User));
        assert_eq!(queue.join('b', 4), Ok(()));
        assert_eq!(queue.join('c', 5), Err(QueueFull::Everyone));
        queue.rejoin('c', 0);
        assert_eq!(queue.len(), 4, "an item that rejoins always has a place");
        let order: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(order, [0, 1, 4, 2], "the item that rejoined, then users in turn");
    }

    proptest! {
        /// Between two turns of one user, every other user who waited all the while has had one.
        #[test]
        fn nobody_is_passed_over_twice(joins in proptest::collection::vec((0_u8..6, 0_u8..3), 1..200)) {
            let mut queue = FairQueue::new(1_000, 1_000);
            let mut number = 0_u32;
            for (user, takes) in joins {
                number += 1;
                queue.join(user, (user, number)).unwrap();
                for _ in 0..takes {
                    let waited: Vec<u8> = queue.items.keys().copied().collect();
                    let Some((served, _)) = queue.take() else { break };
                    if queue.len_of(&served) == 0 {
                        continue;
                    }
                    // Until this user is served again, look who was.
                    let (mut since, mut later) = (std::collections::BTreeSet::new(), queue.clone());
                    while let Some((next, _)) = later.take() {
                        if next == served { break }
                        prop_assert!(since.insert(next), "{next} had two turns before {served} had one");
                    }
                    for user in waited.iter().filter(|user| **user != served) {
                        prop_assert!(since.contains(user), "{user} waited and was passed over");
                    }
                }
            }
        }

        #[test]
        fn a_place_is_the_number_of_items_that_are_taken_before(
            joins in proptest::collection::vec((0_u8..5, any::<bool>()), 1..60),
        ) {
            let mut queue = FairQueue::new(1_000, 1_000);
            for (number, (user, takes)) in joins.into_iter().enumerate() {
                queue.join(user, (user, number)).unwrap();
                if takes { queue.take(); }
            }
            let mut later = queue.clone();
            let mut taken = 0;
            while let Some((user, number)) = later.take() {
                prop_assert_eq!(queue.ahead_of(&user, &(user, number)), Some(taken));
                taken += 1;
            }
            prop_assert_eq!(queue.ahead_of(&0, &(0, usize::MAX)), None);
        }

        #[test]
        fn an_item_that_joins_a_queue_leaves_it_once(
            moves in proptest::collection::vec((0_u8..4, 0_u32..20, any::<bool>()), 0..200),
        ) {
            let mut queue = FairQueue::new(30, 10);
            let mut model = Vec::new();
            for (user, item, joins) in moves {
                if joins {
                    if !model.contains(&(user, item)) && queue.join(user, item).is_ok() {
                        model.push((user, item));
                    }
                } else {
                    let had = model.iter().position(|one| *one == (user, item));
                    prop_assert_eq!(queue.leave(&user, &item), had.is_some());
                    if let Some(at) = had { model.remove(at); }
                }
                prop_assert_eq!(queue.len(), model.len());
            }
            let mut left = 0;
            while queue.take().is_some() { left += 1; }
            prop_assert_eq!(left, model.len());
            prop_assert!(queue.is_empty() && queue.next_user().is_none());
        }
    }
}
