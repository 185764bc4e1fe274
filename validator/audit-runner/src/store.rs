//! The tables of spot checks in the validator's database, a file for each subject.

mod answer_text;
mod appeals;
pub(crate) mod audit_store;
mod nonce_periods;
pub(crate) mod notices;
mod outcomes;
pub(crate) mod own_prompts;
mod prompt_sources;
mod runs;
pub(crate) mod self_tests;
mod waiting_answers;
