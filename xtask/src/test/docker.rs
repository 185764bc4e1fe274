//! A Docker engine: the one that answers, or one started for this run where we are root.

use std::{
    env,
    fs::{self, File, Permissions},
    io::{Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{
    cgroup::{self, Cgroup},
    child_process::{last_lines, quietly, within},
    daemon::{Daemon, tied},
    install::root,
};

/// Debian's packages of an engine.
pub(super) const PACKAGES: &[&str] = &["docker.io", "containerd", "runc", "iptables"];

/// The runtime of an engine whose containers are bounded. The older interface of control groups refuses a group more
/// time than those above it have, and such an engine could start no job that may use a whole core. The runtime writes
/// the bound (`BOUND`, in microseconds of a period) into the container's configuration instead.
const BOUNDED_RUNTIME: &str = r#"#!/bin/sh
for word; do
    config=$word/config.json
    if [ "$before" = --bundle ]; then
        quota=$(sed --quiet 's/.*"quota":\([0-9]*\).*/\1/p' "$config")
        if [ "${quota:-0}" -gt BOUND ]; then
            sed --in-place "s/\"quota\":$quota/\"quota\":BOUND/" "$config"
        fi
    fi
    before=$word
done
exec runc "$@"
"#;

const SOCKET: &str = "/var/run/docker.sock";
const TIMEOUT: Duration = Duration::from_secs(5);

/// An engine that we started, and that stops with us; or nothing, where one ran already.
pub(super) struct TestEngine {
    // The daemon ends before its bridge and its folder go.
    daemon: Option<Daemon>,
    _bridge: Option<Bridge>,
    _folder: Option<TempDir>,
    /// The address of an engine beside the machine's.
    address: Option<String>,
}

/// The network of an engine beside the machine's. An engine that is configured to have no bridge takes the
/// machine's away.
struct Bridge(String);

impl Bridge {
    fn make() -> anyhow::Result<Self> {
        let bridge = Self(format!("muster{}", std::process::id()));
        quietly(Command::new("ip").args(["link", "add", &bridge.0, "type", "bridge"]))?;
        // Addresses that documentation reserves, so that they are nobody's.
        quietly(Command::new("ip").args(["address", "add", "198.51.100.1/24", "dev", &bridge.0]))?;
        quietly(Command::new("ip").args(["link", "set", &bridge.0, "up"]))?;
        quietly(&mut bridge.passage("--insert"))?;
        Ok(bridge)
    }

    /// The change of the rule that lets containers of the bridge reach one another: the machine's engine has the kernel
    /// drop what it has no rule for.
    fn passage(&self, change: &str) -> Command {
        let mut command = Command::new("iptables");
        command.args(["--wait", change, "FORWARD"]);
        command.args(["--in-interface", &self.0, "--out-interface", &self.0]);
        command.args(["--jump", "ACCEPT"]);
        command
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = quietly(&mut self.passage("--delete"));
        let _ = quietly(Command::new("ip").args(["link", "delete", &self.0]));
    }
}

impl TestEngine {
    /// Finds the engine that answers or starts one.
    pub(super) fn find_or_start() -> anyhow::Result<Self> {
        if answers() {
            return Ok(Self {
                daemon: None,
                _bridge: None,
                _folder: None,
                address: None,
            });
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
        let daemon = start(
            tied(&program, None, "TERM"),
            folder.path(),
            None,
            Path::new(SOCKET),
        )?;
        Ok(Self {
            daemon: Some(daemon),
            _bridge: None,
            _folder: Some(folder),
            address: None,
        })
    }

    /// Starts an engine beside the machine's, which has its daemon and its containers below `control`, a group that is
    /// bounded to `millicores` thousandths of a core.
    pub(super) fn start_below(control: &Cgroup, millicores: u64) -> anyhow::Result<Self> {
        let program = program()
            .filter(|_| root())
            .ok_or_else(|| anyhow!("an engine of its own needs root and dockerd"))?;
        // Sockets have short paths.
        let folder = tempfile::Builder::new()
            .prefix("muster-docker-")
            .tempdir_in("/tmp")
            .context("make a folder for dockerd")?;
        let bridge = Bridge::make()?;
        let at = |name: &str| folder.path().join(name);
        fs::write(at("daemon.json"), "{}").context("write dockerd's configuration")?;
        let socket = at("socket");
        let address = format!("unix://{}", socket.display());
        let mut command = tied(&program, None, "TERM");
        command.arg("--config-file").arg(at("daemon.json"));
        command.arg("--data-root").arg(at("data"));
        command.arg("--exec-root").arg(at("exec"));
        command.arg("--pidfile").arg(at("pid"));
        command.args(["--host", &address, "--bridge", &bridge.0]);
        command.args(["--cgroup-parent", &format!("{}/engine", control.path())]);
        command.args(["--exec-opt", "native.cgroupdriver=cgroupfs"]);
        let runtime = at("runtime");
        write_runtime(&runtime, millicores)?;
        command.args(["--default-runtime", "bounded", "--add-runtime"]);
        command.arg(format!("bounded={}", runtime.display()));
        command.args(["--iptables=false", "--ip-forward=false", "--ip-masq=false"]);
        command.args(["--containerd-namespace", "muster-slow"]);
        command.args(["--containerd-plugins-namespace", "muster-slow-plugins"]);
        let daemon = start(command, folder.path(), Some(&control.child("services")?), &socket)?;
        Ok(Self {
            daemon: Some(daemon),
            _bridge: Some(bridge),
            _folder: Some(folder),
            address: Some(address),
        })
    }

    /// Whether it is ours.
    pub(super) fn started(&self) -> bool {
        self.daemon.is_some()
    }

    /// Its address, if it is beside the machine's.
    pub(super) fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }
}

/// Writes a [`BOUNDED_RUNTIME`].
fn write_runtime(path: &Path, millicores: u64) -> anyhow::Result<()> {
    let script = BOUNDED_RUNTIME.replace("BOUND", &cgroup::quota_us(millicores).to_string());
    fs::write(path, script).context("write the engine's runtime")?;
    fs::set_permissions(path, Permissions::from_mode(0o755)).context("make the engine's runtime a program")
}

/// Starts dockerd and waits until it answers; its log is kept in the folder.
fn start(
    mut command: Command,
    folder: &Path,
    control: Option<&Cgroup>,
    socket: &Path,
) -> anyhow::Result<Daemon> {
    let log = folder.join("log");
    let output = File::create(&log).context("open dockerd's log")?;
    command.stdout(output.try_clone()?).stderr(output);
    let mut daemon = Daemon::start(&mut command, Signal::SIGTERM, Duration::from_secs(30))?;
    if let Some(control) = control {
        control.adopt(daemon.process())?;
    }
    let mut ended = false;
    // An engine with half a core takes its time.
    let ready = within(Duration::from_secs(180), || {
        ended = daemon.ended().is_some();
        ended || answers_at_socket(socket)
    });
    if ready && !ended {
        return Ok(daemon);
    }
    let said = fs::read_to_string(&log).unwrap_or_default();
    bail!(
        "dockerd did not start:\n{}\nby hand, as root: dockerd",
        last_lines(&said, 10)
    )
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
    fn the_bounded_runtime_lowers_what_is_above_the_bound_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write_runtime(&at("bounded"), 500).unwrap();
        fs::write(at("runc"), "#!/bin/sh\necho \"$@\"\n").unwrap();
        fs::set_permissions(at("runc"), Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", folder.path().display(), env::var("PATH").unwrap());
        for (asked, given) in [("100000", "50000"), ("25000", "25000"), ("-1", "-1")] {
            let config = |quota: &str| {
                format!(r#"{{"env":["A=\"quota\":1"],"cpu":{{"quota":{quota},"period":100000}}}}"#)
            };
            fs::write(at("config.json"), config(asked)).unwrap();
            let words = ["create", "--bundle", folder.path().to_str().unwrap(), "job"];
            let ran = Command::new(at("bounded"))
                .args(words)
                .env("PATH", &path)
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(ran.stdout).unwrap().trim(), words.join(" "));
            assert_eq!(fs::read_to_string(at("config.json")).unwrap(), config(given));
        }
    }

    #[test]
    fn advice_fits_who_asks() {
        assert!(
            advice(true).contains("apt-get install docker.io containerd runc iptables, then run dockerd")
        );
        assert!(advice(false).contains("sudo usermod"));
    }
}
