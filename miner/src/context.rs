//! What every session of this miner shares.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_identity::Keypair;
use muster_process::SharedClock;
use muster_protocol::{Hotkey, MinerKey, ValidatorKey};
use muster_websocket::Limits;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::chain::Served;
use crate::pages::Pages;
use crate::queues::Inbox;
use crate::store::Store;

/// Sessions of one validator at any moment. Ours needs one; ComputeHorde's opens one for each job.
pub const MAX_SESSIONS: usize = 1_024;

/// Who has how many sessions.
#[derive(Clone, Debug, Default)]
pub struct Seats(Arc<Mutex<HashMap<ValidatorKey, usize>>>);

/// One session of a validator that proved its key; free again when this is dropped.
#[derive(Debug)]
pub struct Seat {
    validator: ValidatorKey,
    seats: Seats,
}

/// Shared by all sessions.
#[derive(Debug)]
pub struct Context {
    /// The miner's key.
    pub key: Keypair,
    /// What validators are told as the main hotkey.
    pub main_hotkey: Hotkey,
    /// Who may come in.
    pub served: Served,
    /// What survives.
    pub store: Store,
    /// Receipts for others to read.
    pub pages: Pages,
    /// Whose time it is.
    pub clock: SharedClock,
    /// Where events go.
    pub inbox: Inbox,
    /// Bounds of sockets.
    pub limits: Limits,
    /// Decline job requests without `validator_signature`.
    pub require_signature: bool,
    /// Cancelled when sessions must end.
    pub hangup: CancellationToken,
    /// Bounds the sessions of each validator.
    pub seats: Seats,
    /// A permit for every connection whose validator has not proved its key.
    pub strangers: Semaphore,
    /// Numbers for connections.
    pub next: AtomicU64,
}

impl Context {
    /// This miner's key in its role.
    pub fn me(&self) -> MinerKey {
        MinerKey(self.key.hotkey())
    }

    /// A number that no other connection of this process has.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

// === impl Seats ===

impl Seats {
    /// A further session of `validator`; `None` if it has [`MAX_SESSIONS`].
    pub fn take(&self, validator: ValidatorKey) -> Option<Seat> {
        // A count is whole between any two statements, so a panic elsewhere cannot have spoilt it.
        let mut taken = self.0.lock();
        let count = taken.entry(validator).or_default();
        if *count >= MAX_SESSIONS {
            return None;
        }
        *count += 1;
        Some(Seat {
            validator,
            seats: self.clone(),
        })
    }
}

impl Seat {
    /// Whose.
    pub fn validator(&self) -> ValidatorKey {
        self.validator
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.0.lock();
        if let Some(count) = taken.get_mut(&self.validator) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.validator);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validator_has_so_many_seats_and_takes_none_from_others() {
        let key = |n| ValidatorKey(Hotkey::from_bytes([n; 32]));
        let seats = Seats::default();
        let mut held: Vec<_> = (0..MAX_SESSIONS).map(|_| seats.take(key(1)).unwrap()).collect();
        assert!(seats.take(key(1)).is_none());
        assert_eq!(seats.take(key(2)).unwrap().validator(), key(2));
        held.pop();
        assert!(seats.take(key(1)).is_some());
        held.clear();
        assert!(seats.0.lock().is_empty(), "who left is forgotten");
    }
}
