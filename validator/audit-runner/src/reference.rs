//! References: machines of the validator's own that score answers.

pub(crate) mod engine;
pub(crate) mod machine;
pub(crate) mod plan;
pub(crate) mod reported;
pub(crate) mod rescoring;
pub(crate) mod sampler_fields;
pub(crate) mod score_request;
