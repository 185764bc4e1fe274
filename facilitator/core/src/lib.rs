//! The facilitator's rules: credentials, the checks of requests, the validator connection that holds a validator's
//! jobs, and the users' view of a job. Pure: there are no sockets and no store here, and the time is an argument.
//! `muster-facilitator` adds the IO.
//!
//! Reading order: [`login_tokens`], [`login_rules`], [`credentials`], [`access_policy`], [`granted_rights`],
//! [`web_session`] and [`web_cookies`] (the identity of a caller), [`signature`] and [`request_bodies`] (the content of
//! a request), [`connections`] (the delivery of jobs), [`gateway_choice`], [`history`], [`event_cursor`],
//! [`event_slots`], [`live_remains`], [`list_page`], [`output_comparison`] and [`capacity`] (the answers to users).
//! `muster_http::rate_limit` has the frequency of requests.

pub mod access_policy;
pub mod bounds;
pub mod capacity;
pub mod connections;
pub mod credentials;
pub mod event_cursor;
pub mod event_slots;
pub mod gateway_choice;
pub mod granted_rights;
pub mod history;
pub mod list_page;
pub mod live_remains;
pub mod login_rules;
pub mod login_tokens;
pub mod metric_labels;
pub mod output_comparison;
pub mod request_bodies;
pub mod signature;
pub mod traces;
pub mod web_cookies;
pub mod web_session;
