//! What an operator decides about files, as it stands in a configuration file.

use std::time::Duration;

use muster_process::config::Problem;
use serde::Deserialize;

use crate::storage::StoreAddress;

const MIB: u64 = 1024 * 1024;

/// The table `[files]` of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `file:FOLDER`, or `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`.
    pub store: String,
    /// The largest file, in MiB.
    pub max_file_mib: u64,
    /// All files of an account together, in MiB.
    pub quota_mib: u64,
    /// Hours that a file is kept after its last upload; before one, after it was announced.
    pub keep_hours: u64,
    /// Hours that a signed URL holds.
    pub url_hours: u64,
    /// Seconds between two collections of what is no longer needed.
    pub sweep_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            store: "file:facilitator-files".to_owned(),
            max_file_mib: 2_048,
            quota_mib: 20_480,
            keep_hours: 168,
            url_hours: 24,
            sweep_s: 600,
        }
    }
}

impl Settings {
    /// Everything that is wrong with it. `table` is its name in the configuration.
    pub fn problems(&self, table: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Err(error) = StoreAddress::parse(&self.store) {
            problems.push(Problem::at(format!("{table}.store"), error.to_string()));
        }
        let hours = 1..=24 * 365;
        for (key, value, range) in [
            ("max_file_mib", self.max_file_mib, 1..=1 << 20),
            ("quota_mib", self.quota_mib, 1..=1 << 40),
            ("keep_hours", self.keep_hours, hours.clone()),
            ("url_hours", self.url_hours, hours),
            ("sweep_s", self.sweep_s, 1..=86_400),
        ] {
            if !range.contains(&value) {
                let (least, most) = (range.start(), range.end());
                let reason = format!("must be {least} to {most}");
                problems.push(Problem::at(format!("{table}.{key}"), reason));
            }
        }
        problems
    }

    /// Bytes of the largest file.
    pub const fn max_file(&self) -> u64 {
        self.max_file_mib.saturating_mul(MIB)
    }

    /// Bytes of all files of an account.
    pub const fn quota(&self) -> u64 {
        self.quota_mib.saturating_mul(MIB)
    }

    /// How long a file is kept.
    pub const fn keep(&self) -> Duration {
        Duration::from_secs(self.keep_hours.saturating_mul(3_600))
    }

    /// How long a URL holds.
    pub const fn url_life(&self) -> Duration {
        Duration::from_secs(self.url_hours.saturating_mul(3_600))
    }

    /// Between two collections.
    pub const fn sweep_every(&self) -> Duration {
        Duration::from_secs(self.sweep_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_wrong_is_said() {
        assert!(Settings::default().problems("files").is_empty());
        let wrong = Settings {
            store: "ftp://x".to_owned(),
            max_file_mib: 0,
            quota_mib: 0,
            keep_hours: 0,
            url_hours: 9_999,
            sweep_s: 0,
        };
        assert_eq!(wrong.problems("files").len(), 6);
    }
}
