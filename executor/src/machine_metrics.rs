//! What this machine does, measured every few seconds.

use std::path::PathBuf;

use muster_protocol::Timestamp;
use muster_protocol::wire::executor::ExecutorMetrics;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, Networks, RefreshKind, System};

use crate::gpu::Gpus;

/// Measures one machine.
pub(crate) struct Meter {
    system: System,
    networks: Networks,
    gpus: Gpus,
    disk: PathBuf,
}

impl Meter {
    /// `disk` is a folder on the disk that counts. Blocks, on the GPU's library where there is one.
    pub(crate) fn new(disk: PathBuf) -> Self {
        let kinds = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing().with_cpu_usage())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        Self {
            system: System::new_with_specifics(kinds),
            networks: Networks::new_with_refreshed_list(),
            gpus: Gpus::open(),
            disk,
        }
    }

    /// What it does at `now`. Blocks for a moment.
    pub(crate) fn measure(&mut self, now: Timestamp) -> ExecutorMetrics {
        self.system.refresh_cpu_usage();
        self.system.refresh_memory();
        self.networks.refresh(true);
        let disk = nix::sys::statvfs::statvfs(&self.disk).ok();
        let bytes = |blocks: u64| {
            disk.as_ref()
                .map_or(0, |disk| blocks.saturating_mul(disk.fragment_size()))
        };
        let (received, sent) = self.networks.iter().filter(|(name, _)| *name != "lo").fold(
            (0_u64, 0_u64),
            |(received, sent), (_, network)| {
                (
                    received.saturating_add(network.total_received()),
                    sent.saturating_add(network.total_transmitted()),
                )
            },
        );
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "held between 0 and 1000"
        )]
        let cpu_permille = (self.system.global_cpu_usage() * 10.0).clamp(0.0, 1_000.0) as u32;
        let metrics = ExecutorMetrics {
            at: now,
            cpu_permille,
            memory_total: self.system.total_memory(),
            memory_used: self.system.used_memory(),
            disk_total: bytes(disk.as_ref().map_or(0, |disk| disk.blocks())),
            disk_used: bytes(
                disk.as_ref()
                    .map_or(0, |disk| disk.blocks().saturating_sub(disk.blocks_free())),
            ),
            network_received: received,
            network_sent: sent,
            gpus: self.gpus.metrics(),
        };
        expose(&metrics);
        metrics
    }
}

/// For Prometheus.
#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge is a float, and nobody counts single bytes on one"
)]
fn expose(seen: &ExecutorMetrics) {
    let set = |name: &'static str, value: u64| metrics::gauge!(name).set(value as f64);
    set("muster_executor_cpu_permille", seen.cpu_permille.into());
    set("muster_executor_memory_total_bytes", seen.memory_total);
    set("muster_executor_memory_used_bytes", seen.memory_used);
    set("muster_executor_disk_total_bytes", seen.disk_total);
    set("muster_executor_disk_used_bytes", seen.disk_used);
    set("muster_executor_network_received_bytes", seen.network_received);
    set("muster_executor_network_sent_bytes", seen.network_sent);
    for gpu in &seen.gpus {
        let set = |name: &'static str, value: u64| {
            metrics::gauge!(name, "gpu" => gpu.uuid.clone()).set(value as f64);
        };
        set(
            "muster_executor_gpu_utilisation_percent",
            gpu.utilisation_percent.into(),
        );
        set("muster_executor_gpu_memory_used_bytes", gpu.memory_used);
        set("muster_executor_gpu_power_milliwatts", gpu.power_mw.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_measured() {
        let mut meter = Meter::new(PathBuf::from("/"));
        let now = Timestamp::from_secs(7);
        let seen = meter.measure(now);
        assert_eq!(seen.at, now);
        assert!(seen.cpu_permille <= 1_000);
        assert!(
            seen.memory_total > seen.memory_used && seen.memory_used > 0,
            "{seen:?}"
        );
        assert!(seen.disk_total > seen.disk_used && seen.disk_used > 0, "{seen:?}");
    }
}
