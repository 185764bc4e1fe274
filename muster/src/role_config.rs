//! A role's configuration as its command reads it: from a file, or the commented defaults.

use std::path::Path;

use muster_process::Coded as _;
use muster_process::config::{self, RoleConfig};
use muster_terminal::print;

use crate::cli::RoleFile;
use crate::failure::{Failure, Result};

/// Reads a configuration, or prints the commented defaults and returns nothing.
pub(crate) fn configure<T: RoleConfig>(file: &RoleFile) -> Result<Option<T>> {
    if file.print_config {
        print::raw(T::COMMENTED_DEFAULT);
        return Ok(None);
    }
    read_config(file.config.as_deref()).map(Some)
}

/// Reads a configuration; without a path, every default.
pub(crate) fn read_config<T: RoleConfig>(path: Option<&Path>) -> Result<T> {
    let read = match path {
        Some(path) => config::load(path),
        None => config::commented_default(),
    };
    read.map_err(|error| Failure::coded(error.code(), error))
}

/// Fails where a role's store is missing, so that no command of its operator makes one elsewhere.
pub(crate) fn ensure_store(url: &str) -> Result {
    muster_store::check_existing(url).map_err(|error| Failure::coded(error.code(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_missing_is_named_and_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("miner.toml");
        std::fs::write(&config, "").unwrap();
        let config: muster_miner::Config = read_config(Some(&config)).unwrap();
        let store = folder.path().join("miner.db");
        let missing = ensure_store(&config.store).unwrap_err().to_string();
        assert!(missing.contains(store.to_str().unwrap()), "{missing}");
        assert!(!store.exists());
        std::fs::write(&store, "").unwrap();
        ensure_store(&config.store).unwrap();
    }
}
