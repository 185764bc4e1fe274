//! No code: `Cargo.toml` lists third-party crates with the features that all builds of this workspace together need.
//!
//! Cargo compiles a crate once for each set of features. Without this list `cargo run`, `cargo xtask` and the tests
//! would each compile tokio and what depends on it again, and macros would use other builds of serde than programs.
