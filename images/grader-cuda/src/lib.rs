//! The prover of `muster-grader` on a CUDA device.
//!
//! Reading order: `kernels/*.cuh` (what is computed), [`device`] (what a device is asked for), [`kernels`] (one checked call per
//! kernel), [`prover`] (the rounds of a CHAIN and the walks of a WALK made of those calls), [`cuda`] (the
//! device, by `cust`), [`check`] and [`mod@bench`] (what to run where there is one). The prover does not know what its device is:
//! tests give it the `emulator`, the same kernels compiled for a processor, and hold it against the golden vectors.

pub mod bench;
pub mod check;
#[expect(unsafe_code, reason = "the C interface of a library that is loaded by name")]
pub mod cublas;
#[expect(unsafe_code, reason = "the driver's memory and launches")]
pub mod cuda;
#[expect(
    unsafe_code,
    reason = "only declares a launch, whose arguments nobody but its caller can check"
)]
pub mod device;
#[cfg(feature = "emulator")]
#[expect(unsafe_code, reason = "the kernels, compiled from C++")]
pub mod emulator;
#[expect(
    unsafe_code,
    reason = "a launch is safe when its memories are large enough, which is checked here"
)]
pub mod kernels;
pub mod prover;
pub mod suggest;
