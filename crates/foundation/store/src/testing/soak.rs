//! Months of use in a store whose size is bounded. A role's test fills its own tables; this module has the bounds that
//! all roles check.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::TestStore;
use crate::StoreError;
use crate::retention::{Keep, Pace, PaceSettings};
use crate::size::measure_tables;

/// How much is done for how long, and how long rows stay.
#[derive(Clone, Copy, Debug)]
pub struct StoreSoak {
    /// The days of the whole test.
    pub days: u32,
    /// The jobs of each day.
    pub jobs_a_day: u32,
    /// The days after which rows go, whatever their number and their bytes.
    pub kept_days: u32,
}

impl StoreSoak {
    /// A sweep without pauses.
    pub fn pace() -> Pace {
        Pace {
            pause: Duration::ZERO,
            ..PaceSettings::default().pace()
        }
    }

    /// How long rows stay. No test writes so many that their number or their bytes count.
    pub const fn keep(&self) -> Keep {
        Keep {
            days: self.kept_days,
            rows: 10_000_000,
            mib: 65_536,
        }
    }

    /// Asserts that each table has rows, and no more than `bound` gives; a table with the bound 0 is empty.
    ///
    /// # Errors
    /// The tables cannot be measured.
    ///
    /// # Panics
    /// A table has too many rows, has none, or has no bound.
    pub async fn assert_bounds(
        &self,
        store: &TestStore,
        bound: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), StoreError> {
        for table in measure_tables(&store.url).await? {
            let most = bound(&table.table);
            assert!(
                most.is_some(),
                "{table:?}: nothing is written, so no bound is given"
            );
            assert!(
                table.rows > 0 || most == Some(0),
                "{table:?}: nothing is written, so no bound is shown"
            );
            assert!(
                most.is_some_and(|most| table.rows <= most),
                "{table:?}: more than {most:?} rows after {self:?}"
            );
        }
        Ok(())
    }
}

impl TestStore {
    /// The file of a SQLite store.
    pub fn file(&self) -> PathBuf {
        Path::new(self.url.trim_start_matches("sqlite:")).to_owned()
    }

    /// The bytes of a SQLite store's file; 0 if it has none.
    pub fn file_bytes(&self) -> u64 {
        std::fs::metadata(self.file()).map_or(0, |file| file.len())
    }

    /// Asserts that the file of a SQLite store is at most a quarter larger than it was with all its tables full.
    ///
    /// # Panics
    /// It has grown by more.
    pub fn assert_file_within(&self, full: u64) {
        let end = self.file_bytes();
        assert!(
            full > 0 && end <= full + full / 4,
            "the file grew from {full} to {end} bytes"
        );
    }
}
