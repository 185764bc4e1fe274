//! A miner whose executors are started by an engine that exists: a real Slurm, whose nodes are on this machine.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::path::PathBuf;
use std::process::Command;

use muster_testbed::slurm::{PARTITION, SlurmCluster};
use muster_testbed::wait_for;
use muster_tests::{RunningSubnet, muster, run, shell_image};
use serde_json::Value;
use tokio::runtime::Runtime;

/// A subnet whose miner has one pool: the nodes of a Slurm cluster. Each executor takes one GPU, and a node has two.
struct Fleet {
    subnet: RunningSubnet,
    cluster: SlurmCluster,
    runtime: Runtime,
}

/// The command of an executor that uses the engine of the tests on its node as well. Slurm passes no variable on.
fn on_this_engine(command: &toml::Value) -> toml::Value {
    let engine = std::env::var("DOCKER_HOST").ok();
    let named =
        engine.map(|engine| ["env".to_owned(), format!("DOCKER_HOST={engine}")].map(toml::Value::from));
    let words = named.into_iter().flatten();
    toml::Value::Array(words.chain(command.as_array().unwrap().iter().cloned()).collect())
}

impl Fleet {
    fn start(nodes: usize, startup_s: u32) -> Self {
        Self::start_of_class(nodes, startup_s, "always_on.test")
    }

    /// Starts one whose pool has executors of this class.
    fn start_of_class(nodes: usize, startup_s: u32, class: &str) -> Self {
        muster_process::tls::install_provider();
        let runtime = Runtime::new().unwrap();
        let cluster = runtime.block_on(SlurmCluster::start(nodes)).unwrap();
        let subnet = RunningSubnet::start().unwrap();
        let file = subnet.folder().join("config/miner.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let mut config: toml::Table = text.parse().unwrap();
        let bound = muster_process::ready::read(&subnet.folder().join("run/miner.ready"))
            .unwrap()
            .unwrap();
        let executor = config["executor"].as_table_mut().unwrap();
        let pool = toml::toml! {
            name = "gpus"
            count = 9
            engine = "slurm"
        };
        let mut pool = pool;
        pool.insert("class".to_owned(), class.into());
        pool.insert("dial".to_owned(), format!("ws://{bound}").into());
        pool.insert("command".to_owned(), on_this_engine(&executor["command"]));
        let mut slurm = toml::Table::new();
        slurm.insert("conf".to_owned(), cluster.conf().display().to_string().into());
        slurm.insert("partition".to_owned(), PARTITION.into());
        slurm.insert("gpus".to_owned(), 1.into());
        slurm.insert("cpus".to_owned(), 1.into());
        slurm.insert("memory_mib".to_owned(), 500.into());
        pool.insert("slurm".to_owned(), slurm.into());
        executor.insert("count".to_owned(), 0.into());
        executor.insert("startup_s".to_owned(), i64::from(startup_s).into());
        executor.insert("pools".to_owned(), vec![toml::Value::from(pool)].into());
        std::fs::write(&file, toml::to_string(&config).unwrap()).unwrap();
        subnet.restart("miner").unwrap();
        Self {
            subnet,
            cluster,
            runtime,
        }
    }

    fn slurm(&self, program: &str, arguments: &[&str]) -> String {
        self.runtime
            .block_on(self.cluster.run(program, arguments))
            .unwrap()
    }

    /// The names of jobs in these states, and their nodes.
    fn jobs(&self, states: &str) -> Vec<String> {
        let listed = self.slurm(
            "squeue",
            &["--noheader", "--format=%j %N", &format!("--states={states}")],
        );
        listed.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn wait_for_empty_queue(&self) {
        wait_for("an empty queue of Slurm", || {
            anyhow::Ok(self.jobs("PENDING,RUNNING,COMPLETING").is_empty().then_some(()))
        })
        .unwrap();
    }

    /// The pool as the miner's operator sees it; nothing while the miner starts.
    fn pool(&self) -> Value {
        let state = self.subnet.miner_state("miner").unwrap_or_default();
        state["pools"][1].clone()
    }

    /// Waits until the pool has `count` places.
    fn wait_for_executors(&self, count: u64) {
        wait_for("the pool's places", || {
            anyhow::Ok((self.pool()["places"]["all"].as_u64() == Some(count)).then_some(()))
        })
        .unwrap();
    }

    /// Starts a job whose program goes on until [`Self::end_held`]; returns once it runs.
    fn begin_held(&self) -> String {
        let shell = self.runtime.block_on(shell_image("")).unwrap();
        let begun = self.subnet.begin_held(shell, &[]);
        begun.unwrap()
    }

    /// Lets such a job end, whose one attempt printed each line once.
    fn end_held(&self, id: &str) {
        let (_, attempts) = self.subnet.end_held(id).unwrap();
        assert_eq!(attempts.len(), 1, "{}", self.logs());
    }

    fn config(&self) -> PathBuf {
        self.subnet.folder().join("config/miner.toml")
    }

    fn logs(&self) -> String {
        format!("{}\n{}", self.subnet.log("validator"), self.subnet.log("miner"))
    }
}

#[test]
fn a_miner_lends_the_nodes_of_a_slurm_cluster_and_its_death_costs_no_job() {
    let fleet = Fleet::start(2, 30);
    // Nine are allowed, and two nodes with two GPUs hold four.
    fleet.wait_for_executors(4);
    let ran = fleet.subnet.run_words().unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", fleet.logs());
    fleet.wait_for_empty_queue();

    let id = fleet.begin_held();
    let jobs = fleet.jobs("RUNNING");
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    assert!(jobs[0].starts_with("muster-"), "{jobs:?}");
    // An executor that no lease knows: the next process of the miner takes it away, and the other one it keeps.
    let stale = "muster-00000000-0000-4000-8000-000000000001";
    let comment = fleet.slurm("squeue", &["--noheader", "--format=%k", "--states=RUNNING"]);
    let submitted = [
        "--job-name".to_owned(),
        stale.to_owned(),
        format!("--comment={}", comment.trim()),
        "--output=/dev/null".to_owned(),
        "--wrap=sleep 600".to_owned(),
    ];
    let submitted: Vec<&str> = submitted.iter().map(String::as_str).collect();
    fleet.slurm("sbatch", &submitted);
    assert_eq!(fleet.jobs("PENDING,RUNNING").len(), 2);
    fleet.subnet.restart("miner").unwrap();
    wait_for("the end of the executor without a lease", || {
        let left = fleet.jobs("PENDING,RUNNING,COMPLETING");
        anyhow::Ok((left.len() <= 1 && !left.iter().any(|job| job.starts_with(stale))).then_some(()))
    })
    .unwrap();
    fleet.end_held(&id);
    fleet.wait_for_empty_queue();
}

#[test]
fn a_job_outlives_the_death_of_the_engines_daemons_and_runs_once() {
    let mut fleet = Fleet::start(1, 30);
    fleet.wait_for_executors(2);
    let id = fleet.begin_held();
    let executor = fleet.jobs("RUNNING").remove(0);
    let (name, _) = executor.split_once(' ').unwrap();
    let Fleet { cluster, runtime, .. } = &mut fleet;
    runtime
        .block_on(async {
            cluster.wait_until_saved(name).await?;
            cluster.kill_node(0).await?;
            cluster.kill_controller().await
        })
        .unwrap();
    // The engine does not answer, so it counts as none; its executor goes on.
    fleet.wait_for_executors(0);
    let Fleet { cluster, runtime, .. } = &mut fleet;
    let context = runtime.enter();
    cluster.start_controller().unwrap();
    cluster.start_node(0).unwrap();
    drop(context);
    fleet.wait_for_executors(2);
    fleet.end_held(&id);
    fleet.wait_for_empty_queue();
}

#[test]
fn an_executor_that_waits_for_a_node_says_so_and_a_drained_node_gets_none() {
    let fleet = Fleet::start(2, 4);
    fleet.wait_for_executors(4);
    let undrain = ["--undo"];
    let drain = |host: &str, rest: &[&str]| {
        let config = fleet.config();
        let args = [
            &["miner", "drain", host, "--config", config.to_str().unwrap()],
            rest,
        ]
        .concat();
        let drained = run(Command::new(muster().unwrap()).args(&args)).unwrap();
        assert_eq!(drained.code, Some(0), "{drained:?}");
    };
    drain("node0", &[]);
    fleet.wait_for_executors(2);
    let id = fleet.begin_held();
    assert!(
        fleet.jobs("RUNNING")[0].ends_with("node1"),
        "{:?}",
        fleet.jobs("RUNNING")
    );
    fleet.end_held(&id);
    fleet.wait_for_empty_queue();

    // Somebody else takes all CPUs of the one node that is left.
    let others = [
        "--job-name=other",
        "--nodelist=node1",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=sleep 600",
    ];
    fleet.slurm("sbatch", &others);
    wait_for("the other job", || {
        anyhow::Ok((!fleet.jobs("RUNNING").is_empty()).then_some(()))
    })
    .unwrap();
    let started = fleet
        .subnet
        .muster(&[
            "job",
            "run",
            "--detach",
            "--json",
            fleet.subnet.demo_image(),
            "--",
            "words",
        ])
        .unwrap();
    assert_eq!(started.code, Some(0), "{started:?}");
    wait_for("the reason of the wait", || {
        let told = fleet.subnet.log("validator").contains("it waited for: slurm: ");
        anyhow::Ok(told.then_some(()))
    })
    .unwrap();
    drain("node0", &undrain);
    fleet.wait_for_executors(4);
}

/// Slurm promises GPUs here that are block devices. Executors of a class with GPUs look for theirs, and find none.
#[test]
fn a_node_without_the_gpu_that_it_promised_runs_nothing_and_its_owner_is_named() {
    const CLASS: &str = "always_on.llm.a6000";
    let fleet = Fleet::start_of_class(1, 30, CLASS);
    fleet.wait_for_executors(2);
    wait_for("the class at the validator", || {
        let miners = fleet.subnet.validator_page("/v0/miners")?;
        anyhow::Ok(miners.to_string().contains(CLASS).then_some(()))
    })
    .unwrap();
    let image = fleet.subnet.demo_image();
    let run = ["job", "run", "--json", "--class", CLASS, image, "--", "words"];
    let ran = fleet.subnet.muster(&run).unwrap();
    assert_ne!(ran.code, Some(0), "{ran:?}");
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(
        said.contains("this machine shows none"),
        "{ran:?}\n{}",
        fleet.logs()
    );
    let log = fleet.subnet.log("validator");
    let over = log.lines().find(|line| line.contains("job over")).unwrap();
    assert!(over.ends_with("fault=executor attempts=1"), "{over}");
    fleet.wait_for_empty_queue();
}
