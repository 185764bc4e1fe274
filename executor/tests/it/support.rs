//! Shared by the executor's tests: a miner that speaks as ComputeHorde's Python miner does, and an image of ours.

#[path = "../../containers/tests/it/support/dockerd.rs"]
#[expect(dead_code, reason = "the engine's own tests use all of it")]
pub(crate) mod dockerd;
pub(crate) mod image;
pub(crate) mod lease;
#[path = "../../containers/tests/it/support/machine.rs"]
mod machine;
pub(crate) mod miner;
#[path = "../../containers/tests/it/support/registry.rs"]
#[expect(dead_code, reason = "the engine's own tests use all of it")]
pub(crate) mod registry;

pub(crate) use self::machine::{build_static, engine, require, until};
