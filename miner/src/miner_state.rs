//! The state that every session of this miner shares.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use muster_audit_check::AuditCheck;
use muster_identity::Keypair;
use muster_process::SharedClock;
use muster_process::connections::ConnectionCounts;
use muster_process::error::Causes;
use muster_protocol::wire::audits::SessionProofs;
use muster_protocol::{Hotkey, MinerKey, ValidatorKey};
use muster_websocket::Limits;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::chain::ServedValidators;
use crate::executor_pools::Pools;
use crate::machine_board::MachineBoard;
use crate::operator::OperatorBoard;
use crate::receipt_pages::Pages;
use crate::session_queues::Inbox;
use crate::store::Store;

/// Sessions of one validator at any moment. Ours needs one; ComputeHorde's opens one for each job.
pub const MAX_SESSIONS: usize = 1_024;

/// The open leases, for whoever asks about this miner.
#[derive(Debug, Default)]
pub struct LeaseGauge {
    open: AtomicUsize,
    working: AtomicUsize,
    draining: AtomicBool,
}

impl LeaseGauge {
    /// Shows the state of the lease table.
    pub fn show(&self, open: usize, working: usize, draining: bool) {
        self.open.store(open, Ordering::Relaxed);
        self.working.store(working, Ordering::Relaxed);
        self.draining.store(draining, Ordering::Relaxed);
    }

    /// Leases that have not ended.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Those of them that hold an executor.
    pub fn working(&self) -> usize {
        self.working.load(Ordering::Relaxed)
    }

    /// Whether offers are declined because the miner is being emptied.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// The number of open sessions of each validator.
#[derive(Clone, Debug, Default)]
pub struct SessionLimiter(Arc<Mutex<HashMap<ValidatorKey, usize>>>);

/// The right of an authenticated validator to one session; returned when it is dropped.
#[derive(Debug)]
pub struct SessionPermit {
    validator: ValidatorKey,
    seats: SessionLimiter,
}

/// The state of the miner, shared by all sessions.
#[derive(Debug)]
pub struct MinerState {
    /// The miner's key.
    pub key: Keypair,
    /// The main hotkey that is sent to validators.
    pub main_hotkey: Hotkey,
    /// The validators that are served.
    pub served: ServedValidators,
    /// The durable state.
    pub store: Store,
    /// Receipts for others to read.
    pub pages: Pages,
    /// The source of time.
    pub clock: SharedClock,
    /// The queue into the dispatcher.
    pub inbox: Inbox,
    /// Bounds of sockets.
    pub limits: Limits,
    /// Decline job requests without `validator_signature`.
    pub require_signature: bool,
    /// The pools of executors that the miner starts.
    pub pools: Pools,
    /// The load of persistent executors' machines.
    pub machines: MachineBoard,
    /// Cancelled when sessions must end.
    pub hangup: CancellationToken,
    /// Bounds the sessions of each validator.
    pub seats: SessionLimiter,
    /// Connections whose validator has not proved its key.
    pub strangers: ConnectionCounts,
    /// The open leases.
    pub gauge: Arc<LeaseGauge>,
    /// Compares validators' spot checks with what this miner knows; `None` for a store in memory.
    pub audit_check: Option<AuditCheck>,
    /// The board that the operator is shown.
    pub board: Arc<OperatorBoard>,
    /// The next connection's number.
    pub next: AtomicU64,
}

impl MinerState {
    /// This miner's key in its role.
    pub fn me(&self) -> MinerKey {
        MinerKey(self.key.hotkey())
    }

    /// Keeps what an executor reports of the proofs that its session has signed. Without it less is compared.
    pub(crate) async fn note_proofs(&self, told: &SessionProofs) {
        if let Some(audit_check) = &self.audit_check
            && let Err(error) = audit_check.note_proofs(told).await
        {
            tracing::warn!(error = %Causes(&error), "the proofs of a session are not kept");
        }
    }

    /// A number that no other connection of this process has.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// The open sessions in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCount {
    /// Open sessions of all validators together.
    pub sessions: usize,
    /// Validators that have one or more.
    pub validators: usize,
}

// === impl SessionLimiter ===

impl SessionLimiter {
    /// The open sessions.
    pub fn count(&self) -> SessionCount {
        let taken = self.0.lock();
        SessionCount {
            sessions: taken.values().sum(),
            validators: taken.len(),
        }
    }

    /// The open sessions of each validator that has one.
    pub fn by_validator(&self) -> HashMap<ValidatorKey, u64> {
        let taken = self.0.lock();
        let count = |(key, count): (&ValidatorKey, &usize)| (*key, u64::try_from(*count).unwrap_or(u64::MAX));
        taken.iter().map(count).collect()
    }

    /// A further session of `validator`; `None` if it has [`MAX_SESSIONS`].
    pub fn acquire(&self, validator: ValidatorKey) -> Option<SessionPermit> {
        // A count is whole between any two statements, so a panic elsewhere cannot have spoilt it.
        let mut taken = self.0.lock();
        let count = taken.entry(validator).or_default();
        if *count >= MAX_SESSIONS {
            return None;
        }
        *count += 1;
        Some(SessionPermit {
            validator,
            seats: self.clone(),
        })
    }
}

impl SessionPermit {
    /// The validator of this session.
    pub fn validator(&self) -> ValidatorKey {
        self.validator
    }
}

impl Drop for SessionPermit {
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
        let seats = SessionLimiter::default();
        let mut held: Vec<_> = (0..MAX_SESSIONS)
            .map(|_| seats.acquire(key(1)).unwrap())
            .collect();
        assert!(seats.acquire(key(1)).is_none());
        let other = seats.acquire(key(2)).unwrap();
        assert_eq!(other.validator(), key(2));
        let counted = seats.count();
        assert_eq!((counted.sessions, counted.validators), (MAX_SESSIONS + 1, 2));
        drop(other);
        held.pop();
        assert!(seats.acquire(key(1)).is_some());
        held.clear();
        assert!(
            seats.0.lock().is_empty(),
            "a validator without sessions is forgotten"
        );
    }
}
