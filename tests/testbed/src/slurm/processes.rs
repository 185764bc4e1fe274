//! The processes of a cluster's jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Every process that has this configuration file in its environment, and all that such a process started.
pub(crate) fn find_with_conf(conf: &Path) -> Vec<Pid> {
    let mut parents = BTreeMap::new();
    let mut ours = BTreeSet::new();
    let entry = [b"SLURM_CONF=", conf.as_os_str().as_bytes()].concat();
    for pid in running() {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let variables = read("environ");
        if variables
            .split(|byte| *byte == 0)
            .any(|variable| variable == entry)
        {
            ours.insert(pid);
        }
        if let Some(parent) = parent(&read("stat")) {
            parents.insert(pid, parent);
        }
    }
    let descends = |pid: i32| {
        let ancestors = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
        ancestors.take(64).any(|pid| ours.contains(&pid))
    };
    let found = parents.keys().copied().filter(|pid| descends(*pid));
    found.map(Pid::from_raw).collect()
}

/// Kills these processes.
pub(crate) fn kill_all(processes: Vec<Pid>) {
    for pid in processes {
        // It may have ended meanwhile.
        let _ = kill(pid, Signal::SIGKILL);
    }
}

fn running() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The parent in a line of `/proc/PID/stat`. The program's name before it may hold anything.
fn parent(stat: &[u8]) -> Option<i32> {
    let text = String::from_utf8_lossy(stat);
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent(b"12 (a) b (c)) S 7 12 12 0"), Some(7));
        assert_eq!(parent(b""), None);
    }
}
