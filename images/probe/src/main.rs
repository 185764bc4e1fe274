//! Tries what no job may do, one thing at a time, and says whether it worked. The tests of `muster-containers` run it inside
//! the sandbox, where everything must fail, and outside, where everything must work.
//!
//! ```sh
//! probe list                 # every probe and what it tries, as JSON
//! probe run NAME [ARGUMENT]  # {"worked": true|false, "words": "…"}
//! probe listen PORT          # accepts connections until it is ended: somebody to connect to
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
        // The rest are processes that probes start.
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
        // Where stderr is closed there is nobody left to tell.
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
