//! The executor's metrics.

use super::super::metric_entry::MetricEntry;
use super::super::metric_entry::MetricKind::{Counter, Gauge, Histogram};
use super::super::metric_entry::MetricRole::Executor;
use super::labels::{A_GPU, A_MEASUREMENT, FAULT, GPU, bounded_by, metric, one_of};

pub(super) const METRICS: &[MetricEntry] = &[
    // === the executor ===
    metric(
        "muster_executor_miner_connected",
        Gauge,
        &[Executor],
        &[],
        "Whether this persistent executor is connected to its miner: 1 or 0.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_leases",
        Gauge,
        &[Executor],
        &[],
        "Jobs that run on this persistent executor.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_engine_reachable",
        Gauge,
        &[Executor],
        &[],
        "Whether the container engine answered when it was last asked: 1 or 0.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_draining",
        Gauge,
        &[Executor],
        &[],
        "Whether the operator wants no more jobs here: 1 or 0.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_jobs_ended_total",
        Counter,
        &[Executor],
        &[one_of("outcome", &["finished", "failed", "abandoned"]), FAULT],
        "Attempts that ended here; abandoned ones end without a report.",
    ),
    metric(
        "muster_executor_stage_seconds",
        Histogram,
        &[Executor],
        &[one_of(
            "stage",
            &[
                "offer",
                "image",
                "fetch_wait",
                "pull",
                "job",
                "volumes",
                "run",
                "serve",
                "stop",
                "collect",
            ],
        )],
        "Time that an attempt spent in a stage.",
    )
    .needing("an attempt"),
    metric(
        "muster_executor_images_kept",
        Gauge,
        &[Executor],
        &[],
        "Images that are kept for sessions, because validators list them.",
    )
    .needing("a validator that lists images"),
    metric(
        "muster_executor_images_kept_bytes",
        Gauge,
        &[Executor],
        &[],
        "Space that these images take, unpacked.",
    )
    .needing("a validator that lists images"),
    metric(
        "muster_executor_cpu_permille",
        Gauge,
        &[Executor],
        &[],
        "Processor load of the machine, in thousandths.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_memory_total_bytes",
        Gauge,
        &[Executor],
        &[],
        "Main memory of the machine.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_memory_used_bytes",
        Gauge,
        &[Executor],
        &[],
        "Main memory in use.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_disk_total_bytes",
        Gauge,
        &[Executor],
        &[],
        "Size of the disk that holds the jobs.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_disk_used_bytes",
        Gauge,
        &[Executor],
        &[],
        "Space in use on that disk.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_network_received_bytes",
        Gauge,
        &[Executor],
        &[],
        "Bytes that the machine has received since it started.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_network_sent_bytes",
        Gauge,
        &[Executor],
        &[],
        "Bytes that the machine has sent since it started.",
    )
    .needing(A_MEASUREMENT),
    metric(
        "muster_executor_gpu_utilisation_percent",
        Gauge,
        &[Executor],
        &[GPU],
        "Load of a GPU.",
    )
    .needing(A_GPU),
    metric(
        "muster_executor_gpu_memory_used_bytes",
        Gauge,
        &[Executor],
        &[GPU],
        "Memory in use on a GPU.",
    )
    .needing(A_GPU),
    metric(
        "muster_executor_gpu_power_milliwatts",
        Gauge,
        &[Executor],
        &[GPU],
        "Power that a GPU draws.",
    )
    .needing(A_GPU),
    metric(
        "muster_executor_gpu_temperature_celsius",
        Gauge,
        &[Executor],
        &[GPU],
        "Temperature of a GPU; 0 where the card does not tell it.",
    )
    .needing(A_GPU),
    metric(
        "muster_sealed_responses_total",
        Counter,
        &[Executor],
        &[bounded_by("end", "one of the six ends of a stream")],
        "Responses that left through the seal of a session, by how they ended.",
    )
    .needing("a response"),
];
