//! The OpenAI-compatible gateway to a validator's streaming sessions.
//!
//! A [`Gateway`] keeps sessions of the whitelisted services alive as streaming jobs, admits clients, relays each
//! request to a session and its answer back as it arrives, and stores the proofs. Facilitators reach it through
//! `muster-gateway-client`.
//!
//! Reading order: [`backend`] (the validator's part), `state` (shared by all tasks), `scheduler` (one order for all
//! events), `dispatcher` (carries out the scheduler's actions), `session` (one session), `routes`, `request`,
//! `nonces`, `session_relay`, `token_counters`, `settlement` and `waiting_response` (one request), [`store`] (what is
//! durable), [`AnswerLog`] (what may be audited), [`saved_proof`] (what a client keeps). [`session_job`],
//! `session_opening` and [`miner_sessions`] serve every session that a validator orders, the gateway's or not; the
//! answers of a [`logged_session`] stand in the log.
//!
//! `muster-session-pool` decides which session serves; `muster-response-proof` defines what is proven.

mod answer_log;
mod answer_parts;
mod answer_text_keys;
mod auth;
pub mod backend;
mod dispatcher;
mod gateway;
pub mod logged_session;
pub mod miner_sessions;
mod nonces;
mod own_question;
mod padding;
mod proof_view;
mod request;
mod request_client;
mod routes;
pub mod saved_proof;
mod scheduler;
mod session;
pub mod session_job;
mod session_opening;
mod session_relay;
mod settings;
mod settlement;
mod state;
pub mod store;
mod submission;
mod text_budget;
pub mod token_count;
mod token_counters;
mod transcript;
pub mod trusted_check;
pub mod waiting_comment;
mod waiting_response;

pub use answer_log::AnswerLog;
pub use gateway::{Gateway, GatewayDeps, GatewayError};
pub use proof_view::ProofView;
pub use scheduler::{ModelStatus, SessionStatus};
pub use settings::Settings;
