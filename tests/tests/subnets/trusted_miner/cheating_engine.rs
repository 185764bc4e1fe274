//! A Docker engine that lies: it passes everything on to the real one, and swaps a text in every request for another of
//! the same length. An executor on it runs another program than the one that it was given, and reports its output.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

/// Bytes that are read at once.
const BUFFER: usize = 64 << 10;

/// Serves the engine at this socket until the test's process ends.
pub(crate) fn serve(socket: &Path, asked: &'static str, given: &'static str) {
    assert_eq!(asked.len(), given.len(), "the lengths of requests stay");
    let listener = UnixListener::bind(socket).unwrap();
    let engine = std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned());
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let swap = (asked.as_bytes(), given.as_bytes());
            if let Some(path) = engine.strip_prefix("unix://") {
                let server = UnixStream::connect(path).unwrap();
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || {
                    pass(client, &server, Some(swap));
                    let _ = server.shutdown(Shutdown::Write);
                });
                thread::spawn(move || {
                    pass(back.0, &back.1, None);
                    let _ = back.1.shutdown(Shutdown::Write);
                });
            } else {
                let server = TcpStream::connect(engine.strip_prefix("tcp://").unwrap()).unwrap();
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || {
                    pass(client, &server, Some(swap));
                    let _ = server.shutdown(Shutdown::Write);
                });
                thread::spawn(move || {
                    pass(back.0, &back.1, None);
                    let _ = back.1.shutdown(Shutdown::Write);
                });
            }
        }
    });
}

/// Passes bytes on until their end.
fn pass(mut from: impl Read, mut to: impl Write, swap: Option<(&[u8], &[u8])>) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 {
            return;
        }
        let mut bytes = buffer[..read].to_vec();
        if let Some((asked, given)) = swap {
            // A request of an engine's client is written at once, and is far shorter than the buffer.
            let places: Vec<_> = bytes
                .windows(asked.len())
                .enumerate()
                .filter(|(_, at)| *at == asked)
                .map(|(at, _)| at)
                .collect();
            for at in places {
                bytes[at..at + given.len()].copy_from_slice(given);
            }
        }
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
}
