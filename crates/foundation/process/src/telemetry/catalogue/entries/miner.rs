//! The miner's metrics.

use super::super::metric_entry::MetricEntry;
use super::super::metric_entry::MetricKind::{Counter, Gauge};
use super::super::metric_entry::MetricRole::Miner;
use super::labels::{A_CONNECTED_EXECUTOR, A_GPU, EXECUTOR, GPU_PLACE, POOL, metric, one_of};

pub(super) const METRICS: &[MetricEntry] = &[
    // === the miner ===
    metric(
        "muster_miner_validator_sessions",
        Gauge,
        &[Miner],
        &[],
        "Open connections of validators that have proved their keys.",
    ),
    metric(
        "muster_miner_validators",
        Gauge,
        &[Miner],
        &[one_of("state", &["served", "connected"])],
        "Validators that the miner serves, and those that are connected.",
    ),
    metric(
        "muster_miner_executors",
        Gauge,
        &[Miner],
        &[
            one_of("kind", &["started", "persistent"]),
            one_of("state", &["busy", "free"]),
        ],
        "Places for jobs: of executors that the miner starts, and of enrolled ones that are connected.",
    ),
    metric(
        "muster_miner_leases",
        Gauge,
        &[Miner],
        &[one_of("state", &["waiting", "working"])],
        "Open leases: with an executor at work, and before that.",
    ),
    metric(
        "muster_miner_leases_opened_total",
        Counter,
        &[Miner],
        &[],
        "Leases that were opened: offers that were accepted.",
    ),
    metric(
        "muster_miner_leases_ended_total",
        Counter,
        &[Miner],
        &[one_of(
            "end",
            &["finished", "failed", "horde_failed", "cancelled"],
        )],
        "Leases that ended: with a result, by a failure of the job, by a failure of this side, or called off.",
    ),
    metric(
        "muster_miner_offers_declined_total",
        Counter,
        &[Miner],
        &[one_of(
            "reason",
            &[
                "unknown",
                "busy",
                "invalid_signature",
                "invalid_receipt",
                "no_miner_for_job",
                "validator_blacklisted",
            ],
        )],
        "Offers that were declined, by the reason that the validator was told.",
    ),
    metric(
        "muster_miner_receipts_total",
        Counter,
        &[Miner],
        &[one_of("kind", &["started", "accepted", "finished"])],
        "Receipts that were stored with both signatures.",
    ),
    metric(
        "muster_miner_draining",
        Gauge,
        &[Miner],
        &[],
        "Whether offers are declined because the miner is being emptied: 1 or 0.",
    ),
    metric(
        "muster_miner_pool_places",
        Gauge,
        &[Miner],
        &[POOL],
        "Executors of a pool that there is a place for now, busy ones included.",
    ),
    metric(
        "muster_miner_pool_executors",
        Gauge,
        &[Miner],
        &[POOL],
        "Executors of a pool that are started or run.",
    ),
    metric(
        "muster_miner_pool_waiting",
        Gauge,
        &[Miner],
        &[POOL],
        "Executors of a pool that wait for a machine or an image.",
    ),
    metric(
        "muster_miner_pool_faulty",
        Gauge,
        &[Miner],
        &[POOL],
        "Whether the engine of a pool does not answer: 1 or 0.",
    ),
    metric(
        "muster_miner_executor_cpu_permille",
        Gauge,
        &[Miner],
        &[EXECUTOR],
        "Processor load of an executor's machine, in thousandths.",
    )
    .needing(A_CONNECTED_EXECUTOR),
    metric(
        "muster_miner_executor_memory_total_bytes",
        Gauge,
        &[Miner],
        &[EXECUTOR],
        "Main memory of an executor's machine.",
    )
    .needing(A_CONNECTED_EXECUTOR),
    metric(
        "muster_miner_executor_memory_used_bytes",
        Gauge,
        &[Miner],
        &[EXECUTOR],
        "Main memory in use on an executor's machine.",
    )
    .needing(A_CONNECTED_EXECUTOR),
    metric(
        "muster_miner_executor_disk_total_bytes",
        Gauge,
        &[Miner],
        &[EXECUTOR],
        "Size of the disk that holds an executor's jobs.",
    )
    .needing(A_CONNECTED_EXECUTOR),
    metric(
        "muster_miner_executor_disk_used_bytes",
        Gauge,
        &[Miner],
        &[EXECUTOR],
        "Space in use on that disk.",
    )
    .needing(A_CONNECTED_EXECUTOR),
    metric(
        "muster_miner_executor_network_received_bytes",
        Gauge,
        &[Miner],
        &[EXECUTOR],
        "Bytes that an executor's machine has received since it started.",
    )
    .needing(A_CONNECTED_EXECUTOR),
    metric(
        "muster_miner_executor_network_sent_bytes",
        Gauge,
        &[Miner],
        &[EXECUTOR],
        "Bytes that an executor's machine has sent since it started.",
    )
    .needing(A_CONNECTED_EXECUTOR),
    metric(
        "muster_miner_executor_gpu_utilisation_percent",
        Gauge,
        &[Miner],
        &[EXECUTOR, GPU_PLACE],
        "Load of a GPU of an executor's machine.",
    )
    .needing(A_GPU),
    metric(
        "muster_miner_executor_gpu_memory_used_bytes",
        Gauge,
        &[Miner],
        &[EXECUTOR, GPU_PLACE],
        "Memory in use on a GPU of an executor's machine.",
    )
    .needing(A_GPU),
    metric(
        "muster_miner_executor_gpu_power_milliwatts",
        Gauge,
        &[Miner],
        &[EXECUTOR, GPU_PLACE],
        "Power that a GPU of an executor's machine draws.",
    )
    .needing(A_GPU),
    metric(
        "muster_miner_executor_gpu_temperature_celsius",
        Gauge,
        &[Miner],
        &[EXECUTOR, GPU_PLACE],
        "Temperature of a GPU of an executor's machine; 0 where the card does not tell it.",
    )
    .needing(A_GPU),
];
