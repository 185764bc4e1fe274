//! Whole subnets as real processes, for the end-to-end tests: started, asked, killed, stopped.

mod cluster;
mod devchain;
mod dockerd;
mod evm;
mod failover_database;
mod held_program;
mod http;
mod image;
mod log_ends;
mod log_secrets;
mod parts;
mod process;
mod registry;
mod relay;
mod section;
mod subnet;
mod subnet_jobs;
mod user;

pub use cluster::Cluster;
pub use devchain::RunningChain;
pub use dockerd::Dockerd;
pub use evm::RunningEvm;
pub use failover_database::{FailoverDatabase, RolePorts};
pub use held_program::{held_limit_s, release, while_held};
pub use image::{
    BUSYBOX, IMAGES_OF_TESTS, LlamaImage, PYTHON_IMAGE, TRAINING_IMAGE, another_shell_image, llama_image,
    llama_image_of, python_image, shell_image, training_image,
};
pub use muster_testbed::free_address;
pub use parts::{Absences, Keys, Layout, Parts, Role, SpareMiner};
pub use process::{Output, muster, run, run_with_input};
pub use registry::{HeldRelay, PublishedImage, REGISTRY_PASSWORD, REGISTRY_USER, Registry, SlowRelay};
pub use relay::{Relay, Weather};
pub use section::section;
pub use subnet::{RunningSubnet, program_from_env, python, sdk_interpreters};
pub use user::{User, add_terms};
