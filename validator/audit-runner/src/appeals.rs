//! Appeals of miners against verdicts, and the fresh answers that decide them.

pub(crate) mod appeal_admission;
pub(crate) mod appeal_end;
pub(crate) mod effects;
pub(crate) mod fresh_answers;
pub(crate) mod stored_appeal;
