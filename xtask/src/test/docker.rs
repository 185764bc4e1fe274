//! A Docker engine: the one that answers, or one started for this run where we are root.

use std::{
    env,
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{
    daemon::{Daemon, tied},
    install::root,
    process::{last_lines, quietly, within},
};

/// Debian's packages of an engine.
pub(super) const PACKAGES: &[&str] = &["docker.io", "containerd", "runc", "iptables"];

const SOCKET: &str = "/var/run/docker.sock";
const TIMEOUT: Duration = Duration::from_secs(5);

/// An engine that we started, and that stops with us; or nothing, where one ran already.
pub(super) struct TestEngine {
    _daemon: Option<(Daemon, TempDir)>,
}

impl TestEngine {
    /// Finds the engine that answers or starts one.
    pub(super) fn find_or_start() -> anyhow::Result<Self> {
        if answers() {
            return Ok(Self { _daemon: None });
        }
        if let Some(host) = host() {
            bail!("DOCKER_HOST is {host}, where no engine answers: start it, or unset the variable");
        }
        let program = program()
            .filter(|_| root())
            .ok_or_else(|| anyhow!("{}", advice(root())))?;
        let folder = tempfile::Builder::new()
            .prefix("muster-docker-")
            .tempdir()
            .context("make a folder for dockerd's log")?;
        let log = folder.path().join("log");
        let output = File::create(&log).context("open dockerd's log")?;
        let mut command = tied(&program, None, "TERM");
        command.stdout(output.try_clone()?).stderr(output);
        let mut daemon = Daemon::start(&mut command, Signal::SIGTERM, Duration::from_secs(30))?;
        let mut ended = false;
        let ready = within(Duration::from_secs(60), || {
            ended = daemon.ended().is_some();
            ended || answers()
        });
        if ready && !ended {
            return Ok(Self {
                _daemon: Some((daemon, folder)),
            });
        }
        let said = fs::read_to_string(&log).unwrap_or_default();
        bail!(
            "dockerd did not start:\n{}\nby hand, as root: dockerd",
            last_lines(&said, 10)
        )
    }

    /// Whether it is ours.
    pub(super) fn started(&self) -> bool {
        self._daemon.is_some()
    }
}

/// Whether there is an engine, or a program that can become one.
pub(super) fn present() -> bool {
    answers() || host().is_some() || program().is_some()
}

/// `DOCKER_HOST`, if it is set.
fn host() -> Option<String> {
    env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty())
}

fn program() -> Option<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    // Debian's /usr/sbin is not on everybody's path.
    let folders = env::split_paths(&folders).chain([PathBuf::from("/usr/sbin")]);
    folders
        .map(|folder| folder.join("dockerd"))
        .find(|program| program.is_file())
}

fn answers() -> bool {
    let host = host();
    match host.as_deref().map(|host| (host, host.split_once("://"))) {
        None => answers_at_socket(Path::new(SOCKET)),
        Some((_, Some(("unix", path)))) => answers_at_socket(Path::new(path)),
        Some((_, Some(("tcp" | "http", address)))) => TcpStream::connect(address)
            .is_ok_and(|stream| stream.set_read_timeout(Some(TIMEOUT)).is_ok() && ping(stream)),
        // ssh and the like: the command line client knows how.
        Some((_, Some(_) | None)) => quietly(Command::new("docker").arg("version")).is_ok(),
    }
}

fn answers_at_socket(path: &Path) -> bool {
    UnixStream::connect(path)
        .is_ok_and(|stream| stream.set_read_timeout(Some(TIMEOUT)).is_ok() && ping(stream))
}

/// The engine's own question for this purpose.
fn ping(mut stream: impl Read + Write) -> bool {
    let mut answer = [0; 12];
    stream
        .write_all(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
        .is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && answer.ends_with(b" 200")
}

fn advice(root: bool) -> String {
    let packages = PACKAGES.join(" ");
    if root {
        return format!(
            "no engine answers at {SOCKET}, and there is no dockerd: apt-get install {packages}, then run dockerd"
        );
    }
    format!(
        "no engine answers at {SOCKET}: sudo apt-get install {packages}, sudo systemctl start docker (or sudo dockerd), \
         and sudo usermod --append --groups docker $USER, then log in again"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Whether a server that answers with these bytes passes for an engine.
    fn passes(answer: &'static [u8]) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = [0; 16];
            stream.read_exact(&mut question).unwrap();
            assert!(question.starts_with(b"GET /_ping "));
            stream.write_all(answer).unwrap();
        });
        let passed = answers_at_socket(&path);
        server.join().unwrap();
        passed
    }

    #[test]
    fn only_an_engine_that_is_well_answers() {
        assert!(passes(b"HTTP/1.0 200 OK\r\n\r\nOK"));
        assert!(!passes(b"HTTP/1.0 500 Internal Server Error\r\n\r\n"));
        assert!(!passes(b""));
        assert!(!answers_at_socket(Path::new("/nonexistent/docker.sock")));
    }

    #[test]
    fn advice_fits_who_asks() {
        assert!(
            advice(true).contains("apt-get install docker.io containerd runc iptables, then run dockerd")
        );
        assert!(advice(false).contains("sudo usermod"));
    }
}
