//! The promises of stores, on both engines.

mod group;
mod stores;
