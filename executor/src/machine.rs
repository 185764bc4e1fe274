//! An executor's machine: its GPUs, which jobs get and which are looked at afterwards ([`gpu`]), its measurements
//! ([`metrics`]), and its size and hardware ([`specs`]).

pub mod gpu;
pub mod metrics;
pub mod specs;
