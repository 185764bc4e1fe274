//! The limits of challenges that this container accepts.

use std::path::Path;

use muster_hardware_proof::conversation::ProverLimits;

/// log₂ of the largest side of a MATMUL's matrices, the maximum of the specification.
const LOG2_N: u8 = 16;
/// The largest number of applications of the one-way function per word of a WALK's memory, as the most demanding class
/// needs.
const WORK: u32 = 4_096;
/// The largest average number of reads of each byte of a WALK's memory.
const READS: u128 = 1_024;
/// Bytes of the container's memory that are not used by a WALK.
const RESERVED_BYTES: u64 = 256 << 20;

/// The files with the memory bound of a container: of control groups version 2, then version 1.
const BOUNDS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];

/// The limits of a container that may use `memory` bytes.
pub fn prover_limits(memory: u64) -> ProverLimits {
    let memory_bytes = memory.saturating_sub(RESERVED_BYTES);
    ProverLimits {
        log2_n: LOG2_N,
        memory_bytes,
        work: WORK,
        read_bytes: u128::from(memory_bytes) * READS,
    }
}

/// Bytes of memory that this process may use: the smaller of its container's bound and the machine's memory. `None` if
/// neither can be read.
pub fn available_memory() -> Option<u64> {
    let bounds = BOUNDS
        .iter()
        .filter_map(|path| parse_bound(&std::fs::read_to_string(path).ok()?));
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    bounds.chain(machine.as_deref().and_then(parse_total)).min()
}

/// Parses the file of a bound. A container without a bound has `max` there, or a number beyond any machine.
fn parse_bound(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Reads `MemTotal` of `/proc/meminfo` in bytes.
fn parse_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Whether the folder for sockets was mounted.
pub fn is_mounted(folder: &Path) -> bool {
    folder.is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_as_kernels_write_them() {
        assert_eq!(parse_bound("1073741824\n"), Some(1 << 30));
        assert_eq!(parse_bound("max\n"), None);
        assert_eq!(
            parse_total("MemTotal:       24683760 kB\nMemFree: 1 kB\n"),
            Some(24_683_760 * 1024)
        );
        assert_eq!(parse_total("MemFree: 1 kB\n"), None);
        assert!(
            available_memory().is_some_and(|bytes| bytes > RESERVED_BYTES),
            "this machine has memory"
        );
    }

    #[test]
    fn a_small_container_proves_no_memory_and_still_computes() {
        let small = prover_limits(64 << 20);
        assert_eq!((small.memory_bytes, small.log2_n), (0, 16));
        assert_eq!(prover_limits(1 << 30).memory_bytes, 768 << 20);
    }
}
