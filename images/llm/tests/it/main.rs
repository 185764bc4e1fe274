//! The engine from outside: files, numbers, HTTP. One program, because linking the tensor library takes long.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests fail as tests do, and say what they saw"
)]

mod backend;
mod cheats;
mod client;
mod files;
mod http;
mod others;
mod retrace;
mod stated_ids;
mod support;
mod vectors;
mod wait;
