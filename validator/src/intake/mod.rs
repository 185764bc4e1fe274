//! Job intake: every job enters the validator here, from the facilitator or as an order of the validator's own gateway
//! and grading, and is durable before its driver starts.
//!
//! | file | purpose |
//! |---|---|
//! | [`jobs`] | takes, repeats, refuses and cancels users' jobs |
//! | [`own_jobs`] | turns an order for a session into a signed job of the validator's own |
//! | [`gateway_backend`] | opens the gateway, and is its view of the validator |
//! | [`grading_backend`] | opens grading, and is its view of the validator |
//! | [`audit_backend`] | opens the spot checks, and is their view of the validator |
//! | [`check_backend`] | opens the cross-checks, and runs their jobs |
//! | [`census`] | asks every miner which executors it has, and for its main hotkey |
//! | [`whitelist`] | tells every miner which images sealed sessions may run |

pub(crate) mod audit_backend;
pub(crate) mod census;
pub(crate) mod check_backend;
pub(crate) mod gateway_backend;
pub(crate) mod grading_backend;
pub(crate) mod jobs;
pub(crate) mod own_jobs;
pub(crate) mod whitelist;
