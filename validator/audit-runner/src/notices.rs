//! Notices to miners about the log: their contents, and how they are sent.

pub(crate) mod contents;
pub(crate) mod delivery;
