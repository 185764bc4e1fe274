//! The program as a process of its own, and a client that knows just enough HTTP to see every byte.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::wait::{patience, wait_for};

/// The folder of the repository's model.
pub(crate) fn small_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("model")
}

/// A running engine; it is killed with its folder.
pub(crate) struct Server {
    child: Child,
    pub(crate) socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Serves a model made up on the spot.
    pub(crate) fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let folder = crate::support::folder()?;
        let path = folder.path().to_owned();
        Self::serve(
            env!("CARGO_BIN_EXE_muster-llm"),
            &path,
            path.join("s"),
            arguments,
            folder,
        )
    }

    /// Serves the same model with the cheating engine of the examples, which cargo builds with the tests.
    pub(crate) fn cheating(arguments: &[&str]) -> anyhow::Result<Self> {
        let folder = crate::support::folder()?;
        let path = folder.path().to_owned();
        let program = Path::new(env!("CARGO_BIN_EXE_muster-llm")).with_file_name("examples/cheating_llm");
        Self::serve(&program, &path, path.join("s"), arguments, folder)
    }

    /// Serves the model at `path` with that engine.
    fn cheating_with(path: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let program = Path::new(env!("CARGO_BIN_EXE_muster-llm")).with_file_name("examples/cheating_llm");
        let socket = folder.path().join("s");
        Self::serve(&program, path, socket, arguments, folder)
    }

    /// Serves the repository's model on one thread: others wait for it in a loop, in candle's products of quantised
    /// weights, and take the processor from the tests beside.
    pub(crate) fn small(arguments: &[&str]) -> anyhow::Result<Self> {
        Self::of(&small_model(), &[&["--threads", "1"], arguments].concat())
    }

    /// The same with the cheating engine.
    pub(crate) fn cheating_small(arguments: &[&str]) -> anyhow::Result<Self> {
        Self::cheating_with(&small_model(), &[&["--threads", "1"], arguments].concat())
    }

    /// Serves the model at `path`.
    pub(crate) fn of(path: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("s");
        Self::serve(env!("CARGO_BIN_EXE_muster-llm"), path, socket, arguments, folder)
    }

    fn serve(
        program: impl AsRef<std::ffi::OsStr>,
        model: &Path,
        socket: PathBuf,
        arguments: &[&str],
        folder: tempfile::TempDir,
    ) -> anyhow::Result<Self> {
        let child = Command::new(program)
            .args(["serve", "--name", "test", "--model"])
            .arg(model)
            .arg("--socket")
            .arg(&socket)
            .args(arguments)
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .spawn()?;
        let mut server = Self {
            child,
            socket,
            _folder: folder,
        };
        wait_for("the engine's socket answers", || {
            if UnixStream::connect(&server.socket).is_ok() {
                return Ok(Some(()));
            }
            match server.child.try_wait()? {
                Some(status) => bail!("the engine ended: {status}"),
                None => Ok(None),
            }
        })?;
        Ok(server)
    }

    pub(crate) fn connect(&self) -> anyhow::Result<UnixStream> {
        Ok(UnixStream::connect(&self.socket)?)
    }

    /// Sends a request and leaves the answer to be read.
    pub(crate) fn send(&self, path: &str, body: &Value) -> anyhow::Result<UnixStream> {
        self.send_with(path, "", body)
    }

    /// The same, with further lines of headers.
    pub(crate) fn send_with(&self, path: &str, headers: &str, body: &Value) -> anyhow::Result<UnixStream> {
        let mut stream = self.connect()?;
        let body = body.to_string();
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        // One write: the engine may refuse a request by its head, and close before its body is written.
        stream.write_all(request.as_bytes())?;
        Ok(stream)
    }

    /// Status and document.
    pub(crate) fn post(&self, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        let (status, text) = read(self.send(path, body)?)?;
        Ok((status, serde_json::from_str(&text).with_context(|| text)?))
    }

    pub(crate) fn get(&self, path: &str) -> anyhow::Result<(u16, Value)> {
        let mut stream = self.connect()?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )?;
        let (status, text) = read(stream)?;
        Ok((status, serde_json::from_str(&text).with_context(|| text)?))
    }

    /// The documents of a stream of events; `[DONE]` was the last line.
    pub(crate) fn events(&self, path: &str, body: &Value) -> anyhow::Result<Vec<Value>> {
        let (status, text) = read(self.send(path, body)?)?;
        anyhow::ensure!(status == 200, "{status}: {text}");
        let mut lines: Vec<&str> = text
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "))
            .collect();
        anyhow::ensure!(lines.pop() == Some("[DONE]"), "{text}");
        Ok(lines
            .into_iter()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?)
    }

    /// Requests that the engine works on.
    pub(crate) fn open(&self) -> anyhow::Result<u64> {
        self.get("/health")?.1["open"].as_u64().context("no count")
    }

    /// Waits until it works on nothing.
    pub(crate) fn idle(&self) -> anyhow::Result<()> {
        wait_for("the engine works on nothing", || {
            Ok((self.open()? == 0).then_some(()))
        })
    }

    /// Its resident memory, in KiB.
    pub(crate) fn memory(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads an answer to its end.
pub(crate) fn read(stream: UnixStream) -> anyhow::Result<(u16, String)> {
    stream.set_read_timeout(Some(patience()?))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line
        .split(' ')
        .nth(1)
        .with_context(|| format!("no status in {line:?}"))?
        .parse()?;
    let mut chunked = false;
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        chunked |= line
            .to_ascii_lowercase()
            .starts_with("transfer-encoding: chunked");
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = Vec::new();
    if !chunked {
        reader.read_to_end(&mut body)?;
        return Ok((status, String::from_utf8(body)?));
    }
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim(), 16)?;
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk)?;
        chunk.truncate(size);
        body.extend(chunk);
        if size == 0 {
            return Ok((status, String::from_utf8(body)?));
        }
    }
}
