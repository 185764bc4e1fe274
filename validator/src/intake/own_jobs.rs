//! The validator's own jobs: a job that `muster_own_jobs` has stored gets its driver here, and one that it has called
//! off is ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_own_jobs::{OwnJobDeps, OwnJobStep, OwnJobs};
use muster_protocol::ExecutorClass;
use muster_protocol::wire::miner::GraderTerms;
use muster_store::StoreError;
use tokio::sync::mpsc;

use crate::config::Config;
use crate::driver::JobDrivers;
use crate::validator_state::ValidatorState;

/// The validator's own jobs, which these drivers run until the validator stops.
pub(crate) fn open_own_jobs(state: &Arc<ValidatorState>, drivers: &Arc<JobDrivers>) -> OwnJobs {
    let failing = Arc::clone(state);
    let (own_jobs, steps) = OwnJobs::new(OwnJobDeps {
        keypair: state.keypair.clone(),
        clock: Arc::clone(&state.clock),
        store: Arc::clone(&state.store),
        rules: Arc::clone(&state.rules),
        owner_of: {
            let state = Arc::clone(state);
            Box::new(move |miner| state.owner_of(miner))
        },
        trusted_miner: state.config.trusted_miner.hotkey,
        graders: list_graders(&state.config),
        registry: Arc::clone(&drivers.own_jobs),
        on_store_failure: Box::new(move |error| failing.fail(error)),
    });
    let stop = state.tasks.token();
    let taking = take_steps(Arc::clone(drivers), steps);
    state.spawn("own jobs", async move {
        stop.run_until_cancelled(taking).await.unwrap_or(Ok(()))
    });
    own_jobs
}

/// Takes the steps in their order, so that no job is called off before it has its driver.
async fn take_steps(
    drivers: Arc<JobDrivers>,
    mut steps: mpsc::Receiver<OwnJobStep>,
) -> Result<(), StoreError> {
    while let Some(step) = steps.recv().await {
        match step {
            OwnJobStep::Start { request, since } => drivers.start(*request, since, None),
            OwnJobStep::Cancel { job, reason } => drivers.cancel(job, reason).await?,
        }
    }
    Ok(())
}

/// The graders that challenge executors while they serve, by the executors' class.
fn list_graders(config: &Config) -> BTreeMap<ExecutorClass, GraderTerms> {
    let grader = |class| {
        let service = config.grading.service(class)?;
        let terms = service.terms();
        let grader = GraderTerms {
            image: service.image,
            docker_image: service.pull_by(),
            args: service.args,
            socket: terms.socket?,
            health: service.health,
        };
        Some((class, grader))
    };
    ExecutorClass::ALL.into_iter().filter_map(grader).collect()
}
