//! What every session of this miner shares.

use std::sync::atomic::{AtomicU64, Ordering};

use muster_identity::Keypair;
use muster_kit::SharedClock;
use muster_protocol::{Hotkey, MinerKey};
use muster_rpc::Limits;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::chain::Served;
use crate::pages::Pages;
use crate::queues::Inbox;
use crate::store::Store;

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
