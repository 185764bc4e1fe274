//! The tables of spot checks in the validator's database. The validator's migrations create them; the log of answers is
//! the gateway's.

use muster_store::StoreError;
use sqlx::AnyPool;

pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// Reads and writes the tables. Clones share the connections.
#[derive(Clone, Debug)]
pub struct AuditStore {
    pub(super) pool: AnyPool,
}

impl AuditStore {
    /// Uses the validator's database, which must be migrated.
    pub const fn new(pool: AnyPool) -> Self {
        Self { pool }
    }
}
