//! The needs of every role's process: time, tasks, configuration, logs, TLS, sockets to listen on.
//!
//! Time and randomness are injected through this crate, so that a test controls them. It holds no domain rules.

pub mod backoff;
pub mod certificate;
pub mod clock;
pub mod companion;
pub mod config;
pub mod connections;
pub mod error;
pub mod folders;
pub mod listen;
pub mod operator_token;
pub mod own_address;
pub mod private_folder;
pub mod ready;
pub mod shutdown;
pub mod task;
pub mod telemetry;
pub mod tls;

pub use backoff::Backoff;
pub use clock::{Clock, SharedClock, SystemClock, TestClock};
pub use error::Coded;
pub use task::Tasks;
