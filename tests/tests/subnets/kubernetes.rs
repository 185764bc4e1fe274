//! A miner whose executors are pods of a real Kubernetes: jobs, a grading batch and a session on its nodes, persistent
//! executors of a DaemonSet, and faults of nodes and cables.
//!
//! `cargo xtask fleets` starts the cluster and these tests. Each node has a Docker engine of its own and the image
//! `muster/executor:1`.

#![cfg(test)]

mod cluster;
mod fleet;
mod lost_node;
mod on_three_nodes;
