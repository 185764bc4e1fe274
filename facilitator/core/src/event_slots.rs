//! The event streams that an account may have open at once.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::credentials::Account;

/// Counts the open event streams of each account. Clones share the counts.
#[derive(Clone, Debug)]
pub struct EventStreamSlots {
    /// The most streams that one account may have open.
    limit: usize,
    open: Arc<Mutex<HashMap<Account, usize>>>,
}

/// One open event stream. Dropping it frees the slot.
#[derive(Debug)]
pub struct EventStreamSlot {
    slots: EventStreamSlots,
    account: Account,
}

// === impl EventStreamSlots, EventStreamSlot ===

impl EventStreamSlots {
    /// Slots for at most `limit` streams an account; 0 for no limit.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: if limit == 0 { usize::MAX } else { limit },
            open: Arc::default(),
        }
    }

    /// Takes a slot for one more stream of the account; `None` if it has none left.
    pub fn take(&self, account: &Account) -> Option<EventStreamSlot> {
        let mut open = self.open.lock();
        let count = open.entry(account.clone()).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(EventStreamSlot {
            slots: self.clone(),
            account: account.clone(),
        })
    }
}

impl Drop for EventStreamSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock();
        if let Some(count) = open.get_mut(&self.account) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_its_streams_and_takes_none_from_others() {
        let account = |name: &str| name.parse::<Account>().unwrap();
        let slots = EventStreamSlots::new(2);
        let held = [slots.take(&account("a")), slots.take(&account("a"))];
        assert!(held.iter().all(Option::is_some));
        assert!(slots.take(&account("a")).is_none());
        assert!(slots.take(&account("b")).is_some());
        drop(held);
        assert!(slots.take(&account("a")).is_some());
        assert!(
            slots.open.lock().is_empty(),
            "no account is remembered for nothing"
        );
        let unlimited = EventStreamSlots::new(0);
        let all: Vec<_> = (0..100).map(|_| unlimited.take(&account("a"))).collect();
        assert!(all.iter().all(Option::is_some));
    }
}
