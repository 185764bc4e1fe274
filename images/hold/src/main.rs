//! Waits for the description of a program and replaces itself by that program.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use muster_hold::{JobProgram, exit_code};

fn main() -> ExitCode {
    let Ok(orders) = JobProgram::read(io::stdin().lock()) else {
        // The executor releases an unused container by closing its input.
        return ExitCode::FAILURE;
    };
    let mut command = Command::new(&orders.program);
    // The container engine also gives /dev/null to a container without a standard input.
    command.args(&orders.arguments).stdin(Stdio::null());
    for (name, value) in &orders.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // `exec` returns only if it failed.
    let error = command.exec();
    let line = format!("{}exec: {:?}: {error}\n", orders.mark, orders.program);
    // If stderr is closed, the exit code still reports the failure.
    let _ = io::stderr().write_all(line.as_bytes());
    ExitCode::from(exit_code(&error))
}
