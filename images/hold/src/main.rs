//! Waits for orders and becomes the program that they name.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use muster_hold::{Orders, exit_code};

fn main() -> ExitCode {
    let Ok(orders) = Orders::read(io::stdin().lock()) else {
        // Nobody came: the executor lets go of a container by closing its input.
        return ExitCode::FAILURE;
    };
    let mut command = Command::new(&orders.program);
    // As the engine gives it to a container without a standard input.
    command.args(&orders.arguments).stdin(Stdio::null());
    for (name, value) in &orders.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // Comes back only where it failed.
    let error = command.exec();
    let line = format!("{}exec: {:?}: {error}\n", orders.mark, orders.program);
    // Where stderr is closed the exit code says enough.
    let _ = io::stderr().write_all(line.as_bytes());
    ExitCode::from(exit_code(&error))
}
