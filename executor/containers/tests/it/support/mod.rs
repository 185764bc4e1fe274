//! Helpers of these tests: an engine, our programs as images, registries, engines of the tests' own.

pub(crate) mod dockerd;
pub(crate) mod image;
pub(crate) mod registry;

use std::path::Path;
use std::sync::Arc;

use muster_containers::ContainerEngine;
use muster_containers::image_pull::PullProgress;
use muster_containers::image_settings::ImageSettings;
use muster_process::{SharedClock, SystemClock};

/// The label of every container that these tests make.
pub(crate) const LABEL: &str = "muster.engine-test";

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

/// Settings that record in `folder` and allow what these tests need: images that they loaded themselves, and registries
/// of this machine.
pub(crate) fn settings(folder: &Path) -> ImageSettings {
    ImageSettings {
        cache_dir: folder.to_owned(),
        allow: vec!["127.0.0.1".to_owned()],
        local: vec!["*".to_owned()],
        login_repositories: vec!["*".to_owned()],
        ..ImageSettings::default()
    }
}

pub(crate) fn clock() -> SharedClock {
    Arc::new(SystemClock::new())
}

/// A progress callback that does nothing.
pub(crate) fn unwatched() -> PullProgress {
    Arc::new(|_| {})
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
