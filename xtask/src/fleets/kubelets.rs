//! Kubelets on hosts: the nodes of a cluster.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};

use super::{
    control_plane::ControlPlane,
    executor_image::{EXECUTOR, PROGRAM},
    hosts::{Host, Hosts, NodeRuntime, PAUSE, unmount_below, write_program},
    process::{Background, within},
};
use crate::tool::quietly;

/// The image of the tests' executors.
const STAND_IN: &str = "muster/test:1";
/// GPUs that each node reports. They are numbers, as those of a device plugin would be.
pub(super) const GPUS: usize = 2;
const READY: Duration = Duration::from_secs(120);
/// Folders below which the kubelets keep their control groups.
const CONTROLLERS: &[&str] = &[
    "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd",
];

/// The nodes of a cluster. They end before their hosts.
pub(super) struct Kubelets {
    running: Vec<Background>,
    folder: PathBuf,
    groups: Vec<String>,
}

impl Kubelets {
    /// Starts a kubelet on each host, and waits until all are ready and have GPUs. `executor` is the root of the image
    /// of a real executor.
    pub(super) fn start(
        programs: &Path,
        folder: &Path,
        cluster: &ControlPlane,
        hosts: &Hosts,
        executor: &Path,
    ) -> anyhow::Result<Self> {
        let stand_in = folder.join("stand-in");
        let source = folder.join("stand-in.c");
        fs::write(&source, include_str!("stand-in.c"))?;
        quietly(
            Command::new("gcc")
                .args(["-Os", "-static", "-o"])
                .arg(&stand_in)
                .arg(&source),
        )?;
        let mut made = Self {
            running: Vec::new(),
            folder: folder.to_owned(),
            groups: Vec::new(),
        };
        let archive = folder.join("images.tar");
        write_archive(
            &archive,
            &[
                (programs, "pause", "/pause", PAUSE),
                (folder, "stand-in", "/stand-in", STAND_IN),
                (executor, ".", PROGRAM, EXECUTOR),
            ],
        )?;
        for host in &hosts.hosts {
            host.load(&archive)?;
            made.groups.push(host.name.clone());
            make_groups(&host.name)?;
            let state = folder.join(&host.name).join("kubelet");
            let command = host.script(&script(programs, &state, cluster, host)?);
            let name = format!("kubelet-{}", host.name);
            made.running.push(Background::start(&name, folder, &command)?);
        }
        let mut ended = Ok(());
        let ready = within(READY, || {
            ended = made.running.iter_mut().try_for_each(Background::check);
            let nodes = cluster
                .kubectl(&["get", "nodes", "--no-headers"])
                .unwrap_or_default();
            ended.is_err() || nodes.matches(" Ready ").count() == hosts.hosts.len()
        });
        ended?;
        ensure!(ready, "not all nodes were ready within {} s", READY.as_secs());
        let patch = format!(r#"{{"status": {{"capacity": {{"nvidia.com/gpu": "{GPUS}"}}}}}}"#);
        for host in &hosts.hosts {
            let arguments = ["patch", "node", &host.name, "--subresource=status", "-p", &patch];
            cluster.kubectl(&arguments)?;
        }
        let with_gpus = within(READY, || {
            let amounts = "-o=jsonpath={.items[*].status.allocatable.nvidia\\.com/gpu}";
            let amounts = cluster.kubectl(&["get", "nodes", amounts]).unwrap_or_default();
            amounts.split_whitespace().count() == hosts.hosts.len()
        });
        ensure!(
            with_gpus,
            "the nodes did not take their GPUs into their allocatable amounts"
        );
        Ok(made)
    }

    /// A program that ends a host with its engine, its kubelet and its containers at once, as a loss of power would.
    pub(super) fn write_killer(&self, path: &Path, hosts: &Hosts) -> anyhow::Result<()> {
        let cases: String = hosts
            .hosts
            .iter()
            .zip(&self.running)
            .map(|(host, kubelet)| {
                let (name, engine) = (&host.name, host.engine.pid());
                let containers = host.kill_containers();
                format!(
                    "{name}) kill -KILL -- -{} -{engine}; {containers} ;;\n",
                    kubelet.pid()
                )
            })
            .collect();
        let text = format!("#!/bin/bash\n# Kills the node $1.\ncase $1 in\n{cases}*) exit 1 ;;\nesac\n");
        write_program(path, &text)
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.running.clear();
        unmount_below(&self.folder);
        for name in &self.groups {
            for controller in CONTROLLERS {
                let group = format!("/sys/fs/cgroup/{controller}/{name}");
                let mut find = Command::new("find");
                let _ = quietly(find.args([&group, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]));
            }
        }
    }
}

/// A tree of control groups of its own for each kubelet: two in one tree remove each other's pods.
fn make_groups(name: &str) -> anyhow::Result<()> {
    for controller in CONTROLLERS {
        let group = format!("/sys/fs/cgroup/{controller}/{name}");
        fs::create_dir_all(&group).with_context(|| format!("make {group}"))?;
    }
    for file in ["cpus", "mems"] {
        let all = fs::read_to_string(format!("/sys/fs/cgroup/cpuset/cpuset.{file}"))?;
        fs::write(format!("/sys/fs/cgroup/cpuset/{name}/cpuset.{file}"), all)?;
    }
    Ok(())
}

/// The script that starts the kubelet inside its host.
fn script(programs: &Path, state: &Path, cluster: &ControlPlane, host: &Host) -> anyhow::Result<String> {
    fs::create_dir_all(state)?;
    let runtime = match host.runtime {
        NodeRuntime::Docker => format!(
            "--docker-endpoint={} --experimental-dockershim-root-directory={}/dockershim \
             --pod-infra-container-image={PAUSE}",
            host.docker_url(),
            state.display()
        ),
        NodeRuntime::Containerd => format!(
            "--container-runtime=remote --container-runtime-endpoint=unix://{}",
            host.containerd_socket().display()
        ),
    };
    let (state, name, number) = (state.display(), &host.name, host.number);
    Ok(format!(
        "exec {kubelet} --kubeconfig={kubeconfig} --hostname-override={name} --node-ip=10.231.0.{number} \
         --root-dir={state} --cert-dir={state}/pki {runtime} --cgroup-driver=cgroupfs --cgroup-root=/{name} \
         --enforce-node-allocatable= --fail-swap-on=false --healthz-port=0 \
         --port=10250 --read-only-port=0 --anonymous-auth=true --authorization-mode=AlwaysAllow \
         --make-iptables-util-chains=false --eviction-hard= --node-status-update-frequency=3s \
         --volume-plugin-dir={state}/plugins",
        kubelet = programs.join("kubelet").display(),
        kubeconfig = cluster.node_kubeconfig.display(),
    ))
}

/// Writes an archive of images, each of what a name is in a folder, with the program that it starts and its name. The
/// machine's own engine makes them, and keeps none.
fn write_archive(archive: &Path, images: &[(&Path, &str, &str, &str)]) -> anyhow::Result<()> {
    let script = "tar -C \"$1\" -c \"$2\" | docker import -c \"ENTRYPOINT [\\\"$3\\\"]\" - \"$4\"";
    for (folder, name, entry, image) in images {
        let mut import = Command::new("sh");
        import.args(["-c", script, "import"]).arg(folder);
        quietly(import.args([name, entry, image]))?;
    }
    let names = images.iter().map(|(_, _, _, image)| *image);
    let mut save = Command::new("docker");
    quietly(save.args(["save", "--output"]).arg(archive).args(names.clone()))?;
    quietly(Command::new("docker").arg("rmi").args(names)).map(drop)
}
