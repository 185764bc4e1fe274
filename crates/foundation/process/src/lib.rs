//! What every role needs and none owns: time, tasks, configuration, logs, TLS, stores, sockets to listen on.
//!
//! Time and randomness come in through here, so that a test can hold them still. No domain rules live here.

pub mod backoff;
pub mod certificate;
pub mod clock;
pub mod config;
pub mod error;
pub mod listen;
pub mod ready;
pub mod shutdown;
pub mod store;
pub mod task;
pub mod telemetry;
pub mod tls;

pub use backoff::Backoff;
pub use clock::{Clock, SharedClock, SystemClock, TestClock};
pub use error::Coded;
pub use task::Tasks;
