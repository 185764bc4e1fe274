//! What this container may be asked for.

use std::path::Path;

use muster_hardware_proof::session::Caps;

/// log₂ of the largest side of a CHAIN's matrices: the largest that the specification has.
const LOG2_N: u8 = 16;
/// Applications of the one-way function per word of a WALK's memory: as many as the dearest class asks for.
const WORK: u32 = 4_096;
/// Reads of each byte of a WALK's memory.
const READS: u128 = 1_024;
/// Of the memory that the container may take, kept for everything but the walk.
const KEPT: u64 = 256 << 20;

/// Where a container reads its own bound: version 2 of control groups, then version 1.
const BOUNDS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];

/// Bounds for a container that may take `memory` bytes.
pub fn caps(memory: u64) -> Caps {
    let memory_bytes = memory.saturating_sub(KEPT);
    Caps {
        log2_n: LOG2_N,
        memory_bytes,
        work: WORK,
        read_bytes: u128::from(memory_bytes) * READS,
    }
}

/// Bytes that this process may take: the smaller of its container's bound and the machine's memory. `None` if neither can be read.
pub fn memory() -> Option<u64> {
    let bounds = BOUNDS
        .iter()
        .filter_map(|path| bound(&std::fs::read_to_string(path).ok()?));
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    bounds.chain(machine.as_deref().and_then(total)).min()
}

/// A bound's file. No bound is `max`, or a number beyond any machine.
fn bound(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// `MemTotal` in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Whether a folder for sockets was mounted.
pub fn has_folder(folder: &Path) -> bool {
    folder.is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_as_kernels_write_them() {
        assert_eq!(bound("1073741824\n"), Some(1 << 30));
        assert_eq!(bound("max\n"), None);
        assert_eq!(
            total("MemTotal:       24683760 kB\nMemFree: 1 kB\n"),
            Some(24_683_760 * 1024)
        );
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!(
            memory().is_some_and(|bytes| bytes > KEPT),
            "this machine has memory"
        );
    }

    #[test]
    fn a_small_container_proves_no_memory_and_still_computes() {
        let small = caps(64 << 20);
        assert_eq!((small.memory_bytes, small.log2_n), (0, 16));
        assert_eq!(caps(1 << 30).memory_bytes, 768 << 20);
    }
}
