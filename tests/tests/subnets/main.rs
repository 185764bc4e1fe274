//! Whole subnets as real processes, and what users, operators and programs that we did not write do with them. One
//! program holds them all, because each further one is linked with every role.

mod browser;
mod burns;
mod checkpoints;
mod collateral;
mod command_line;
mod compute_horde;
mod data;
mod demo;
mod differential;
mod failures;
mod files;
mod fleets;
mod foreign;
mod gpu_rehearsal;
mod grading;
mod kubernetes;
mod llama;
mod logs;
mod metrics;
mod migrations;
mod official_clients;
mod operators;
mod organic;
mod output;
mod private_images;
mod retention;
mod shared;
mod streaming;
mod tls;
mod top;
mod traces;
mod trusted_miner;
mod user_pages;
mod users;
mod validators;
