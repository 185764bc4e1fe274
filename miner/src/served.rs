//! Which validators are served: those of the metagraph with a permit, and those the configuration lists.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use muster_protocol::ValidatorKey;

/// How the miner stands to a validator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may come in.
    Served,
    /// Registered, and without a permit.
    Inactive,
    /// Never heard of.
    Unknown,
}

/// The list, shared: refreshed by one task, read by every session. The last good metagraph stays in force while the
/// chain is away.
#[derive(Clone, Debug, Default)]
pub struct Served {
    listed: Arc<HashSet<ValidatorKey>>,
    metagraph: Arc<RwLock<HashMap<ValidatorKey, bool>>>,
}

impl Served {
    /// Those of the configuration; the metagraph comes later.
    pub fn new(listed: impl IntoIterator<Item = ValidatorKey>) -> Self {
        Self {
            listed: Arc::new(listed.into_iter().collect()),
            metagraph: Arc::default(),
        }
    }

    /// How the miner stands to `validator` now.
    pub fn standing(&self, validator: ValidatorKey) -> Standing {
        if self.listed.contains(&validator) {
            return Standing::Served;
        }
        // The map is whole between any two statements, so a panic elsewhere cannot have spoilt it.
        let metagraph = self.metagraph.read().unwrap_or_else(PoisonError::into_inner);
        match metagraph.get(&validator) {
            Some(true) => Standing::Served,
            Some(false) => Standing::Inactive,
            None => Standing::Unknown,
        }
    }

    /// Takes a fresh metagraph: hotkeys, each with whether it has a permit.
    pub fn refresh(&self, hotkeys: impl IntoIterator<Item = (ValidatorKey, bool)>) {
        let fresh = hotkeys.into_iter().collect();
        *self.metagraph.write().unwrap_or_else(PoisonError::into_inner) = fresh;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::Hotkey;

    #[test]
    fn listed_or_permitted() {
        let key = |n| ValidatorKey(Hotkey::from_bytes([n; 32]));
        let served = Served::new([key(1)]);
        assert_eq!(served.standing(key(1)), Standing::Served);
        assert_eq!(served.standing(key(2)), Standing::Unknown);
        served.refresh([(key(1), false), (key(2), true), (key(3), false)]);
        assert_eq!(
            [1, 2, 3, 4].map(|n| served.standing(key(n))),
            [
                Standing::Served,
                Standing::Served,
                Standing::Inactive,
                Standing::Unknown
            ]
        );
        served.refresh([]);
        assert_eq!(served.standing(key(2)), Standing::Unknown);
    }
}
