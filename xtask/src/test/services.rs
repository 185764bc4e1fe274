//! The services that run beside the tests, and the variables by which the tests find them.
//!
//! A service that cannot be had leaves its variable unset: the tests that need it fail by name and report why.

use std::path::Path;

use anyhow::{Context, ensure};
use nix::sys::statvfs::statvfs;

use super::{
    SLOW_MILLICORES, cgroup::Cgroup, console::Console, docker::TestEngine, postgres::Postgres,
    report::Outcome,
};

/// Where the stores' tests find PostgreSQL.
pub(super) const POSTGRES: &str = "MUSTER_TEST_POSTGRES_URL";

/// The room that the tests' images, stores and jobs take at one time, with some to spare, in GiB. Executors begin no
/// job on a full disk, so with less room many tests fail, each with words of its own.
const ROOM_GIB: u64 = 10;

/// The services of one run. Dropping them stops what was started.
#[derive(Default)]
pub(super) struct Services {
    postgres: Option<Postgres>,
    engine: Option<TestEngine>,
}

impl Services {
    /// Starts all that can be started; fails if one cannot, or the disk has no room, after trying the others.
    ///
    /// The services end with the thread that started them (`setpriv --pdeathsig`), so that is the main thread.
    /// PostgreSQL is put into the group `control`. With `bounded` the engine is one of the run's own below that group:
    /// the machine's is never bounded.
    pub(super) fn start(
        console: &Console,
        control: Option<&Cgroup>,
        bounded: Option<&Cgroup>,
    ) -> (Self, Outcome) {
        let mut missing = Vec::new();
        let mut note = |what: &'static str, error: anyhow::Error| {
            console.print(format_args!("{what}: {error:#}"));
            missing.push(what);
        };
        for folder in [std::env::temp_dir().as_path(), Path::new("/var/lib")] {
            match check_room(folder) {
                Ok(free) => console.print(format_args!(
                    "Disk: {free} GiB are free below {}",
                    folder.display()
                )),
                Err(error) => note("room on the disk", error),
            }
        }
        let postgres = Postgres::start()
            .inspect(|_| console.print(format_args!("PostgreSQL: a cluster for this run ({POSTGRES})")))
            .map_err(|error| note("PostgreSQL", error))
            .ok();
        if let (Some(control), Some(postgres)) = (control, &postgres)
            && let Err(error) = control.adopt(postgres.process())
        {
            console.print(format_args!("PostgreSQL's time is not measured: {error:#}"));
        }
        let engine = match bounded {
            Some(bounded) => TestEngine::start_below(bounded, SLOW_MILLICORES),
            None => TestEngine::find_or_start(),
        };
        let engine = engine.map_err(|error| note("Docker", error)).ok();
        if let Some(engine) = &engine {
            console.print(format_args!(
                "Docker: {}",
                if engine.started() {
                    "started dockerd for this run"
                } else {
                    "an engine answers"
                }
            ));
        }
        let services = Self { postgres, engine };
        (services, Outcome::unless_missing(&missing))
    }

    /// The address of an engine that is not the machine's, as `DOCKER_HOST` takes it.
    pub(super) fn engine(&self) -> Option<&str> {
        self.engine.as_ref().and_then(TestEngine::address)
    }

    /// The URL of the PostgreSQL cluster, if there is one.
    pub(super) fn postgres(&self) -> Option<&str> {
        self.postgres.as_ref().map(Postgres::url)
    }
}

/// The GiB that are free on the disk of a folder, which must be enough for the tests.
fn check_room(folder: &Path) -> anyhow::Result<u64> {
    let disk = statvfs(folder).with_context(|| format!("look at the disk of {}", folder.display()))?;
    let free = disk.blocks_available().saturating_mul(disk.fragment_size()) >> 30;
    ensure!(
        free >= ROOM_GIB,
        "{free} GiB are free below {}, and the tests need {ROOM_GIB}: remove target folders of other checkouts",
        folder.display()
    );
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = check_room(Path::new("/no/such/folder")).unwrap_err().to_string();
        assert!(error.contains("/no/such/folder"), "{error}");
    }
}
