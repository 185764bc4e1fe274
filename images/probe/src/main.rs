//! Tries actions that are forbidden to jobs, one at a time, and reports whether they worked. The tests of
//! `muster-containers` run it inside the sandbox, where every probe must fail, and outside, where every probe must
//! work.
//!
//! ```sh
//! probe list                 # the name and the action of every probe, as JSON
//! probe run NAME [ARGUMENT]  # {"worked": true|false, "words": "…"}
//! probe listen PORT          # accepts connections until it is ended, as a target for other probes
//! ```

mod probes;
mod raw;

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::process::ExitCode;

use serde_json::json;

use crate::probes::Probe;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["list"] => list(),
        ["run", name] => run(name, ""),
        ["run", name, argument] => run(name, argument),
        ["listen", port] => listen(port),
        // The other commands are processes that probes start.
        ["wait"] => io::stdin()
            .read_to_end(&mut Vec::new())
            .map(|_| ExitCode::SUCCESS),
        ["leave", mark] => probes::leave(mark).map(|()| ExitCode::SUCCESS),
        ["linger", _mark] => {
            probes::linger();
            Ok(ExitCode::SUCCESS)
        }
        _ => usage(),
    };
    done.unwrap_or_else(|error| {
        // If stderr is closed, the error cannot be reported.
        let _ = writeln!(io::stderr(), "probe: {error}");
        ExitCode::FAILURE
    })
}

fn list() -> io::Result<ExitCode> {
    let all: Vec<_> = Probe::ALL
        .iter()
        .map(|probe| json!({"name": probe.name(), "tries": probe.tries()}))
        .collect();
    writeln!(io::stdout().lock(), "{}", json!(all))?;
    Ok(ExitCode::SUCCESS)
}

fn run(name: &str, argument: &str) -> io::Result<ExitCode> {
    let Some(probe) = Probe::ALL.into_iter().find(|probe| probe.name() == name) else {
        return usage();
    };
    let (worked, words) = match probe.run(argument) {
        Ok(words) => (true, words),
        Err(words) => (false, words),
    };
    writeln!(
        io::stdout().lock(),
        "{}",
        json!({"worked": worked, "words": words})
    )?;
    Ok(ExitCode::SUCCESS)
}

fn listen(port: &str) -> io::Result<ExitCode> {
    let listener = TcpListener::bind(format!("0.0.0.0:{port}"))?;
    writeln!(io::stdout().lock(), "listening")?;
    for connection in listener.incoming() {
        drop(connection?);
    }
    Ok(ExitCode::SUCCESS)
}

fn usage() -> io::Result<ExitCode> {
    writeln!(
        io::stderr(),
        "usage: probe list | probe run NAME [ARGUMENT] | probe listen PORT"
    )?;
    Ok(ExitCode::from(64))
}
