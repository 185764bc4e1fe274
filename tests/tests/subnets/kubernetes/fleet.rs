//! A subnet whose miners have one pool: the nodes of a Kubernetes cluster.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_testbed::wait_for;
use muster_tests::{RunningSubnet, run, shell_image};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::cluster::{
    ADDRESS, ENGINES, NETWORK, apply_printed, clear, engine_place, kubectl, succeeded, variable,
};

/// The folder of a pod in which the images of jobs are, where the pod brings its engine.
const IMAGES: &str = "/images";
/// The archive there.
const ARCHIVE: &str = "jobs.tar";

/// An executor takes both GPUs of its node, so each node holds one. An engine inside a pod is empty and no registry is
/// at hand, so its executor loads the images of jobs from the folder `images`, which every node of this machine has.
fn template(images: &Path) -> Value {
    let mut template = json!({
        "terminationGracePeriodSeconds": 5,
        "volumes": [{"name": "settings", "configMap": {"name": "executor"}}],
        "containers": [{
            "name": "executor",
            "imagePullPolicy": "Never",
            "command": ["muster", "executor", "--config", "/etc/muster/executor.toml"],
            "volumeMounts": [{"name": "settings", "mountPath": "/etc/muster"}],
            "resources": {
                "requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"nvidia.com/gpu": "2"}
            }
        }]
    });
    if engine_place() == "pod" {
        let (volume, mount) = images_of_jobs(images);
        template["volumes"].as_array_mut().unwrap().push(volume);
        let executor = &mut template["containers"][0];
        executor["volumeMounts"].as_array_mut().unwrap().push(mount);
        let command = executor["command"].as_array_mut().unwrap();
        command.splice(0..1, ["tini", "--", "muster"].map(Value::from));
        command.push("--with-engine".into());
    }
    template
}

/// The volume with the images of jobs, and its mount.
pub(crate) fn images_of_jobs(folder: &Path) -> (Value, Value) {
    (
        json!({"name": "images", "hostPath": {"path": folder}}),
        json!({"name": "images", "mountPath": IMAGES, "readOnly": true}),
    )
}

/// A subnet whose miners have one pool: the nodes of a Kubernetes cluster.
pub(crate) struct Fleet {
    pub(crate) subnet: RunningSubnet,
    runtime: Runtime,
    outage_s: u32,
    miners: &'static [&'static str],
}

impl Fleet {
    /// Starts one with one miner, whose jobs go on for `outage_s` s without a connection between executor and miner.
    pub(crate) fn start(outage_s: u32) -> Self {
        Self::start_with(&["miner"], outage_s)
    }

    /// Starts one with these miners, which share the nodes.
    pub(crate) fn start_with(miners: &'static [&'static str], outage_s: u32) -> Self {
        muster_process::tls::install_provider();
        let subnet = RunningSubnet::start_with(&["--miners", &miners.len().to_string()]).unwrap();
        let fleet = Self {
            subnet,
            runtime: Runtime::new().unwrap(),
            outage_s,
            miners,
        };
        fleet.prepare_cluster();
        fleet.load_images();
        fleet.configure();
        fleet
    }

    /// The file of this name among the roles' configurations.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.subnet.folder().join("config").join(name)
    }

    /// Does what docs/operations/kubernetes.md asks of an operator.
    fn prepare_cluster(&self) {
        clear();
        apply_printed(&[]);
        let file = self.write_executor_config(toml::Table::new());
        let from = format!("--from-file=executor.toml={}", file.display());
        kubectl(&["create", "configmap", "executor", &from]);
    }

    /// Writes the configuration of executors on nodes: the subnet's own, with the default folders and this `standing`.
    pub(crate) fn write_executor_config(&self, standing: toml::Table) -> PathBuf {
        let mut executor = read_toml(&self.file("executor.toml"));
        executor.remove("work_dir");
        executor.insert("orphan_s".to_owned(), i64::from(self.outage_s).into());
        executor.insert("standing".to_owned(), standing.into());
        let images = executor["images"].as_table_mut().unwrap();
        images.remove("cache_dir");
        if engine_place() == "pod" {
            images.insert("preload".to_owned(), vec![format!("{IMAGES}/{ARCHIVE}")].into());
        }
        let transfer = executor["transfer"].as_table_mut().unwrap();
        transfer.insert("allow".to_owned(), vec![variable(ADDRESS)].into());
        let file = self.subnet.folder().join("executor-on-node.toml");
        std::fs::write(&file, toml::to_string(&executor).unwrap()).unwrap();
        file
    }

    /// A kubeconfig with the rights of the printed account.
    fn kubeconfig(&self) -> PathBuf {
        let token = wait_for("the account's token", || {
            let path = "jsonpath={.secrets[0].name}";
            let secret = kubectl(&["get", "serviceaccount", "muster-miner", "-o", path]);
            if secret.is_empty() {
                return Ok(None);
            }
            let path = "go-template={{.data.token | base64decode}}";
            let token = kubectl(&["get", "secret", &secret, "-o", path]);
            anyhow::Ok((!token.is_empty()).then_some(token))
        });
        let server = kubectl(&[
            "config",
            "view",
            "--raw",
            "-o",
            "jsonpath={.clusters[0].cluster.server}",
        ]);
        let authority = "jsonpath={.clusters[0].cluster.certificate-authority}";
        let authority = kubectl(&["config", "view", "--raw", "-o", authority]);
        let file = self.subnet.folder().join("kubeconfig");
        let config = |arguments: &[&str]| {
            let mut kubectl = Command::new("kubectl");
            kubectl
                .args(["config", "--kubeconfig"])
                .arg(&file)
                .args(arguments);
            succeeded(&run(&mut kubectl).unwrap());
        };
        config(&[
            "set-cluster",
            "c",
            "--server",
            &server,
            "--certificate-authority",
            &authority,
            "--embed-certs",
        ]);
        config(&["set-credentials", "muster", "--token", &token.unwrap()]);
        config(&["set-context", "muster", "--cluster", "c", "--user", "muster"]);
        config(&["use-context", "muster"]);
        file
    }

    /// The folder with the images of jobs.
    pub(crate) fn images(&self) -> PathBuf {
        self.subnet.folder().join("images")
    }

    /// Writes the images that the jobs of these tests run, and gives them to the engine of each node that lives.
    fn load_images(&self) {
        let validator = read_toml(&self.file("validator.toml"));
        let grader = validator["grading"]["images"]["always_on.test"]["image"].as_str();
        let shell = self.runtime.block_on(shell_image("")).unwrap();
        std::fs::create_dir_all(self.images()).unwrap();
        let archive = self.images().join(ARCHIVE);
        let mut save = Command::new("docker");
        save.args([
            "save",
            self.subnet.demo_image(),
            grader.unwrap(),
            shell,
            "--output",
        ]);
        succeeded(&run(save.arg(&archive)).unwrap());
        for engine in variable(ENGINES).split_whitespace() {
            let docker =
                |arguments: &[&str]| run(Command::new("docker").args(["-H", engine]).args(arguments));
            if docker(&["version"]).unwrap().code == Some(0) {
                succeeded(&docker(&["load", "--input", archive.to_str().unwrap()]).unwrap());
            }
        }
    }

    /// Lets the roles be reached from the nodes, and gives the miners their pools.
    fn configure(&self) {
        let (address, network) = (variable(ADDRESS), variable(NETWORK));
        let path = self.subnet.folder().join("template.yaml");
        std::fs::write(&path, template(&self.images()).to_string()).unwrap();
        let kubeconfig = self.kubeconfig();
        let reachable = |config: &mut toml::Table| {
            let port = config["bind"]
                .as_str()
                .unwrap()
                .rsplit_once(':')
                .unwrap()
                .1
                .to_owned();
            config.insert("bind".to_owned(), format!("0.0.0.0:{port}").into());
            port
        };
        self.change("facilitator", |config| {
            let port = reachable(config);
            config.insert("public_url".to_owned(), format!("http://{address}:{port}").into());
        });
        self.change("validator", |config| {
            let allowed = config["dial"]["allow"].as_array_mut().unwrap();
            allowed.push(network.into());
        });
        let give_pool = |config: &mut toml::Table| {
            let port = reachable(config);
            let mut kubernetes = toml::Table::new();
            for (key, value) in [("kubeconfig", kubeconfig.clone()), ("template", path.clone())] {
                kubernetes.insert(key.to_owned(), value.display().to_string().into());
            }
            kubernetes.insert("image".to_owned(), "muster/executor:1".into());
            kubernetes.insert("docker".to_owned(), engine_place().into());
            let mut pool = toml::toml! {
                name = "nodes"
                count = 9
                engine = "kubernetes"
            };
            pool.insert("dial".to_owned(), format!("ws://{address}:{port}").into());
            pool.insert("kubernetes".to_owned(), kubernetes.into());
            let executor = config["executor"].as_table_mut().unwrap();
            executor.insert("count".to_owned(), 0.into());
            let reattach_s = i64::from(self.outage_s).saturating_add(10);
            executor.insert("reattach_s".to_owned(), reattach_s.into());
            executor.insert("startup_s".to_owned(), 60.into());
            executor.insert("pools".to_owned(), vec![toml::Value::from(pool)].into());
        };
        for miner in self.miners {
            self.change(miner, give_pool);
        }
    }

    /// Changes a role's configuration, and restarts the role.
    pub(crate) fn change(&self, role: &str, change: impl FnOnce(&mut toml::Table)) {
        let file = self.file(&format!("{role}.toml"));
        let mut config = read_toml(&file);
        change(&mut config);
        std::fs::write(&file, toml::to_string(&config).unwrap()).unwrap();
        self.subnet.restart(role).unwrap();
    }

    /// Waits until each miner's pool has `count` places.
    pub(crate) fn wait_for_places(&self, count: u64) {
        let mut last = Value::Null;
        let seen = wait_for("the pools' places", || {
            let reached = self.miners.iter().all(|miner| {
                let state = self.subnet.miner_state(miner).unwrap_or_default();
                last = state["pools"][1].clone();
                last["places"]["all"].as_u64() == Some(count)
            });
            anyhow::Ok(reached.then_some(()))
        });
        assert!(seen.is_ok(), "{last:#}\n{}", self.logs());
    }

    /// The nodes that got an executor so far.
    pub(crate) fn used_nodes(&self) -> BTreeSet<String> {
        let messages = "jsonpath={.items[*].message}";
        let reason = "--field-selector=reason=Scheduled";
        let events = kubectl(&["get", "events", reason, "-o", messages]);
        let words = events.split_whitespace();
        words
            .filter(|word| word.starts_with("mh"))
            .map(str::to_owned)
            .collect()
    }

    /// Waits until the cluster has removed every pod.
    pub(crate) fn wait_until_no_pod_is_left(&self) {
        wait_for("the end of all pods", || {
            let left = kubectl(&["get", "pods", "-o", "name"]);
            anyhow::Ok(left.is_empty().then_some(()))
        })
        .unwrap();
    }

    /// Starts a job that prints a line a second; returns its id once it runs, and its node.
    pub(crate) fn begin_counting(&self, seconds: u64) -> (String, String) {
        let shell = self.runtime.block_on(shell_image("")).unwrap();
        let begun = self.subnet.begin_counting(shell, seconds);
        let id = begun.unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()));
        let nodes = "jsonpath={.items[*].spec.nodeName}";
        let node = kubectl(&["get", "pods", "-o", nodes]);
        assert!(
            !node.is_empty() && !node.contains(' '),
            "one pod runs: {}",
            self.logs()
        );
        (id, node)
    }

    /// Waits for the end of such a job, of which each attempt that counts printed each line once.
    pub(crate) fn end_counting(&self, id: &str, seconds: u64, attempts: usize) {
        let ended = self.subnet.end_counting(id, seconds);
        let made = ended.unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()));
        assert_eq!(made, attempts, "{}", self.logs());
    }

    /// The pods, the events and the logs of the roles, for the message of a failed test.
    pub(crate) fn logs(&self) -> String {
        let pods = kubectl(&["get", "pods", "-o", "wide"]);
        let events = kubectl(&["get", "events"]);
        let roles = std::iter::once(&"validator").chain(self.miners);
        let logs: String = roles.map(|role| self.subnet.log(role)).collect();
        format!("{pods}\n{events}\n{logs}")
    }
}

/// A configuration file.
pub(crate) fn read_toml(path: &Path) -> toml::Table {
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}
