//! The tables of spot checks in the validator's database.

pub(crate) mod audit_store;
pub(crate) mod notices;
pub(crate) mod self_tests;
