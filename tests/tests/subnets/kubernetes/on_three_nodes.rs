//! Tests that leave all three nodes as they found them.

use std::process::Command;
use std::time::Duration;

use muster_process::{Clock as _, SystemClock};
use muster_testbed::wait_for;
use muster_tests::{free_address, muster, run};
use serde_json::{Value, json};

use super::cluster::{ADDRESS, apply, apply_printed, engine_place, kubectl, set_cable, succeeded, variable};
use super::fleet::{Fleet, images_of_jobs};

#[test]
#[ignore = "needs a Kubernetes cluster with nodes; `cargo xtask fleets` starts one and runs this"]
fn pods_run_a_job_a_grading_batch_and_a_session() {
    let fleet = Fleet::start(30);
    let subnet = &fleet.subnet;
    fleet.wait_for_places(3);

    let ran = subnet.run_words().unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", fleet.logs());
    fleet.wait_until_no_pod_is_left();

    let graded = wait_for("a batch", || {
        let graded = subnet.muster(&["grade", "run"])?;
        let nobody = graded.stderr.contains("no miner announces an executor");
        anyhow::Ok((!nobody).then_some(graded))
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
    kubectl(&["create", "secret", "generic", "muster-invitation", &literal]);
    apply_printed(&["--persistent", "muster/executor:1", "--class", "always_on.test"]);
    // The printed configuration, and what this subnet needs besides.
    let printed = "jsonpath={.data.executor\\.toml}";
    let printed = kubectl(&["get", "configmap", "muster-executor", "-o", printed]);
    let printed: toml::Table = printed.parse().unwrap();
    let file = fleet.write_executor_config(printed["standing"].as_table().unwrap().clone());
    let patch = serde_json::json!({"data": {"executor.toml": std::fs::read_to_string(file).unwrap()}});
    let patch = format!("--patch={patch}");
    kubectl(&["patch", "configmap", "muster-executor", &patch]);
    if engine_place() == "pod" {
        let (volume, mount) = images_of_jobs(&fleet.images());
        let containers = json!([{"name": "executor", "volumeMounts": [mount]}]);
        let pod = json!({"volumes": [volume], "containers": containers});
        let patch = format!("--patch={}", json!({"spec": {"template": {"spec": pod}}}));
        kubectl(&["patch", "daemonset", "muster-executor", &patch]);
    }
    kubectl(&[
        "delete",
        "pods",
        "--selector=app.kubernetes.io/name=muster-persistent-executor",
    ]);

    let enrolled = wait_for("three persistent executors", || {
        let listed = miner(&["--executors"]);
        let all = ["mh1", "mh2", "mh3"].iter().all(|node| listed.contains(node));
        let state = fleet.subnet.miner_state("miner").unwrap_or_default();
        let connected = state["persistent"]["all"].as_u64();
        anyhow::Ok((all && connected == Some(3)).then_some(()))
    });
    enrolled
        .map_err(|error| {
            format!(
                "{error}\n{:#}\n{}",
                fleet.subnet.miner_state("miner").unwrap_or_default(),
                fleet.logs()
            )
        })
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
        let ran = fleet.subnet.run_words().unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}\n{}", fleet.logs());
    }
    let scheduled = "jsonpath={.items[*].involvedObject.name}";
    let scheduled = kubectl(&[
        "get",
        "events",
        "--field-selector=reason=Scheduled",
        "-o",
        scheduled,
    ]);
    let of_leases = scheduled
        .split_whitespace()
        .filter(|name| !name.starts_with("muster-executor-"));
    assert_eq!(of_leases.count(), 0, "{scheduled}");
    kubectl(&["delete", "daemonset", "muster-executor"]);
    fleet.wait_until_no_pod_is_left();
}

#[test]
#[ignore = "needs a Kubernetes cluster with nodes; `cargo xtask fleets` starts one and runs this"]
fn a_job_outlives_a_cable_that_is_cut_for_a_minute() {
    const TICKS: u64 = 75;
    let fleet = Fleet::start(120);
    fleet.wait_for_places(3);
    let (id, node) = fleet.begin_counting(TICKS);
    set_cable(&node, "down");
    let clock = SystemClock::default();
    let began = clock.now();
    wait_for("a minute in which the cluster calls the node lost", || {
        assert_eq!(
            fleet.used_nodes().len(),
            1,
            "no second executor: {}",
            fleet.logs()
        );
        let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        let is_lost = kubectl(&["get", "node", &node, "-o", ready]) == "Unknown";
        anyhow::Ok((is_lost && clock.now().since(began) >= Duration::from_mins(1)).then_some(()))
    })
    .unwrap();
    set_cable(&node, "up");
    fleet.end_counting(&id, TICKS, 1);
    fleet.wait_until_no_pod_is_left();
    fleet.wait_for_places(3);
}

/// A pod with the token of a lease whose executor runs.
fn make_twin(of: &str) -> String {
    let pod = kubectl(&["get", "pod", of, "-o", "json"]);
    let mut pod: Value = serde_json::from_str(&pod).unwrap();
    let name = "twin";
    pod["metadata"] = json!({"name": name});
    pod["spec"].as_object_mut().unwrap().remove("nodeName");
    pod.as_object_mut().unwrap().remove("status");
    apply(&pod.to_string());
    name.to_owned()
}

#[test]
#[ignore = "needs a Kubernetes cluster with nodes; `cargo xtask fleets` starts one and runs this"]
fn a_second_pod_with_the_token_of_a_lease_is_turned_away() {
    const TICKS: u64 = 25;
    let fleet = Fleet::start(30);
    fleet.wait_for_places(3);
    let (id, _) = fleet.begin_counting(TICKS);
    let pod = kubectl(&["get", "pods", "-o", "jsonpath={.items[0].metadata.name}"]);
    let twin = make_twin(&pod);
    let ended = wait_for("the end of the second pod", || {
        let phase = kubectl(&["get", "pod", &twin, "-o", "jsonpath={.status.phase}"]);
        anyhow::Ok(["Failed", "Succeeded"].contains(&phase.as_str()).then_some(phase))
    });
    let said = kubectl(&["logs", &twin]);
    assert_eq!(ended.unwrap(), "Failed", "{said}");
    assert!(said.contains("the miner refused the lease"), "{said}");
    fleet.end_counting(&id, TICKS, 1);
    kubectl(&["delete", "pod", &twin]);
    fleet.wait_until_no_pod_is_left();
}
