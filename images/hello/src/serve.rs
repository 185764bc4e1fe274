//! A small service behind a seal: what a streaming job does, and what a bad one may try.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Where a streaming job's socket lies.
const SOCKETS: &str = "/muster";
/// The longest request that is read.
const MAX_BODY: u64 = 1024 * 1024;

/// Where it listens.
#[derive(Debug, PartialEq, Eq)]
pub enum Serve {
    /// On a socket of this name.
    Socket(String),
    /// On a port.
    Port(u16),
}

impl Serve {
    /// `serve socket NAME` or `serve port N`, without the first word.
    pub fn parse(arguments: &[String]) -> Option<Self> {
        match arguments {
            [kind, name] if kind == "socket" => Some(Self::Socket(name.clone())),
            [kind, port] if kind == "port" => port.parse().ok().map(Self::Port),
            _ => None,
        }
    }

    /// Answers for as long as it is let.
    ///
    /// # Errors
    /// It cannot listen there.
    pub fn run(self) -> io::Result<ExitCode> {
        match self {
            Self::Socket(name) => {
                let path = Path::new(SOCKETS).join(name);
                let listener = UnixListener::bind(&path)?;
                let path = Arc::new(path);
                loop {
                    let (stream, _) = listener.accept()?;
                    let path = Arc::clone(&path);
                    let reading = stream.try_clone()?;
                    std::thread::spawn(move || answer(reading, stream, Some(&path)));
                }
            }
            Self::Port(port) => {
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
                loop {
                    let (stream, _) = listener.accept()?;
                    let reading = stream.try_clone()?;
                    std::thread::spawn(move || answer(reading, stream, None));
                }
            }
        }
    }
}

/// One request. A client that leaves in the middle is nobody's loss.
fn answer(reading: impl Read, mut writing: impl Write, socket: Option<&PathBuf>) {
    let mut reader = BufReader::new(reading);
    let Some((path, body)) = read(&mut reader) else {
        return;
    };
    let _ = match path.as_str() {
        "/v1/chat/completions" => chat(&mut writing),
        "/endless" => endless(&mut reader, &mut writing),
        "/terminate" => {
            let _ = plain(&mut writing, "goodbye");
            std::process::exit(0);
        }
        // What a bad job does: its socket becomes a link to something else.
        "/link" => {
            let linked = socket.map(|socket| {
                let _ = std::fs::remove_file(socket);
                std::os::unix::fs::symlink(&body, socket)
            });
            plain(
                &mut writing,
                if matches!(linked, Some(Ok(()))) {
                    "linked"
                } else {
                    "not linked"
                },
            )
        }
        "/who" => {
            let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            let uid = status
                .lines()
                .find(|line| line.starts_with("Uid:"))
                .unwrap_or_default();
            plain(&mut writing, uid)
        }
        _ => plain(&mut writing, "ok"),
    };
}

/// The path of a request and its body.
fn read(reader: &mut impl BufRead) -> Option<(String, String)> {
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().ok()?;
        }
    }
    let mut body = Vec::new();
    reader.take(MAX_BODY.min(length)).read_to_end(&mut body).ok()?;
    Some((path, String::from_utf8_lossy(&body).into_owned()))
}

fn plain(to: &mut impl Write, body: &str) -> io::Result<()> {
    let length = body.len();
    write!(
        to,
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn events(to: &mut impl Write) -> io::Result<()> {
    write!(
        to,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    )
}

fn chat(to: &mut impl Write) -> io::Result<()> {
    events(to)?;
    for word in ["A ", "force ", "is ", "called ", "up."] {
        write!(
            to,
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{word}\"}}}}]}}\n\n"
        )?;
        to.flush()?;
    }
    write!(to, "data: [DONE]\n\n")
}

/// One event, and then nothing until its reader has gone.
fn endless(reader: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    events(to)?;
    write!(to, "data: 1\n\n")?;
    to.flush()?;
    reader.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(request: &str) -> String {
        let mut answered = Vec::new();
        answer(request.as_bytes(), &mut answered, None);
        String::from_utf8(answered).unwrap()
    }

    #[test]
    fn where_to_listen_is_read() {
        let parse =
            |words: &[&str]| Serve::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            parse(&["socket", "x.sock"]),
            Some(Serve::Socket("x.sock".to_owned()))
        );
        assert_eq!(parse(&["port", "8000"]), Some(Serve::Port(8_000)));
        assert_eq!(parse(&["port", "x"]), None);
        assert_eq!(parse(&[]), None);
    }

    #[test]
    fn it_answers_what_is_asked() {
        assert!(said("GET /health HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nok"));
        let chat = said("POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}");
        assert!(
            chat.contains("text/event-stream") && chat.ends_with("data: [DONE]\n\n"),
            "{chat}"
        );
        assert!(said("GET /who HTTP/1.1\r\n\r\n").contains("Uid:"));
        assert!(said("POST /link HTTP/1.1\r\ncontent-length: 2\r\n\r\n/x").ends_with("not linked"));
        assert_eq!(said("GET"), "");
    }
}
