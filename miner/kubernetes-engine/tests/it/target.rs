//! The cluster of a scenario: a real one whose answers are recorded, or the recording.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use muster_kubernetes_engine::manifests::{ACCOUNT, ManifestOptions, manifests};
use muster_kubernetes_engine::{DockerPlace, KubernetesEngine, KubernetesSettings, Pool};
use muster_process::{SharedClock, SystemClock, Tasks};
use muster_protocol::{AttemptId, ExecutorClass, ExecutorToken};
use muster_provisioning::{Notice, Order};
use parking_lot::Mutex;
use tempfile::TempDir;
use uuid::Uuid;

use crate::recording::{self, Answers, Exchange};

/// The kubeconfig of an administrator of a cluster that tests may use.
pub(crate) const KUBECONFIG: &str = "MUSTER_TEST_KUBECONFIG";
/// Whether the recordings are written anew.
const RECORD: &str = "MUSTER_TEST_RECORD";

/// A program that kills the node of this name.
const KILL_NODE: &str = "MUSTER_TEST_KILL_NODE";

/// An administrator's access to a real cluster.
pub(crate) struct Cluster {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) client: Client,
}

/// Where a scenario plays.
pub(crate) struct Target {
    pub(crate) namespace: &'static str,
    pub(crate) cluster: Option<Cluster>,
    exchanges: Arc<Mutex<Vec<Exchange>>>,
    scenario: &'static str,
    folder: TempDir,
    tasks: Tasks,
}

impl Cluster {
    /// The cluster that the environment names.
    pub(crate) async fn of_environment() -> Self {
        let kubeconfig = std::env::var_os(KUBECONFIG)
            .map(PathBuf::from)
            .unwrap_or_else(|| panic!("{KUBECONFIG} is not set; run `cargo xtask fleets`"));
        muster_process::tls::install_provider();
        let client = Client::try_from(Self::config(&kubeconfig).await).unwrap();
        Self { kubeconfig, client }
    }

    async fn config(kubeconfig: &PathBuf) -> Config {
        let file = Kubeconfig::read_from(kubeconfig).unwrap();
        Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .unwrap()
    }

    /// Runs kubectl with `input`; its output.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let mut child = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            output.status
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Applies the manifests of a miner; a client with exactly their rights.
    async fn miner(&self, namespace: &str, list_nodes: bool) -> Client {
        let text = manifests(&ManifestOptions {
            starts_leases: true,
            lease_image: None,
            namespace: namespace.to_owned(),
            list_nodes,
            docker: DockerPlace::Pod,
            persistent: None,
        });
        self.kubectl(&["apply", "-f", "-"], &text.unwrap());
        self.with_token(self.token(namespace, ACCOUNT).await).await
    }

    /// A client of a service account.
    async fn token(&self, namespace: &str, account: &str) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![],
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let made = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .unwrap();
        made.status.unwrap().token
    }

    async fn with_token(&self, token: String) -> Client {
        let mut config = Self::config(&self.kubeconfig).await;
        config.auth_info = kube::config::AuthInfo {
            token: Some(token.into()),
            ..kube::config::AuthInfo::default()
        };
        Client::try_from(config).unwrap()
    }
}

/// The rights of a scenario's miner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Those of all printed manifests.
    All,
    /// Without the right to list nodes.
    NoNodes,
    /// An account without any right.
    None,
    /// A token that the cluster does not know.
    BadToken,
}

impl Target {
    /// A scenario that plays against its recording.
    pub(crate) fn recorded(scenario: &'static str) -> Self {
        Self::new(scenario, None, recording::read(scenario))
    }

    /// No scenario, for tests with an API of their own.
    pub(crate) fn empty() -> Self {
        Self::new("none", None, vec![])
    }

    /// A scenario that plays against the real cluster, in a namespace of its own.
    pub(crate) async fn real(scenario: &'static str) -> Self {
        let cluster = Cluster::of_environment().await;
        let namespace = format!("muster-{}", scenario.replace('_', "-"));
        cluster.kubectl(&["delete", "namespace", "--ignore-not-found", &namespace], "");
        Self::new(scenario, Some(cluster), vec![])
    }

    fn new(scenario: &'static str, cluster: Option<Cluster>, exchanges: Vec<Exchange>) -> Self {
        Self {
            namespace: format!("muster-{}", scenario.replace('_', "-")).leak(),
            cluster,
            exchanges: Arc::new(Mutex::new(exchanges)),
            scenario,
            folder: tempfile::tempdir().unwrap(),
            tasks: Tasks::new(),
        }
    }

    /// The engine of a miner with these rights, with an operator's template laid over the built-in one.
    pub(crate) async fn engine(&self, rights: Rights, template: &str) -> KubernetesEngine {
        let answers = match &self.cluster {
            Some(cluster) => {
                let client = match rights {
                    Rights::All => cluster.miner(self.namespace, true).await,
                    Rights::NoNodes => cluster.miner(self.namespace, false).await,
                    Rights::None => {
                        cluster.miner(self.namespace, false).await;
                        let token = cluster.token(self.namespace, "default").await;
                        cluster.with_token(token).await
                    }
                    Rights::BadToken => cluster.with_token("of-nobody".to_owned()).await,
                };
                Answers::Of(client, Arc::clone(&self.exchanges))
            }
            None => Answers::Kept(Arc::clone(&self.exchanges)),
        };
        let url = recording::serve(&self.tasks, answers).await;
        self.engine_at(&url, template).await
    }

    /// The engine of a miner with an API at this address.
    async fn engine_at(&self, url: &str, template: &str) -> KubernetesEngine {
        self.engine_with(url, template, Arc::new(SystemClock::new()))
            .await
    }

    /// The same, by another clock.
    pub(crate) async fn engine_with(
        &self,
        url: &str,
        template: &str,
        clock: SharedClock,
    ) -> KubernetesEngine {
        let settings = KubernetesSettings {
            kubeconfig: self.write("kubeconfig", &kubeconfig(url)),
            namespace: self.namespace.to_owned(),
            template: self.write("template.yaml", template),
            image: if template.contains("image:") {
                ""
            } else {
                "muster/test:1"
            }
            .to_owned(),
            ..KubernetesSettings::default()
        };
        assert_eq!(settings.problems("kubernetes"), []);
        KubernetesEngine::connect(&settings, pool(), clock).await.unwrap()
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Does something that only an administrator may; a recording needs it not.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> Option<String> {
        let mut all = vec!["--namespace", self.namespace];
        all.extend(arguments);
        self.cluster.as_ref().map(|cluster| cluster.kubectl(&all, input))
    }

    /// Kills a node, if there is one.
    pub(crate) fn kill_node(&self, name: &str) {
        if self.cluster.is_some() {
            let killer = std::env::var_os(KILL_NODE).unwrap_or_else(|| panic!("{KILL_NODE} is not set"));
            assert!(Command::new(killer).arg(name).status().unwrap().success());
        }
    }

    /// Lets the cluster work for a while before it is asked again.
    pub(crate) async fn wait(&self) {
        if self.cluster.is_some() {
            let pause = Duration::from_millis(600);
            tokio::time::sleep(pause).await; // polls until the cluster is so far; the scenario sets the deadline
        }
    }

    /// Ends a scenario that went well: its namespace goes, and its recording is written if that is wanted.
    pub(crate) fn finish(self) {
        let Some(cluster) = &self.cluster else {
            let mut left = self.exchanges.lock();
            left.retain(|exchange| !exchange.is_used);
            assert!(
                left.is_empty(),
                "not asked for: {:?}",
                left.iter().map(|it| &it.request).collect::<Vec<_>>()
            );
            return;
        };
        cluster.kubectl(
            &[
                "delete",
                "namespace",
                "--ignore-not-found",
                "--wait=false",
                self.namespace,
            ],
            "",
        );
        if std::env::var_os(RECORD).is_some() {
            let exchanges = self.exchanges.lock();
            let lines: Vec<String> = exchanges
                .iter()
                .map(|exchange| serde_json::to_string(exchange).unwrap())
                .collect();
            let text = format!("[\n{}\n]\n", lines.join(",\n"));
            std::fs::write(recording::file_of(self.scenario), text).unwrap();
        }
    }
}

fn kubeconfig(url: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\nclusters:\n- name: test\n  cluster: {{server: '{url}'}}\n\
         contexts:\n- name: test\n  context: {{cluster: test, user: test}}\nusers:\n- name: test\n  user: {{}}\n"
    )
}

/// The pool of every test.
pub(crate) fn pool() -> Pool {
    Pool {
        miner: "miner-1".to_owned(),
        name: "small".to_owned(),
        count: 7,
    }
}

/// The attempt of this number.
pub(crate) fn attempt(number: u128) -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(
        0x0123_4567_89ab_4def_8123_0000_0000_0000 + number,
    ))
}

/// An order whose attempt has this number. Recordings name attempts, so they are not drawn.
pub(crate) fn order(number: u128) -> Order {
    Order {
        token: ExecutorToken::new(
            attempt(number),
            Uuid::from_u128(0x4567_89ab_4def_8123_4567_89ab_4def_8123),
        ),
        class: ExecutorClass::AlwaysOnTest,
        private_image: false,
        miner_address: "ws://10.231.0.254:8092".to_owned(),
        lasts: Duration::from_secs(3600),
        notice: Notice::default(),
    }
}
