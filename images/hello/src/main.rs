//! The program of the demo job's image: `hello words`, `hello probe …`, `hello parrot …`, or `hello serve …`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use muster_image_hello::probe::Probe;
use muster_image_hello::serve::ListenOn;
use muster_image_hello::{ARTIFACTS, OUTPUT, RESULT, VOLUME, parrot, words};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((command, [])) if command == "words" => count_words(),
        Some((command, rest)) if command == "probe" => match Probe::parse(rest) {
            Some(probe) => probe.run(&mut io::stdout().lock(), &mut io::stderr().lock()),
            None => usage(),
        },
        Some((command, [socket])) if command == "parrot" => parrot::serve(Path::new(socket), Duration::ZERO),
        Some((command, [socket, pace])) if command == "parrot" => match pace.parse() {
            Ok(pace) => parrot::serve(Path::new(socket), Duration::from_millis(pace)),
            Err(_) => usage(),
        },
        Some((command, rest)) if command == "serve" => match ListenOn::parse(rest) {
            Some(serve) => serve.run(),
            None => usage(),
        },
        Some(_) | None => usage(),
    };
    result.unwrap_or_else(|error| {
        // If stderr is closed, the error cannot be reported.
        let _ = writeln!(io::stderr(), "hello: {error}");
        ExitCode::FAILURE
    })
}

fn count_words() -> io::Result<ExitCode> {
    let frequencies = words::count_folder(Path::new(VOLUME))?;
    let result = format!("{:#}\n", frequencies.to_json());
    // The user decides which of the two folders is mounted, if any.
    for folder in [ARTIFACTS, OUTPUT].map(Path::new) {
        if folder.is_dir() {
            std::fs::write(folder.join(RESULT), &result)?;
        }
    }
    io::stdout().lock().write_all(frequencies.summary().as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn usage() -> io::Result<ExitCode> {
    writeln!(
        io::stderr(),
        "usage: hello words | hello probe exit N|tree|sleep SECONDS|say SECONDS WORD…|print BYTES|bytes SECONDS|fill MIB|allocate MIB|train STEPS|save STEPS N|surroundings | hello serve socket NAME|port N | hello parrot SOCKET [PACE_MS]"
    )?;
    Ok(ExitCode::from(64))
}
