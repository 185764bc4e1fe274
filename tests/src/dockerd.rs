//! A Docker engine of a test's own, which may be killed.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use muster_testbed::wait_for;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use crate::log_ends;
use crate::process::run;

/// An engine that runs until it is dropped.
#[derive(Debug)]
pub struct Dockerd {
    folder: tempfile::TempDir,
    daemon: Option<Child>,
    /// Whether its containers go on while it is away.
    live_restore: bool,
}

impl Dockerd {
    /// Starts one beside the machine's.
    ///
    /// # Errors
    /// This is not root, there is no dockerd, or it does not come up.
    pub fn start() -> Result<Self> {
        Self::start_as(false)
    }

    /// Starts one whose containers go on while it is away.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_live_restore() -> Result<Self> {
        Self::start_as(true)
    }

    fn start_as(live_restore: bool) -> Result<Self> {
        ensure!(
            geteuid().is_root() && std::path::Path::new("/usr/sbin/dockerd").exists(),
            "this test starts a Docker engine of its own: it needs root, and dockerd, which `cargo xtask test` installs"
        );
        // Sockets have short paths.
        let folder = tempfile::Builder::new()
            .prefix("muster-engine-")
            .tempdir_in("/tmp")?;
        let mut engine = Self {
            folder,
            daemon: None,
            live_restore,
        };
        if let Err(error) = engine.begin() {
            let log = log_ends::end_of(&engine.folder.path().join("log"));
            return Err(error.context(format!("the test's own Docker engine does not come up:\n{log}")));
        }
        Ok(engine)
    }

    /// The engine's address, `unix://…`.
    pub fn address(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// It does not answer.
    pub fn begin(&mut self) -> Result<()> {
        let at = |name: &str| self.folder.path().join(name);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(at("log"))?;
        // A killed engine leaves its number behind, and those of its containerd, which the next one would wait for.
        for stale in [
            "pid",
            "exec/containerd/containerd.pid",
            "exec/containerd/containerd.sock",
        ] {
            let _ = std::fs::remove_file(at(stale));
        }
        // The machine's own configuration must not speak to this one; its storage is slow and works everywhere.
        let settings = serde_json::json!({ "live-restore": self.live_restore });
        std::fs::write(at("daemon.json"), settings.to_string())?;
        // In a network of its own: an engine that is set to have no bridge removes the machine's. The shell becomes
        // dockerd, so that its process id is dockerd's.
        let daemon = Command::new("unshare")
            .args(["--net", "sh", "-c"])
            .args(["ip link set lo up; exec /usr/sbin/dockerd \"$@\"", "dockerd"])
            .arg("--config-file")
            .arg(at("daemon.json"))
            .args(["--storage-driver", "vfs", "--host"])
            .arg(self.address())
            .arg("--data-root")
            .arg(at("data"))
            .arg("--exec-root")
            .arg(at("exec"))
            .arg("--pidfile")
            .arg(at("pid"))
            // Nothing of the machine's network: jobs have none.
            .args([
                "--bridge=none",
                "--iptables=false",
                "--ip-forward=false",
                "--ip-masq=false",
            ])
            // Of its own names, should it find the machine's containerd.
            .args([
                "--containerd-namespace",
                "muster-test",
                "--containerd-plugins-namespace",
                "muster-test-plugins",
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start dockerd")?;
        self.daemon = Some(daemon);
        let daemon = self.daemon.as_mut().context("it was just started")?;
        let address = format!("unix://{}", self.folder.path().join("socket").display());
        wait_for("the test's own Docker engine", || {
            if let Some(status) = daemon.try_wait()? {
                anyhow::bail!("dockerd ended ({status})");
            }
            let answered = run(Command::new("docker").args(["--host", &address, "version"]))?;
            anyhow::Ok((answered.code == Some(0)).then_some(()))
        })
    }

    /// A port on the loopback address of the engine's own network, where this process listens; a free one for 0. An
    /// engine that is started again has another network.
    ///
    /// # Errors
    /// It does not run, or this process may not enter its network.
    pub fn listen(&self, port: u16) -> Result<TcpListener> {
        let daemon = self.daemon.as_ref().context("it does not run")?;
        let network = File::open(format!("/proc/{}/ns/net", daemon.id()))?;
        // A socket stays in the network that its thread was in when it made the socket.
        let listening = std::thread::spawn(move || {
            setns(&network, CloneFlags::CLONE_NEWNET)?;
            Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, port))?)
        });
        listening
            .join()
            .unwrap_or_else(|_| anyhow::bail!("the thread that listens panicked"))
    }

    /// Kills it without warning.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&mut self) -> Result<()> {
        let mut daemon = self.daemon.take().context("it does not run")?;
        kill(Pid::from_raw(i32::try_from(daemon.id())?), Signal::SIGKILL)?;
        daemon.wait()?;
        Ok(())
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        log_ends::show_if_panicking(&[self.folder.path().join("log")]);
        if let Some(mut daemon) = self.daemon.take() {
            let asked = i32::try_from(daemon.id()).map(|id| kill(Pid::from_raw(id), Signal::SIGTERM));
            if !matches!(asked, Ok(Ok(()))) {
                let _ = daemon.kill();
            }
            let _ = daemon.wait();
        }
        // Leftovers of a killed engine: keepers of its containers, and mounts that would keep the folder.
        let folder = self.folder.path().display().to_string();
        for pid in naming(&folder) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let ours = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
        for mount in ours.filter(|mount| mount.starts_with(&folder)) {
            let _ = run(Command::new("umount").args(["--lazy", mount]));
        }
    }
}

/// Processes whose command line names a folder.
fn naming(folder: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(folder).then_some(pid)
    });
    named.collect()
}
