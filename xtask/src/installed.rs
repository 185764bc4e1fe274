//! `cargo xtask installed`: the Debian packages in a bare Debian whose first process is systemd. They are installed, a
//! subnet is raised and moved to installed roles, a job and a streamed answer meet an upgrade and the way back, and the
//! packages are removed.
//!
//! The Debian lies in a folder and runs in namespaces of its own, with a Docker engine of its own and without a
//! network: the packages of others are fetched before.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    exit_code,
    tool::{debootstrap, quietly},
    workspace::Workspace,
};

/// The packages of an ordinary server that a minimal root lacks, and the tools of the script.
const INCLUDED: &str = "systemd,systemd-sysv,dbus,ca-certificates,procps,bc";
/// The version under which a package is packed once more, to upgrade from.
const BEFORE: &str = "0.0.1~before";
/// The engine bridges nothing, because there is no network.
const DAEMON: &str =
    "{\"bridge\": \"none\", \"iptables\": false, \"ip-forward\": false, \"storage-driver\": \"vfs\"}\n";
/// The command that fetches packages and installs none.
const FETCH: [&str; 5] = [
    "apt-get",
    "--yes",
    "--no-install-recommends",
    "--download-only",
    "install",
];
/// The packages of others that ours need.
const NEEDED: [&str; 3] = ["docker.io", "e2fsprogs", "mount"];
/// The looks, half a second apart, within which systemd starts.
const BOOT_LOOKS: u32 = 240;

#[derive(Args)]
pub(crate) struct Options {
    /// The folder of the packages [default: dist in the target folder]
    #[arg(long, value_name = "FOLDER")]
    packages: Option<PathBuf>,
    /// The folder of an older version's packages, to upgrade from; the same packages with a lower number without it
    #[arg(long, value_name = "FOLDER")]
    before: Option<PathBuf>,
    /// Seconds of the jobs that the upgrade and the way back meet
    #[arg(long, default_value_t = 60)]
    job_s: u32,
    /// Words of the streamed answers that they meet
    #[arg(long, default_value_t = 1000)]
    words: u32,
}

/// Runs all steps, and says in the last line how many went well.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(
        nix::unistd::Uid::effective().is_root(),
        "namespaces and debootstrap need root"
    );
    let packages = options
        .packages
        .clone()
        .unwrap_or_else(|| workspace.target().join("dist"));
    ensure!(
        !debs(&packages)?.is_empty(),
        "no packages are in {}: run `cargo xtask dist` first",
        packages.display()
    );
    let folder = tempfile::Builder::new()
        .prefix("muster-installed-")
        .tempdir()
        .context("make a folder for the Debian")?;
    let root = folder.path().join("root");
    println!("debootstrap");
    debootstrap(&root, INCLUDED)?;
    fs::create_dir_all(root.join("etc/docker"))?;
    fs::write(root.join("etc/docker/daemon.json"), DAEMON)?;
    fs::copy("/etc/resolv.conf", root.join("etc/resolv.conf")).context("copy resolv.conf")?;
    let inside = |arguments: &[&str]| quietly(Command::new("chroot").arg(&root).args(arguments));
    inside(&["apt-get", "update"])?;
    inside(&[&FETCH[..], &NEEDED[..]].concat())?;
    let (after, before) = (root.join("packages/after"), root.join("packages/before"));
    copy_debs(&packages, &after)?;
    match &options.before {
        Some(older) => copy_debs(older, &before)?,
        None => renumber(&packages, &before)?,
    }
    let script = root.join("packages/inside.sh");
    fs::write(&script, include_str!("installed/inside.sh"))?;
    let booted = Booted::start(&root, folder.path())?;
    let mut inside = booted.command("bash").context("the Debian has ended")?;
    inside
        .arg("/packages/inside.sh")
        .env("JOB_S", options.job_s.to_string())
        .env("WORDS", options.words.to_string());
    let status = inside.status().context("start the script")?;
    drop(booted);
    ensure!(status.success(), "the script ended with {status}");
    let failed = fs::read_to_string(root.join("packages/failed")).unwrap_or_default();
    Ok(exit_code(failed.trim() == "0"))
}

fn debs(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut debs = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            debs.push(path);
        }
    }
    Ok(debs)
}

fn copy_debs(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for deb in debs(from)? {
        let name = deb.file_name().context("a package without a name")?;
        fs::copy(&deb, to.join(name)).with_context(|| format!("copy {}", deb.display()))?;
    }
    Ok(())
}

/// Packs the packages of a folder again under the version [`BEFORE`].
fn renumber(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for deb in debs(from)? {
        let unpacked = tempfile::tempdir().context("make a folder for a package")?;
        let root = unpacked.path().join("package");
        quietly(Command::new("dpkg-deb").arg("--raw-extract").arg(&deb).arg(&root))?;
        let control = root.join("DEBIAN/control");
        let text = fs::read_to_string(&control).with_context(|| format!("read {}", control.display()))?;
        fs::write(
            &control,
            with_version(&text, BEFORE).context("a package without a version")?,
        )?;
        quietly(
            Command::new("dpkg-deb")
                .args(["--root-owner-group", "-Znone", "--build"])
                .arg(&root)
                .arg(to),
        )?;
    }
    Ok(())
}

/// The control fields with another version, also where the package depends on another one of the same version.
fn with_version(control: &str, version: &str) -> Option<String> {
    let old = control.lines().find_map(|line| line.strip_prefix("Version: "))?;
    Some(
        control
            .replace(&format!("Version: {old}"), &format!("Version: {version}"))
            .replace(&format!("(= {old})"), &format!("(= {version})")),
    )
}

/// A Debian that runs. It ends with this value.
struct Booted {
    /// The process that waits for systemd.
    waiting: Child,
    /// Its control groups.
    group: String,
}

// === impl Booted ===

impl Booted {
    /// Starts systemd in a root, and waits until it has started everything.
    fn start(root: &Path, folder: &Path) -> anyhow::Result<Self> {
        let boot = folder.join("boot.sh");
        fs::write(&boot, include_str!("installed/boot.sh"))?;
        let group = format!("muster-installed-{}", std::process::id());
        let log = folder.join("boot.log");
        let waiting = Command::new("bash")
            .arg(&boot)
            .arg(root)
            .arg(&group)
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).context("make the log of the start")?)
            .spawn()
            .context("start the Debian")?;
        let mut booted = Self { waiting, group };
        let mut looks = 0;
        while !booted.is_up() {
            if let Some(status) = booted.waiting.try_wait()? {
                let told = fs::read_to_string(&log).unwrap_or_default();
                bail!("the Debian ended with {status} before systemd ran: {told}");
            }
            ensure!(
                looks < BOOT_LOOKS,
                "systemd has not started after {BOOT_LOOKS} looks"
            );
            looks += 1;
            quietly(Command::new("sleep").arg("0.5"))?;
        }
        println!("systemd runs as the first process of a bare Debian");
        Ok(booted)
    }

    /// systemd, as this machine counts processes.
    fn init(&self) -> Option<i32> {
        let waiting = self.waiting.id();
        let children = fs::read_to_string(format!("/proc/{waiting}/task/{waiting}/children"));
        children.ok()?.split_whitespace().next()?.parse().ok()
    }

    /// Whether systemd has started everything. A unit that failed counts: a machine in namespaces lacks some devices.
    fn is_up(&self) -> bool {
        let Some(mut asked) = self.command("systemctl") else {
            return false;
        };
        let state = asked.arg("is-system-running").stderr(Stdio::null()).output();
        state.is_ok_and(|state| {
            ["running", "degraded"].contains(&String::from_utf8_lossy(&state.stdout).trim())
        })
    }

    /// A command inside; none before the first process is there.
    fn command(&self, program: &str) -> Option<Command> {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.init()?.to_string()])
            .args([
                "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--net", "--root", "--wd",
            ])
            .arg(program)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .stdin(Stdio::null());
        Some(command)
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        if let Some(init) = self.init() {
            // The end of its first process ends every process of the namespace.
            let _ = kill(Pid::from_raw(init), Signal::SIGKILL);
        }
        let _ = self.waiting.wait();
        let remove = format!(
            "find /sys/fs/cgroup -depth -type d -path '*/{}*' -exec rmdir {{}} + 2>/dev/null",
            self.group
        );
        let _ = Command::new("sh").args(["-c", &remove]).status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_and_its_dependencies_get_the_same_other_version() {
        let control = "Package: muster-miner\nVersion: 0.1.0\nDepends: muster (= 0.1.0), systemd\n";
        assert_eq!(
            with_version(control, BEFORE).unwrap(),
            "Package: muster-miner\nVersion: 0.0.1~before\nDepends: muster (= 0.0.1~before), systemd\n"
        );
        assert_eq!(with_version("Package: muster\n", BEFORE), None);
    }
}
