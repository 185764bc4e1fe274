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
