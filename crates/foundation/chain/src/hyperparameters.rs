//! The rules of a subnet, as the chain's runtime states them.

use subxt::dynamic::Value;

use crate::scale_value::{field, flag, number};

/// The rules of a subnet that its members act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hyperparameters {
    /// Blocks between two epochs, less one.
    pub tempo: u16,
    /// Whether weights must be committed before they are revealed.
    pub commit_reveal: bool,
    /// The version of timelocked commits that the chain accepts; `None` where it accepts none.
    pub commit_reveal_version: Option<u16>,
    /// Epochs between a commit and its reveal.
    pub reveal_period: u64,
    /// The fewest blocks between two weights of one validator.
    pub weights_rate_limit: u64,
    /// The lowest version key that the chain accepts.
    pub weights_version_key: u64,
    /// The fewest weights in one call.
    pub min_allowed_weights: u16,
}

impl Hyperparameters {
    /// Reads the structure that the runtime calls `SubnetHyperparameters`, by field name.
    ///
    /// # Errors
    /// The name of the field that is missing.
    pub(crate) fn from_value(answer: &Value, version: Option<u16>) -> Result<Self, &'static str> {
        fn named<N: TryFrom<u128>>(answer: &Value, name: &'static str) -> Result<N, &'static str> {
            field(answer, name).and_then(number).ok_or(name)
        }
        const ENABLED: &str = "commit_reveal_weights_enabled";
        Ok(Self {
            tempo: named(answer, "tempo")?,
            commit_reveal: field(answer, ENABLED).and_then(flag).ok_or(ENABLED)?,
            commit_reveal_version: version,
            // Older chains had one epoch in between.
            reveal_period: named(answer, "commit_reveal_period").unwrap_or(1),
            weights_rate_limit: named(answer, "weights_rate_limit")?,
            weights_version_key: named(answer, "weights_version")?,
            min_allowed_weights: named(answer, "min_allowed_weights")?,
        })
    }
}
