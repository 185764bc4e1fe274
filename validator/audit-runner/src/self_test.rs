//! The validator's test of its own spot checks: its own miner answers prompts of a committed list, a part of them with
//! a cheaper engine, and log, draw, references and statistic have to convict it.
//!
//! A validator whose spot checks do not find a cheat that it has planted itself cannot be relied on. The test takes the
//! way of every audit; only the scores of the subnet never see it.

pub(crate) mod asking;
pub(crate) mod judging;
pub(crate) mod ordered_tests;
