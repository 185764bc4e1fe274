//! The parts of each role that a backup holds, by the role's configuration.

use std::path::{Path, PathBuf};

use crate::cli::BackupRole;
use crate::failure::Result;
use crate::role_config::look_at_config;

/// The parts of one role.
#[derive(Clone, Debug)]
pub(super) struct RoleParts {
    pub(super) kind: BackupRole,
    /// The role's name.
    pub(super) role: &'static str,
    /// The folder from which its relative paths count; empty for that of its configuration.
    pub(super) state_dir: PathBuf,
    /// The URL of its store; `None` for an executor.
    pub(super) store: Option<String>,
    /// Its folders and single files, each with its name in the backup.
    pub(super) folders: Vec<(&'static str, PathBuf)>,
}

/// The parts that the configuration at `path` names; the default configuration without one.
pub(super) fn read_parts(role: BackupRole, path: Option<&Path>) -> Result<RoleParts> {
    Ok(match role {
        BackupRole::Facilitator => of_facilitator(&look_at_config(path)?),
        BackupRole::Validator => of_validator(&look_at_config(path)?),
        BackupRole::Miner => of_miner(&look_at_config(path)?),
        BackupRole::Executor => of_executor(&look_at_config(path)?),
    })
}

pub(super) fn of_facilitator(config: &muster_facilitator::Config) -> RoleParts {
    RoleParts {
        kind: BackupRole::Facilitator,
        role: "facilitator",
        state_dir: config.state_dir.clone(),
        store: Some(config.store.clone()),
        folders: config
            .files
            .folder()
            .map(|folder| ("files", folder))
            .into_iter()
            .collect(),
    }
}

pub(super) fn of_validator(config: &muster_validator::Config) -> RoleParts {
    RoleParts {
        kind: BackupRole::Validator,
        role: "validator",
        state_dir: config.state_dir.clone(),
        store: Some(config.store.clone()),
        folders: Vec::new(),
    }
}

/// The receipt pages are not among the parts: they are made from the store.
pub(super) fn of_miner(config: &muster_miner::Config) -> RoleParts {
    RoleParts {
        kind: BackupRole::Miner,
        role: "miner",
        state_dir: config.state_dir.clone(),
        store: Some(config.store.clone()),
        folders: vec![
            ("standing", config.persistent.roll.clone()),
            ("tls", config.tls.folder()),
            ("provisioned", config.executor.provisioned.clone()),
        ],
    }
}

/// Caches, work folders and claims on GPUs are not among the parts: they are of the machine, and made anew.
pub(super) fn of_executor(config: &muster_executor::config::Config) -> RoleParts {
    RoleParts {
        kind: BackupRole::Executor,
        role: "executor",
        state_dir: config.state_dir.clone(),
        store: None,
        folders: vec![("membership.json", config.persistent.membership.clone())],
    }
}
