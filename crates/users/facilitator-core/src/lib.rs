//! The facilitator's rules: credentials, the checks of requests, the validator connection that holds a validator's
//! jobs, and the users' view of a job. Pure: there are no sockets and no store here, and the time is an argument.
//! `muster-facilitator` adds the IO.
//!
//! Reading order: [`login_tokens`] and [`account`] (the identity of a caller), [`signature`] and [`request_bodies`]
//! (the content of a request), [`rate_limit`] (the frequency of requests), [`connections`] (the delivery of jobs),
//! [`history`], [`job_events`], [`list_page`] and [`capacity`] (the answers to users).

pub mod account;
pub mod capacity;
pub mod connections;
pub mod history;
pub mod job_events;
pub mod list_page;
pub mod login_tokens;
pub mod rate_limit;
pub mod request_bodies;
pub mod signature;
