//! The tables of cross-checks in the validator's database. The validator's migrations create them. `jobs` reads what
//! has ended, `checks` carries a check from its row to its verdict, `own_checks` does so for the validator's own jobs,
//! `image_marks` keeps images that may tell machines apart, `news` the messages for the facilitator, and `listing`
//! lists the checks for everybody.

mod checks;
mod image_marks;
mod jobs;
mod listing;
mod news;
mod own_checks;

use muster_protocol::wire::checks::CheckOrigin;
use muster_store::columns::read_column;
use muster_store::{StoreError, Writer};
use sqlx::AnyPool;
use sqlx::any::AnyRow;

pub(crate) use checks::{DueCheck, NewCheck, UndrawnJob};
pub(crate) use jobs::EndedJob;
pub use listing::CheckView;
pub(crate) use news::put_news;
pub(crate) use own_checks::{OpenOwnCheck, StoredDraw};

pub(crate) type StoreResult<T> = Result<T, StoreError>;

/// Jobs that are read at once.
const PAGE: i64 = 256;

/// Reads and writes the tables. Clones share the connections.
#[derive(Clone, Debug)]
pub struct CheckStore {
    pub(crate) pool: AnyPool,
    pub(crate) writer: Writer,
}

impl CheckStore {
    /// Uses the validator's database, which must be migrated: `pool` reads, and `writer` writes.
    pub const fn new(pool: AnyPool, writer: Writer) -> Self {
        Self { pool, writer }
    }
}

fn origin_of(row: &AnyRow) -> StoreResult<CheckOrigin> {
    read_column(row, "origin").map(|name: String| CheckOrigin::from_wire(&name))
}
