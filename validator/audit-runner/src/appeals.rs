//! Appeals of miners against verdicts, and the fresh answers that decide them.

pub(crate) mod effects;
pub(crate) mod fresh_answers;
pub(crate) mod hearing;
pub(crate) mod rule;
pub(crate) mod stored_appeal;
