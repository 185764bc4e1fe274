//! Who waits, and who is next: one line for each user, and the users take turns.

use std::collections::{BTreeMap, VecDeque};

/// Why there is no place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// All places together are taken.
    Queue,
    /// This user has as many in it as one may have.
    User,
}

/// A bounded queue in which users take turns. One user's thousand requests hold up nobody else's one.
#[derive(Clone, Debug)]
pub struct FairQueue<U, T> {
    most: usize,
    most_of_one: usize,
    length: usize,
    lines: BTreeMap<U, VecDeque<T>>,
    /// Users who wait, the next one first.
    turns: VecDeque<U>,
}

impl<U: Ord + Clone, T: PartialEq> FairQueue<U, T> {
    /// A queue of `most` places, `most_of_one` of them for one user.
    pub const fn new(most: usize, most_of_one: usize) -> Self {
        Self {
            most,
            most_of_one,
            length: 0,
            lines: BTreeMap::new(),
            turns: VecDeque::new(),
        }
    }

    /// How many wait.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether nobody does.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many of one user wait.
    pub fn of(&self, user: &U) -> usize {
        self.lines.get(user).map_or(0, VecDeque::len)
    }

    /// Joins the end of the user's line.
    ///
    /// # Errors
    /// There is no place.
    pub fn join(&mut self, user: U, item: T) -> Result<(), Full> {
        if self.of(&user) >= self.most_of_one {
            return Err(Full::User);
        }
        if self.length >= self.most {
            return Err(Full::Queue);
        }
        if self.of(&user) == 0 {
            self.turns.push_back(user.clone());
        }
        self.lines.entry(user).or_default().push_back(item);
        self.length += 1;
        Ok(())
    }

    /// Goes back to the front: whoever had their turn and was let down is the next one. There is always place for them.
    pub fn rejoin(&mut self, user: U, item: T) {
        self.turns.retain(|waiting| *waiting != user);
        self.turns.push_front(user.clone());
        self.lines.entry(user).or_default().push_front(item);
        self.length += 1;
    }

    /// The next one's user; what [`Self::take`] would take.
    pub fn next_user(&self) -> Option<&U> {
        self.turns.front()
    }

    /// Takes the next one. Their user goes to the end of the turns.
    pub fn take(&mut self) -> Option<T> {
        let user = self.turns.pop_front()?;
        let line = self.lines.get_mut(&user)?;
        let item = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&user);
        } else {
            self.turns.push_back(user);
        }
        if item.is_some() {
            self.length -= 1;
        }
        item
    }

    /// Takes one out of the middle. `false` if it does not wait.
    pub fn leave(&mut self, user: &U, item: &T) -> bool {
        let Some(line) = self.lines.get_mut(user) else {
            return false;
        };
        let before = line.len();
        line.retain(|waiting| waiting != item);
        let left = before - line.len();
        if line.is_empty() {
            self.lines.remove(user);
            self.turns.retain(|waiting| waiting != user);
        }
        self.length -= left;
        left > 0
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
        assert_eq!(queue.join('a', 3), Err(Full::User));
        assert_eq!(queue.join('b', 4), Ok(()));
        assert_eq!(queue.join('c', 5), Err(Full::Queue));
        queue.rejoin('c', 0);
        assert_eq!(queue.len(), 4, "who was let down always has a place");
        let order: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(
            order,
            [0, 1, 4, 2],
            "the one who was let down, then users in turn"
        );
    }

    proptest! {
        /// Between two turns of one user, everybody who waited all the while has had one.
        #[test]
        fn nobody_is_passed_over_twice(joins in proptest::collection::vec((0_u8..6, 0_u8..3), 1..200)) {
            let mut queue = FairQueue::new(1_000, 1_000);
            let mut number = 0_u32;
            for (user, takes) in joins {
                number += 1;
                queue.join(user, (user, number)).unwrap();
                for _ in 0..takes {
                    let waited: Vec<u8> = queue.lines.keys().copied().collect();
                    let Some((served, _)) = queue.take() else { break };
                    if queue.of(&served) == 0 {
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
        fn what_joins_leaves_once(
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
