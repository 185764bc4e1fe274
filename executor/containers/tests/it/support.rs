//! Helpers of these tests: an engine, our programs as images, registries, engines of the tests' own.

pub(crate) mod dockerd;
pub(crate) mod image;
mod machine;
pub(crate) mod registry;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use muster_containers::host_files::HostFiles;
pub(crate) use muster_containers::image_pull::unwatched;
use muster_containers::image_settings::ImageSettings;
use muster_process::{SharedClock, SystemClock};

pub(crate) use self::machine::{build_static, engine, require, until};

/// The label of every container that these tests make.
pub(crate) const LABEL: &str = "muster.engine-test";

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

/// The files that a sandbox has at `/etc/hosts` and `/etc/hostname`, where the engine sees them. All tests share them.
pub(crate) fn host_files() -> &'static HostFiles {
    static FILES: LazyLock<HostFiles> = LazyLock::new(|| {
        let folder = std::env::temp_dir().join("muster-test-host-files");
        if !folder.exists() {
            let fresh = tempfile::tempdir().unwrap();
            HostFiles::under(fresh.path()).write().unwrap();
            // Another test may have been first.
            let _ = std::fs::rename(fresh.path(), &folder);
        }
        HostFiles::under(&folder)
    });
    &FILES
}
