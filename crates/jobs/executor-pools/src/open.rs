//! Makes the manager of a pool from its configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_kubernetes_engine::{KubernetesEngine, Pool as LabelledPool, SetupError};
use muster_process::{SharedClock, Tasks};
use muster_provisioning::{
    Commands, EngineExecutors, ExecutorEngine, ExecutorManager, LocalProcesses, Provisioner,
};
use muster_slurm_engine::SlurmEngine;

use crate::config::{EngineKind, PoolConfig};
use crate::pools::Pool;

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
    let label = format!("muster:{}:{}", owner.name, config.name);
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
            let engine = SlurmEngine::new(config.slurm.clone(), &config.command, label, Arc::clone(clock));
            watched(engine, tasks, clock)
        }
        EngineKind::Kubernetes => {
            let pool = LabelledPool {
                miner: owner.name.to_owned(),
                name: config.name.clone(),
                count: config.count,
            };
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

fn watched(engine: impl ExecutorEngine, tasks: &Tasks, clock: &SharedClock) -> Arc<dyn ExecutorManager> {
    let executors = EngineExecutors::new(engine, Arc::clone(clock));
    tasks.spawn("engine of executors", executors.clone().follow(tasks.token()));
    Arc::new(executors)
}
