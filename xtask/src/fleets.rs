//! `cargo xtask fleets`: a real Kubernetes on this machine, the tests of the engine that starts executors there, and
//! those of a whole subnet whose executors are pods.
//!
//! The control plane and the kubelet are built once from the distribution's source package. The nodes are hosts in
//! network namespaces, each with containerd, or with a Docker engine; a machine that cannot have them runs the tests of
//! the control plane.

mod control_plane;
mod executor_image;
mod hosts;
mod kubelets;
mod process;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};

use self::{
    control_plane::ControlPlane,
    hosts::{Hosts, NodeRuntime},
    kubelets::Kubelets,
    process::on_path,
};
use crate::{cache, workspace::Workspace};

/// The version that the distribution has.
const VERSION: &str = "1.20.2";
/// The nodes of the cluster.
const NODES: usize = 3;

#[derive(Args)]
pub(crate) struct Options {
    /// Run only this part; may be given several times
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// The runtime of the nodes' containers
    #[arg(long, value_enum, default_value = "containerd")]
    runtime: NodeRuntime,
    /// Write the recorded answers anew
    #[arg(long)]
    record: bool,
}

/// A part of the tests. They run in this order, because the last one loses two of the three nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The engine against a control plane without nodes
    ControlPlane,
    /// The engine against three nodes
    Nodes,
    /// A job, a session and a grading batch of a whole subnet, persistent executors, and a cut cable
    Subnet,
    /// The loss of a node, for the engine and for a job of a whole subnet
    LostNodes,
}

impl Part {
    const fn needs_nodes(self) -> bool {
        match self {
            Self::ControlPlane => false,
            Self::Nodes | Self::Subnet | Self::LostNodes => true,
        }
    }

    /// The filters of its tests, in the language of nextest. Each runs by itself.
    const fn filters(self, runtime: NodeRuntime) -> &'static [&'static str] {
        match self {
            Self::ControlPlane => {
                &["package(muster-kubernetes-engine) & test(/^recorded::control_plane::real::/)"]
            }
            Self::Nodes => &["package(muster-kubernetes-engine) & test(/^recorded::nodes::real::/)"],
            Self::Subnet => match runtime {
                NodeRuntime::Containerd => {
                    &["binary(subnets) & test(/^kubernetes::(on_three_nodes|own_engine)::/)"]
                }
                NodeRuntime::Docker => &["binary(subnets) & test(/^kubernetes::on_three_nodes::/)"],
            },
            Self::LostNodes => &[
                "package(muster-kubernetes-engine) & test(/^recorded::lost_node::real::/)",
                "binary(subnets) & test(/^kubernetes::lost_node::/)",
            ],
        }
    }
}

/// The tests that went well and those that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Starts a cluster, runs the tests against it, and says how they went in the last line.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(missing) = missing(&["etcd", "kubectl", "openssl", "setpriv"]) {
        println!("skipped: {missing}");
        println!("0 passed, 0 failed, 1 skipped");
        return Ok(ExitCode::SUCCESS);
    }
    let programs = build()?;
    let folder = tempfile::Builder::new()
        .prefix("muster-fleets-")
        .tempdir()
        .context("make a folder for the cluster")?;
    let parts: Vec<Part> = Part::value_variants()
        .iter()
        .copied()
        .filter(|part| options.only.is_empty() || options.only.contains(part))
        .collect();
    build_tests(workspace)?;
    let no_nodes = without_nodes(options.runtime);
    let wants_nodes = parts.iter().any(|part| part.needs_nodes());
    let hosts = match &no_nodes {
        None if wants_nodes => Some(Hosts::start(NODES, folder.path(), options.runtime)?),
        None | Some(_) => None,
    };
    let cluster = ControlPlane::start(&programs, &folder.path().join("cluster"))?;
    println!("the control plane of Kubernetes {VERSION} is up");
    let tests = Tests {
        workspace,
        cluster: &cluster,
        record: options.record,
        runtime: options.runtime,
        engines: hosts.as_ref().map(Hosts::docker_urls).unwrap_or_default(),
        killer: folder.path().join("kill-node"),
        cutter: folder.path().join("cut-node"),
    };
    Hosts::write_cutter(&tests.cutter)?;
    let mut counts = Counts::default();
    let mut kubelets = None;
    for part in parts {
        match &hosts {
            Some(hosts) if part.needs_nodes() && kubelets.is_none() => {
                let brings_engine = options.runtime == NodeRuntime::Containerd;
                let executor = executor_image::stage(workspace, folder.path(), brings_engine)?;
                let started = Kubelets::start(&programs, folder.path(), &cluster, hosts, &executor)?;
                started.write_killer(&tests.killer, hosts)?;
                kubelets = Some(started);
                let (gpus, runtime) = (kubelets::GPUS, options.runtime.name());
                println!("{NODES} nodes with {runtime} and {gpus} GPUs each are ready");
            }
            Some(_) | None => {}
        }
        for filter in part.filters(options.runtime) {
            if part.needs_nodes() && hosts.is_none() {
                counts.skipped += tests.count(filter)?;
            } else {
                counts = counts.plus(tests.run(filter)?);
            }
        }
    }
    if let Some(reason) = no_nodes.filter(|_| wants_nodes) {
        println!("skipped: the tests with nodes: {reason}");
    }
    println!(
        "{} passed, {} failed, {} skipped",
        counts.passed, counts.failed, counts.skipped
    );
    drop(kubelets);
    Ok(crate::exit_code(counts.failed == 0))
}

/// The programs of Kubernetes, built once for this user.
fn build() -> anyhow::Result<PathBuf> {
    let folder = cache::make_once("fleets", &format!("kubernetes-{VERSION}"), |folder| {
        if let Some(missing) = missing(&["apt-get", "dpkg-source", "go", "make", "gcc", "rsync", "jq"]) {
            bail!("{missing}");
        }
        println!(
            "building Kubernetes {VERSION} from the distribution's source package; this takes ten minutes or more"
        );
        fs::create_dir_all(folder)?;
        let script = folder.join("build.sh");
        hosts::write_program(&script, include_str!("fleets/build-kubernetes.sh"))?;
        let status = Command::new(&script)
            .arg(folder)
            .stdin(Stdio::null())
            .status()
            .context("start the build")?;
        if !status.success() {
            bail!("the build ended with {status}; its last lines are above");
        }
        Ok(())
    });
    Ok(folder.context("build Kubernetes")?.join("bin"))
}

/// The first program that is not there, in words.
fn missing(programs: &[&str]) -> Option<String> {
    let program = programs.iter().find(|program| !on_path(program))?;
    Some(format!(
        "{program} is not installed; on Debian: apt-get install etcd-server golang-go jq rsync dpkg-dev make gcc \
         openssl docker.io containerd tini, and kubectl"
    ))
}

/// Builds the tests, and the program that they start. A build of fewer packages would choose other features of what
/// they share, and compile it once more.
fn build_tests(workspace: &Workspace) -> anyhow::Result<()> {
    let mut build = workspace.cargo();
    build.args(["nextest", "run", "--workspace", "--no-run"]);
    let built = build.status().context("start cargo nextest")?;
    ensure!(built.success(), "the tests do not build");
    Ok(())
}

/// Why this machine cannot have nodes.
fn without_nodes(runtime: NodeRuntime) -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("only root can make network namespaces".to_owned());
    }
    if !Path::new("/sys/fs/cgroup/cpuset/cpuset.cpus").exists() {
        return Some("this kubelet needs control groups of version 1".to_owned());
    }
    let of_containerd: &[&str] = match runtime {
        NodeRuntime::Containerd => &["containerd", "ctr", "tini"],
        NodeRuntime::Docker => &[],
    };
    if runtime == NodeRuntime::Containerd && !Path::new(hosts::NETWORK_PLUGINS).join("bridge").exists() {
        return Some("apt-get install containernetworking-plugins".to_owned());
    }
    let of_both = [
        "dockerd", "docker", "runc", "ip", "nsenter", "unshare", "gcc", "jq", "tar", "ldd", "strip", "pgrep",
    ];
    missing(&[&of_both, of_containerd].concat())
}

/// The tests, with all that they need to know.
struct Tests<'a> {
    workspace: &'a Workspace,
    cluster: &'a ControlPlane,
    record: bool,
    runtime: NodeRuntime,
    engines: String,
    killer: PathBuf,
    cutter: PathBuf,
}

impl Tests<'_> {
    fn nextest(&self, command: &str, filter: &str) -> Command {
        let mut cargo = self.workspace.cargo();
        cargo
            .args(["nextest", command, "--workspace"])
            .args(["--run-ignored", "all", "--filterset", filter])
            .envs(self.workspace.shared_variables())
            .env("MUSTER_TEST_KUBECONFIG", &self.cluster.kubeconfig)
            .env("MUSTER_TEST_ADDRESS", control_plane::OUR_ADDRESS)
            .env("MUSTER_TEST_NETWORK", hosts::NETWORK)
            .env("MUSTER_TEST_NODE_RUNTIME", self.runtime.name())
            .env("MUSTER_TEST_ENGINES", &self.engines)
            .env("MUSTER_TEST_KILL_NODE", &self.killer)
            .env("MUSTER_TEST_CUT_NODE", &self.cutter);
        if self.record {
            cargo.env("MUSTER_TEST_RECORD", "1");
        }
        cargo
    }

    /// Runs some tests, one at a time: they count what a cluster can hold.
    fn run(&self, filter: &str) -> anyhow::Result<Counts> {
        let mut nextest = self.nextest("run", filter);
        nextest.args(["--no-fail-fast", "--test-threads", "1", "--color", "never"]);
        let output = nextest
            .stderr(Stdio::piped())
            .output()
            .context("start cargo nextest")?;
        let said = String::from_utf8_lossy(&output.stderr);
        print!("{said}");
        let counts = count(&said).context("cargo nextest did not say how many tests it ran")?;
        ensure!(counts != Counts::default(), "no test has a name of {filter}");
        Ok(counts)
    }

    /// The tests that a filter chooses.
    fn count(&self, filter: &str) -> anyhow::Result<usize> {
        let mut nextest = self.nextest("list", filter);
        let output = nextest
            .args(["--message-format", "json"])
            .output()
            .context("start cargo nextest")?;
        let listed: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("read the list of tests")?;
        let suites = listed.get("rust-suites").and_then(serde_json::Value::as_object);
        let cases = suites
            .into_iter()
            .flatten()
            .filter_map(|(_, suite)| suite.get("testcases")?.as_object());
        let chosen = |case: &serde_json::Value| {
            case.pointer("/filter-match/status")
                .is_some_and(|it| it == "matches")
        };
        Ok(cases.flatten().filter(|(_, case)| chosen(case)).count())
    }
}

impl Counts {
    fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

/// Reads `Summary [   3.7s] 8 tests run: 7 passed (1 slow), 1 failed, 45 skipped`. The skipped ones are those that were
/// not asked for.
fn count(said: &str) -> Option<Counts> {
    let summary = said.lines().rfind(|line| line.contains("Summary ["))?;
    let (_, rest) = summary.split_once(']')?;
    let number = |text: &str| text.split_whitespace().next_back()?.parse::<usize>().ok();
    let run = rest.split_once(" test").and_then(|(before, _)| number(before))?;
    let passed = rest
        .split_once(" passed")
        .map_or(Some(0), |(before, _)| number(before))?;
    Some(Counts {
        passed,
        failed: run.checked_sub(passed)?,
        skipped: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_nextest_is_read() {
        let counts = |passed, failed| {
            Some(Counts {
                passed,
                failed,
                skipped: 0,
            })
        };
        let line = |text: &str| count(&format!("x\n     Summary [   3.738s] {text}\n"));
        assert_eq!(line("8 tests run: 8 passed, 45 skipped"), counts(8, 0));
        assert_eq!(
            line("8 tests run: 6 passed (1 slow), 1 failed, 1 timed out, 0 skipped"),
            counts(6, 2)
        );
        assert_eq!(line("1 test run: 0 passed, 1 failed, 3 skipped"), counts(0, 1));
        assert_eq!(count("error: could not compile"), None);
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        assert_eq!(missing(&["sh"]), None);
        assert!(
            missing(&["sh", "no-such-program"])
                .unwrap()
                .starts_with("no-such-program is not")
        );
    }
}
