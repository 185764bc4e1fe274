//! Hosts for nodes on one machine: a network namespace, a name and a runtime of containers each, on one switch.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::ValueEnum;

use super::{
    control_plane::OUR_ADDRESS,
    process::{Background, within, words},
};
use crate::tool::quietly;

/// The networks of the hosts, `10.231.0.0/24`, and of their pods: `10.231.1.0/24` on the first one, and so on.
pub(super) const NETWORK: &str = "10.231.0.0/16";
/// The namespace of the switch. In a namespace of its own no rule of this machine's firewall drops its frames.
const SWITCH: &str = "muster-switch";
/// This machine's end of its cable.
const OUR_CABLE: &str = "mfleet0";
/// Folders that each host has of its own, and their names in the host's folder. The first has the runtime's socket,
/// where programs look for it, the next two what executors keep, the others the addresses and the logs of pods.
const OWN_FOLDERS: [(&str, &str); 6] = [
    ("/run", "run"),
    ("/var/lib/muster", "muster"),
    ("/var/lib/muster-membership", "membership"),
    ("/var/lib/cni", "cni-addresses"),
    ("/var/log/pods", "log-pods"),
    ("/var/log/containers", "log-containers"),
];
/// The runtimes start one after the other on two cores.
const READY: Duration = Duration::from_secs(60);
/// The image of the container that holds a pod's network.
pub(super) const PAUSE: &str = "muster/pause:1";
/// The programs that give pods their network, of Debian's containernetworking-plugins.
pub(super) const NETWORK_PLUGINS: &str = "/usr/lib/cni";
/// The part of containerd that kubelets speak to.
const CRI: &str = "io.containerd.grpc.v1.cri";
/// The namespace in which containerd keeps the images and containers of a kubelet.
const KUBELETS: &str = "k8s.io";

/// The runtime of a node's containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum NodeRuntime {
    /// containerd, as nodes of Kubernetes 1.24 and later have it: pods bring their engine
    Containerd,
    /// A Docker engine, whose socket pods mount
    Docker,
}

impl NodeRuntime {
    /// Its name on the command line and in the variables of tests.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Docker => "docker",
        }
    }
}

/// One host that runs.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) number: usize,
    pub(super) runtime: NodeRuntime,
    /// The process of the runtime.
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
    pub(super) fn start(count: usize, folder: &Path, runtime: NodeRuntime) -> anyhow::Result<Self> {
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
        let runc = folder.join("lax-runc");
        write_program(&runc, include_str!("lax-runc.sh"))?;
        for number in 1..=count {
            made.hosts.push(Host::start(number, folder, runtime, &runc)?);
        }
        for host in &mut made.hosts {
            let mut ended = Ok(());
            let ready = within(READY, || {
                ended = host.engine.check();
                ended.is_err() || host.answers()
            });
            ended?;
            ensure!(ready, "{} of {} did not answer", runtime.name(), host.name);
        }
        // The way between the pods of two hosts, and from this machine to them.
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("pass on what pods send")?;
        for host in &made.hosts {
            let number = host.number;
            ip(&format!(
                "route replace 10.231.{number}.0/24 via 10.231.0.{number}"
            ))?;
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
        let with_docker = self
            .hosts
            .iter()
            .filter(|host| host.runtime == NodeRuntime::Docker);
        let urls: Vec<String> = with_docker.map(Host::docker_url).collect();
        urls.join(" ")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.hosts {
            let _ = quietly(Command::new("sh").args(["-c", &host.kill_containers()]));
        }
        self.hosts.clear();
        clear();
        unmount_below(&self.folder);
    }
}

impl Host {
    fn start(number: usize, folder: &Path, runtime: NodeRuntime, runc: &Path) -> anyhow::Result<Self> {
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
        for (place, name) in OWN_FOLDERS {
            // A mount point, which other hosts and this machine have too.
            fs::create_dir_all(place)?;
            fs::create_dir_all(own.join(name))?;
        }
        let script = match runtime {
            NodeRuntime::Docker => dockerd(&own, runc)?,
            NodeRuntime::Containerd => containerd(&own, runc, number)?,
        };
        let command = Self::command(&name, &own, &script);
        let engine = Background::start(&format!("{}-{name}", runtime.name()), folder, &command)?;
        Ok(Self {
            name,
            number,
            runtime,
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

    /// The socket of its containerd.
    pub(super) fn containerd_socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    /// Whether its runtime answers.
    fn answers(&self) -> bool {
        self.tool(&["version"], &["version"]).is_ok()
    }

    /// Gives its runtime the images of an archive.
    pub(super) fn load(&self, archive: &Path) -> anyhow::Result<()> {
        let archive = archive.to_str().context("an archive whose path is no text")?;
        let (docker, ctr) = (["load", "--input", archive], ["images", "import", archive]);
        self.tool(&docker, &ctr)
    }

    /// Runs the command of its runtime.
    fn tool(&self, docker: &[&str], ctr: &[&str]) -> anyhow::Result<()> {
        let mut command = match self.runtime {
            NodeRuntime::Docker => {
                let mut command = Command::new("docker");
                command.args(["-H", &self.docker_url()]).args(docker);
                command
            }
            NodeRuntime::Containerd => {
                let mut command = Command::new("ctr");
                command.arg("--address").arg(self.containerd_socket());
                command.args(["--namespace", KUBELETS]).args(ctr);
                command
            }
        };
        quietly(&mut command).map(drop)
    }

    /// A script that kills its containers, which outlive their runtime: each is a child of its shim. The pattern does
    /// not match the script itself.
    pub(super) fn kill_containers(&self) -> String {
        format!(
            "for shim in $(pgrep -f \"[s]him.*{}/\"); do pkill -KILL -P $shim; kill -KILL $shim; done",
            self.folder.display()
        )
    }
}

/// Writes what a Docker engine reads, and returns the script that starts it.
fn dockerd(own: &Path, runc: &Path) -> anyhow::Result<String> {
    // The machine's own configuration must not count here.
    fs::write(own.join("daemon.json"), "{}")?;
    Ok(format!(
        "exec dockerd --config-file {own}/daemon.json --data-root {own}/data --exec-root {own}/exec \
         --pidfile {own}/pid -H unix:///run/docker.sock --storage-driver vfs \
         --add-runtime lax={runc} --default-runtime lax",
        own = own.display(),
        runc = runc.display()
    ))
}

/// Writes what a containerd reads, and returns the script that starts it. Its pods have a bridge and addresses of their
/// own, which all hosts can reach.
fn containerd(own: &Path, runc: &Path, number: usize) -> anyhow::Result<String> {
    let networks = own.join("networks");
    fs::create_dir_all(&networks)?;
    let network = serde_json::json!({
        "cniVersion": "0.3.1", "name": "pods", "plugins": [{
            "type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": false,
            "ipam": {
                "type": "host-local", "ranges": [[{"subnet": format!("10.231.{number}.0/24")}]],
                "routes": [{"dst": "0.0.0.0/0"}]
            }
        }]
    });
    fs::write(networks.join("pods.conflist"), network.to_string())?;
    let path = own.join("containerd.toml");
    let config = format!(
        "version = 2\nroot = \"{own}/containerd\"\nstate = \"{own}/containerd-run\"\n\
         [grpc]\naddress = \"{own}/containerd.sock\"\n\
         [plugins.\"{CRI}\"]\nsandbox_image = \"docker.io/{PAUSE}\"\n\
         [plugins.\"{CRI}\".cni]\nbin_dir = \"{NETWORK_PLUGINS}\"\nconf_dir = \"{own}/networks\"\n\
         [plugins.\"{CRI}\".containerd]\ndefault_runtime_name = \"lax\"\n\
         [plugins.\"{CRI}\".containerd.runtimes.lax]\nruntime_type = \"io.containerd.runc.v2\"\n\
         [plugins.\"{CRI}\".containerd.runtimes.lax.options]\nBinaryName = \"{runc}\"\n",
        own = own.display(),
        runc = runc.display(),
    );
    fs::write(&path, config)?;
    Ok(format!("exec containerd --config {}", path.display()))
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
