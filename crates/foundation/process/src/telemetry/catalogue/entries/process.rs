//! The metrics of every process, and those of stores.

use super::super::metric_entry::MetricEntry;
use super::super::metric_entry::MetricKind::{Counter, Gauge};
use super::labels::{ALL, FOLDERS, ROLE, STORES, TABLE, bounded_by, metric, one_of};

pub(super) const METRICS: &[MetricEntry] = &[
    // === every process ===
    metric(
        "muster_build_info",
        Gauge,
        ALL,
        &[bounded_by("version", "this release")],
        "Always 1; the label is the version of the program.",
    ),
    metric(
        "process_start_time_seconds",
        Gauge,
        ALL,
        &[],
        "Start time of the process, in seconds since 1970.",
    ),
    metric(
        "process_cpu_seconds_total",
        Counter,
        ALL,
        &[],
        "Processor time that the process has used, in user and system mode, in whole seconds.",
    ),
    metric(
        "process_resident_memory_bytes",
        Gauge,
        ALL,
        &[],
        "Main memory that the process holds.",
    ),
    metric(
        "process_virtual_memory_bytes",
        Gauge,
        ALL,
        &[],
        "Address space that the process has reserved.",
    ),
    metric("process_threads", Gauge, ALL, &[], "Threads of the process."),
    metric(
        "process_open_fds",
        Gauge,
        ALL,
        &[],
        "Open file descriptors, sockets among them.",
    ),
    metric(
        "process_max_fds",
        Gauge,
        ALL,
        &[],
        "The most file descriptors that the process may open.",
    ),
    metric(
        "muster_tasks_running",
        Gauge,
        ALL,
        &[],
        "Tasks that run in the process: sessions, jobs, loops.",
    ),
    metric(
        "muster_task_panics_total",
        Counter,
        ALL,
        &[bounded_by("task", "the name of one of the program's tasks")],
        "Tasks that ended in a panic, which is a defect of the program.",
    )
    .needing("a panic"),
    metric(
        "muster_connections_refused_total",
        Counter,
        ALL,
        &[
            bounded_by("listener", "one of the role's listeners"),
            one_of("bound", &["total", "address"]),
        ],
        "Connections that were closed at once, because as many as may be were open.",
    )
    .needing("such a connection"),
    metric(
        "muster_folder_files",
        Gauge,
        FOLDERS,
        &[
            ROLE,
            bounded_by("folder", "the configuration key that names the folder"),
        ],
        "Files in a folder of the role and in its folders.",
    ),
    metric(
        "muster_folder_bytes",
        Gauge,
        FOLDERS,
        &[
            ROLE,
            bounded_by("folder", "the configuration key that names the folder"),
        ],
        "Space on disk of a folder of the role.",
    ),
    // === stores ===
    metric(
        "muster_store_rows",
        Gauge,
        STORES,
        &[ROLE, TABLE],
        "Rows of a table of the store, measured every `retention.measure_s`.",
    )
    .needing("a store on disk"),
    metric(
        "muster_store_bytes",
        Gauge,
        STORES,
        &[ROLE, TABLE],
        "Space on disk of a table with its indexes.",
    )
    .needing("a store on disk"),
    metric(
        "muster_store_deleted_rows_total",
        Counter,
        STORES,
        &[ROLE, TABLE],
        "Rows that retention has deleted.",
    )
    .needing("a deletion"),
    metric(
        "muster_store_writes_total",
        Counter,
        STORES,
        &[],
        "Writes that were committed to the store.",
    ),
    metric(
        "muster_store_commits_total",
        Counter,
        STORES,
        &[],
        "Transactions in which they were committed; several writes share one under load.",
    ),
];
