//! A real Slurm for tests. munged, slurmctld and a slurmd for each node run as children of the test, on free ports and
//! in a temporary folder, so that clusters of several tests stand beside one another. A node's GPUs are files.

mod daemon;
mod files;
mod processes;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{free_address, patience};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::process::Command;

use self::daemon::Daemon;

/// The CPUs of each node.
pub const CPUS: u32 = 8;
/// The memory of each node, in MiB.
pub const MEMORY_MIB: u64 = 4000;
/// The GPUs of each node.
pub const GPUS: u32 = 2;
/// The type of all GPUs.
pub const GPU_TYPE: &str = "h100";
/// The only partition, which holds every node.
pub const PARTITION: &str = "gpu";

/// The pause between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A cluster on this machine. Its daemons and the processes of its jobs end when it is dropped.
///
/// It is started from the test's own thread or a worker of its runtime: the daemons die with the thread that started
/// them.
#[derive(Debug)]
pub struct SlurmCluster {
    nodes: BTreeMap<usize, Daemon>,
    controller: Option<Daemon>,
    munged: Option<Daemon>,
    folder: TempDir,
}

impl SlurmCluster {
    /// Starts a cluster of `nodes` nodes, `node0` and up, and waits until all are idle.
    ///
    /// # Errors
    /// A program of Slurm or munge is missing, a daemon ended, or the nodes are not idle within the patience; with the
    /// last lines of the controller's log.
    pub async fn start(nodes: usize) -> io::Result<Self> {
        Self::start_with(nodes, "").await
    }

    /// Starts a cluster with further lines of `slurm.conf`.
    ///
    /// # Errors
    /// As [`SlurmCluster::start`].
    pub async fn start_with(nodes: usize, extra: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("slurm-").tempdir()?;
        let controller = free_address()?.port();
        let ports: Vec<u16> = (0..nodes)
            .map(|_| Ok(free_address()?.port()))
            .collect::<io::Result<_>>()?;
        files::write(folder.path(), controller, &ports, extra)?;
        let mut cluster = Self {
            nodes: BTreeMap::new(),
            controller: None,
            munged: None,
            folder,
        };
        cluster.start_munged().await?;
        cluster.start_controller()?;
        for index in 0..nodes {
            cluster.start_node(index)?;
        }
        cluster.wait_for_idle(nodes).await?;
        Ok(cluster)
    }

    /// The configuration file, as Slurm's programs read it from `SLURM_CONF`.
    pub fn conf(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    /// The folder of the cluster's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs one of Slurm's programs against this cluster; its output without the white space at the end.
    ///
    /// # Errors
    /// It does not start, or fails; with what it wrote.
    pub async fn run<S: AsRef<OsStr>>(&self, program: &str, arguments: &[S]) -> io::Result<String> {
        let output = Command::new(program)
            .args(arguments)
            .env("SLURM_CONF", self.conf())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(patience(), output).await??;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
        }
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(io::Error::other(format!(
            "{program} ended with {}: {words}",
            output.status
        )))
    }

    /// Waits until a question has an answer.
    ///
    /// # Errors
    /// It has none within the patience.
    pub async fn wait_until<T>(&self, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> io::Result<T> {
        let answer = async {
            loop {
                if let Some(answer) = ask().await {
                    return answer;
                }
                tokio::time::sleep(LOOK_EVERY).await; // polls until it holds, with the one patience
            }
        };
        tokio::time::timeout(patience(), answer).await.map_err(|_| {
            let text = format!(
                "after {:?} still not: {what}\n{}",
                patience(),
                self.controller_log()
            );
            io::Error::new(io::ErrorKind::TimedOut, text)
        })
    }

    /// Waits until the controller's saved state, which is written some seconds after a change, has the running job of
    /// this name as it is now. A controller that goes on with a state in which the job still waits takes it for a
    /// leftover, and kills it.
    ///
    /// # Errors
    /// There is no such job, or it is not saved within the patience.
    pub async fn wait_until_saved(&self, name: &str) -> io::Result<()> {
        let listed = self
            .run("squeue", &["--noheader", "--format=%i", "--name", name])
            .await?;
        // A change that only a save after it can contain.
        let mark = format!("saved-{name}");
        let update = [
            "update".to_owned(),
            format!("JobId={}", listed.trim()),
            format!("AdminComment={mark}"),
        ];
        self.run("scontrol", &update).await?;
        let file = self.folder.path().join("state/job_state");
        self.wait_until("the job is saved", async || {
            let saved = std::fs::read(&file).ok()?;
            let mut windows = saved.windows(mark.len());
            windows.any(|window| window == mark.as_bytes()).then_some(())
        })
        .await
    }

    /// Starts the controller, which goes on with its saved state.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_controller(&mut self) -> io::Result<()> {
        let conf = self.conf();
        let command = ["slurmctld", "-D", "-f", &conf.to_string_lossy()];
        self.controller = Some(Daemon::start(self.folder.path(), "controller", &command)?);
        Ok(())
    }

    /// Kills the controller without a warning.
    ///
    /// # Errors
    /// It is not there.
    pub async fn kill_controller(&mut self) -> io::Result<()> {
        self.controller.take().ok_or_else(missing)?.kill().await
    }

    /// Stops the controller's process where it stands: it keeps its connections and answers nothing.
    ///
    /// # Errors
    /// It is not there.
    pub fn freeze_controller(&self) -> io::Result<()> {
        self.controller
            .as_ref()
            .ok_or_else(missing)?
            .signal(Signal::SIGSTOP)
    }

    /// Lets a frozen controller go on.
    ///
    /// # Errors
    /// It is not there.
    pub fn thaw_controller(&self) -> io::Result<()> {
        self.controller
            .as_ref()
            .ok_or_else(missing)?
            .signal(Signal::SIGCONT)
    }

    /// Starts the daemon of a node.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_node(&mut self, index: usize) -> io::Result<()> {
        let (conf, name) = (self.conf(), format!("node{index}"));
        let command = ["slurmd", "-D", "-N", &name, "-f", &conf.to_string_lossy()];
        let daemon = Daemon::start(self.folder.path(), &name, &command)?;
        self.nodes.insert(index, daemon);
        Ok(())
    }

    /// Kills the daemon of a node without a warning. The processes of its jobs go on.
    ///
    /// # Errors
    /// It is not there.
    pub async fn kill_node(&mut self, index: usize) -> io::Result<()> {
        self.nodes.remove(&index).ok_or_else(missing)?.kill().await
    }

    async fn start_munged(&mut self) -> io::Result<()> {
        let folder = self.folder.path();
        let at = |option: &str, file: &str| format!("--{option}={}", folder.join(file).display());
        let socket = folder.join("munge/socket");
        let command = [
            at("key-file", "munge.key"),
            at("socket", "munge/socket"),
            at("pid-file", "run/munged.pid"),
            at("log-file", "log/munged"),
            at("seed-file", "munge.seed"),
        ];
        let command: Vec<&str> = ["munged", "--foreground", "--force"]
            .into_iter()
            .chain(command.iter().map(String::as_str))
            .collect();
        let mut munged = Daemon::start(folder, "munged", &command)?;
        let listens = async {
            while !socket.exists() && !munged.has_ended() {
                tokio::time::sleep(LOOK_EVERY).await; // polls until it holds, with the one patience
            }
        };
        tokio::time::timeout(patience(), listens).await?;
        if munged.has_ended() {
            let text = std::fs::read_to_string(folder.join("log/munged.output")).unwrap_or_default();
            return Err(io::Error::other(format!("munged ended: {}", text.trim())));
        }
        self.munged = Some(munged);
        Ok(())
    }

    async fn wait_for_idle(&mut self, nodes: usize) -> io::Result<()> {
        let look = async {
            let arguments = ["--noheader", "--Node", "--states=idle", "--format=%N"];
            loop {
                let mut daemons = self.controller.iter_mut().chain(self.nodes.values_mut());
                if daemons.any(Daemon::has_ended) {
                    return Err(io::Error::other("a daemon of Slurm ended"));
                }
                let idle = self.run("sinfo", &arguments).await.unwrap_or_default();
                if idle.lines().count() == nodes {
                    return Ok(());
                }
                tokio::time::sleep(LOOK_EVERY).await; // polls until it holds, with the one patience
            }
        };
        let idle = tokio::time::timeout(patience(), look).await;
        let failure = match idle {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the nodes are not idle after {:?}", patience()),
        };
        Err(io::Error::other(format!("{failure}\n{}", self.controller_log())))
    }

    /// The last lines of the controller's log.
    fn controller_log(&self) -> String {
        let folder = self.folder.path().join("log");
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let text = read("controller.output") + &read("controller");
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        for node in self.nodes.values_mut() {
            node.start_kill();
        }
        let controller = self.controller.iter_mut().chain(self.munged.iter_mut());
        controller.for_each(Daemon::start_kill);
        // Jobs outlive the daemon of their node.
        processes::kill_all(processes::find_with_conf(&self.conf()));
    }
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "this daemon does not run")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_of_a_cluster_is_left_once_it_is_dropped() {
        let begun = tokio::time::Instant::now();
        let cluster = SlurmCluster::start(2).await.unwrap();
        println!("two nodes are idle after {:?}", begun.elapsed());
        let job = [
            "--gres=gpu:1",
            "--mem=100",
            "--output=/dev/null",
            "--wrap=sleep 600",
        ];
        cluster.run("sbatch", &job).await.unwrap();
        let (conf, folder) = (cluster.conf(), cluster.folder().to_owned());
        // The controller with its helper, two nodes, munged, and the job with its two programs.
        let runs = async || (processes::find_with_conf(&conf).len() >= 8).then_some(());
        cluster.wait_until("the job runs", runs).await.unwrap();
        drop(cluster);
        while !processes::find_with_conf(&conf).is_empty() {
            tokio::time::sleep(LOOK_EVERY).await; // polls until they are gone; nextest sets the deadline
        }
        assert!(!folder.exists());
    }
}
