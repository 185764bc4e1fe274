//! Control groups for the containers of an engine that runs inside a container: below this container's own, so that a
//! pod's limits hold for its jobs, too.

use std::fs;
use std::io;
use std::path::Path;

/// The tree of version 2.
pub(super) const ROOT: &str = "/sys/fs/cgroup";
/// The groups of this container by its processes' own view.
pub(super) const OWN: &str = "/proc/self/cgroup";

/// Lets the engine share out the controllers of this container's group, and returns the group below which its
/// containers belong. `root` is the tree of version 2, and `own` the text of `/proc/self/cgroup`. Nothing is to be done
/// (`None`) on version 1, where a container sees nothing above its own groups, and in the root of a machine, which may
/// share out its controllers whatever is in it.
///
/// On version 2 a group with processes cannot share out its controllers, so this container's processes move into a
/// group of their own (Linux, `Documentation/admin-guide/cgroup-v2.rst`, "No Internal Process Constraint").
///
/// # Errors
/// The tree is not writable: the container is not privileged.
pub(super) fn nest(root: &Path, own: &str) -> io::Result<Option<String>> {
    let Some(group) = group_of_version_2(own) else {
        return Ok(None);
    };
    let folder = root.join(group.trim_start_matches('/'));
    // Every group but the root of a machine has a type.
    if !folder.join("cgroup.type").exists() {
        return Ok(None);
    }
    let controllers = fs::read_to_string(folder.join("cgroup.controllers"))?;
    let executor = folder.join("executor");
    fs::create_dir_all(&executor)?;
    for process in fs::read_to_string(folder.join("cgroup.procs"))?.lines() {
        // Those of other containers have no number here.
        if process == "0" {
            continue;
        }
        match fs::write(executor.join("cgroup.procs"), process) {
            // It has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
            moved => moved?,
        }
    }
    let shared: Vec<String> = controllers
        .split_whitespace()
        .map(|name| format!("+{name}"))
        .collect();
    fs::write(folder.join("cgroup.subtree_control"), shared.join(" "))?;
    Ok(Some(format!("{}/jobs", group.trim_end_matches('/'))))
}

/// The path of the group in a tree of version 2 alone; `None` where the controllers are in trees of version 1.
fn group_of_version_2(own: &str) -> Option<&str> {
    let mut lines = own.lines();
    let group = lines.next()?.strip_prefix("0::")?;
    lines.next().is_none().then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree as the kernel shows it, whose group has these processes.
    fn tree(group: &str, processes: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(group);
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in [
            ("cgroup.type", "domain\n"),
            ("cgroup.controllers", "cpu memory pids\n"),
            ("cgroup.procs", processes),
            ("cgroup.subtree_control", ""),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        root
    }

    #[test]
    fn the_processes_of_a_container_make_room_and_its_engine_shares_out_all_controllers() {
        // With a view of its own the container's group is the root.
        for (group, own, parent) in [
            ("", "0::/\n", "/jobs"),
            (
                "kubepods/pod7/c",
                "0::/kubepods/pod7/c\n",
                "/kubepods/pod7/c/jobs",
            ),
        ] {
            let root = tree(group, "17\n");
            let read = |file: &str| fs::read_to_string(root.path().join(group).join(file)).unwrap();
            assert_eq!(nest(root.path(), own).unwrap().as_deref(), Some(parent));
            assert_eq!(read("executor/cgroup.procs"), "17");
            assert_eq!(read("cgroup.subtree_control"), "+cpu +memory +pids");
        }
    }

    #[test]
    fn processes_of_others_stay_where_they_are() {
        let root = tree("", "0\n0\n");
        nest(root.path(), "0::/\n").unwrap();
        assert!(!root.path().join("executor/cgroup.procs").exists());
    }

    #[test]
    fn nothing_is_done_on_version_1_and_in_the_root_of_a_machine() {
        let root = tree("", "17\n");
        fs::remove_file(root.path().join("cgroup.type")).unwrap();
        for own in [
            "",
            "4:memory:/a\n1:name=systemd:/a\n0::/a\n",
            "0::/elsewhere\n",
            "0::/\n",
        ] {
            assert_eq!(nest(root.path(), own).unwrap(), None, "{own}");
        }
        assert!(!root.path().join("executor").exists());
    }
}
