//! A role's configuration as its command reads it: from a file, or the commented defaults.

use std::path::Path;

use muster_process::Coded as _;
use muster_process::config::{self, RoleConfig};
use muster_terminal::print;

use crate::failure::{Failure, Result};

/// Reads a configuration, or prints the commented defaults and returns nothing.
pub(crate) fn configure<T: RoleConfig>(path: Option<&Path>, print: bool) -> Result<Option<T>> {
    if print {
        print::raw(T::COMMENTED_DEFAULT);
        return Ok(None);
    }
    let read = match path {
        Some(path) => config::load(path),
        None => config::commented_default(),
    };
    read.map(Some)
        .map_err(|error| Failure::coded(error.code(), error))
}
