//! The metrics themselves, role by role.

mod executor;
mod facilitator;
mod labels;
mod miner;
mod process;
mod validator;

use super::metric_entry::MetricEntry;

/// The metrics of each part: those of every process first, then role by role.
pub(super) const PARTS: [&[MetricEntry]; 5] = [
    process::METRICS,
    facilitator::METRICS,
    validator::METRICS,
    miner::METRICS,
    executor::METRICS,
];
