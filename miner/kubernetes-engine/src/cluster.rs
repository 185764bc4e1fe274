//! A cluster as the engine of one pool.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ObjectList;
use kube::{Client, Config};
use muster_process::SharedClock;
use muster_protocol::AttemptId;
use muster_provisioning::{EngineError, ExecutorEngine, Order, Survey};

use crate::api_errors::{engine_error, is_conflict, is_forbidden, is_missing, timed_out};
use crate::capacity::places;
use crate::object_names::{attempt_of, is_label_value, pod_name};
use crate::pod_spec::{self, pool_labels};
use crate::pod_state::state_of;
use crate::settings::{KubernetesSettings, SetupError};
use crate::template::PodTemplate;

/// The time for one call of the API.
const CALL: Duration = Duration::from_secs(10);
/// Objects in one answer of the API; further ones are asked for.
const PAGE: u32 = 500;
/// Answers of one list, at most: an API that always reports more must not be asked forever.
const PAGES: u32 = 100;

/// The pool whose executors an engine starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The miner's name, the value of a label: other miners may use the same namespace.
    pub miner: String,
    /// The pool's name, the value of a label.
    pub name: String,
    /// The executors that the operator expects of the pool. They are its places where the miner may not list nodes.
    pub count: u32,
}

/// Starts executors as pods.
#[derive(Clone)]
pub struct KubernetesEngine {
    pods: Api<Pod>,
    secrets: Api<Secret>,
    nodes: Api<Node>,
    template: PodTemplate,
    labels: BTreeMap<String, String>,
    count: u32,
    clock: SharedClock,
}

impl KubernetesEngine {
    /// Reads the access to the cluster and the pod template. No call is made yet.
    ///
    /// # Errors
    /// A setting is of no use; the text states which and why.
    pub async fn connect(
        settings: &KubernetesSettings,
        pool: Pool,
        clock: SharedClock,
    ) -> Result<Self, SetupError> {
        for (what, value) in [("miner's name", &pool.miner), ("pool's name", &pool.name)] {
            if !is_label_value(value) {
                let value = value.clone();
                return Err(SetupError::Label { what, value });
            }
        }
        let template = PodTemplate::load(settings.docker, &settings.template, &settings.image)?;
        muster_process::tls::install_provider();
        let mut config = access(settings).await?;
        config.connect_timeout = Some(CALL);
        config.read_timeout = Some(CALL);
        // The miner decides when to ask again, and knows how long a lease can wait.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| SetupError::Access {
            reason: error.to_string(),
        })?;
        Ok(Self {
            pods: Api::namespaced(client.clone(), &settings.namespace),
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            nodes: Api::all(client),
            template,
            labels: pool_labels(&pool.miner, &pool.name),
            count: pool.count,
            clock,
        })
    }

    /// The pod of an order's name, made now or found.
    async fn make_pod(
        &self,
        order: &Order,
        excluded_hosts: &BTreeSet<String>,
    ) -> Result<MadePod, EngineError> {
        let name = pod_name(order.token.attempt());
        let what = format!("create the pod {name}");
        let pod = pod_spec::pod(&self.template, &self.labels, order, excluded_hosts);
        let (found, is_new) = match self
            .limited(&what, self.pods.create(&PostParams::default(), &pod))
            .await?
        {
            Ok(made) => (made, true),
            Err(error) if is_conflict(&error) => {
                let what = format!("read the pod {name}, which is there already");
                let read = self.limited(&what, self.pods.get(&name)).await?;
                (read.map_err(|error| engine_error(&what, &error))?, false)
            }
            Err(error) => return Err(engine_error(&what, &error)),
        };
        let bears = |(key, value): (&String, &String)| {
            found.metadata.labels.as_ref()?.get(key).filter(|it| *it == value)
        };
        if !self.labels.iter().all(|label| bears(label).is_some()) {
            return Err(EngineError::Refused(format!(
                "the pod {name} in this namespace is not of this miner's pool; remove it, or use a namespace of its own"
            )));
        }
        let uid = found.metadata.uid.ok_or_else(|| {
            EngineError::Unreachable(format!("the Kubernetes API answered without the uid of {name}"))
        })?;
        Ok(MadePod { uid, is_new })
    }

    /// Gives the pod its token. One that is there already stays.
    async fn make_secret(&self, order: &Order, pod: &MadePod) -> Result<(), EngineError> {
        let name = pod_name(order.token.attempt());
        let what = format!("create the Secret {name}");
        let secret = pod_spec::secret(&self.labels, order, &pod.uid);
        match self
            .limited(&what, self.secrets.create(&PostParams::default(), &secret))
            .await?
        {
            Ok(_) => Ok(()),
            Err(error) if is_conflict(&error) => Ok(()),
            Err(error) => Err(engine_error(&what, &error)),
        }
    }

    /// The places of the pool: by the nodes, or as configured where nodes may not be listed.
    async fn places(&self, excluded_hosts: &BTreeSet<String>) -> Result<u32, EngineError> {
        let Some(nodes) = self
            .list(&self.nodes, "list the nodes", &ListParams::default())
            .await?
        else {
            return Ok(self.count);
        };
        let spec = self.template.pod().spec.as_ref();
        Ok(spec.map_or(0, |spec| places(&nodes, spec, excluded_hosts)))
    }

    /// Waits for a call, for [`CALL`] at most.
    async fn limited<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Result<T, kube::Error>, EngineError> {
        tokio::select! {
            answer = call => Ok(answer),
            () = self.clock.sleep(CALL) => Err(timed_out(what, CALL.as_secs())),
        }
    }

    /// All objects of a list, page by page. `None` if this miner has no right to list them.
    async fn list<K>(
        &self,
        api: &Api<K>,
        what: &str,
        filter: &ListParams,
    ) -> Result<Option<Vec<K>>, EngineError>
    where
        K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        let mut filter = filter.clone().limit(PAGE);
        let mut objects = Vec::new();
        for _ in 0..PAGES {
            let page: ObjectList<K> = match self.limited(what, api.list(&filter)).await? {
                Ok(page) => page,
                Err(error) if is_forbidden(&error) => return Ok(None),
                Err(error) => return Err(engine_error(what, &error)),
            };
            objects.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => filter = filter.continue_token(&token),
                None => return Ok(Some(objects)),
            }
        }
        Err(EngineError::Unreachable(format!(
            "cannot {what}: the Kubernetes API gives no end of it"
        )))
    }
}

/// A pod as `create` needs it.
struct MadePod {
    uid: String,
    is_new: bool,
}

impl ExecutorEngine for KubernetesEngine {
    fn kind(&self) -> &'static str {
        "kubernetes"
    }

    async fn create(&self, order: &Order, excluded_hosts: &BTreeSet<String>) -> Result<(), EngineError> {
        let pod = self.make_pod(order, excluded_hosts).await?;
        let made = self.make_secret(order, &pod).await;
        if pod.is_new && matches!(made, Err(EngineError::Refused(_))) {
            // The pod would wait for its Secret until its deadline, and keep a place.
            if let Err(error) = self.delete(order.token.attempt()).await {
                tracing::warn!(attempt = %order.token.attempt(), %error, "a pod without a token was not removed");
            }
        }
        made
    }

    async fn delete(&self, attempt: AttemptId) -> Result<(), EngineError> {
        let name = pod_name(attempt);
        let what = format!("delete the pod {name}");
        match self
            .limited(&what, self.pods.delete(&name, &DeleteParams::default()))
            .await?
        {
            Ok(_) => Ok(()),
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(engine_error(&what, &error)),
        }
    }

    async fn survey(&self, excluded_hosts: &BTreeSet<String>) -> Result<Survey, EngineError> {
        let selector: Vec<String> = self
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let mine = ListParams::default().labels(&selector.join(","));
        let what = "list the pods of this pool";
        let Some(pods) = self.list(&self.pods, what, &mine).await? else {
            return Err(EngineError::Refused(format!(
                "Kubernetes refused to {what}; give the miner's account the rights of `muster miner manifests \
                 kubernetes`, with kubectl apply"
            )));
        };
        let executors = pods
            .iter()
            .filter_map(|pod| Some((attempt_of(pod.metadata.name.as_deref()?)?, state_of(pod))))
            .collect();
        let places = self.places(excluded_hosts).await?;
        Ok(Survey { executors, places })
    }
}

/// The access to the cluster, with the sources in the order that `KubernetesSettings::kubeconfig` describes.
async fn access(settings: &KubernetesSettings) -> Result<Config, SetupError> {
    let failed = |error: &dyn std::error::Error| SetupError::Access {
        reason: error.to_string(),
    };
    let options = KubeConfigOptions {
        context: Some(settings.context.clone()).filter(|context| !context.is_empty()),
        ..KubeConfigOptions::default()
    };
    if !settings.kubeconfig.as_os_str().is_empty() {
        let file = Kubeconfig::read_from(&settings.kubeconfig).map_err(|error| failed(&error))?;
        let config = Config::from_custom_kubeconfig(file, &options).await;
        config.map_err(|error| failed(&error))
    } else if options.context.is_some() {
        let config = Config::from_kubeconfig(&options).await;
        config.map_err(|error| failed(&error))
    } else {
        Config::infer().await.map_err(|error| failed(&error))
    }
}
