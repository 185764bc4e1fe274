//! The state after one block: an immutable map from keys to values that shares its structure with the states around it.
//! The runtime works on an overlay of it, which either becomes the next state or is dropped.

use crate::root::Roots;
use codec::{Encode, EncodeAppend};
use imbl::OrdMap;
use sp_core::H256;
use sp_core::storage::{ChildInfo, StateVersion, Storage, TrackedStorageKey};
use sp_externalities::{Extension, ExtensionStore, Extensions, Externalities, MultiRemovalResults};
use sp_runtime::traits::{BlakeTwo256, Hash};
use sp_trie::{LayoutV1, TrieConfiguration};
use std::any::{Any, TypeId};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

type Map = OrdMap<Arc<[u8]>, Arc<[u8]>>;

/// A key and its value; none where it has none.
pub type Change = (Vec<u8>, Option<Vec<u8>>);

/// The state after one block. Cloning costs nothing.
#[derive(Clone, Default)]
pub struct State(Map);

impl State {
    /// The state that a genesis configuration describes. Child tries are dropped: no pallet of this chain has one.
    #[must_use]
    pub fn from_storage(storage: Storage) -> Self {
        let arcs =
            |(key, value): (Vec<u8>, Vec<u8>)| -> (Arc<[u8]>, Arc<[u8]>) { (key.into(), value.into()) };
        Self(storage.top.into_iter().map(arcs).collect())
    }

    /// The state with these entries.
    #[must_use]
    pub fn from_entries(entries: Vec<Change>) -> Self {
        Self::default().with(entries)
    }

    /// This state after some changes.
    #[must_use]
    pub fn with(&self, changes: Vec<Change>) -> Self {
        let mut map = self.0.clone();
        for (key, value) in changes {
            match value {
                Some(value) => drop(map.insert(key.into(), value.into())),
                None => drop(map.remove(key.as_slice())),
            }
        }
        Self(map)
    }

    /// All entries, as changes to an empty state.
    #[must_use]
    pub fn entries(&self) -> Vec<Change> {
        let entries = self.0.iter();
        entries
            .map(|(key, value)| (key.to_vec(), Some(value.to_vec())))
            .collect()
    }

    /// The root of the state's trie, computed from nothing.
    #[must_use]
    pub fn root(&self) -> H256 {
        LayoutV1::<sp_core::Blake2Hasher>::trie_root(self.0.iter())
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.get(key).map(AsRef::as_ref)
    }

    /// The keys with a prefix, in order, after `start` where one is given.
    pub fn keys<'a>(
        &'a self,
        prefix: &'a [u8],
        start: Option<&'a [u8]>,
    ) -> impl Iterator<Item = &'a [u8]> + 'a {
        let from = match start {
            Some(start) if start >= prefix => Bound::Excluded(start),
            Some(_) | None => Bound::Included(prefix),
        };
        self.0
            .range::<_, [u8]>((from, Bound::Unbounded))
            .map(|(key, _)| key.as_ref())
            .take_while(move |key| key.starts_with(prefix))
    }

    /// Runs the runtime on this state and forgets what it changed.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        Overlay::new(self).run(f)
    }
}

/// A state that the runtime is changing.
pub struct Overlay {
    map: Map,
    /// The map as it was when each open transaction began, innermost last.
    open: Vec<Map>,
    /// Every key that was written since the beginning, even if what was written is gone again.
    touched: BTreeSet<Arc<[u8]>>,
    /// The trie that knows the root of the state that this began with.
    roots: Option<(Arc<Mutex<Roots>>, H256)>,
    extensions: Extensions,
}

impl Overlay {
    /// Begins with a state.
    #[must_use]
    pub fn new(state: &State) -> Self {
        Self {
            map: state.0.clone(),
            open: Vec::new(),
            touched: BTreeSet::new(),
            roots: None,
            extensions: Extensions::default(),
        }
    }

    /// Computes roots from the one of the state that this begins with, instead of from nothing.
    #[must_use]
    pub fn with_roots(mut self, roots: Arc<Mutex<Roots>>, root: H256) -> Self {
        self.roots = Some((roots, root));
        self
    }

    /// The differences from the state that this began with.
    #[must_use]
    pub fn changes(&self, since: &State) -> Vec<Change> {
        let differs = |key: &&Arc<[u8]>| since.0.get(*key) != self.map.get(*key);
        let changed = self.touched.iter().filter(differs);
        changed
            .map(|key| (key.to_vec(), self.map.get(key).map(|value| value.to_vec())))
            .collect()
    }

    /// Runs the runtime on what earlier runs left.
    pub fn run<R>(&mut self, f: impl FnOnce() -> R) -> R {
        sp_externalities::set_and_run_with_externalities(self, f)
    }

    /// The state after the runs so far.
    #[must_use]
    pub fn state(&self) -> State {
        State(self.map.clone())
    }

    /// Goes back to a state and closes every transaction: what a panic in the runtime requires.
    pub fn restore(&mut self, state: &State) {
        self.map = state.0.clone();
        self.open.clear();
    }

    fn no_child_tries(operation: &str) {
        tracing::error!(
            operation,
            "the runtime used a child trie, which this chain does not have; ignored"
        );
    }
}

/// Bytes that are already encoded.
struct Encoded(Vec<u8>);

impl Encode for Encoded {
    fn encode_to<O: codec::Output + ?Sized>(&self, out: &mut O) {
        out.write(&self.0);
    }
}

impl codec::EncodeLike for Encoded {}

impl Externalities for Overlay {
    fn set_offchain_storage(&mut self, _key: &[u8], _value: Option<&[u8]>) {}

    fn storage(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.map.get(key).map(|value| value.to_vec())
    }

    fn exists_storage(&mut self, key: &[u8]) -> bool {
        self.map.contains_key(key)
    }

    fn storage_hash(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.map.get(key).map(|value| BlakeTwo256::hash(value).encode())
    }

    fn next_storage_key(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let mut after = self
            .map
            .range::<_, [u8]>((Bound::Excluded(key), Bound::Unbounded));
        after.next().map(|(key, _)| key.to_vec())
    }

    fn place_storage(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let key: Arc<[u8]> = key.into();
        match value {
            Some(value) => {
                self.map.insert(Arc::clone(&key), value.into());
            }
            None => {
                self.map.remove(&key);
            }
        }
        self.touched.insert(key);
    }

    fn clear_prefix(
        &mut self,
        prefix: &[u8],
        _limit: Option<u32>,
        _cursor: Option<&[u8]>,
    ) -> MultiRemovalResults {
        let doomed: Vec<Arc<[u8]>> = self
            .map
            .range::<_, [u8]>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, _)| Arc::clone(key))
            .collect();
        for key in &doomed {
            self.map.remove(key.as_ref());
            self.touched.insert(Arc::clone(key));
        }
        let count = u32::try_from(doomed.len()).unwrap_or(u32::MAX);
        MultiRemovalResults {
            maybe_cursor: None,
            backend: count,
            unique: count,
            loops: count,
        }
    }

    fn storage_append(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let old = self
            .map
            .get(key.as_slice())
            .map(|value| value.to_vec())
            .unwrap_or_default();
        // As the runtime expects of its host: what is not a list becomes one.
        let new = Vec::<Encoded>::append_or_new(old, [Encoded(value.clone())])
            .or_else(|_| Vec::<Encoded>::append_or_new(Vec::new(), [Encoded(value)]));
        if let Ok(new) = new {
            self.place_storage(key, Some(new));
        }
    }

    fn storage_root(&mut self, _version: StateVersion) -> Vec<u8> {
        let Some((roots, base)) = &self.roots else {
            return self.state().root().encode();
        };
        let mut roots = roots.lock().unwrap_or_else(PoisonError::into_inner);
        let touched = self.touched.iter().map(|key| (key.as_ref(), self.map.get(key)));
        let all = || self.map.iter().map(|(key, value)| (key.as_ref(), Some(value)));
        roots.update(*base, touched, all).encode()
    }

    fn storage_start_transaction(&mut self) {
        self.open.push(self.map.clone());
    }

    fn storage_rollback_transaction(&mut self) -> Result<(), ()> {
        self.map = self.open.pop().ok_or(())?;
        Ok(())
    }

    fn storage_commit_transaction(&mut self) -> Result<(), ()> {
        self.open.pop().map(drop).ok_or(())
    }

    fn child_storage(&mut self, _child: &ChildInfo, _key: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn child_storage_hash(&mut self, _child: &ChildInfo, _key: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn next_child_storage_key(&mut self, _child: &ChildInfo, _key: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn place_child_storage(&mut self, _child: &ChildInfo, _key: Vec<u8>, _value: Option<Vec<u8>>) {
        Self::no_child_tries("place_child_storage");
    }

    fn kill_child_storage(
        &mut self,
        _child: &ChildInfo,
        _limit: Option<u32>,
        _cursor: Option<&[u8]>,
    ) -> MultiRemovalResults {
        Self::no_child_tries("kill_child_storage");
        MultiRemovalResults {
            maybe_cursor: None,
            backend: 0,
            unique: 0,
            loops: 0,
        }
    }

    fn clear_child_prefix(
        &mut self,
        _child: &ChildInfo,
        _prefix: &[u8],
        _limit: Option<u32>,
        _cursor: Option<&[u8]>,
    ) -> MultiRemovalResults {
        Self::no_child_tries("clear_child_prefix");
        MultiRemovalResults {
            maybe_cursor: None,
            backend: 0,
            unique: 0,
            loops: 0,
        }
    }

    fn child_storage_root(&mut self, _child: &ChildInfo, _version: StateVersion) -> Vec<u8> {
        sp_trie::empty_child_trie_root::<LayoutV1<sp_core::Blake2Hasher>>().encode()
    }

    // The following functions serve benchmarks, which this chain does not have.

    fn wipe(&mut self) {}

    fn commit(&mut self) {}

    fn read_write_count(&self) -> (u32, u32, u32, u32) {
        (0, 0, 0, 0)
    }

    fn reset_read_write_count(&mut self) {}

    fn get_whitelist(&self) -> Vec<TrackedStorageKey> {
        Vec::new()
    }

    fn set_whitelist(&mut self, _new: Vec<TrackedStorageKey>) {}

    fn get_read_and_written_keys(&self) -> Vec<(Vec<u8>, u32, u32, bool)> {
        Vec::new()
    }
}

impl ExtensionStore for Overlay {
    fn extension_by_type_id(&mut self, type_id: TypeId) -> Option<&mut dyn Any> {
        self.extensions.get_mut(type_id)
    }

    fn register_extension_with_type_id(
        &mut self,
        type_id: TypeId,
        extension: Box<dyn Extension>,
    ) -> Result<(), sp_externalities::Error> {
        self.extensions.register_with_type_id(type_id, extension)
    }

    fn deregister_extension_by_type_id(&mut self, type_id: TypeId) -> Result<(), sp_externalities::Error> {
        if self.extensions.deregister(type_id) {
            Ok(())
        } else {
            Err(sp_externalities::Error::ExtensionIsNotRegistered(type_id))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sp_state_machine::BasicExternalities;

    /// The same operations on FRAME's own map and on ours.
    fn both<R: PartialEq + std::fmt::Debug>(f: impl Fn() -> R) -> (State, R) {
        let mut theirs = BasicExternalities::new_empty();
        let expected = theirs.execute_with(&f);
        let mut ours = Overlay::new(&State::default());
        assert_eq!(ours.run(&f), expected);
        (ours.state(), expected)
    }

    #[test]
    fn behaves_like_the_reference() {
        use sp_io::storage;
        let (state, _) = both(|| {
            for (key, value) in [("a1", "x"), ("a2", "y"), ("b1", "z"), ("a3", "w")] {
                storage::set(key.as_bytes(), value.as_bytes());
            }
            storage::start_transaction();
            storage::set(b"a1", b"changed");
            storage::start_transaction();
            storage::clear(b"b1");
            storage::rollback_transaction();
            storage::commit_transaction();
            storage::append(b"list", vec![1]);
            storage::append(b"list", vec![2]);
            let seen = (
                storage::get(b"list").map(|v| v.to_vec()),
                storage::next_key(b"a1"),
                storage::next_key(b"zz"),
            );
            let _ = storage::clear_prefix(b"a2", None);
            (seen, storage::root(StateVersion::V1), storage::exists(b"b1"))
        });
        assert_eq!(state.get(b"a1"), Some(&b"changed"[..]));
        assert_eq!(state.get(b"a2"), None);
        assert_eq!(state.keys(b"a", None).collect::<Vec<_>>(), [b"a1", b"a3"]);
        assert_eq!(state.keys(b"a", Some(b"a1")).collect::<Vec<_>>(), [b"a3"]);
        assert_eq!(state.keys(b"b", Some(b"a")).collect::<Vec<_>>(), [b"b1"]);
    }

    #[test]
    fn a_run_changes_only_its_overlay() {
        let before = State::from_storage(Storage {
            top: [(b"k".to_vec(), b"old".to_vec())].into(),
            children_default: Default::default(),
        });
        let mut overlay = Overlay::new(&before);
        overlay.run(|| sp_io::storage::set(b"k", b"new"));
        let after = overlay.state();
        assert_eq!(
            (before.get(b"k"), after.get(b"k")),
            (Some(&b"old"[..]), Some(&b"new"[..]))
        );
        overlay.run(sp_io::storage::start_transaction);
        overlay.restore(&before);
        assert_eq!(overlay.state().get(b"k"), Some(&b"old"[..]));
        assert!(overlay.storage_rollback_transaction().is_err());
    }
}
