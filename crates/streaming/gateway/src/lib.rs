//! The OpenAI-compatible door to streaming sessions.
//!
//! A validator opens a [`Gateway`]: it keeps sessions of the whitelisted services alive as streaming jobs, lets clients in,
//! passes each request to a session and its answer back as it arrives, and keeps what was proven. Read `desk` for the order
//! of things, `starter` and `line` for one session, `relay` for one request, `http` for the door, [`store`] for what stays.
//! A facilitator reaches it through `muster-gateway-client`.
//!
//! What is decided is decided in `muster-session-pool`; what is proven, in `muster-response-proof`.

mod auth;
mod desk;
mod gateway;
pub mod host;
mod http_door;
mod line;
pub mod record;
mod relay;
mod reply;
mod server;
mod settings;
mod starter;
pub mod store;

pub use desk::{LineView, View};
pub use gateway::{Gateway, GatewayError, Parts};
/// One sealed session, for whoever asks without a door.
pub mod sealed {
    pub use crate::line::{Answer, Line, Opening, Question, Report, draw};
}

pub use http_door::ProofView;
pub use settings::Settings;
