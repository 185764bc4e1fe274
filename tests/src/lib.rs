//! Whole subnets as real processes, for the end-to-end tests: started, asked, killed, stopped.

mod process;
mod subnet;

pub use process::{Output, muster, run, wait_for};
pub use subnet::{RunningSubnet, program_from_env, python};
