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
    hosts::{Host, Hosts, unmount_below, write_program},
    process::{Background, within},
};
use crate::tool::quietly;

/// The image of the tests' executors.
const STAND_IN: &str = "muster/test:1";
/// The image of the container that holds a pod's network.
const PAUSE: &str = "muster/pause:1";
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
        for host in &hosts.hosts {
            host.import(&programs.join("pause"), PAUSE)?;
            host.import(&stand_in, STAND_IN)?;
            host.import_folder(executor, ".", PROGRAM, EXECUTOR)?;
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
                format!("{name}) kill -KILL -- -{} -{engine} ;;\n", kubelet.pid())
            })
            .collect();
        // A container is a child of its shim, and outlives the engine.
        let text = format!(
            "#!/bin/bash\n# Kills the node $1.\ncase $1 in\n{cases}*) exit 1 ;;\nesac\n\
             for shim in $(pgrep -f \"shim.*{}/$1/\"); do pkill -KILL -P $shim; kill -KILL $shim; done\n",
            self.folder.display()
        );
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
    for folder in ["log-pods", "log-containers"] {
        fs::create_dir_all(state.join(folder))?;
    }
    // Mount points: the logs of all kubelets have these paths.
    for folder in ["/var/log/pods", "/var/log/containers"] {
        fs::create_dir_all(folder)?;
    }
    let (state, name, number) = (state.display(), &host.name, host.number);
    Ok(format!(
        "mount --bind {state}/log-pods /var/log/pods; mount --bind {state}/log-containers /var/log/containers; \
         exec {kubelet} --kubeconfig={kubeconfig} --hostname-override={name} --node-ip=10.231.0.{number} \
         --root-dir={state} --cert-dir={state}/pki --docker-endpoint={docker} \
         --experimental-dockershim-root-directory={state}/dockershim --cgroup-driver=cgroupfs --cgroup-root=/{name} \
         --enforce-node-allocatable= --fail-swap-on=false --pod-infra-container-image={PAUSE} --healthz-port=0 \
         --port=10250 --read-only-port=0 --anonymous-auth=true --authorization-mode=AlwaysAllow \
         --make-iptables-util-chains=false --eviction-hard= --node-status-update-frequency=3s \
         --volume-plugin-dir={state}/plugins",
        kubelet = programs.join("kubelet").display(),
        kubeconfig = cluster.node_kubeconfig.display(),
        docker = host.docker_url(),
    ))
}
