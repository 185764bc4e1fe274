//! The vocabulary from outside the crate: golden bytes, parsers under hostile input, and the life of an attempt.

mod attempt;
mod fuzz;
mod golden;
mod releases;
mod sockets;
