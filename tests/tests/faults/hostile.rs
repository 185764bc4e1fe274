//! Attempts of hostile users and peers on the real processes of a subnet, by theme.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod addresses;
mod chats;
mod connections;
mod local;
mod machine;
mod miners;
mod outside_users;
mod receipt_pages;
mod replays;
mod support;
