//! Control groups: the processor time of a step with all that it starts, and the bound of `--slow`.
//!
//! Both versions of the kernel's interface are used as they are found below `/sys/fs/cgroup`. Without the right to make
//! a group nothing is measured, and the report says so.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};

const MOUNT: &str = "/sys/fs/cgroup";
/// The period of the scheduler's bound, in microseconds.
const PERIOD_US: u64 = 100_000;
/// The group in which an engine with the driver `cgroupfs` puts its containers.
const CONTAINERS: &str = "docker";

/// The folders of one group: one in version 2, one for each controller in version 1.
#[derive(Clone, Debug)]
pub(super) struct Cgroup {
    /// Relative to the mount: `muster-suite-17/nextest`.
    name: String,
    interface: Interface,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Interface {
    /// A folder for each controller.
    V1 {
        cpu: PathBuf,
        cpuacct: PathBuf,
    },
    V2(PathBuf),
}

impl Interface {
    fn find(mount: &Path) -> Option<Self> {
        if mount.join("cgroup.controllers").exists() {
            return Some(Self::V2(mount.to_owned()));
        }
        // Some mount both controllers in one folder and link their names to it.
        let (cpu, cpuacct) = (mount.join("cpu"), mount.join("cpuacct"));
        (cpu.is_dir() && cpuacct.is_dir()).then_some(Self::V1 { cpu, cpuacct })
    }

    fn roots(&self) -> Vec<&Path> {
        match self {
            Self::V1 { cpu, cpuacct } => vec![cpu, cpuacct],
            Self::V2(root) => vec![root],
        }
    }
}

impl Cgroup {
    /// Makes a group below the root of all groups.
    ///
    /// # Errors
    /// The kernel has no control groups there, or this user may make none.
    pub(super) fn make(name: &str) -> anyhow::Result<Self> {
        let interface =
            Interface::find(Path::new(MOUNT)).with_context(|| format!("no control groups below {MOUNT}"))?;
        Self::make_in(interface, name)
    }

    /// Makes a group below that of this process, so that the time of both is one sum; below the root of all groups
    /// where that group cannot be seen.
    ///
    /// # Errors
    /// As [`Cgroup::make`].
    pub(super) fn make_below_own(name: &str) -> anyhow::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let is_seen = |own: &&str| {
            let interface = Interface::find(Path::new(MOUNT));
            interface.is_some_and(|interface| interface.roots().iter().all(|root| root.join(own).is_dir()))
        };
        match group_of_process(&own).filter(is_seen) {
            Some(own) => Self::make(&format!("{own}/{name}")),
            None => Self::make(name),
        }
    }

    fn make_in(interface: Interface, name: &str) -> anyhow::Result<Self> {
        let group = Self {
            name: name.to_owned(),
            interface,
        };
        for folder in group.folders() {
            fs::create_dir_all(&folder)
                .with_context(|| format!("make the control group {}", folder.display()))?;
        }
        Ok(group)
    }

    /// A group below this one.
    ///
    /// # Errors
    /// As [`Cgroup::make`].
    pub(super) fn child(&self, name: &str) -> anyhow::Result<Self> {
        Self::make_in(self.interface.clone(), &format!("{}/{name}", self.name))
    }

    /// Its path as `dockerd --cgroup-parent` takes it.
    pub(super) fn path(&self) -> String {
        format!("/{}", self.name)
    }

    fn folders(&self) -> Vec<PathBuf> {
        let roots = self.interface.roots().into_iter();
        roots.map(|root| root.join(&self.name)).collect()
    }

    /// Moves a process into the group; what it starts afterwards is there as well.
    ///
    /// # Errors
    /// The process has ended, or this user may not move it.
    pub(super) fn adopt(&self, process: u32) -> anyhow::Result<()> {
        for folder in self.folders() {
            fs::write(folder.join("cgroup.procs"), process.to_string())
                .with_context(|| format!("move process {process} into {}", folder.display()))?;
        }
        Ok(())
    }

    /// Bounds the group, with all groups below it, to thousandths of a core.
    ///
    /// # Errors
    /// The kernel does not schedule by groups, or this user may not set it.
    pub(super) fn bound(&self, millicores: u64) -> anyhow::Result<()> {
        ensure!(millicores > 0, "a group without any time does not run");
        let quota = quota_us(millicores);
        let (file, text) = match &self.interface {
            Interface::V1 { cpu, .. } => (cpu.join(&self.name).join("cpu.cfs_quota_us"), quota.to_string()),
            Interface::V2(root) => {
                let folder = root.join(&self.name);
                // A group has the controllers that the groups above it pass on.
                let above = folder
                    .ancestors()
                    .skip(1)
                    .take_while(|above| above.starts_with(root));
                for above in above.collect::<Vec<_>>().into_iter().rev() {
                    let file = above.join("cgroup.subtree_control");
                    fs::write(&file, "+cpu").with_context(|| format!("write {}", file.display()))?;
                }
                (folder.join("cpu.max"), format!("{quota} {PERIOD_US}"))
            }
        };
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))
    }

    /// The processor time of the group and of all below it, those that have ended among them.
    pub(super) fn used(&self) -> Option<Duration> {
        match &self.interface {
            Interface::V1 { cpuacct, .. } => {
                let text = fs::read_to_string(cpuacct.join(&self.name).join("cpuacct.usage")).ok()?;
                Some(Duration::from_nanos(text.trim().parse().ok()?))
            }
            Interface::V2(root) => {
                read_usage(&fs::read_to_string(root.join(&self.name).join("cpu.stat")).ok()?)
            }
        }
    }
}

/// The time in each period, in microseconds, of a group that is bounded to thousandths of a core.
pub(super) fn quota_us(millicores: u64) -> u64 {
    millicores * PERIOD_US / 1_000
}

/// The group that accounts for a process, from its `/proc/<pid>/cgroup`: lines of `number:controllers:/path`, where the
/// newer interface names no controllers. `None` for the root of all groups.
fn group_of_process(text: &str) -> Option<&str> {
    let mut paths = text.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let accounts = controllers.is_empty() || controllers.split(',').any(|name| name == "cpuacct");
        accounts.then(|| path.trim_start_matches('/'))
    });
    paths.find(|path| !path.is_empty())
}

/// `usage_usec` of a `cpu.stat`.
fn read_usage(stat: &str) -> Option<Duration> {
    let line = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(Duration::from_micros(line.trim().parse().ok()?))
}

/// A group that goes with its owner; one with processes in it stays.
#[derive(Debug)]
pub(super) struct RemovedGroup(pub(super) Cgroup);

impl Drop for RemovedGroup {
    fn drop(&mut self) {
        for folder in self.0.folders() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// The processor time of the containers of the machine's own engine so far, where they have a group of their own.
pub(super) fn used_by_containers() -> Option<Duration> {
    let interface = Interface::find(Path::new(MOUNT))?;
    Cgroup {
        name: CONTAINERS.to_owned(),
        interface,
    }
    .used()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_interfaces_are_found_by_their_files() {
        let mount = tempfile::tempdir().unwrap();
        let at = |name: &str| mount.path().join(name);
        assert_eq!(Interface::find(mount.path()), None);
        fs::create_dir(at("cpu")).unwrap();
        fs::create_dir(at("cpuacct")).unwrap();
        let (cpu, cpuacct) = (at("cpu"), at("cpuacct"));
        assert_eq!(
            Interface::find(mount.path()),
            Some(Interface::V1 { cpu, cpuacct })
        );
        fs::write(at("cgroup.controllers"), "cpu memory").unwrap();
        assert_eq!(
            Interface::find(mount.path()),
            Some(Interface::V2(mount.path().to_owned()))
        );
    }

    #[test]
    fn a_bound_is_written_as_each_interface_takes_it() {
        let mount = tempfile::tempdir().unwrap();
        let (cpu, cpuacct) = (mount.path().join("cpu"), mount.path().join("cpuacct"));
        let old = Cgroup::make_in(
            Interface::V1 {
                cpu: cpu.clone(),
                cpuacct,
            },
            "slow/steps",
        )
        .unwrap();
        old.bound(500).unwrap();
        assert_eq!(
            fs::read_to_string(cpu.join("slow/steps/cpu.cfs_quota_us")).unwrap(),
            "50000"
        );
        let new = Cgroup::make_in(Interface::V2(mount.path().to_owned()), "slow").unwrap();
        new.bound(500).unwrap();
        assert_eq!(
            fs::read_to_string(mount.path().join("slow/cpu.max")).unwrap(),
            "50000 100000"
        );
        let below = new.child("engine").unwrap();
        assert_eq!(below.path(), "/slow/engine");
        below.bound(250).unwrap();
        assert!(mount.path().join("slow/cgroup.subtree_control").exists());
    }

    #[test]
    fn the_group_of_a_process_is_that_which_counts_its_time() {
        let old = "5:cpuset:/\n4:cpu,cpuacct:/budget/second\n3:memory:/elsewhere\n";
        assert_eq!(group_of_process(old), Some("budget/second"));
        assert_eq!(group_of_process("0::/budget\n"), Some("budget"));
        assert_eq!(group_of_process("2:cpu,cpuacct:/\n0::/\n"), None);
    }

    #[test]
    fn usage_is_read_in_microseconds_and_nanoseconds() {
        assert_eq!(
            read_usage("usage_usec 2500000\nuser_usec 2000000\n"),
            Some(Duration::from_millis(2_500))
        );
        assert_eq!(read_usage("user_usec 1\n"), None);
        let mount = tempfile::tempdir().unwrap();
        let (cpu, cpuacct) = (mount.path().join("cpu"), mount.path().join("cpuacct"));
        let group = Cgroup::make_in(
            Interface::V1 {
                cpu,
                cpuacct: cpuacct.clone(),
            },
            "suite",
        )
        .unwrap();
        assert_eq!(group.used(), None);
        fs::write(cpuacct.join("suite/cpuacct.usage"), "1500000000\n").unwrap();
        assert_eq!(group.used(), Some(Duration::from_millis(1_500)));
    }
}
