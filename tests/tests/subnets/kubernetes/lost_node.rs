//! A test that loses a node for good.

use super::cluster::{kill_node, kubectl};
use super::fleet::Fleet;

#[test]
#[ignore = "needs a Kubernetes cluster with nodes; `cargo xtask fleets` starts one and runs this"]
fn a_job_whose_node_is_lost_goes_on_to_another_one() {
    const TICKS: u64 = 30;
    // A miner that lost a job does not get it again.
    let fleet = Fleet::start_with(&["miner", "miner-2"], 10);
    fleet.wait_for_places(2);
    let (id, lost) = fleet.begin_counting(TICKS);
    kill_node(&lost);
    fleet.end_counting(&id, TICKS, 2);
    assert_eq!(fleet.used_nodes().len(), 2, "{:?}", fleet.used_nodes());
    // The cluster does not know yet that the node is gone for good.
    kubectl(&["delete", "node", &lost]);
    fleet.wait_until_no_pod_is_left();
    fleet.wait_for_places(1);
}
