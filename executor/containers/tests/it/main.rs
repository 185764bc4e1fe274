//! Tests of the crate against real engines, real registries and a program that tries to break out.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed helper fails its test, on its line"
)]

mod access;
mod broken_images;
mod cache;
mod compatibility;
mod dockerd;
mod engine;
mod image_folders;
mod llm;
mod probes;
mod registry;
mod support;
mod user_archive;
