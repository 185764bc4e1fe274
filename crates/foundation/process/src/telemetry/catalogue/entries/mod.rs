//! The metrics themselves, role by role.

mod executor;
mod facilitator;
mod miner;
mod process;
mod validator;

use super::MetricRole::{Executor, Facilitator, Miner, Validator};
use super::{LabelValues, MetricEntry, MetricKind, MetricLabel, MetricRole};

const ALL: &[MetricRole] = &MetricRole::ALL;
const FOLDERS: &[MetricRole] = &[Facilitator, Miner, Executor];
const STORES: &[MetricRole] = &[Facilitator, Validator, Miner];

const fn one_of(name: &'static str, values: &'static [&'static str]) -> MetricLabel {
    MetricLabel {
        name,
        values: LabelValues::OneOf(values),
    }
}

const fn bounded_by(name: &'static str, bound: &'static str) -> MetricLabel {
    MetricLabel {
        name,
        values: LabelValues::BoundedBy(bound),
    }
}

const fn metric(
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
    const fn needing(mut self, needs: &'static str) -> Self {
        self.needs = needs;
        self
    }
}

const OUTCOME: MetricLabel = one_of("outcome", &["completed", "rejected", "failed", "horde_failed"]);
const FAULT: MetricLabel = one_of(
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
const CLASS: MetricLabel = bounded_by("class", "one of the protocol's executor classes");
const ROLE: MetricLabel = bounded_by("role", "this role");
const TABLE: MetricLabel = bounded_by("table", "one of the store's tables");
const MODEL: MetricLabel = bounded_by("model", "one of the models of `gateway.services`");
const GPU: MetricLabel = bounded_by("gpu", "the UUID of one of at most 64 GPUs");
const EXECUTOR: MetricLabel = bounded_by("executor", "the name of an enrolled executor");
const POOL: MetricLabel = bounded_by("pool", "the name of a pool of the configuration");
const A_GATEWAY: &str = "a gateway that serves models";
const A_GPU: &str = "a GPU with NVML";
const A_MEASUREMENT: &str = "a persistent executor, which measures its machine every 5 seconds";
const A_CONNECTED_EXECUTOR: &str = "a connected persistent executor";

/// The metrics of each part: those of every process first, then role by role.
pub(super) const PARTS: [&[MetricEntry]; 5] = [
    process::METRICS,
    facilitator::METRICS,
    validator::METRICS,
    miner::METRICS,
    executor::METRICS,
];
