//! The crate against real engines, real registries and a program that tries to break out.

mod cache;
mod compatibility;
mod dockerd;
mod engine;
mod llm;
mod probes;
mod registry;
mod support;
