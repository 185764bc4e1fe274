//! The reports of a running program about its progress and its metrics.
//!
//! A program appends lines of JSON to a file ([`progress_line`]). The metrics of an unmodified program are found in its
//! standard output by the rules of its user ([`metric_rules`]). Both come in pieces that [`line_splitter`] cuts into
//! lines. [`program_watch`] keeps the newest state, estimates the end, and bounds the work that a program can cause; it
//! knows no clock and no file. [`program_follower`] reads the file as it grows.

pub mod line_splitter;
pub mod metric_rules;
mod non_finite_json;
pub mod program_follower;
pub mod program_watch;
pub mod progress_line;

pub use metric_rules::{MetricRules, RuleError};
pub use program_follower::ProgramFollower;
pub use program_watch::ProgramWatch;
