//! An engine of the test's own, with its own containerd, folders and socket, which may be killed and filled up.
//!
//! It runs in a network namespace of its own: a `dockerd` without a bridge begins by removing `docker0`, which belongs
//! to the machine's engine.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};
use muster_containers::ContainerEngine;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

use super::{require, until};

/// Dropping it ends the engine and everything it started.
pub(crate) struct Dockerd {
    folder: TempDir,
    containerd: Child,
    dockerd: Child,
    mounted: bool,
    /// Keeps the mount namespace of an engine that maps users.
    keeper: Option<Child>,
}

impl Dockerd {
    /// Starts an engine; `mebibytes` puts its images and containers on a disk of that size.
    pub(crate) async fn start(mebibytes: Option<u64>) -> anyhow::Result<Self> {
        Self::start_with(mebibytes, false).await
    }

    /// Starts an engine for whose containers user 0 is user [`FIRST_MAPPED`] of this machine.
    pub(crate) async fn remapped() -> anyhow::Result<Self> {
        Self::start_with(None, true).await
    }

    async fn start_with(mebibytes: Option<u64>, remapped: bool) -> anyhow::Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            bail!("this test starts an engine of its own, which needs root");
        }
        for program in ["dockerd", "containerd", "unshare", "ip"] {
            require(program);
        }
        let folder = tempfile::Builder::new().prefix("muster-dockerd-").tempdir()?;
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("data"))?;
        if let Some(mebibytes) = mebibytes {
            let size = format!("size={mebibytes}m");
            mount(
                Some("tmpfs"),
                &at("data"),
                Some("tmpfs"),
                MsFlags::empty(),
                Some(size.as_str()),
            )
            .context("no disk of our own")?;
        }
        let root = folder.path().display();
        std::fs::write(
            at("containerd.toml"),
            format!(
                "version = 2\nroot = \"{root}/containerd\"\nstate = \"{root}/containerd-run\"\n\
                 disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = \"{root}/containerd.sock\"\n"
            ),
        )?;
        std::fs::write(
            at("daemon.json"),
            "{\"runtimes\": {\"runsc\": {\"path\": \"/usr/bin/runsc\", \
             \"runtimeArgs\": [\"--platform=ptrace\", \"--network=none\", \"--ignore-cgroups\"]}}}",
        )?;
        let keeper = if remapped {
            Some(keep(folder.path()).await?)
        } else {
            None
        };
        let containerd = inside(keeper.as_ref(), &["--mount"], "containerd")
            .arg("--config")
            .arg(at("containerd.toml"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(at("containerd.log"))?)
            .spawn()
            .context("containerd does not start")?;
        let socket = at("containerd.sock");
        let dockerd = spawn(folder.path(), keeper.as_ref())?;
        let mut engine = Self {
            folder,
            containerd,
            dockerd,
            mounted: mebibytes.is_some(),
            keeper,
        };
        until("containerd listens", || async { socket.exists() }).await;
        engine.answers().await?;
        Ok(engine)
    }

    pub(crate) fn address(&self) -> String {
        format!("unix://{}/docker.sock", self.folder.path().display())
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<ContainerEngine> {
        Ok(ContainerEngine::connect(&self.address()).await?)
    }

    /// The process whose network namespace the engine uses.
    pub(crate) fn pid(&self) -> u32 {
        self.dockerd.id()
    }

    /// Kills the engine, as the kernel would for its memory use.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.dockerd.kill()?;
        self.dockerd.wait()?;
        Ok(())
    }

    /// Starts the engine again with the files of the killed one.
    pub(crate) async fn revive(&mut self) -> anyhow::Result<()> {
        let _ = std::fs::remove_file(self.folder.path().join("docker.pid"));
        self.dockerd = spawn(self.folder.path(), self.keeper.as_ref())?;
        self.answers().await
    }

    async fn answers(&mut self) -> anyhow::Result<()> {
        let address = self.address();
        let ended = muster_testbed::until("dockerd answers or ends", async || {
            match self.dockerd.try_wait() {
                Ok(None) => ContainerEngine::connect(&address).await.ok().map(|_| false),
                Ok(Some(_)) | Err(_) => Some(true),
            }
        });
        if ended.await {
            let log = std::fs::read_to_string(self.folder.path().join("dockerd.log")).unwrap_or_default();
            let tail: Vec<_> = log.lines().rev().take(10).collect();
            bail!("dockerd does not answer:\n{}", tail.join("\n"));
        }
        Ok(())
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        // Each test has removed its containers by then. The engine is asked to end first, so that it releases its
        // mounts.
        let pid = i32::try_from(self.dockerd.id()).unwrap_or_default();
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        let _ = self.dockerd.wait();
        // After a failed test containers still run; their shims have the folder on their command line.
        for pid in processes_of(self.folder.path()) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = self.containerd.kill();
        let _ = self.containerd.wait();
        if let Some(keeper) = &mut self.keeper {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
        for left in mounts_under(self.folder.path()) {
            let _ = umount2(&left, MntFlags::MNT_DETACH);
        }
        if self.mounted {
            let _ = umount2(&self.folder.path().join("data"), MntFlags::MNT_DETACH);
        }
    }
}

/// The first user id that a mapping engine has for its containers.
pub(crate) const FIRST_MAPPED: u32 = 100_000;

/// Makes a mount namespace in which a user has subordinate ids: `/etc/subuid` itself belongs to the machine.
async fn keep(folder: &Path) -> anyhow::Result<Child> {
    let users = folder.join("users");
    std::fs::write(&users, format!("daemon:{FIRST_MAPPED}:65536\n"))?;
    let script = "set -e; for file in /etc/subuid /etc/subgid; do mount --bind \"$0\" $file; done; \
        ip link set lo up; exec tail -f /dev/null";
    let keeper = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", script])
        .arg(&users)
        .stdout(Stdio::null())
        .spawn()
        .context("no mount namespace of our own")?;
    let seen = Path::new("/proc")
        .join(keeper.id().to_string())
        .join("root")
        .join("etc/subgid");
    until("users are mapped", || async {
        std::fs::read_to_string(&seen).is_ok_and(|text| text.starts_with("daemon:"))
    })
    .await;
    Ok(keeper)
}

/// A command for a program, in the namespaces of the keeper if there is one. It keeps its process id.
fn inside(keeper: Option<&Child>, namespaces: &[&str], program: &str) -> Command {
    let Some(keeper) = keeper else {
        return Command::new(program);
    };
    let mut command = Command::new("nsenter");
    command
        .args(namespaces)
        .args(["--target", &keeper.id().to_string(), program]);
    command
}

fn spawn(folder: &Path, keeper: Option<&Child>) -> anyhow::Result<Child> {
    let at = |name: &str| folder.join(name);
    let socket = format!("unix://{}", at("docker.sock").display());
    ensure!(socket.len() < 100, "a socket's path may not be longer");
    let mut command = if keeper.is_some() {
        let mut command = inside(keeper, &["--mount", "--net"], "dockerd");
        command.arg("--userns-remap=daemon");
        command
    } else {
        // The shell becomes dockerd, so that its process id is dockerd's.
        let mut command = Command::new("unshare");
        command.args([
            "--net",
            "sh",
            "-c",
            "ip link set lo up; exec dockerd \"$@\"",
            "dockerd",
        ]);
        command
    };
    command
        .args([
            "--iptables=false",
            "--bridge=none",
            "--storage-driver=vfs",
            "--host",
            &socket,
        ])
        .arg("--config-file")
        .arg(at("daemon.json"))
        .arg("--containerd")
        .arg(at("containerd.sock"))
        .arg("--data-root")
        .arg(at("data"))
        .arg("--exec-root")
        .arg(at("run"))
        .arg("--pidfile")
        .arg(at("docker.pid"))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(at("dockerd.log"))?)
        .spawn()
        .context("dockerd does not start")
}

/// The processes of the engine's containerd shims.
fn processes_of(folder: &Path) -> Vec<i32> {
    let folder = folder.display().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let shims = processes.filter(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        command.contains("containerd-shim") && command.contains(&folder)
    });
    shims
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The mounts under a folder, innermost first.
fn mounts_under(folder: &Path) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut found: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(PathBuf::from)
        .filter(|path| path.starts_with(folder) && path != &folder.join("data"))
        .collect();
    found.sort();
    found.reverse();
    found
}
