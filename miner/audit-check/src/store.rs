//! The tables of validators' spot checks. They are the miner's; the migrations lie with it. `log` has headers, leaves
//! and the proofs of sessions, `findings` what they show, `verdicts` the verdicts about this miner and its appeals.

mod findings;
mod log;
mod verdicts;

use std::time::Duration;

use muster_store::StoreError;
use sqlx::AnyPool;

pub use findings::ListedFinding;
pub use log::LogCount;
pub use verdicts::NotifiedVerdict;

/// Rows of a list.
const MAX_LISTED: i64 = 200;
/// How long headers, leaves and the proofs of sessions are kept.
pub const KEPT: Duration = Duration::from_secs(10 * 86_400);

type Result<T> = std::result::Result<T, StoreError>;

/// The tables. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct AuditCheckStore {
    pool: AnyPool,
}

impl AuditCheckStore {
    /// The tables of an open store whose migrations have run.
    pub fn new(pool: AnyPool) -> Self {
        Self { pool }
    }
}
