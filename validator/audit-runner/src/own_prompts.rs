//! The validator's own prompts: the sources that they are made of, and how they are asked.

pub(crate) mod asking;
pub(crate) mod current_list;
pub(crate) mod sources;
