//! The validator's own prompts: the sources that they are made of, and how they are committed to and asked.

pub(crate) mod asking;
pub(crate) mod list_queue;
pub(crate) mod sources;
