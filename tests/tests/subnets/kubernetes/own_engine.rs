//! The engine inside a pod, on nodes that have none.

use muster_testbed::wait_for;

use super::cluster::kubectl;
use super::fleet::Fleet;

#[test]
#[ignore = "needs a Kubernetes cluster with nodes; `cargo xtask fleets` starts one and runs this"]
fn a_job_has_a_disk_of_a_fixed_size_and_outlives_the_engine_of_its_pod() {
    const TICKS: u64 = 30;
    let fleet = Fleet::start(30);
    fleet.wait_for_places(3);
    let (id, _) = fleet.begin_counting(TICKS);
    let pod = kubectl(&["get", "pods", "-o", "jsonpath={.items[0].metadata.name}"]);
    let in_pod = |words: &[&str]| kubectl(&[&["exec", &pod, "--"], words].concat());

    // An engine that is killed before it knows that a container runs could never start or end it.
    let container = wait_for("the job's container", || {
        let running = in_pod(&["docker", "ps", "--quiet", "--filter", "label=muster.attempt"]);
        anyhow::Ok((!running.is_empty()).then_some(running))
    });
    let pid = in_pod(&[
        "docker",
        "inspect",
        "--format",
        "{{.State.Pid}}",
        &container.unwrap(),
    ]);
    let groups = format!("while read line; do echo \"$line\"; done < /proc/{pid}/cgroup");
    let groups = in_pod(&["sh", "-c", &groups]);
    let of_memory = groups.lines().find(|line| line.contains(":memory:"));
    assert!(
        of_memory.unwrap().contains("/kubepods/"),
        "the pod's limits hold for its jobs: {groups}"
    );
    let mounts = in_pod(&[
        "sh",
        "-c",
        "while read line; do echo \"$line\"; done < /proc/mounts",
    ]);
    let is_sized = |line: &str| line.starts_with("/dev/loop") && line.contains("/d ext4 ");
    assert!(mounts.lines().any(is_sized), "{mounts}");

    in_pod(&[
        "sh",
        "-c",
        "read pid < /run/muster-engine/docker.pid; kill -9 $pid",
    ]);
    // The output after the kill is lost, and the result says so. The job ends well, in its only attempt.
    let ended = fleet.subnet.wait_for_status(&id, "completed");
    ended.unwrap_or_else(|error| panic!("{error:#}\n{}", fleet.logs()));
    assert_eq!(
        fleet.subnet.attempts_of(&id).unwrap().len(),
        1,
        "{}",
        fleet.logs()
    );
    fleet.wait_until_no_pod_is_left();
}
