//! The validator's metrics, and those of its gateway.

use super::super::metric_entry::MetricEntry;
use super::super::metric_entry::MetricKind::{Counter, Gauge, Histogram};
use super::super::metric_entry::MetricRole::Validator;
use super::labels::{A_GATEWAY, CLASS, FAULT, MODEL, OUTCOME, bounded_by, metric, one_of};

pub(super) const METRICS: &[MetricEntry] = &[
    // === the validator ===
    metric(
        "muster_validator_leads",
        Gauge,
        &[Validator],
        &[],
        "Whether this process leads: 1, or 0 while it stands by.",
    ),
    metric(
        "muster_validator_facilitator_connected",
        Gauge,
        &[Validator],
        &[],
        "Whether the facilitator has accepted this validator's connection: 1 or 0.",
    ),
    metric(
        "muster_validator_updates_waiting",
        Gauge,
        &[Validator],
        &[],
        "Status updates that the facilitator has not acknowledged.",
    ),
    metric(
        "muster_validator_live_dropped_total",
        Counter,
        &[Validator],
        &[],
        "Pieces of jobs' live output that were dropped because the facilitator did not keep up.",
    ),
    metric(
        "muster_validator_jobs_ended_total",
        Counter,
        &[Validator],
        &[OUTCOME, FAULT],
        "Jobs that ended, those of the gateway and of grading included.",
    ),
    metric(
        "muster_validator_jobs_running",
        Gauge,
        &[Validator],
        &[],
        "Jobs with a driver: those that have an attempt.",
    ),
    metric(
        "muster_validator_jobs_waiting",
        Gauge,
        &[Validator],
        &[CLASS],
        "Jobs in the queue.",
    ),
    metric(
        "muster_validator_attempts_ended_total",
        Counter,
        &[Validator],
        &[OUTCOME, FAULT],
        "Attempts that ended. A job may take several.",
    ),
    metric(
        "muster_validator_attempt_seconds",
        Histogram,
        &[Validator],
        &[OUTCOME],
        "Time from an attempt's offer to its end.",
    )
    .needing("an attempt"),
    metric(
        "muster_validator_miners",
        Gauge,
        &[Validator],
        &[one_of("state", &["known", "usable", "proven"])],
        "Miners: with an address on the chain; of them with executors on offer; of them with proven executors.",
    ),
    metric(
        "muster_validator_executors",
        Gauge,
        &[Validator],
        &[CLASS, one_of("state", &["offered", "at_work"])],
        "Executors on offer, and this validator's attempts on them.",
    )
    .needing("a miner with executors"),
    metric(
        "muster_validator_grading_batches_total",
        Counter,
        &[Validator],
        &[],
        "Grading batches that were finished.",
    ),
    metric(
        "muster_validator_grades_total",
        Counter,
        &[Validator],
        &[one_of("grade", &["proven", "serving", "excused", "zero", "void"])],
        "Executors that were graded in finished batches.",
    ),
    metric(
        "muster_validator_chain_connected",
        Gauge,
        &[Validator],
        &[],
        "Whether the chain answered when it was last asked: 1 or 0.",
    ),
    metric(
        "muster_validator_chain_block",
        Gauge,
        &[Validator],
        &[],
        "The newest finalised block that was seen.",
    )
    .needing("a chain that has answered"),
    metric(
        "muster_validator_chain_lag_seconds",
        Gauge,
        &[Validator],
        &[],
        "Time since a newer finalised block was seen.",
    ),
    metric(
        "muster_validator_cycle_scored",
        Gauge,
        &[Validator],
        &[],
        "The number of the newest scored cycle: the block at which it begins.",
    )
    .needing("a scored cycle"),
    metric(
        "muster_validator_cycles",
        Gauge,
        &[Validator],
        &[one_of(
            "state",
            &["pending", "committed", "set", "kept", "missed", "expired"],
        )],
        "The newest 20 scored cycles by what became of their weights.",
    ),
    metric(
        "muster_validator_weights_age_blocks",
        Gauge,
        &[Validator],
        &[],
        "Blocks since the chain last took weights, or a commit to them, from this validator's key.",
    )
    .needing("a key registered on the subnet"),
    metric(
        "muster_validator_weights_failing",
        Gauge,
        &[Validator],
        &[],
        "Whether the chain refused the weights of the newest cycle when they were last sent: 1 or 0.",
    ),
    metric(
        "muster_validator_receipts_gathered",
        Gauge,
        &[Validator],
        &[],
        "Receipts of all validators that were read from miners' pages and are in the store.",
    ),
    // === the gateway ===
    metric(
        "muster_gateway_sessions",
        Gauge,
        &[Validator],
        &[MODEL, one_of("state", &["starting", "live", "draining"])],
        "Sealed sessions that serve a model.",
    )
    .needing(A_GATEWAY),
    metric(
        "muster_gateway_requests",
        Gauge,
        &[Validator],
        &[MODEL, one_of("state", &["waiting", "served"])],
        "Requests that wait for a session, and those that are being served.",
    )
    .needing(A_GATEWAY),
    metric(
        "muster_gateway_responses_total",
        Counter,
        &[Validator],
        &[
            MODEL,
            one_of("verdict", &["proven", "unproven"]),
            bounded_by("end", "one of the six ends of a stream"),
        ],
        "Responses by what their check gave and by how they ended.",
    )
    .needing("a response"),
    metric(
        "muster_gateway_tokens_total",
        Counter,
        &[Validator],
        &[MODEL, one_of("of", &["input", "output"])],
        "Tokens of requests and of responses.",
    )
    .needing("a response"),
    metric(
        "muster_gateway_first_byte_seconds",
        Histogram,
        &[Validator],
        &[MODEL],
        "Time from a request to the first byte of its response.",
    )
    .needing("a response"),
    metric(
        "muster_gateway_refused_total",
        Counter,
        &[Validator],
        &[bounded_by("code", "one of the gateway's error codes")],
        "Requests that were answered with an error.",
    )
    .needing("such a request"),
    metric(
        "muster_gateway_sessions_unusable_total",
        Counter,
        &[Validator],
        &[],
        "Sessions that miners opened and whose seal or service did not answer.",
    ),
    metric(
        "muster_gateway_kept_text_bytes",
        Gauge,
        &[Validator],
        &[],
        "Bytes of the texts of users' answers that the open bucket keeps until its draw. More than 1 GiB are never kept.",
    )
    .needing(A_GATEWAY),
    metric(
        "muster_gateway_text_let_go_total",
        Counter,
        &[Validator],
        &[one_of("by", &["session", "client", "coldkey", "all", "own"])],
        "Texts of answers that were let go before the draw because their bucket was full, by the party that held the most.",
    )
    .needing("a full bucket"),
    metric(
        "muster_gateway_padded_answers_total",
        Counter,
        &[Validator],
        &[],
        "Answers that were ended because they had eight times the bytes that the own miner's tokens have.",
    )
    .needing("such an answer"),
    metric(
        "muster_audit_answers_total",
        Counter,
        &[Validator],
        &[one_of("of", &["logged", "drawn"])],
        "Proven answers in buckets from which was drawn: all of them, and those that the draws chose.",
    )
    .needing("a draw"),
    metric(
        "muster_audit_verdicts_total",
        Counter,
        &[Validator],
        &[bounded_by("verdict", "one of the seven verdicts of spot checks")],
        "Verdicts of this validator's own audits.",
    )
    .needing("an audit with a verdict"),
    metric(
        "muster_audit_self_test_convicted",
        Gauge,
        &[Validator],
        &[bounded_by(
            "model",
            "one of the models of `audit.self_test.cheats`",
        )],
        "1 if the last self-test of the spot checks convicted the cheat that was planted, 0 if it did not.",
    )
    .needing("a self-test with a verdict"),
    metric(
        "muster_cross_checks_total",
        Counter,
        &[Validator],
        &[one_of("verdict", &["agrees", "differs", "unproven"])],
        "Users' jobs that ran again on the validator's own miner, by what that showed.",
    )
    .needing("a job that ran again"),
    metric(
        "muster_own_checks_total",
        Counter,
        &[Validator],
        &[one_of("verdict", &["agrees", "differs", "unproven"])],
        "The validator's own deterministic jobs, by what running them again showed.",
    )
    .needing("a program in `cross_checks.programs`"),
];
