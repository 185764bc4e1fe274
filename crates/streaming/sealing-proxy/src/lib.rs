//! The data path of sealed streams: passes bytes on as they arrive, hashes them, signs how they ended; and the other end,
//! which checks what was signed.
//!
//! Reading order: [`digest`], [`comment`], [`headers`], `framing` (pure), [`sealer`] (numbers, chains and signs),
//! `intake` (a request comes in), `exchange` (connections to whoever answers), [`upstream`] with [`socket`] and [`netns`] (the
//! engine in its container is reached), `relay` (its answer passes), [`seal`] (the three together: a request in, a signed answer out), `outflow` (a stream is written), [`endpoint`] (TLS for exactly one
//! client). Then the client's side: [`client`] and [`check`].
//!
//! What is signed, and by which rules it is believed, stands in [`muster_response_proof`] and `docs/sealed-sessions.md`.

mod answer;
pub mod check;
pub mod client;
pub mod comment;
pub mod digest;
pub mod endpoint;
mod exchange;
mod framing;
pub mod headers;
mod intake;
pub mod limits;
pub mod netns;
mod open;
mod outflow;
mod refusal;
mod relay;
pub mod seal;
pub mod sealer;
pub mod socket;
mod upgrade;
pub mod upstream;
mod wellknown;

pub use answer::{Answer, Stalled};
pub use check::{Asked, Checked, CheckedBody, Unproven};
pub use client::{ClientError, LastWords, Peer, SealedClient};
pub use endpoint::{Endpoint, EndpointError};
pub use exchange::{Arriving, BrokenOff};
pub use framing::Malformed;
pub use limits::Limits;

pub use seal::{Beside, Seal};
pub use sealer::Sealer;
pub use upstream::{EngineAddress, Upstream, UpstreamError};
pub use wellknown::BESIDE;
