//! A sorted set that knows the index of each of its keys.

use std::cmp::Ordering;

/// A subtree may weigh at most this many times as much as its sibling.
const HEAVIEST: usize = 3;
/// The inner grandchild that weighs at least this many times as much as the outer one is rotated first.
const INNER: usize = 2;

type Link<K> = Option<Box<Node<K>>>;

#[derive(Clone, Debug)]
struct Node<K> {
    key: K,
    /// Keys of this subtree.
    size: usize,
    left: Link<K>,
    right: Link<K>,
}

/// A set of keys in order, as a weight-balanced tree. [`Self::insert`], [`Self::remove`], [`Self::index_of`],
/// [`Self::count_below`] and [`Self::get`] cost O(log n) comparisons, whatever the order in which keys come and go.
#[derive(Clone, Debug)]
pub(crate) struct RankedSet<K> {
    root: Link<K>,
}

impl<K> Default for RankedSet<K> {
    fn default() -> Self {
        Self { root: None }
    }
}

impl<K: Ord> RankedSet<K> {
    pub(crate) fn len(&self) -> usize {
        size(&self.root)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Adds a key; `false` if it is there already.
    pub(crate) fn insert(&mut self, key: K) -> bool {
        insert(&mut self.root, key)
    }

    /// Removes a key; `false` if it is not there.
    pub(crate) fn remove(&mut self, key: &K) -> bool {
        remove(&mut self.root, key)
    }

    /// Number of keys that are lower than this one, which need not be in the set.
    pub(crate) fn count_below(&self, key: &K) -> usize {
        self.find(key).0
    }

    /// Number of keys that are lower than this one; `None` if it is not in the set.
    pub(crate) fn index_of(&self, key: &K) -> Option<usize> {
        let (below, is_here) = self.find(key);
        is_here.then_some(below)
    }

    /// The key with this index.
    pub(crate) fn get(&self, mut index: usize) -> Option<&K> {
        let mut link = &self.root;
        while let Some(node) = link {
            let below = size(&node.left);
            match index.cmp(&below) {
                Ordering::Less => link = &node.left,
                Ordering::Equal => return Some(&node.key),
                Ordering::Greater => {
                    index = index.saturating_sub(below).saturating_sub(1);
                    link = &node.right;
                }
            }
        }
        None
    }

    fn find(&self, key: &K) -> (usize, bool) {
        let mut link = &self.root;
        let mut below: usize = 0;
        while let Some(node) = link {
            match key.cmp(&node.key) {
                Ordering::Less => link = &node.left,
                Ordering::Equal => return (below.saturating_add(size(&node.left)), true),
                Ordering::Greater => {
                    below = below.saturating_add(size(&node.left)).saturating_add(1);
                    link = &node.right;
                }
            }
        }
        (below, false)
    }
}

fn size<K>(link: &Link<K>) -> usize {
    link.as_ref().map_or(0, |node| node.size)
}

fn weight<K>(link: &Link<K>) -> usize {
    size(link).saturating_add(1)
}

impl<K> Node<K> {
    fn count(&mut self) {
        self.size = size(&self.left)
            .saturating_add(size(&self.right))
            .saturating_add(1);
    }
}

fn insert<K: Ord>(link: &mut Link<K>, key: K) -> bool {
    let Some(node) = link else {
        *link = Some(Box::new(Node {
            key,
            size: 1,
            left: None,
            right: None,
        }));
        return true;
    };
    let is_new = match key.cmp(&node.key) {
        Ordering::Less => insert(&mut node.left, key),
        Ordering::Equal => false,
        Ordering::Greater => insert(&mut node.right, key),
    };
    if is_new {
        rebalance(link);
    }
    is_new
}

fn remove<K: Ord>(link: &mut Link<K>, key: &K) -> bool {
    let Some(node) = link else { return false };
    let was_here = match key.cmp(&node.key) {
        Ordering::Less => remove(&mut node.left, key),
        Ordering::Equal => {
            remove_root(link);
            return true;
        }
        Ordering::Greater => remove(&mut node.right, key),
    };
    if was_here {
        rebalance(link);
    }
    was_here
}

/// Removes the root of a subtree. The next key takes its place.
fn remove_root<K>(link: &mut Link<K>) {
    let Some(mut node) = link.take() else { return };
    let mut right = node.right.take();
    *link = match take_first(&mut right) {
        Some(mut next) => {
            next.left = node.left.take();
            next.right = right;
            Some(next)
        }
        None => node.left.take(),
    };
    rebalance(link);
}

/// Removes the lowest key of a subtree.
fn take_first<K>(link: &mut Link<K>) -> Link<K> {
    let mut node = link.take()?;
    let first = take_first(&mut node.left);
    if first.is_none() {
        *link = node.right.take();
        return Some(node);
    }
    *link = Some(node);
    rebalance(link);
    first
}

/// Counts the keys of a subtree anew, after one key of a child came or went, and restores its balance.
fn rebalance<K>(link: &mut Link<K>) {
    let Some(node) = link else { return };
    node.count();
    let (left, right) = (weight(&node.left), weight(&node.right));
    if right > left.saturating_mul(HEAVIEST) {
        if let Some(child) = &node.right
            && weight(&child.left) >= weight(&child.right).saturating_mul(INNER)
        {
            rotate_right(&mut node.right);
        }
        rotate_left(link);
    } else if left > right.saturating_mul(HEAVIEST) {
        if let Some(child) = &node.left
            && weight(&child.right) >= weight(&child.left).saturating_mul(INNER)
        {
            rotate_left(&mut node.left);
        }
        rotate_right(link);
    }
}

/// The right child becomes the root.
fn rotate_left<K>(link: &mut Link<K>) {
    let Some(mut node) = link.take() else { return };
    let Some(mut child) = node.right.take() else {
        *link = Some(node);
        return;
    };
    node.right = child.left.take();
    node.count();
    child.left = Some(node);
    child.count();
    *link = Some(child);
}

/// The left child becomes the root.
fn rotate_right<K>(link: &mut Link<K>) {
    let Some(mut node) = link.take() else { return };
    let Some(mut child) = node.left.take() else {
        *link = Some(node);
        return;
    };
    node.left = child.right.take();
    node.count();
    child.right = Some(node);
    child.count();
    *link = Some(child);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The height of a subtree whose sizes and balance are right.
    fn height<K>(link: &Link<K>) -> usize {
        let Some(node) = link else { return 0 };
        let (left, right) = (weight(&node.left), weight(&node.right));
        assert_eq!(node.size, left + right - 1);
        assert!(
            left <= right * HEAVIEST && right <= left * HEAVIEST,
            "{left} and {right}"
        );
        1 + height(&node.left).max(height(&node.right))
    }

    fn check(set: &RankedSet<u16>, model: &BTreeSet<u16>) {
        height(&set.root);
        assert_eq!(set.len(), model.len());
        assert_eq!(set.is_empty(), model.is_empty());
        for (index, key) in model.iter().enumerate() {
            assert_eq!(set.get(index), Some(key));
            assert_eq!(set.index_of(key), Some(index));
        }
        assert_eq!(set.get(model.len()), None);
    }

    proptest! {
        #[test]
        fn a_ranked_set_does_what_a_sorted_list_does(
            steps in proptest::collection::vec((any::<bool>(), 0u16..64, 0u16..66), 1..300),
        ) {
            let (mut set, mut model) = (RankedSet::default(), BTreeSet::new());
            for (insert, key, probe) in steps {
                if insert {
                    prop_assert_eq!(set.insert(key), model.insert(key));
                } else {
                    prop_assert_eq!(set.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(set.count_below(&probe), model.range(..probe).count());
                prop_assert_eq!(set.index_of(&probe).is_some(), model.contains(&probe));
                check(&set, &model);
            }
        }
    }

    #[test]
    fn keys_in_order_make_a_low_tree() {
        let mut set = RankedSet::default();
        for key in 0..100_000u32 {
            set.insert(key);
        }
        // A tree of this balance is at most log(n) / log(4/3) high, which is 40 levels for 100,000 keys.
        let full = height(&set.root);
        assert!(full <= 40, "{full} levels");
        for key in 0..99_000u32 {
            set.remove(&key);
        }
        let rest = height(&set.root);
        assert!(rest <= 24, "{rest} levels for a thousand keys");
        assert_eq!(set.get(0), Some(&99_000));
    }
}
