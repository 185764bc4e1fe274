//! Whole subnets as real processes, for the end-to-end tests: started, asked, killed, stopped.

mod devchain;
mod process;
mod subnet;

pub use devchain::RunningChain;
pub use process::{Output, muster, run, wait_for};
pub use subnet::{RunningSubnet, program_from_env, python};
