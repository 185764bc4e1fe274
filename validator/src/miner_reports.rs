//! A validator's reports on the miners of its subnet. [`claims`] has the facts that grading proved beside the words of
//! the miners, [`neurons`] the weights and the reliability of every neuron.

pub(crate) mod claims;
pub(crate) mod neurons;
