//! The load of this machine, measured every few seconds for the miner and for Prometheus.

use std::path::PathBuf;

use muster_protocol::Timestamp;
use muster_protocol::wire::executor::ExecutorMetrics;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, Networks, RefreshKind, System};

use crate::machine::gpu::GpuLibrary;

/// Measures one machine.
pub struct MachineMeter {
    system: System,
    networks: Networks,
    gpus: GpuLibrary,
    disk: PathBuf,
}

impl MachineMeter {
    /// `disk` is a folder on the disk that is measured. Blocks while NVML loads.
    pub fn new(disk: PathBuf) -> Self {
        let kinds = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing().with_cpu_usage())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        Self {
            system: System::new_with_specifics(kinds),
            networks: Networks::new_with_refreshed_list(),
            gpus: GpuLibrary::open(),
            disk,
        }
    }

    /// Measures the load at `now`. Blocks for a moment.
    pub fn measure(&mut self, now: Timestamp) -> ExecutorMetrics {
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
            reason = "clamped between 0 and 1000"
        )]
        let cpu_permille = (self.system.global_cpu_usage() * 10.0).clamp(0.0, 1_000.0) as u32;
        let load = ExecutorMetrics {
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
        set_gauges(&load);
        load
    }
}

/// Sets the gauges that Prometheus reads.
#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge is a float, and single bytes do not matter"
)]
fn set_gauges(load: &ExecutorMetrics) {
    let set = |name: &'static str, value: u64| metrics::gauge!(name).set(value as f64);
    set("muster_executor_cpu_permille", load.cpu_permille.into());
    set("muster_executor_memory_total_bytes", load.memory_total);
    set("muster_executor_memory_used_bytes", load.memory_used);
    set("muster_executor_disk_total_bytes", load.disk_total);
    set("muster_executor_disk_used_bytes", load.disk_used);
    set("muster_executor_network_received_bytes", load.network_received);
    set("muster_executor_network_sent_bytes", load.network_sent);
    for gpu in &load.gpus {
        let set = |name: &'static str, value: u64| {
            metrics::gauge!(name, "gpu" => gpu.uuid.clone()).set(value as f64);
        };
        set(
            "muster_executor_gpu_utilisation_percent",
            gpu.utilisation_percent.into(),
        );
        set("muster_executor_gpu_memory_used_bytes", gpu.memory_used);
        set("muster_executor_gpu_power_milliwatts", gpu.power_mw.into());
        set(
            "muster_executor_gpu_temperature_celsius",
            gpu.temperature_c.into(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_measured() {
        let mut meter = MachineMeter::new(PathBuf::from("/"));
        let now = Timestamp::from_secs(7);
        let load = meter.measure(now);
        assert_eq!(load.at, now);
        assert!(load.cpu_permille <= 1_000);
        assert!(
            load.memory_total > load.memory_used && load.memory_used > 0,
            "{load:?}"
        );
        assert!(load.disk_total > load.disk_used && load.disk_used > 0, "{load:?}");
    }
}
