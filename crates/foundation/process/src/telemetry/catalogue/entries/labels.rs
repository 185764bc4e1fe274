//! The words of the entries: labels, sets of roles, conditions, and the functions that make an entry.

use super::super::metric_entry::MetricRole::{Executor, Facilitator, Miner, Validator};
use super::super::metric_entry::{LabelValues, MetricEntry, MetricKind, MetricLabel, MetricRole};

pub(super) const ALL: &[MetricRole] = &MetricRole::ALL;
pub(super) const FOLDERS: &[MetricRole] = &[Facilitator, Miner, Executor];
pub(super) const STORES: &[MetricRole] = &[Facilitator, Validator, Miner];

pub(super) const fn one_of(name: &'static str, values: &'static [&'static str]) -> MetricLabel {
    MetricLabel {
        name,
        values: LabelValues::OneOf(values),
    }
}

pub(super) const fn bounded_by(name: &'static str, bound: &'static str) -> MetricLabel {
    MetricLabel {
        name,
        values: LabelValues::BoundedBy(bound),
    }
}

pub(super) const fn metric(
    name: &'static str,
    kind: MetricKind,
    roles: &'static [MetricRole],
    labels: &'static [MetricLabel],
    help: &'static str,
) -> MetricEntry {
    MetricEntry {
        name,
        kind,
        roles,
        labels,
        needs: "",
        help,
    }
}

impl MetricEntry {
    pub(super) const fn needing(mut self, needs: &'static str) -> Self {
        self.needs = needs;
        self
    }
}

pub(super) const OUTCOME: MetricLabel =
    one_of("outcome", &["completed", "rejected", "failed", "horde_failed"]);
pub(super) const FAULT: MetricLabel = one_of(
    "fault",
    &[
        "nobody",
        "user",
        "executor",
        "miner",
        "validator",
        "facilitator",
        "network",
    ],
);
pub(super) const CLASS: MetricLabel = bounded_by("class", "one of the protocol's executor classes");
pub(super) const ROLE: MetricLabel = bounded_by("role", "this role");
pub(super) const TABLE: MetricLabel = bounded_by("table", "one of the store's tables");
pub(super) const MODEL: MetricLabel = bounded_by("model", "one of the models of `gateway.services`");
pub(super) const GPU: MetricLabel = bounded_by("gpu", "the UUID of one of at most 64 GPUs");
pub(super) const GPU_PLACE: MetricLabel = bounded_by(
    "gpu",
    "the place of one of at most 64 GPUs in the report of its executor, from 0",
);
pub(super) const EXECUTOR: MetricLabel = bounded_by("executor", "the name of an enrolled executor");
pub(super) const POOL: MetricLabel = bounded_by("pool", "the name of a pool of the configuration");
pub(super) const A_GATEWAY: &str = "a gateway that serves models";
pub(super) const A_GPU: &str = "a GPU with NVML";
pub(super) const A_MEASUREMENT: &str = "a persistent executor, which measures its machine every 5 seconds";
pub(super) const A_CONNECTED_EXECUTOR: &str = "a connected persistent executor";
