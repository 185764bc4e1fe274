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

/// The network of the hosts.
pub(super) const NETWORK: &str = "10.231.0.0/24";
/// The namespace of the switch. In a namespace of its own no rule of this machine's firewall drops its frames.
const SWITCH: &str = "muster-switch";
/// This machine's end of its cable.
const OUR_CABLE: &str = "mfleet0";
/// Folders that each host has of its own, and their names in the host's folder. The first has the engine's socket,
/// where programs look for it, and the second has what executors keep.
const OWN_FOLDERS: [(&str, &str); 2] = [("/run", "run"), ("/var/lib/muster", "muster")];
/// The engines start one after the other on two cores.
const READY: Duration = Duration::from_secs(60);

/// One host that runs.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) number: usize,
    pub(super) engine: Background,
    /// Its folders instead of the machine's; see [`OWN_FOLDERS`].
    folder: PathBuf,
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

    /// Writes a program that cuts the cable of a host, `down`, or mends it, `up`.
    pub(super) fn write_cutter(path: &Path) -> anyhow::Result<()> {
        let text = format!(
            "#!/bin/bash\n# Cuts the cable of the node $1 (down), or mends it (up).\n\
             exec ip -n {SWITCH} link set \"mfleet${{1#mh}}p\" \"$2\"\n"
        );
        write_program(path, &text)
    }

    /// The URLs of all Docker engines, with spaces between them.
    pub(super) fn docker_urls(&self) -> String {
        let urls: Vec<String> = self.hosts.iter().map(Host::docker_url).collect();
        urls.join(" ")
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
        for (place, name) in OWN_FOLDERS {
            // A mount point, which other hosts and this machine have too.
            fs::create_dir_all(place)?;
            fs::create_dir_all(own.join(name))?;
        }
        let script = format!(
            "exec dockerd --config-file {own}/daemon.json --data-root {own}/data --exec-root {own}/exec \
             --pidfile {own}/pid -H unix:///run/docker.sock --storage-driver vfs \
             --add-runtime lax={runtime} --default-runtime lax",
            own = own.display(),
            runtime = runtime.display()
        );
        let command = Self::command(&name, &own, &script);
        let engine = Background::start(&format!("dockerd-{name}"), folder, &command)?;
        Ok(Self {
            name,
            number,
            engine,
            folder: own,
        })
    }

    /// A command line that runs a script inside this host, with a table of mounts of its own.
    pub(super) fn script(&self, script: &str) -> Vec<String> {
        Self::command(&self.name, &self.folder, script)
    }

    /// `ip netns exec` would not do: it hides the control groups.
    fn command(name: &str, folder: &Path, script: &str) -> Vec<String> {
        let mut command = words(&["nsenter"]);
        command.push(format!("--net=/run/netns/muster-{name}"));
        command.extend(words(&["unshare", "--uts", "--mount", "sh", "-c"]));
        command.push("hostname \"$0\"; eval \"$1\"".to_owned());
        command.push(name.to_owned());
        let mounts = OWN_FOLDERS.map(|(place, own)| {
            let own = folder.join(own);
            format!("mount --bind {} {place}", own.display())
        });
        command.push(format!("{} && {script}", mounts.join(" && ")));
        command
    }

    /// The URL of its Docker engine.
    pub(super) fn docker_url(&self) -> String {
        format!("unix://{}", self.folder.join("run/docker.sock").display())
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
        let name = program.file_name().and_then(|name| name.to_str());
        let name = name.context("a program without a name")?;
        let folder = program.parent().context("a program without a folder")?;
        self.import_folder(folder, name, &format!("/{name}"), image)
    }

    /// Gives its engine an image of what `name` is in a folder, whose program is `entry`.
    pub(super) fn import_folder(
        &self,
        folder: &Path,
        name: &str,
        entry: &str,
        image: &str,
    ) -> anyhow::Result<()> {
        let script =
            "tar -C \"$1\" -c \"$2\" | docker -H \"$3\" import -c \"ENTRYPOINT [\\\"$4\\\"]\" - \"$5\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "import"]).arg(folder);
        command.args([name, &self.docker_url(), entry, image]);
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
