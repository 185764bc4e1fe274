//! Attempts of hostile users and peers on the real processes of a subnet, by theme.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod doors_connections;
mod doors_users;
mod machine;
