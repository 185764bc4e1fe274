//! Starts a miner's executors as pods of a Kubernetes cluster: [`KubernetesEngine`], one pod for a lease.
//!
//! A pod stands alone, without a Job or a Deployment over it: those start a second pod where a machine is lost, and the
//! token of a lease admits one executor. The token lies in a Secret whose owner is the pod, so it goes with the pod.
//! [`manifests`] prints what an operator applies to a cluster before a miner may use it.

mod admission_policy;
mod api_errors;
mod capacity;
mod cluster;
pub mod manifests;
mod node_rules;
mod object_names;
mod pod_spec;
mod pod_state;
mod quantity;
mod settings;
mod template;

pub use admission_policy::{NotPinned, PinnedImage};
pub use cluster::{KubernetesEngine, Pool};
pub use settings::{DockerPlace, KubernetesSettings, SetupError};
pub use template::TemplateError;
