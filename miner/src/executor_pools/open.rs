//! Makes the manager of a pool from its configuration.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_kubernetes_engine::{KubernetesEngine, Pool as LabelledPool, SetupError};
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_provisioning::{
    Commands, EngineExecutors, ExecutorEngine, ExecutorManager, LocalProcesses, Provisioner,
};
use muster_slurm_engine::SlurmEngine;

use crate::executor_pools::config::{EngineKind, PoolConfig};
use crate::executor_pools::pools::Pool;

/// A pool could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("the pool {pool:?} cannot be used")]
pub struct OpenPoolError {
    /// The pool's name.
    pool: String,
    source: SetupError,
}

/// The miner whose pools are opened.
#[derive(Clone, Copy, Debug)]
pub struct PoolOwner<'a> {
    /// The miner's name at engines, where several miners may have executors: its hotkey as an ss58 address.
    pub name: &'a str,
    /// The folder of the records of provisioned executors; each pool has a folder of its own in it.
    pub provisioned: &'a Path,
    /// The processes beside a local pool's places that only fetch images.
    pub fetching: u32,
}

/// Opens a pool. The watch over its engine runs until `tasks` are stopped.
///
/// # Errors
/// The access to the engine cannot be used.
pub async fn open(
    config: &PoolConfig,
    owner: PoolOwner<'_>,
    tasks: &Tasks,
    clock: &SharedClock,
) -> Result<Pool, OpenPoolError> {
    let manager: Arc<dyn ExecutorManager> = match config.engine {
        EngineKind::Local => Arc::new(LocalProcesses::new(config.command.clone(), Arc::clone(clock))),
        EngineKind::Command => {
            let commands = Commands {
                provision: config.provision.clone(),
                release: config.release.clone(),
                limit: Duration::from_secs(config.provision_s),
                daily: (config.daily_machine_s > 0).then(|| Duration::from_secs(config.daily_machine_s)),
            };
            let folder = owner.provisioned.join(&config.name);
            Arc::new(Provisioner::new(commands, folder, Arc::clone(clock)))
        }
        EngineKind::Slurm => {
            let engine = SlurmEngine::new(
                config.slurm.clone(),
                &config.command,
                label(owner.name, config),
                Arc::clone(clock),
            );
            watched(engine, tasks, clock)
        }
        EngineKind::Kubernetes => {
            let pool = labelled(owner.name, config);
            let engine = KubernetesEngine::connect(&config.kubernetes, pool, Arc::clone(clock)).await;
            let engine = engine.map_err(|source| OpenPoolError {
                pool: config.name.clone(),
                source,
            })?;
            watched(engine, tasks, clock)
        }
    };
    let fetching = match config.engine {
        EngineKind::Local => owner.fetching,
        EngineKind::Command | EngineKind::Slurm | EngineKind::Kubernetes => 0,
    };
    Ok(Pool::new(config, manager, fetching))
}

/// Asks the engine of a pool once for the executors that its machines hold at one time. `None` for a pool without an
/// engine.
///
/// # Errors
/// The access to the engine cannot be used, or the engine does not answer; the reason as text.
pub async fn ask_places(
    config: &PoolConfig,
    owner: &str,
    clock: &SharedClock,
) -> Option<Result<u32, String>> {
    let no_hosts = BTreeSet::new();
    let survey = match config.engine {
        EngineKind::Local | EngineKind::Command => return None,
        EngineKind::Slurm => {
            let label = label(owner, config);
            SlurmEngine::new(config.slurm.clone(), &config.command, label, Arc::clone(clock))
                .survey(&no_hosts)
                .await
        }
        EngineKind::Kubernetes => {
            let pool = labelled(owner, config);
            match KubernetesEngine::connect(&config.kubernetes, pool, Arc::clone(clock)).await {
                Ok(engine) => engine.survey(&no_hosts).await,
                Err(error) => return Some(Err(Causes(&error).to_string())),
            }
        }
    };
    Some(
        survey
            .map(|survey| survey.places)
            .map_err(|error| error.to_string()),
    )
}

/// The label of a pool's jobs at Slurm.
fn label(owner: &str, config: &PoolConfig) -> String {
    format!("muster:{owner}:{}", config.name)
}

/// The labels of a pool's pods at Kubernetes.
fn labelled(owner: &str, config: &PoolConfig) -> LabelledPool {
    LabelledPool {
        miner: owner.to_owned(),
        name: config.name.clone(),
        count: config.count,
    }
}

fn watched(engine: impl ExecutorEngine, tasks: &Tasks, clock: &SharedClock) -> Arc<dyn ExecutorManager> {
    let executors = EngineExecutors::new(engine, Arc::clone(clock));
    tasks.spawn("engine of executors", executors.clone().follow(tasks.token()));
    Arc::new(executors)
}
