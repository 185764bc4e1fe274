//! A small service behind the sealing proxy: acts as a streaming job, and as a malicious one.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The folder of a streaming job's socket.
const SOCKETS: &str = "/muster";
/// The longest request body that is read, in bytes.
const MAX_BODY: u64 = 1024 * 1024;

/// The address at which the service listens.
#[derive(Debug, PartialEq, Eq)]
pub enum ListenOn {
    /// A Unix socket of this name in the folder for sockets.
    Socket(String),
    /// A TCP port.
    Port(u16),
}

impl ListenOn {
    /// Parses the arguments of `serve socket NAME` or `serve port N`, without the first word.
    pub fn parse(arguments: &[String]) -> Option<Self> {
        match arguments {
            [kind, name] if kind == "socket" => Some(Self::Socket(name.clone())),
            [kind, port] if kind == "port" => port.parse().ok().map(Self::Port),
            _ => None,
        }
    }

    /// Serves until the process ends.
    ///
    /// # Errors
    /// The address cannot be opened.
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
                    std::thread::spawn(move || handle_connection(reading, stream, Some(&path)));
                }
            }
            Self::Port(port) => {
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
                loop {
                    let (stream, _) = listener.accept()?;
                    let reading = stream.try_clone()?;
                    std::thread::spawn(move || handle_connection(reading, stream, None));
                }
            }
        }
    }
}

/// Handles one request. Errors are ignored, because a client may leave at any time.
fn handle_connection(reading: impl Read, mut writing: impl Write, socket: Option<&PathBuf>) {
    let mut reader = BufReader::new(reading);
    let Some((path, body)) = read_request(&mut reader) else {
        return;
    };
    let _ = match path.as_str() {
        "/v1/chat/completions" => stream_chat(&mut writing),
        "/endless" => stream_until_reader_leaves(&mut reader, &mut writing),
        "/terminate" => {
            let _ = write_text(&mut writing, "goodbye");
            std::process::exit(0);
        }
        // A malicious job replaces its socket by a link to another file.
        "/link" => {
            let linked = socket.map(|socket| {
                let _ = std::fs::remove_file(socket);
                std::os::unix::fs::symlink(&body, socket)
            });
            write_text(
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
            write_text(&mut writing, uid)
        }
        _ => write_text(&mut writing, "ok"),
    };
}

/// Reads the path and the body of a request.
fn read_request(reader: &mut impl BufRead) -> Option<(String, String)> {
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

fn write_text(to: &mut impl Write, body: &str) -> io::Result<()> {
    let length = body.len();
    write!(
        to,
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn write_event_head(to: &mut impl Write) -> io::Result<()> {
    write!(
        to,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    )
}

fn stream_chat(to: &mut impl Write) -> io::Result<()> {
    write_event_head(to)?;
    for word in ["A ", "force ", "is ", "called ", "up."] {
        write!(
            to,
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{word}\"}}}}]}}\n\n"
        )?;
        to.flush()?;
    }
    write!(to, "data: [DONE]\n\n")
}

/// Sends one event and then nothing until the reader leaves.
fn stream_until_reader_leaves(reader: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    write_event_head(to)?;
    write!(to, "data: 1\n\n")?;
    to.flush()?;
    reader.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_to(request: &str) -> String {
        let mut answered = Vec::new();
        handle_connection(request.as_bytes(), &mut answered, None);
        String::from_utf8(answered).unwrap()
    }

    #[test]
    fn where_to_listen_is_read() {
        let parse = |words: &[&str]| {
            ListenOn::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(
            parse(&["socket", "x.sock"]),
            Some(ListenOn::Socket("x.sock".to_owned()))
        );
        assert_eq!(parse(&["port", "8000"]), Some(ListenOn::Port(8_000)));
        assert_eq!(parse(&["port", "x"]), None);
        assert_eq!(parse(&[]), None);
    }

    #[test]
    fn it_answers_what_is_asked() {
        assert!(response_to("GET /health HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nok"));
        let chat = response_to("POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}");
        assert!(
            chat.contains("text/event-stream") && chat.ends_with("data: [DONE]\n\n"),
            "{chat}"
        );
        assert!(response_to("GET /who HTTP/1.1\r\n\r\n").contains("Uid:"));
        assert!(response_to("POST /link HTTP/1.1\r\ncontent-length: 2\r\n\r\n/x").ends_with("not linked"));
        assert_eq!(response_to("GET"), "");
    }
}
