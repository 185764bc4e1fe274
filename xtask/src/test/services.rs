//! The services that run beside the tests, and the variables by which the tests find them.
//!
//! A service that cannot be had leaves its variable unset: the tests that need it fail by name and say why.

use std::ffi::OsString;

use super::{docker::TestEngine, postgres::Postgres, process::Interrupt, python::CLIENTS, report::Outcome};

/// Where the stores' tests find PostgreSQL.
const POSTGRES: &str = "MUSTER_TEST_POSTGRES_URL";

/// The services of one run. Dropping them stops what was started.
#[derive(Default)]
pub(super) struct Services {
    postgres: Option<Postgres>,
    engine: Option<TestEngine>,
    variables: Vec<(&'static str, OsString)>,
}

impl Services {
    /// Starts all that can be started; fails if one cannot, after trying the others.
    pub(super) fn start(&mut self, interrupt: &Interrupt) -> Outcome {
        let mut missing = Vec::new();
        let mut note = |what: &str, error: anyhow::Error| {
            eprintln!("{what}: {error:#}");
            missing.push(what.to_owned());
        };
        match Postgres::start() {
            Ok(postgres) => {
                println!("PostgreSQL: a cluster for this run ({POSTGRES})");
                self.variables.push((POSTGRES, postgres.url().into()));
                self.postgres = Some(postgres);
            }
            Err(error) => note("PostgreSQL", error),
        }
        match TestEngine::find_or_start() {
            Ok(engine) => {
                println!(
                    "Docker: {}",
                    if engine.started() {
                        "started dockerd for this run"
                    } else {
                        "an engine answers"
                    }
                );
                self.engine = Some(engine);
            }
            Err(error) => note("Docker", error),
        }
        for client in CLIENTS {
            if interrupt.requested() {
                break;
            }
            match client.interpreter() {
                Ok(python) => {
                    println!("Python: {} ({})", client.requirement(), client.variable);
                    self.variables.push((client.variable, python.into()));
                }
                Err(error) => note(&client.requirement(), error),
            }
        }
        if missing.is_empty() {
            Outcome::Passed
        } else {
            Outcome::Failed(format!("not to be had: {}", missing.join(", ")))
        }
    }

    /// For the test runner's environment.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&'static str, &OsString)> {
        self.variables.iter().map(|(name, value)| (*name, value))
    }
}
