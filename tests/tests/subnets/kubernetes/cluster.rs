//! The cluster that `cargo xtask fleets` started, by the variables that state where it is.

use std::process::Command;

use muster_tests::{Output, muster, run, run_with_input};

/// The kubeconfig of an administrator.
const KUBECONFIG: &str = "MUSTER_TEST_KUBECONFIG";
/// The address of this machine in the nodes' network.
pub(crate) const ADDRESS: &str = "MUSTER_TEST_ADDRESS";
/// The network of the nodes, as CIDR.
pub(crate) const NETWORK: &str = "MUSTER_TEST_NETWORK";
/// The addresses of the nodes' Docker engines, with spaces between them; empty where pods bring their own.
pub(crate) const ENGINES: &str = "MUSTER_TEST_ENGINES";
/// The runtime of the nodes' containers: `containerd` or `docker`.
const RUNTIME: &str = "MUSTER_TEST_NODE_RUNTIME";
/// A program that kills the node of this name with everything on it.
const KILL_NODE: &str = "MUSTER_TEST_KILL_NODE";
/// A program that cuts the cable of the node of this name (`down`), or mends it (`up`).
const CUT_NODE: &str = "MUSTER_TEST_CUT_NODE";

/// The namespace of all pods.
const NAMESPACE: &str = "muster";

/// A variable that `cargo xtask fleets` set.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run `cargo xtask fleets`"))
}

/// The output of a command, which must have succeeded.
pub(crate) fn succeeded(output: &Output) -> String {
    assert_eq!(output.code, Some(0), "{output:?}");
    output.stdout.trim().to_owned()
}

fn command() -> Command {
    let mut kubectl = Command::new("kubectl");
    kubectl.env("KUBECONFIG", variable(KUBECONFIG));
    kubectl.args(["--namespace", NAMESPACE]);
    kubectl
}

/// Runs kubectl as an administrator, in the namespace of these tests.
pub(crate) fn kubectl(arguments: &[&str]) -> String {
    succeeded(&run(command().args(arguments)).unwrap())
}

/// Applies manifests, as YAML or JSON.
pub(crate) fn apply(manifests: &str) {
    succeeded(&run_with_input(command().args(["apply", "-f", "-"]), manifests).unwrap());
}

/// The owner of an executor's Docker engine on these nodes: the `pod`, or the `node`.
pub(crate) fn engine_place() -> &'static str {
    match variable(RUNTIME).as_str() {
        "containerd" => "pod",
        "docker" => "node",
        other => panic!("{RUNTIME} is {other}"),
    }
}

/// Applies what `muster miner manifests kubernetes` prints with these arguments.
pub(crate) fn apply_printed(arguments: &[&str]) {
    let printing = ["miner", "manifests", "kubernetes", "--namespace", NAMESPACE];
    let mut line = Command::new(muster().unwrap());
    line.args(printing).args(["--docker", engine_place()]);
    let printed = run(line.args(arguments));
    apply(&succeeded(&printed.unwrap()));
}

/// Removes what earlier tests left in the namespace.
pub(crate) fn clear() {
    kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found"]);
}

/// Ends a node with everything on it, as a loss of power would.
pub(crate) fn kill_node(name: &str) {
    succeeded(&run(Command::new(variable(KILL_NODE)).arg(name)).unwrap());
}

/// Cuts the cable of a node, `down`, or mends it, `up`.
pub(crate) fn set_cable(node: &str, state: &str) {
    succeeded(&run(Command::new(variable(CUT_NODE)).args([node, state])).unwrap());
}
