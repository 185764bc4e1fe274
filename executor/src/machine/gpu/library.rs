//! NVML as the executor uses it: which GPUs there are, what they can do, and their load.

use muster_protocol::wire::executor::{GpuMetrics, MAX_GPUS};
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde_json::{Value, json};

/// NVML, if this machine has it.
#[derive(Debug, Default)]
pub struct GpuLibrary(Option<Nvml>);

impl GpuLibrary {
    /// Loads the library. Without it every list of GPUs is empty.
    pub fn open() -> Self {
        Self(Nvml::init().ok())
    }

    /// The load and memory of each GPU now.
    pub fn metrics(&self) -> Vec<GpuMetrics> {
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

    /// Model and capacity of each GPU, in ComputeHorde's field names; `None` without the library.
    ///
    /// # Errors
    /// The library does not answer.
    pub fn specs(&self) -> Option<Result<Value, NvmlError>> {
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

    /// The UUIDs of all GPUs.
    pub fn uuids(&self) -> Vec<String> {
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
