//! The `[cross_checks]` section of a validator's configuration.

use muster_process::config::Problem;
use serde::Deserialize;

/// A share of everything, in millionths.
const ALL_PPM: u32 = 1_000_000;

/// The configuration of cross-checks. `[cross_checks]` in the validator's commented default explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrossCheckSettings {
    /// The share of completed deterministic jobs that is run again, in millionths.
    pub share_ppm: u32,
    /// Reports of cheating of one account within 24 hours for which a job is run again.
    pub reports_per_day: u32,
}

impl Default for CrossCheckSettings {
    fn default() -> Self {
        Self {
            share_ppm: 20_000,
            reports_per_day: 5,
        }
    }
}

impl CrossCheckSettings {
    /// All problems of these settings. `path` is the name of the section.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        if self.share_ppm <= ALL_PPM {
            return Vec::new();
        }
        vec![Problem::at(
            format!("{path}.share_ppm"),
            "must be at most 1000000",
        )]
    }
}
