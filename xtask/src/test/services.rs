//! The services that run beside the tests, and the variables by which the tests find them.
//!
//! A service that cannot be had leaves its variable unset: the tests that need it fail by name and say why.

use super::{console::Console, docker::TestEngine, postgres::Postgres, report::Outcome};

/// Where the stores' tests find PostgreSQL.
pub(super) const POSTGRES: &str = "MUSTER_TEST_POSTGRES_URL";

/// The services of one run. Dropping them stops what was started.
#[derive(Default)]
pub(super) struct Services {
    postgres: Option<Postgres>,
    _engine: Option<TestEngine>,
}

impl Services {
    /// Starts all that can be started; fails if one cannot, after trying the other.
    ///
    /// The services end with the thread that started them (`setpriv --pdeathsig`), so that is the main thread.
    pub(super) fn start(console: &Console) -> (Self, Outcome) {
        let mut missing = Vec::new();
        let mut note = |what: &'static str, error: anyhow::Error| {
            console.say(format_args!("{what}: {error:#}"));
            missing.push(what);
        };
        let postgres = Postgres::start()
            .inspect(|_| console.say(format_args!("PostgreSQL: a cluster for this run ({POSTGRES})")))
            .map_err(|error| note("PostgreSQL", error))
            .ok();
        let engine = TestEngine::find_or_start()
            .map_err(|error| note("Docker", error))
            .ok();
        if let Some(engine) = &engine {
            console.say(format_args!(
                "Docker: {}",
                if engine.started() {
                    "started dockerd for this run"
                } else {
                    "an engine answers"
                }
            ));
        }
        let services = Self {
            postgres,
            _engine: engine,
        };
        (services, Outcome::unless_missing(&missing))
    }

    /// The URL of the PostgreSQL cluster, if there is one.
    pub(super) fn postgres(&self) -> Option<&str> {
        self.postgres.as_ref().map(Postgres::url)
    }
}
