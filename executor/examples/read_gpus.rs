//! Prints the GPUs of this machine as an executor reads them: capacities and load, as JSON. `bench/gpu/run` holds them
//! against nvidia-smi.
#![expect(clippy::print_stdout, reason = "it is what was asked for")]

use muster_executor::machine::gpu::GpuLibrary;
use serde_json::json;

fn main() -> Result<(), nvml_wrapper::error::NvmlError> {
    let library = GpuLibrary::open();
    let specs = library.specs().transpose()?;
    println!("{}", json!({"specs": specs, "metrics": library.metrics()}));
    Ok(())
}
