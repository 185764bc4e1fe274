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

/// Whether the engine at an address shows a container of this name as running.
pub(crate) async fn is_running(engine: &str, name: Option<&String>) -> bool {
    let docker = bollard::Docker::connect_with_host(engine).unwrap();
    let Some(name) = name else { return false };
    let found = docker.negotiate_version().await.unwrap();
    let found = found.inspect_container(name, None).await.unwrap();
    found.state.and_then(|state| state.running) == Some(true)
}
