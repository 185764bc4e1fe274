//! References: machines of the validator's own that score answers.

pub(crate) mod plan;
pub(crate) mod reference_machine;
pub(crate) mod reported;
pub(crate) mod rescoring;
pub(crate) mod sampler_fields;
pub(crate) mod score_request;
pub(crate) mod scoring_engine;
