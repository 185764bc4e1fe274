//! Shared by the executor's tests: a miner that speaks as ComputeHorde's Python miner does, and an image of ours.

#[path = "../../../containers/tests/it/support/dockerd.rs"]
#[expect(dead_code, reason = "the engine's own tests use all of it")]
pub(crate) mod dockerd;
pub(crate) mod image;
pub(crate) mod lease;
pub(crate) mod miner;
#[path = "../../../containers/tests/it/support/registry.rs"]
#[expect(dead_code, reason = "the engine's own tests use all of it")]
pub(crate) mod registry;

use muster_executor::ContainerEngine;

/// The engine of this machine.
///
/// # Panics
/// None answers: a test that could not run did not pass.
pub(crate) async fn engine() -> ContainerEngine {
    match ContainerEngine::connect("").await {
        Ok(engine) => engine,
        Err(error) => panic!("this test needs a Docker engine, which `cargo xtask test` installs: {error}"),
    }
}

/// Polls until `ready` returns true.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut ready: impl FnMut() -> F) {
    muster_testbed::until(what, async || ready().await.then_some(())).await;
}

/// Fails the test unless a program of Debian is installed.
pub(crate) fn require(program: &str) {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|folder| folder.join(program).is_file())
    });
    assert!(
        found,
        "this test needs {program}, which `cargo xtask test` installs"
    );
}
