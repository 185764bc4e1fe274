//! Maps from keys that peers choose.

use std::collections::HashMap;

/// A map that hashes faster than the standard one, with another seed in every run. Its order decides nothing.
pub(crate) type KeyMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
