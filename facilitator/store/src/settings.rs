//! The store's part of the facilitator's configuration: how long rows stay, and how much output of a running job is
//! stored.

use muster_process::config::Problem;
use muster_store::retention::{Keep, PaceSettings};
use serde::Deserialize;

/// How long rows stay, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FacilitatorRetentionConfig {
    /// Jobs that have ended, with their results.
    pub jobs: Keep,
    /// The audit log.
    pub audit: Keep,
    /// The use of models.
    pub usage: Keep,
    /// API keys, after they were revoked.
    pub revoked_keys: Keep,
    /// Validators that are not connected, after they were seen last.
    pub validators: Keep,
    /// The pace of the janitor.
    pub pace: PaceSettings,
}

impl Default for FacilitatorRetentionConfig {
    fn default() -> Self {
        let keep = |days, rows, mib| Keep { days, rows, mib };
        Self {
            jobs: keep(90, 1_000_000, 20_480),
            audit: keep(365, 5_000_000, 4_096),
            usage: keep(400, 1_000_000, 1_024),
            revoked_keys: keep(90, 100_000, 256),
            validators: keep(90, 10_000, 256),
            pace: PaceSettings::default(),
        }
    }
}

impl FacilitatorRetentionConfig {
    /// The mistakes in these settings, by key below `retention`.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let keeps = [
            ("jobs", self.jobs),
            ("audit", self.audit),
            ("usage", self.usage),
            ("revoked_keys", self.revoked_keys),
            ("validators", self.validators),
        ];
        let problems = keeps.into_iter().flat_map(|(key, keep)| {
            // Nothing of today's goes: limits count it.
            keep.problems(&format!("retention.{key}"), 1)
        });
        problems.chain(self.pace.problems("retention.pace")).collect()
    }
}

/// The bounds of running jobs' stored output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LiveConfig {
    /// The most output of one job, in KiB.
    pub log_kib: u64,
    /// The most pieces of output of one job.
    pub log_pieces: usize,
}

impl Default for LiveConfig {
    fn default() -> Self {
        Self {
            log_kib: 1024,
            log_pieces: 4096,
        }
    }
}
