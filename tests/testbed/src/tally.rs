//! Counts the subnets that a run of all tests starts, because each costs seconds of every core.

use std::{fs::OpenOptions, io::Write as _};

/// The variable with the file to which each subnet adds a line.
pub const SUBNETS_VARIABLE: &str = "MUSTER_TEST_SUBNETS";

/// Counts a subnet that a test starts; `cargo xtask test` compares the sum with `xtask/budget.toml`.
///
/// # Errors
/// The file that the variable names cannot be written.
pub fn count_subnet(of: &str) -> std::io::Result<()> {
    let Some(file) = std::env::var_os(SUBNETS_VARIABLE) else {
        return Ok(());
    };
    // One call for one line: processes that append at the same time do not mix their lines.
    let line = format!("{}\n", of.replace('\n', " "));
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)?
        .write_all(line.as_bytes())
}
