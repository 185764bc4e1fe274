//! `muster miner manifests kubernetes`: its options, and the manifests that they ask for.

use clap::{Args, ValueEnum};
use muster_kubernetes_engine::manifests::{ManifestError, ManifestOptions, PersistentExecutors, manifests};
use muster_kubernetes_engine::{DockerPlace, PinnedImage};
use muster_protocol::ExecutorClass;

/// The owner of an executor's Docker engine.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EngineOf {
    /// The pod's own: the nodes need none
    Pod,
    /// The node's, whose socket the pod mounts
    Node,
}

impl From<EngineOf> for DockerPlace {
    fn from(engine: EngineOf) -> Self {
        match engine {
            EngineOf::Pod => Self::Pod,
            EngineOf::Node => Self::Node,
        }
    }
}

/// `muster miner manifests kubernetes`.
#[derive(Debug, Args)]
pub(crate) struct KubernetesManifests {
    /// The namespace of the executors.
    #[arg(long, default_value = "muster")]
    namespace: String,
    /// Where the Docker engine of the executors is
    #[arg(long, value_enum, default_value = "pod")]
    docker: EngineOf,
    /// Leave out the miner's account: it starts no pods for leases. For persistent executors alone.
    #[arg(long, requires = "persistent", conflicts_with = "lease_image")]
    no_leases: bool,
    /// Do not let the miner list the cluster's nodes. It then counts on as many executors as its pool says.
    #[arg(long)]
    no_nodes: bool,
    /// Add a policy by which the account starts pods of leases alone, with this image (REPOSITORY@sha256:...)
    #[arg(long, value_name = "IMAGE")]
    lease_image: Option<PinnedImage>,
    /// Add a persistent executor on each node, from this image with `muster`, a shell, and the engine if it is the
    /// pod's.
    #[arg(long, value_name = "IMAGE", requires = "class")]
    persistent: Option<String>,
    /// With --persistent: the class with which the executors enroll.
    #[arg(long, requires = "persistent")]
    class: Option<ExecutorClass>,
    /// With --persistent: the most jobs that each executor runs at once.
    #[arg(long, requires = "persistent", default_value_t = 1)]
    capacity: u32,
    /// With --persistent: the GPUs that each executor takes.
    #[arg(long, requires = "persistent", default_value_t = 0)]
    gpus: u32,
}

impl KubernetesManifests {
    /// The manifests as YAML.
    ///
    /// # Errors
    /// A manifest cannot be written.
    pub(crate) fn text(&self) -> Result<String, ManifestError> {
        let persistent = match (&self.persistent, self.class) {
            (Some(image), Some(class)) => Some(PersistentExecutors {
                image: image.clone(),
                class,
                capacity: self.capacity,
                gpus: self.gpus,
            }),
            (Some(_) | None, _) => None,
        };
        manifests(&ManifestOptions {
            namespace: self.namespace.clone(),
            starts_leases: !self.no_leases,
            list_nodes: !self.no_nodes,
            docker: self.docker.into(),
            lease_image: self.lease_image.clone(),
            persistent,
        })
    }
}
