//! A miner whose executors are pods of a real Kubernetes: jobs, a session and a grading batch on its nodes.
//!
//! `cargo xtask fleets` starts the cluster, and says where it is by the variables below. Each node has a Docker engine
//! of its own and the image `muster/executor:1`.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use muster_tests::{
    BUSYBOX, Output, RunningSubnet, free_address, muster, run, run_with_input, shell_image, wait_for,
};
use serde_json::Value;
use tokio::runtime::Runtime;

/// The kubeconfig of an administrator.
const KUBECONFIG: &str = "MUSTER_TEST_KUBECONFIG";
/// The address of this machine in the nodes' network.
const ADDRESS: &str = "MUSTER_TEST_ADDRESS";
/// The network of the nodes, as CIDR.
const NETWORK: &str = "MUSTER_TEST_NETWORK";
/// The addresses of the nodes' Docker engines, with spaces between them.
const ENGINES: &str = "MUSTER_TEST_ENGINES";
/// A program that kills the node of this name with everything on it.
const KILL_NODE: &str = "MUSTER_TEST_KILL_NODE";

/// A program that cuts the cable of the node of this name (`down`), or mends it (`up`).
const CUT_NODE: &str = "MUSTER_TEST_CUT_NODE";

const NAMESPACE: &str = "muster";
const PATIENCE: Duration = Duration::from_secs(180);

/// An executor takes both GPUs of its node, so each node holds one.
const TEMPLATE: &str = "
terminationGracePeriodSeconds: 5
volumes:
- name: settings
  configMap: {name: executor}
containers:
- name: executor
  imagePullPolicy: Never
  command: [muster, executor, --config, /etc/muster/executor.toml]
  volumeMounts:
  - {mountPath: /etc/muster, name: settings}
  resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {nvidia.com/gpu: 2}}
";

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run `cargo xtask fleets`"))
}

fn succeeded(output: &Output) -> String {
    assert_eq!(output.code, Some(0), "{output:?}");
    output.stdout.trim().to_owned()
}

fn kubectl(arguments: &[&str]) -> String {
    let mut kubectl = Command::new("kubectl");
    kubectl.env("KUBECONFIG", variable(KUBECONFIG)).args(arguments);
    succeeded(&run(&mut kubectl).unwrap())
}

/// Applies what `muster miner manifests kubernetes` prints with these arguments.
fn apply_manifests(arguments: &[&str]) {
    let command = ["miner", "manifests", "kubernetes", "--namespace", NAMESPACE];
    let printed = run(Command::new(muster().unwrap()).args(command).args(arguments));
    let printed = succeeded(&printed.unwrap());
    let mut apply = Command::new("kubectl");
    apply
        .env("KUBECONFIG", variable(KUBECONFIG))
        .args(["apply", "-f", "-"]);
    succeeded(&run_with_input(&mut apply, &printed).unwrap());
}

/// A subnet whose miner has one pool: the nodes of a Kubernetes cluster.
struct Fleet {
    subnet: RunningSubnet,
    runtime: Runtime,
    outage_s: u32,
}

impl Fleet {
    /// Starts one whose jobs go on for so many seconds without a connection between executor and miner.
    fn start(outage_s: u32) -> Self {
        muster_process::tls::install_provider();
        let subnet = RunningSubnet::start().unwrap();
        let fleet = Self {
            subnet,
            runtime: Runtime::new().unwrap(),
            outage_s,
        };
        fleet.prepare_cluster();
        fleet.load_images();
        fleet.configure();
        fleet
    }

    fn file(&self, name: &str) -> PathBuf {
        self.subnet.folder().join("config").join(name)
    }

    /// Does what docs/operations/kubernetes.md asks of an operator.
    fn prepare_cluster(&self) {
        kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found"]);
        apply_manifests(&[]);
        let file = self.write_executor_config(toml::Table::new());
        let from = format!("--from-file=executor.toml={}", file.display());
        kubectl(&["create", "configmap", "executor", &from, "--namespace", NAMESPACE]);
    }

    /// Writes the configuration of executors on nodes: the subnet's own, with the default folders and this `standing`.
    fn write_executor_config(&self, standing: toml::Table) -> PathBuf {
        let mut executor = read_toml(&self.file("executor.toml"));
        executor.remove("work_dir");
        executor.insert("orphan_s".to_owned(), i64::from(self.outage_s).into());
        executor.insert("standing".to_owned(), standing.into());
        let images = executor["images"].as_table_mut().unwrap();
        images.remove("cache_dir");
        let transfer = executor["transfer"].as_table_mut().unwrap();
        transfer.insert("allow".to_owned(), vec![variable(ADDRESS)].into());
        let file = self.subnet.folder().join("executor-on-node.toml");
        std::fs::write(&file, toml::to_string(&executor).unwrap()).unwrap();
        file
    }

    /// A kubeconfig with the rights of the printed account.
    fn kubeconfig(&self) -> PathBuf {
        let token = wait_for("the account's token", PATIENCE, || {
            let path = "jsonpath={.secrets[0].name}";
            let secret = kubectl(&[
                "get",
                "serviceaccount",
                "muster-miner",
                "--namespace",
                NAMESPACE,
                "-o",
                path,
            ]);
            if secret.is_empty() {
                return Ok(None);
            }
            let path = "go-template={{.data.token | base64decode}}";
            let token = kubectl(&["get", "secret", &secret, "--namespace", NAMESPACE, "-o", path]);
            Ok((!token.is_empty()).then_some(token))
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

    /// Gives each node's engine the images that the jobs of these tests run.
    fn load_images(&self) {
        let validator = read_toml(&self.file("validator.toml"));
        let grader = validator["grading"]["images"]["always_on.test"]["image"].as_str();
        let shell = self.runtime.block_on(shell_image("")).unwrap();
        for engine in variable(ENGINES).split_whitespace() {
            let mut save = Command::new("docker")
                .args(["save", self.subnet.demo_image(), grader.unwrap(), shell])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut load = Command::new("docker");
            load.args(["-H", engine, "load"])
                .stdin(save.stdout.take().unwrap());
            let loaded = load.output().unwrap();
            assert!(
                save.wait().unwrap().success() && loaded.status.success(),
                "{loaded:?}"
            );
        }
    }

    /// Lets the roles be reached from the nodes, and gives the miner its pool.
    fn configure(&self) {
        let (address, network) = (variable(ADDRESS), variable(NETWORK));
        let template = self.subnet.folder().join("template.yaml");
        std::fs::write(&template, TEMPLATE).unwrap();
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
        self.change("miner", |config| {
            let port = reachable(config);
            let mut kubernetes = toml::Table::new();
            for (key, value) in [("kubeconfig", self.kubeconfig()), ("template", template.clone())] {
                kubernetes.insert(key.to_owned(), value.display().to_string().into());
            }
            kubernetes.insert("namespace".to_owned(), NAMESPACE.into());
            kubernetes.insert("image".to_owned(), "muster/executor:1".into());
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
        });
    }

    /// Changes a role's configuration, and restarts the role.
    fn change(&self, role: &str, change: impl FnOnce(&mut toml::Table)) {
        let file = self.file(&format!("{role}.toml"));
        let mut config = read_toml(&file);
        change(&mut config);
        std::fs::write(&file, toml::to_string(&config).unwrap()).unwrap();
        self.subnet.restart(role).unwrap();
    }

    /// The miner as its operator sees it; nothing while it starts.
    fn miner_state(&self) -> Value {
        let config = read_toml(&self.file("miner.toml"));
        let operator = config["operator"].as_table().unwrap();
        let token = std::fs::read_to_string(operator["token"].as_str().unwrap()).unwrap();
        let url = format!("http://{}/v0/state", operator["bind"].as_str().unwrap());
        let state = async {
            let asked = reqwest::Client::new().get(&url).bearer_auth(token.trim()).send();
            asked.await?.json::<Value>().await
        };
        self.runtime.block_on(state).unwrap_or_default()
    }

    /// Waits until the miner's pool has so many places.
    fn wait_for_places(&self, count: u64) {
        let mut last = Value::Null;
        let seen = wait_for("the pool's places", PATIENCE, || {
            last = self.miner_state()["pools"][1].take();
            Ok((last["places"]["all"].as_u64() == Some(count)).then_some(()))
        });
        assert!(seen.is_ok(), "{last:#}\n{}", self.logs());
    }

    /// The nodes that got an executor so far.
    fn used_nodes(&self) -> BTreeSet<String> {
        let messages = "jsonpath={.items[*].message}";
        let reason = "--field-selector=reason=Scheduled";
        let events = kubectl(&["get", "events", "--namespace", NAMESPACE, reason, "-o", messages]);
        let words = events.split_whitespace();
        words
            .filter(|word| word.starts_with("mh"))
            .map(str::to_owned)
            .collect()
    }

    fn wait_until_no_pod_is_left(&self) {
        wait_for("the end of all pods", PATIENCE, || {
            let left = kubectl(&["get", "pods", "--namespace", NAMESPACE, "-o", "name"]);
            Ok(left.is_empty().then_some(()))
        })
        .unwrap();
    }

    /// Runs a job with an input and an output file.
    fn run_words(&self) -> Output {
        let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../LICENSE-MIT");
        let input = format!("licence.txt={text}");
        let image = self.subnet.demo_image();
        self.subnet
            .muster(&["job", "run", "--json", image, "--input", &input, "--", "words"])
            .unwrap()
    }

    /// Starts a job that prints a line a second; returns its id once it runs, and its node.
    fn begin_counting(&self, seconds: u64) -> (String, String) {
        let shell = self.runtime.block_on(shell_image("")).unwrap();
        let script =
            format!("i=0; while [ $i -lt {seconds} ]; do i=$((i+1)); echo tick $i; {BUSYBOX} sleep 1; done");
        let started = self
            .subnet
            .muster(&["job", "run", "--detach", "--json", shell, "--", "-c", &script])
            .unwrap();
        assert_eq!(started.code, Some(0), "{started:?}\n{}", self.logs());
        let started: Value = serde_json::from_str(started.stdout.lines().last().unwrap()).unwrap();
        let id = started["uuid"].as_str().unwrap().to_owned();
        self.subnet
            .wait_for_status(&id, "volumes_ready", PATIENCE)
            .unwrap();
        let nodes = "jsonpath={.items[*].spec.nodeName}";
        let node = kubectl(&["get", "pods", "--namespace", NAMESPACE, "-o", nodes]);
        assert!(
            !node.is_empty() && !node.contains(' '),
            "one pod runs: {}",
            self.logs()
        );
        (id, node)
    }

    /// Waits for the end of such a job, of which each attempt that counts printed each line once.
    fn end_counting(&self, id: &str, seconds: u64, attempts: usize) {
        let ended = self.subnet.wait_for_status(id, "completed", PATIENCE);
        let ended = ended
            .map_err(|error| format!("{error}\n{}", self.logs()))
            .unwrap();
        let ticks: Vec<_> = (1..=seconds).map(|tick| format!("tick {tick}")).collect();
        let said: Vec<_> = ended["stdout"].as_str().unwrap().lines().collect();
        assert_eq!(said, ticks);
        let state = self.subnet.validator_state().unwrap();
        let mut jobs = state["jobs"].as_array().unwrap().iter();
        let job = jobs.find(|job| job["job"] == id).unwrap();
        assert_eq!(
            job["attempts"].as_array().map(Vec::len),
            Some(attempts),
            "{job:#}"
        );
    }

    fn logs(&self) -> String {
        let pods = kubectl(&["get", "pods", "--namespace", NAMESPACE, "-o", "wide"]);
        let events = kubectl(&["get", "events", "--namespace", NAMESPACE]);
        let logs = ["validator", "miner"]
            .map(|role| self.subnet.log(role))
            .join("\n");
        format!("{pods}\n{events}\n{logs}")
    }
}

fn read_toml(path: &Path) -> toml::Table {
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

#[test]
#[ignore = "needs a Kubernetes cluster with nodes; `cargo xtask fleets` starts one and runs this"]
fn pods_run_a_job_a_grading_batch_and_a_session() {
    let fleet = Fleet::start(30);
    let subnet = &fleet.subnet;
    fleet.wait_for_places(3);

    let ran = fleet.run_words();
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", fleet.logs());
    fleet.wait_until_no_pod_is_left();

    let graded = wait_for("a batch", PATIENCE, || {
        let graded = subnet.muster(&["grade", "run"])?;
        let nobody = graded.stderr.contains("no miner announces an executor");
        Ok((!nobody).then_some(graded))
    });
    let graded = graded.unwrap();
    assert_eq!(graded.code, Some(0), "{graded:?}\n{}", fleet.logs());
    assert_eq!(
        graded.stdout.matches(" proven: ").count(),
        3,
        "{graded:?}\n{}",
        fleet.logs()
    );
    assert_eq!(fleet.used_nodes().len(), 3, "{:?}", fleet.used_nodes());
    fleet.wait_until_no_pod_is_left();

    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("answer.json");
    let saved = file.to_str().unwrap();
    let chat = subnet
        .muster(&["chat", "parrot", "-m", "one two three", "--save", saved])
        .unwrap();
    assert_eq!(chat.code, Some(0), "{chat:?}\n{}", fleet.logs());
    let proof = run(Command::new(muster().unwrap()).args(["proof", "verify", saved])).unwrap();
    assert_eq!(proof.code, Some(0), "{proof:?}");
}

#[test]
#[ignore = "needs a Kubernetes cluster with nodes; `cargo xtask fleets` starts one and runs this"]
fn a_daemon_set_enrolls_an_executor_on_each_node_and_they_run_jobs() {
    let fleet = Fleet::start(30);
    fleet.wait_for_places(3);
    let port = free_address().unwrap().port();
    fleet.change("miner", |config| {
        let standing = config["standing"].as_table_mut().unwrap();
        standing.insert("bind".to_owned(), format!("0.0.0.0:{port}").into());
        let announced = format!("{}:{port}", variable(ADDRESS));
        standing.insert("announce".to_owned(), announced.into());
    });
    let miner = |arguments: &[&str]| {
        let mut line = Command::new(muster().unwrap());
        line.args(["miner", "--config"])
            .arg(fleet.file("miner.toml"))
            .args(arguments);
        succeeded(&run(&mut line).unwrap())
    };
    let token = miner(&["--enroll", "--uses", "3"]);
    let literal = format!("--from-literal=token={token}");
    let namespace = ["--namespace", NAMESPACE];
    kubectl(
        &[
            &["create", "secret", "generic", "muster-invitation", &literal][..],
            &namespace,
        ]
        .concat(),
    );
    apply_manifests(&["--persistent", "muster/executor:1", "--class", "always_on.test"]);
    // The printed configuration, and what this subnet needs besides.
    let printed = "jsonpath={.data.executor\\.toml}";
    let printed = kubectl(
        &[
            &["get", "configmap", "muster-executor", "-o", printed][..],
            &namespace,
        ]
        .concat(),
    );
    let printed: toml::Table = printed.parse().unwrap();
    let file = fleet.write_executor_config(printed["standing"].as_table().unwrap().clone());
    let patch = serde_json::json!({"data": {"executor.toml": std::fs::read_to_string(file).unwrap()}});
    let patch = format!("--patch={patch}");
    kubectl(&[&["patch", "configmap", "muster-executor", &patch][..], &namespace].concat());
    kubectl(
        &[
            &[
                "delete",
                "pods",
                "--selector=app.kubernetes.io/name=muster-persistent-executor",
            ][..],
            &namespace,
        ]
        .concat(),
    );

    let enrolled = wait_for("three persistent executors", PATIENCE, || {
        let listed = miner(&["--executors"]);
        let all = ["mh1", "mh2", "mh3"].iter().all(|node| listed.contains(node));
        let state = fleet.miner_state();
        let connected = state["persistent"]["all"].as_u64();
        Ok((all && connected == Some(3)).then_some(()))
    });
    enrolled
        .map_err(|error| format!("{error}\n{:#}\n{}", fleet.miner_state(), fleet.logs()))
        .unwrap();
    let here = tempfile::tempdir().unwrap();
    let config = here.path().join("executor.toml");
    let membership = here.path().join("membership.json");
    std::fs::write(&config, format!("[standing]\nmembership = {membership:?}\n")).unwrap();
    let fourth = run(Command::new(muster().unwrap())
        .args(["executor", "--enroll", &token, "--config"])
        .arg(&config))
    .unwrap();
    assert_ne!(fourth.code, Some(0), "the token admits three: {fourth:?}");

    for _ in 0..3 {
        let ran = fleet.run_words();
        assert_eq!(ran.code, Some(0), "{ran:?}\n{}", fleet.logs());
    }
    let scheduled = "jsonpath={.items[*].involvedObject.name}";
    let scheduled = kubectl(
        &[
            &[
                "get",
                "events",
                "--field-selector=reason=Scheduled",
                "-o",
                scheduled,
            ][..],
            &namespace,
        ]
        .concat(),
    );
    let of_leases = scheduled
        .split_whitespace()
        .filter(|name| !name.starts_with("muster-executor-"));
    assert_eq!(of_leases.count(), 0, "{scheduled}");
    kubectl(&[&["delete", "daemonset", "muster-executor"][..], &namespace].concat());
    fleet.wait_until_no_pod_is_left();
}

#[test]
#[ignore = "needs a Kubernetes cluster with nodes; `cargo xtask fleets` starts one and runs this"]
fn a_job_outlives_a_cable_that_is_cut_for_a_minute() {
    const TICKS: u64 = 75;
    let fleet = Fleet::start(120);
    fleet.wait_for_places(3);
    let (id, node) = fleet.begin_counting(TICKS);
    let cut = |state: &str| {
        let done = Command::new(variable(CUT_NODE)).args([node.as_str(), state]).status();
        assert!(done.unwrap().success());
    };
    cut("down");
    let began = Instant::now();
    wait_for(
        "a minute in which the cluster calls the node lost",
        PATIENCE,
        || {
            assert_eq!(
                fleet.used_nodes().len(),
                1,
                "no second executor: {}",
                fleet.logs()
            );
            let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
            let is_lost = kubectl(&["get", "node", &node, "-o", ready]) == "Unknown";
            Ok((is_lost && began.elapsed() >= Duration::from_mins(1)).then_some(()))
        },
    )
    .unwrap();
    cut("up");
    fleet.end_counting(&id, TICKS, 1);
    fleet.wait_until_no_pod_is_left();
    fleet.wait_for_places(3);
}

#[test]
#[ignore = "needs a Kubernetes cluster with nodes; `cargo xtask fleets` starts one and runs this"]
fn a_job_whose_node_is_lost_goes_on_to_another_one() {
    const TICKS: u64 = 30;
    let fleet = Fleet::start(10);
    fleet.wait_for_places(2);
    let (id, lost) = fleet.begin_counting(TICKS);
    let killed = Command::new(variable(KILL_NODE)).arg(&lost).status();
    assert!(killed.unwrap().success());
    fleet.end_counting(&id, TICKS, 2);
    assert_eq!(fleet.used_nodes().len(), 2, "{:?}", fleet.used_nodes());
    // The cluster does not know yet that the node is gone for good.
    kubectl(&["delete", "node", &lost]);
    fleet.wait_until_no_pod_is_left();
    fleet.wait_for_places(1);
}
