//! The prover of `muster-grader` on a CUDA device.
//!
//! Reading order: `kernels/*.cuh` (the kernels), [`device_interface`] (the interface of a device), [`kernels`] (one
//! checked call per kernel), [`prover`] (the rounds of a MATMUL and the walks of a WALK, made of those calls),
//! [`cuda_card`] (the card, with `cust`), [`check`] and [`mod@bench`] (checks and measurements on a card). The prover
//! works with any device. Tests use the `emulator`, which is the same kernels compiled for a processor, and compare it
//! with the golden vectors.

pub mod bench;
pub mod check;
#[expect(unsafe_code, reason = "the C interface of a library that is loaded by name")]
pub mod cublas;
#[expect(unsafe_code, reason = "the driver's memory and launches")]
pub mod cuda_card;
#[expect(
    unsafe_code,
    reason = "only declares a launch, whose arguments only its caller can check"
)]
pub mod device_interface;
#[cfg(feature = "emulator")]
#[expect(unsafe_code, reason = "the kernels, compiled from C++")]
pub mod emulator;
#[expect(
    unsafe_code,
    reason = "a launch is safe if its memories are large enough, which is checked here"
)]
pub mod kernels;
pub mod prover;
pub mod suggest;
