//! The image of trials.

use muster_process::config::Problem;
use serde::Deserialize;

/// The known image that is run at a miner after the failure of a user's job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrialConfig {
    /// The reference of the image; absent, no trial is run.
    pub image: Option<String>,
    /// The arguments of its program, which ends with exit code 0 within seconds.
    pub args: Vec<String>,
}

impl TrialConfig {
    /// The mistake in the section, if there is one.
    pub(super) fn problem(&self) -> Option<Problem> {
        let text = "must name an image, or be left out";
        let is_empty = self.image.as_deref() == Some("");
        is_empty.then(|| Problem::at("routing.trial.image", text))
    }
}
