//! `muster man-pages`: the man pages of all commands, which packages hold.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use muster_terminal::print;

use crate::cli::Cli;
use crate::failure::{Failure, Result};

/// Writes `muster.1`, `muster-job.1`, `muster-job-run.1` and so on into the folder.
pub(crate) fn write(folder: &Path) -> Result<ExitCode> {
    clap_mangen::generate_to(Cli::command(), folder).map_err(|error| {
        Failure::usage(format_args!(
            "man pages cannot be written to {}: {error}",
            folder.display()
        ))
    })?;
    print::line(format_args!("{}", folder.display()));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_page_and_hidden_ones_have_none() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for name in ["muster", "muster-up", "muster-job-run", "muster-miner-drain"] {
            let page = std::fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH NAME"), "{name}: {page}");
        }
        assert!(!folder.path().join("muster-man-pages.1").exists());
        assert!(write(&folder.path().join("missing")).is_err());
    }
}
