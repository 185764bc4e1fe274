//! A miner whose executors are pods of a real Kubernetes: jobs, a grading batch and a session on its nodes, persistent
//! executors of a DaemonSet, and faults of nodes and cables.
//!
//! `cargo xtask fleets` starts the cluster and these tests. Each node has the image `muster/executor:1`. It has
//! containerd, so that pods bring their engine, or a Docker engine.

#![cfg(test)]

mod cluster;
mod fleet;
mod lost_node;
mod on_three_nodes;
mod own_engine;
