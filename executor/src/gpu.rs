//! GPUs by their vendor's library, which is loaded when it is there and asked for nothing when it is not.

use muster_protocol::wire::executor::{GpuMetrics, MAX_GPUS};
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde_json::{Value, json};

use muster_engine::gpu::{GpuClaim, GpuError};

use crate::config::GpuSettings;

/// Why a job cannot have the GPUs of its class.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoGpu {
    /// There is none.
    #[error(
        "the job's class has a GPU and this machine shows none; see `nvidia-smi -L` and [gpus] of the configuration"
    )]
    Absent,
    /// Others have them.
    #[error(transparent)]
    Claim(#[from] GpuError),
}

/// Claims what a job gets, for as long as the claim lives. Blocks on small files.
pub(crate) fn claim(settings: &GpuSettings) -> Result<GpuClaim, NoGpu> {
    let known = if settings.devices.is_empty() {
        Gpus::open().uuids()
    } else {
        settings.devices.clone()
    };
    if known.is_empty() {
        return Err(NoGpu::Absent);
    }
    let claimed = match settings.per_job {
        0 => GpuClaim::take(&settings.claims_dir, &known),
        wanted => GpuClaim::take_any(&settings.claims_dir, &known, wanted),
    };
    Ok(claimed?)
}

/// The library, if this machine has it.
#[derive(Debug, Default)]
pub(crate) struct Gpus(Option<Nvml>);

impl Gpus {
    /// Loads the library. A machine without one has no GPUs.
    pub(crate) fn open() -> Self {
        Self(Nvml::init().ok())
    }

    /// What each does now.
    pub(crate) fn metrics(&self) -> Vec<GpuMetrics> {
        let each = |device: &Device<'_>| {
            let memory = device.memory_info().ok();
            GpuMetrics {
                uuid: device.uuid().unwrap_or_default(),
                name: device.name().unwrap_or_default(),
                utilisation_percent: device.utilization_rates().map_or(0, |rates| rates.gpu),
                memory_total: memory.as_ref().map_or(0, |memory| memory.total),
                memory_used: memory.as_ref().map_or(0, |memory| memory.used),
                temperature_c: device.temperature(TemperatureSensor::Gpu).unwrap_or_default(),
                power_mw: device.power_usage().unwrap_or_default(),
            }
        };
        self.devices().iter().map(each).collect()
    }

    /// What they are, in ComputeHorde's field names; `None` without the library.
    ///
    /// # Errors
    /// The library is there and does not answer.
    pub(crate) fn specs(&self) -> Option<Result<Value, NvmlError>> {
        self.0.as_ref().map(|nvml| {
            let driver = nvml.sys_driver_version()?;
            let cuda = nvml.sys_cuda_driver_version()?;
            let cuda = format!("{}.{}", cuda / 1_000, cuda % 1_000 / 10);
            let each = |device: &Device<'_>| {
                Ok(json!({
                    "name": device.name()?,
                    "driver": driver,
                    // MiB, as nvidia-smi prints it.
                    "capacity": (device.memory_info()?.total >> 20).to_string(),
                    "cuda": cuda,
                    "power_limit": device.power_management_limit().map(|limit| format!("{:.2}", f64::from(limit) / 1_000.0)).ok(),
                    "graphics_speed": device.max_clock_info(Clock::Graphics).map(|mhz| mhz.to_string()).ok(),
                    "memory_speed": device.max_clock_info(Clock::Memory).map(|mhz| mhz.to_string()).ok(),
                    "uuid": device.uuid()?,
                    "serial": device.serial().ok(),
                }))
            };
            let details: Result<Vec<_>, NvmlError> = self.devices().iter().map(each).collect();
            details.map(|details| json!({"count": details.len(), "details": details}))
        })
    }

    /// The ids by which they are asked for.
    pub(crate) fn uuids(&self) -> Vec<String> {
        let uuid = |device: &Device<'_>| device.uuid().ok();
        self.devices().iter().filter_map(uuid).collect()
    }

    fn devices(&self) -> Vec<Device<'_>> {
        let Some(nvml) = &self.0 else { return vec![] };
        let count = nvml.device_count().unwrap_or_default();
        (0..count)
            .take(MAX_GPUS)
            .filter_map(|index| nvml.device_by_index(index).ok())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operator_names_is_claimed_all_or_so_many() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = GpuSettings {
            devices: ["GPU-a", "GPU-b"].map(str::to_owned).to_vec(),
            per_job: 1,
            claims_dir: folder.path().to_owned(),
        };
        let one = claim(&settings).unwrap();
        let two = claim(&settings).unwrap();
        assert_eq!(
            (one.uuids(), two.uuids()),
            (&["GPU-a".to_owned()][..], &["GPU-b".to_owned()][..])
        );
        assert!(matches!(
            claim(&settings),
            Err(NoGpu::Claim(GpuError::TooFew { .. }))
        ));
        settings.per_job = 0;
        drop(two);
        assert!(matches!(claim(&settings), Err(NoGpu::Claim(GpuError::Busy(_)))));
        drop(one);
        assert_eq!(claim(&settings).unwrap().uuids().len(), 2);
    }
}
