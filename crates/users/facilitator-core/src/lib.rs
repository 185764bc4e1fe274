//! The facilitator's rules: credentials, the checks of requests, the validator connection that holds a validator's
//! jobs, and the users' view of a job. Pure: there are no sockets and no store here, and the time is an argument.
//! `muster-facilitator` adds the IO.
//!
//! Reading order: [`auth`] and [`account`] (the identity of a caller), [`signature`] and [`intake`] (the content of a
//! request), [`rate_limit`] (the frequency of requests), [`connections`] (the delivery of jobs), [`history`],
//! [`job_events`] and [`page`] (the answers to users).

pub mod account;
pub mod auth;
pub mod connections;
pub mod history;
pub mod intake;
pub mod job_events;
pub mod page;
pub mod rate_limit;
pub mod signature;
