//! The root of the state, kept up with each block by what the block changed. Computed from nothing it costs a walk over
//! all keys, which for a subnet of thousands of neurons takes longer than the time between blocks.

use sp_core::{Blake2Hasher, H256};
use sp_trie::{LayoutV1, PrefixedMemoryDB, delta_trie_root, empty_trie_root};
use std::sync::Arc;

type Layout = LayoutV1<Blake2Hasher>;
type Value = Arc<[u8]>;

/// Nodes that nothing refers to any more are removed after this many updates.
const UPDATES_BETWEEN_PURGES: u32 = 64;

/// The nodes of one state's trie.
pub struct Roots {
    nodes: PrefixedMemoryDB<Blake2Hasher>,
    root: H256,
    updates: u32,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            nodes: PrefixedMemoryDB::default(),
            root: empty_trie_root::<Layout>(),
            updates: 0,
        }
    }
}

impl Roots {
    /// The root of a state that differs from the one with root `base` at most in the keys `touched`, which come in
    /// order with their values now. `all` are all its keys: they are needed where this last saw another state than
    /// either.
    pub fn update<'a, T, A>(&mut self, base: H256, touched: T, all: impl FnOnce() -> A) -> H256
    where
        T: Iterator<Item = (&'a [u8], Option<&'a Value>)>,
        A: Iterator<Item = (&'a [u8], Option<&'a Value>)>,
    {
        // An earlier update of the same block leaves a root that nobody but its caller knows: begin anew then.
        let updated = if self.root == base {
            self.apply(touched)
        } else {
            *self = Self::default();
            self.apply(all())
        };
        match updated {
            Some(root) => root,
            // Not known to happen: every node was put there by this type.
            None => {
                tracing::error!("the trie of the state has a hole; its root is not kept");
                *self = Self::default();
                H256::zero()
            }
        }
    }

    fn apply<'a>(&mut self, delta: impl Iterator<Item = (&'a [u8], Option<&'a Value>)>) -> Option<H256> {
        let delta = delta.map(|(key, value)| (key, value.cloned()));
        self.root =
            delta_trie_root::<Layout, _, _, _, _, _>(&mut self.nodes, self.root, delta, None, None).ok()?;
        self.updates = self.updates.saturating_add(1);
        if self.updates.is_multiple_of(UPDATES_BETWEEN_PURGES) {
            self.nodes.purge();
        }
        Some(self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::State;
    use std::collections::BTreeMap;

    /// A small generator of its own: the same numbers in every run.
    fn random(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *seed >> 33
    }

    #[test]
    fn it_is_the_root_computed_from_nothing() {
        let (mut roots, mut seed) = (Roots::default(), 7);
        let mut base = State::default();
        let mut base_root = base.root();
        for round in 0..300 {
            let mut delta = BTreeMap::new();
            for _ in 0..random(&mut seed) % 20 {
                let key = random(&mut seed) % 200;
                // Long values lie in nodes of their own.
                let length = usize::try_from(random(&mut seed) % 80).unwrap();
                let value =
                    (!random(&mut seed).is_multiple_of(3)).then(|| vec![u8::try_from(key).unwrap(); length]);
                delta.insert(format!("key{key}").into_bytes(), value);
            }
            let next = base.with(delta.clone().into_iter().collect());
            let arcs = |entries: Vec<(Vec<u8>, Option<Vec<u8>>)>| -> Vec<(Vec<u8>, Option<Value>)> {
                entries.into_iter().map(|(k, v)| (k, v.map(Into::into))).collect()
            };
            let (touched, all) = (arcs(delta.into_iter().collect()), arcs(next.entries()));
            let root = roots.update(
                base_root,
                touched.iter().map(|(k, v)| (k.as_slice(), v.as_ref())),
                || all.iter().map(|(k, v)| (k.as_slice(), v.as_ref())),
            );
            assert_eq!(root, next.root(), "round {round}");
            // Every few rounds the next block builds on another state than the last one.
            if round % 7 != 0 {
                (base, base_root) = (next, root);
            }
        }
    }
}
