//! The evidence about one coldkey and model: the sessions and answers that a bundle shows.

pub(crate) mod assemble;
pub(crate) mod client_counts;
pub(crate) mod inputs;
pub(crate) mod outcome;
pub(crate) mod session_check;
pub(crate) mod session_choice;
pub(crate) mod whole_session;
