//! No code: `Cargo.toml` lists third-party crates with the features that all builds of devchain together need.
//!
//! Cargo compiles a crate once for each set of features. Without this list FRAME would be compiled again for the tests,
//! and macros would use other builds of serde than programs.
