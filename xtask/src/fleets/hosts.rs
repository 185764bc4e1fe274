//! Hosts for nodes on one machine: a network namespace, a name and a Docker engine each, on one switch.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};

use super::{
    control_plane::OUR_ADDRESS,
    process::{Background, within, words},
};
use crate::tool::quietly;

/// The namespace of the switch. In a namespace of its own no rule of this machine's firewall drops its frames.
const SWITCH: &str = "muster-switch";
/// This machine's end of its cable.
const OUR_CABLE: &str = "mfleet0";
/// The engines start one after the other on two cores.
const READY: Duration = Duration::from_secs(60);

/// One host that runs.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) number: usize,
    pub(super) engine: Background,
    socket: PathBuf,
}

/// The network and its hosts; dropping it takes everything away.
pub(super) struct Hosts {
    pub(super) hosts: Vec<Host>,
    folder: PathBuf,
}

impl Hosts {
    /// Starts hosts named `mh1`, `mh2` …
    pub(super) fn start(count: usize, folder: &Path) -> anyhow::Result<Self> {
        // Those of a run that was killed.
        clear();
        let mut made = Self {
            hosts: Vec::new(),
            folder: folder.to_owned(),
        };
        ip(&format!("netns add {SWITCH}"))?;
        ip(&format!("-n {SWITCH} link add br0 type bridge"))?;
        ip(&format!("-n {SWITCH} link set br0 up"))?;
        // Without a bridge in the past of this machine's kernel there is nothing to switch off.
        let _ = quietly(Command::new("ip").args([
            "netns",
            "exec",
            SWITCH,
            "sysctl",
            "-qw",
            "net.bridge.bridge-nf-call-iptables=0",
        ]));
        cable(OUR_CABLE)?;
        ip(&format!("addr add {OUR_ADDRESS}/24 dev {OUR_CABLE}"))?;
        ip(&format!("link set {OUR_CABLE} up"))?;
        let runtime = folder.join("lax-runc");
        write_program(&runtime, include_str!("lax-runc.sh"))?;
        for number in 1..=count {
            made.hosts.push(Host::start(number, folder, &runtime)?);
        }
        for host in &mut made.hosts {
            let mut ended = Ok(());
            let ready = within(READY, || {
                ended = host.engine.check();
                ended.is_err() || host.docker(&["version"]).is_ok()
            });
            ended?;
            ensure!(ready, "the Docker engine of {} did not answer", host.name);
        }
        Ok(made)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.hosts {
            if let Ok(ids) = host.docker(&["ps", "-aq"]) {
                let ids: Vec<&str> = ids.split_whitespace().collect();
                let mut arguments = vec!["rm", "-f"];
                arguments.extend(&ids);
                if !ids.is_empty() {
                    let _ = host.docker(&arguments);
                }
            }
        }
        self.hosts.clear();
        clear();
        unmount_below(&self.folder);
    }
}

impl Host {
    fn start(number: usize, folder: &Path, runtime: &Path) -> anyhow::Result<Self> {
        let name = format!("mh{number}");
        let (cable_end, space) = (format!("mfleet{number}"), format!("muster-{name}"));
        ip(&format!("netns add {space}"))?;
        cable(&cable_end)?;
        ip(&format!("link set {cable_end} netns {space} name eth0"))?;
        ip(&format!("-n {space} addr add 10.231.0.{number}/24 dev eth0"))?;
        ip(&format!("-n {space} link set eth0 up"))?;
        ip(&format!("-n {space} link set lo up"))?;
        ip(&format!("-n {space} route add default via {OUR_ADDRESS}"))?;
        let own = folder.join(&name);
        fs::create_dir_all(&own)?;
        // The machine's own configuration of Docker must not count here.
        fs::write(own.join("daemon.json"), "{}")?;
        let socket = own.join("docker.sock");
        let own = own.display();
        let mut command = Self::inside(&name, "");
        command.push(format!(
            "exec dockerd --config-file {own}/daemon.json --data-root {own}/data --exec-root {own}/exec \
             --pidfile {own}/pid -H unix://{own}/docker.sock --storage-driver vfs \
             --add-runtime lax={} --default-runtime lax",
            runtime.display()
        ));
        let engine = Background::start(&format!("dockerd-{name}"), folder, &command)?;
        Ok(Self {
            name,
            number,
            engine,
            socket,
        })
    }

    /// The beginning of a command line that runs a shell inside a host; a script of the shell is the last word.
    /// `ip netns exec` would not do: it hides the control groups.
    fn inside(name: &str, more: &str) -> Vec<String> {
        let mut command = words(&["nsenter"]);
        command.push(format!("--net=/run/netns/muster-{name}"));
        command.extend(words(&["unshare", "--uts"]));
        command.extend(more.split_whitespace().map(str::to_owned));
        command.extend(words(&["sh", "-c", "hostname \"$0\"; eval \"$1\""]));
        command.push(name.to_owned());
        command
    }

    /// A command line that runs a script inside this host, with a table of mounts of its own.
    pub(super) fn script(&self, script: String) -> Vec<String> {
        let mut command = Self::inside(&self.name, "--mount");
        command.push(script);
        command
    }

    /// The URL of its Docker engine.
    pub(super) fn docker_url(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Runs docker against its engine.
    pub(super) fn docker(&self, arguments: &[&str]) -> anyhow::Result<String> {
        quietly(
            Command::new("docker")
                .args(["-H", &self.docker_url()])
                .args(arguments),
        )
    }

    /// Gives its engine an image of one program.
    pub(super) fn import(&self, program: &Path, image: &str) -> anyhow::Result<()> {
        let name = program
            .file_name()
            .and_then(|name| name.to_str())
            .context("a program without a name")?;
        let folder = program.parent().context("a program without a folder")?;
        let script =
            "tar -C \"$1\" -c \"$2\" | docker -H \"$3\" import -c \"ENTRYPOINT [\\\"/$2\\\"]\" - \"$4\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "import"]).arg(folder);
        command.args([name, &self.docker_url(), image]);
        quietly(&mut command).map(drop)
    }
}

/// A cable from here to the switch.
fn cable(end: &str) -> anyhow::Result<()> {
    ip(&format!("link add {end} type veth peer name {end}p"))?;
    ip(&format!("link set {end}p netns {SWITCH}"))?;
    ip(&format!("-n {SWITCH} link set {end}p master br0 up"))
}

fn ip(line: &str) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    quietly(command.args(line.split_whitespace())).map(drop)
}

/// Ends everything inside the hosts' namespaces, and takes those away.
fn clear() {
    let listed = quietly(Command::new("ip").args(["netns", "list"])).unwrap_or_default();
    let first_words = listed.lines().filter_map(|line| line.split_whitespace().next());
    let ours: Vec<&str> = first_words
        .filter(|name| *name == SWITCH || name.starts_with("muster-mh"))
        .collect();
    for space in ours {
        // Containers outlive their engine.
        let pids = quietly(Command::new("ip").args(["netns", "pids", space])).unwrap_or_default();
        for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = ip(&format!("netns del {space}"));
    }
    let _ = ip(&format!("link del {OUR_CABLE}"));
}

/// Takes away the mounts that killed engines and kubelets left.
pub(super) fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let places = mounts
        .lines()
        .rev()
        .filter_map(|line| line.split_whitespace().nth(1));
    for place in places.filter(|place| Path::new(place).starts_with(folder)) {
        let _ = quietly(Command::new("umount").args(["-l", place]));
    }
}

/// Writes a program that may be executed.
pub(super) fn write_program(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
