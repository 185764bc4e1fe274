//! Job intake: every job enters the validator here, from the facilitator or as one of the validator's own, and is
//! durable before its driver starts.
//!
//! | file | purpose |
//! |---|---|
//! | [`jobs`] | takes, repeats, refuses and cancels users' jobs |
//! | [`orders`] | takes the facilitator's orders in their order |
//! | [`own_jobs`] | gives the validator's own jobs their drivers |
//! | [`whitelist`] | sends every miner the list of the images that sealed sessions may run |

pub(crate) mod jobs;
pub(crate) mod orders;
pub(crate) mod own_jobs;
pub(crate) mod whitelist;
