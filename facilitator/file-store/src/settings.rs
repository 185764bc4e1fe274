//! The operator's settings of the file store, as part of a configuration file.

use std::path::PathBuf;
use std::time::Duration;

use muster_process::config::Problem;
use serde::Deserialize;

use crate::catalogue::FileBounds;
use crate::object_storage::StoreAddress;

const MIB: u64 = 1024 * 1024;

/// Room for both streams of a program, each as long as executors keep it by default (1,024 MiB), and a block of 8 MiB
/// for the lists of their blocks.
const OUTPUT_ROOM: u64 = (2 * 1_024 + 8) * MIB;

/// The table `[files]` of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `file:FOLDER`, or `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`.
    pub store: String,
    /// The largest size of a file, in MiB.
    pub max_file_mib: u64,
    /// The largest size of all files of an account together, in MiB.
    pub quota_mib: u64,
    /// The part of `quota_mib` that the blocks of one attempt of a job may take, in percent.
    pub attempt_percent: u64,
    /// The largest size of the files of all accounts together, in MiB.
    pub total_mib: u64,
    /// The most files of an account, announced ones among them.
    pub max_files: u64,
    /// Requests a minute to the signed URLs of one account; 0 for no limit.
    pub requests_per_minute: u32,
    /// Hours for which a file is kept after its last upload, or after its announcement if it has none.
    pub keep_hours: u64,
    /// Hours until a signed URL expires.
    pub url_hours: u64,
    /// Seconds between two sweeps, which delete expired files and unused objects.
    pub sweep_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            store: "file:facilitator-files".to_owned(),
            max_file_mib: 16_384,
            quota_mib: 20_480,
            attempt_percent: 50,
            total_mib: 1_048_576,
            max_files: 10_000,
            requests_per_minute: 6_000,
            keep_hours: 168,
            url_hours: 24,
            sweep_s: 600,
        }
    }
}

impl Settings {
    /// All problems of the settings. `table` is the name of their table in the configuration.
    pub fn problems(&self, table: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Err(error) = StoreAddress::parse(&self.store) {
            problems.push(Problem::at(format!("{table}.store"), error.to_string()));
        }
        let hours = 1..=24 * 365;
        for (key, value, range) in [
            ("max_file_mib", self.max_file_mib, 1..=1 << 20),
            ("quota_mib", self.quota_mib, 1..=1 << 40),
            ("attempt_percent", self.attempt_percent, 1..=100),
            ("total_mib", self.total_mib, 1..=1 << 40),
            ("max_files", self.max_files, 1..=1 << 40),
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

    /// The largest size of a file, in bytes.
    pub const fn max_file(&self) -> u64 {
        self.max_file_mib.saturating_mul(MIB)
    }

    /// The bounds on files together.
    pub const fn bounds(&self) -> FileBounds {
        FileBounds {
            account: self.quota_mib.saturating_mul(MIB),
            all: self.total_mib.saturating_mul(MIB),
            files: self.max_files,
        }
    }

    /// The bytes that the blocks of one attempt of a job may take together.
    pub const fn attempt_bound(&self) -> u64 {
        let percent = self.quota_mib.saturating_mul(MIB) / 100;
        percent.saturating_mul(self.attempt_percent)
    }

    /// The bytes that the blocks of what an attempt prints may take, if its job leaves no checkpoints.
    pub const fn output_bound(&self) -> u64 {
        let attempt = self.attempt_bound();
        if attempt < OUTPUT_ROOM {
            attempt
        } else {
            OUTPUT_ROOM
        }
    }

    /// The time for which a file is kept.
    pub const fn retention(&self) -> Duration {
        Duration::from_secs(self.keep_hours.saturating_mul(3_600))
    }

    /// The time until a signed URL expires.
    pub const fn url_lifetime(&self) -> Duration {
        Duration::from_secs(self.url_hours.saturating_mul(3_600))
    }

    /// The folder with the bytes of all files; `None` for a bucket.
    pub fn folder(&self) -> Option<PathBuf> {
        match StoreAddress::parse(&self.store) {
            Ok(StoreAddress::Folder(folder)) => Some(folder),
            Ok(StoreAddress::Bucket { .. }) | Err(_) => None,
        }
    }

    /// The pause between two sweeps.
    pub const fn sweep_interval(&self) -> Duration {
        Duration::from_secs(self.sweep_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_ten_gibibytes_passes_by_default() {
        let settings = Settings::default();
        assert!(settings.max_file() >= 10 << 30 && settings.max_file() <= settings.bounds().account);
    }

    #[test]
    fn output_has_less_room_than_checkpoints_and_never_more() {
        let settings = Settings::default();
        assert_eq!(settings.output_bound(), 2_056 * MIB);
        assert!(settings.output_bound() < settings.attempt_bound());
        let small = Settings {
            quota_mib: 100,
            ..settings
        };
        assert_eq!(small.output_bound(), 50 * MIB);
    }

    #[test]
    fn everything_wrong_is_said() {
        assert!(Settings::default().problems("files").is_empty());
        let wrong = Settings {
            store: "ftp://x".to_owned(),
            max_file_mib: 0,
            quota_mib: 0,
            attempt_percent: 101,
            total_mib: 0,
            max_files: 0,
            requests_per_minute: 0,
            keep_hours: 0,
            url_hours: 9_999,
            sweep_s: 0,
        };
        assert_eq!(wrong.problems("files").len(), 9);
    }
}
