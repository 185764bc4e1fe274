//! The facilitator's metrics.

use super::super::metric_entry::MetricEntry;
use super::super::metric_entry::MetricKind::{Counter, Gauge, Histogram};
use super::super::metric_entry::MetricRole::Facilitator;
use super::labels::{FAULT, OUTCOME, metric, one_of};

pub(super) const METRICS: &[MetricEntry] = &[
    // === the facilitator ===
    metric(
        "muster_facilitator_requests_total",
        Counter,
        &[Facilitator],
        &[
            one_of("surface", &["api", "models", "files", "pages", "socket"]),
            one_of("code", &["1xx", "2xx", "3xx", "4xx", "5xx"]),
        ],
        "Answered HTTP requests: of the REST API, of model clients, of files' signed URLs, of browsers, of validators.",
    ),
    metric(
        "muster_facilitator_request_seconds",
        Histogram,
        &[Facilitator],
        &[one_of("surface", &["api", "models", "files", "pages", "socket"])],
        "Time from the head of a request to the head of its answer.",
    )
    .needing("a request"),
    metric(
        "muster_facilitator_jobs_submitted_total",
        Counter,
        &[Facilitator],
        &[],
        "Jobs that were stored for the first time.",
    ),
    metric(
        "muster_facilitator_jobs_ended_total",
        Counter,
        &[Facilitator],
        &[OUTCOME, FAULT],
        "Jobs that ended, by the last status and by whose fault the validator says it was.",
    ),
    metric(
        "muster_facilitator_jobs_open",
        Gauge,
        &[Facilitator],
        &[],
        "Jobs that have not ended. Facilitators that share a store show the same number.",
    ),
    metric(
        "muster_facilitator_jobs_waiting",
        Gauge,
        &[Facilitator],
        &[],
        "Open jobs that their validators last reported as waiting in a queue.",
    ),
    metric(
        "muster_facilitator_validators",
        Gauge,
        &[Facilitator],
        &[],
        "Validators that are connected to this process.",
    ),
    metric(
        "muster_facilitator_gateways",
        Gauge,
        &[Facilitator],
        &[],
        "Validators that have announced a gateway for models.",
    ),
    metric(
        "muster_facilitator_web_sessions",
        Gauge,
        &[Facilitator],
        &[],
        "Browser sessions of users that have not expired.",
    ),
    metric(
        "muster_facilitator_watched_jobs",
        Gauge,
        &[Facilitator],
        &[],
        "Jobs that at least one event stream of this process follows.",
    ),
];
