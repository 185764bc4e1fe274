//! A coldkey and a model, and how many of its answers wait for an audit.

use muster_protocol::{Hotkey, Timestamp};

/// A coldkey and a model: verdicts are about these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub(crate) coldkey: Hotkey,
    pub(crate) model: String,
}

/// The audited answers of one subject that no reference has scored yet, and those without a proof that no verdict has
/// judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gathered {
    pub(crate) answers: usize,
    /// When the oldest of them ended.
    pub(crate) oldest: Timestamp,
}
