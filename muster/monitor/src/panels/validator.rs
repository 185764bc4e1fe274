//! A validator's panels.

use muster_protocol::Timestamp;
use muster_status_views::audits::AuditRow;
use muster_status_views::validator::{
    BatchRow, CycleRow, JobStatusRow, LinkStatus, ModelRow, QueueLine, WaitingJobRow,
};

use super::panel::{Fact, Mark, Panel, PanelRow};
use crate::board::ValidatorBoard;
use crate::text::{age, sanitize, short_id, short_key, span, until};

pub(super) fn headline(board: &ValidatorBoard, _now: Timestamp) -> Vec<Fact> {
    let status = &board.status;
    let block = status
        .block
        .map_or_else(|| "no block yet".to_owned(), |block| format!("block {block}"));
    let mut facts = vec![(short_key(&status.validator), Mark::Plain), (block, Mark::Plain)];
    facts.push(link("chain", &status.chain));
    facts.push(link("facilitator", &status.facilitator));
    if status.updates_waiting > 0 {
        facts.push((format!("{} updates wait", status.updates_waiting), Mark::Busy));
    }
    facts
}

fn link(name: &str, link: &LinkStatus) -> Fact {
    match link.state.as_str() {
        "connected" => (format!("{name} ok"), Mark::Good),
        "lost" => (format!("{name} lost: {}", sanitize(&link.reason)), Mark::Bad),
        other => (format!("{name} {}", sanitize(other)), Mark::Busy),
    }
}

pub(super) fn panels(board: &ValidatorBoard, now: Timestamp) -> Vec<Panel> {
    vec![
        Panel {
            title: "Jobs",
            head: &["job", "status", "age", "miner", "uid", "attempts", "end"],
            rows: board.status.jobs.iter().map(|job| job_row(job, now)).collect(),
        },
        Panel {
            title: "Queue",
            head: &[
                "class / job",
                "waiting",
                "executors",
                "at work",
                "since",
                "until",
                "why",
            ],
            rows: queue_rows(board, now),
        },
        Panel {
            title: "Miners",
            head: &["miner", "class", "offered", "proven", "at block"],
            rows: miner_rows(board),
        },
        Panel {
            title: "Cycles",
            head: &["cycle", "state", "block", "miners", "weights", "dropped", "error"],
            rows: board.status.cycles.iter().map(cycle_row).collect(),
        },
        Panel {
            title: "Batches",
            head: &["batch", "block", "state", "age", "grades"],
            rows: board
                .batches
                .batches
                .iter()
                .map(|batch| batch_row(batch, now))
                .collect(),
        },
        Panel {
            title: "Models",
            head: &[
                "model", "starting", "live", "draining", "waiting", "served", "trouble",
            ],
            rows: board.sessions.models.iter().map(model_row).collect(),
        },
        Panel {
            title: "Audits",
            head: &["evidence", "verdict", "model", "coldkey", "quality", "adopted"],
            rows: board
                .audits
                .audits
                .iter()
                .map(|audit| audit_row(audit, now))
                .collect(),
        },
    ]
}

fn audit_row(audit: &AuditRow, now: Timestamp) -> PanelRow {
    let quality = audit.quality_per_mille;
    PanelRow {
        cells: vec![
            short_key(&audit.digest),
            sanitize(&audit.verdict),
            sanitize(&audit.model),
            short_key(&audit.coldkey),
            format!("{}.{} %", quality / 10, quality % 10),
            age(audit.adopted_at, now),
        ],
        mark: match audit.verdict.as_str() {
            "convicted" | "suspect" | "weak" => Mark::Bad,
            _ => Mark::Plain,
        },
        details: sanitize(&format!("{}  miners: {}", audit.digest, audit.miners.join(", "))),
    }
}

fn job_row(job: &JobStatusRow, now: Timestamp) -> PanelRow {
    let last = job.attempts.last();
    let end = job.outcome.as_ref().map_or("", |outcome| &outcome.summary);
    let mark = match (&job.outcome, job.status.as_str()) {
        (None, _) => Mark::Busy,
        (Some(_), "completed") => Mark::Past,
        (Some(_), _) => Mark::Bad,
    };
    let fault = job.fault.as_deref().unwrap_or("nobody");
    let details = match last {
        Some(attempt) => format!(
            "{}  attempt {}  {}  fault: {fault}  {end}",
            job.job, attempt.attempt, attempt.state
        ),
        None => format!("{}  {end}", job.job),
    };
    PanelRow {
        cells: vec![
            short_id(&job.job),
            job.status.to_string(),
            age(job.created_at, now),
            last.map_or_else(|| "-".to_owned(), |attempt| short_key(&attempt.miner)),
            last.map_or_else(|| "-".to_owned(), |attempt| attempt.uid.to_string()),
            job.attempts.len().to_string(),
            sanitize(end),
        ],
        mark,
        details: sanitize(&details),
    }
}

fn queue_rows(board: &ValidatorBoard, now: Timestamp) -> Vec<PanelRow> {
    let line = |line: &QueueLine| PanelRow {
        cells: vec![
            sanitize(&line.class),
            line.waiting.to_string(),
            line.executors.to_string(),
            line.at_work.to_string(),
            String::new(),
            String::new(),
            sanitize(line.why.as_deref().unwrap_or_default()),
        ],
        mark: if line.waiting > 0 { Mark::Busy } else { Mark::Plain },
        details: sanitize(&format!(
            "{} miners; a program takes {} s on average",
            line.miners,
            line.mean_s
                .map_or_else(|| "?".to_owned(), |mean| mean.to_string())
        )),
    };
    let job = |job: &WaitingJobRow| PanelRow {
        cells: vec![
            format!("  {}", short_id(&job.job)),
            format!("#{}", job.ahead.saturating_add(1)),
            String::new(),
            String::new(),
            age(job.since, now),
            until(job.deadline, now),
            short_key(&job.account),
        ],
        mark: Mark::Plain,
        details: sanitize(&job.job),
    };
    let mut rows = Vec::new();
    for class in &board.queue.lines {
        rows.push(line(class));
        let waiting = board
            .queue
            .jobs
            .iter()
            .filter(|waiting| waiting.class == class.class);
        rows.extend(waiting.map(job));
    }
    rows
}

fn miner_rows(board: &ValidatorBoard) -> Vec<PanelRow> {
    let mut rows = Vec::new();
    for miner in &board.miners.miners {
        let key = miner.miner.to_string();
        let mut classes: Vec<_> = miner.claims.offers.iter().map(|offer| offer.class).collect();
        classes.extend(miner.proven.iter().map(|proven| proven.class));
        classes.sort_unstable_by_key(|class| class.as_str());
        classes.dedup();
        for class in classes {
            let offered = miner.claims.offers.iter().find(|offer| offer.class == class);
            let proven = miner.proven.iter().find(|proven| proven.class == class);
            let mark = match proven {
                Some(proven) if proven.proven == 0 && proven.challenged > 0 => Mark::Bad,
                Some(_) => Mark::Good,
                None => Mark::Plain,
            };
            rows.push(PanelRow {
                cells: vec![
                    short_key(&key),
                    class.to_string(),
                    offered.map_or(0, |offer| offer.executors).to_string(),
                    proven.map_or_else(
                        || "-".to_owned(),
                        |proven| format!("{} of {}", proven.proven, proven.challenged),
                    ),
                    proven.map_or_else(|| "-".to_owned(), |proven| proven.block.to_string()),
                ],
                mark,
                details: key.clone(),
            });
        }
    }
    rows
}

fn cycle_row(cycle: &CycleRow) -> PanelRow {
    let mark = match (cycle.state.as_str(), &cycle.error) {
        (_, Some(_)) | ("missed" | "expired", None) => Mark::Bad,
        ("set", None) => Mark::Good,
        (_, None) => Mark::Busy,
    };
    let dropped = u64::try_from(cycle.dropped.len())
        .unwrap_or(u64::MAX)
        .saturating_add(cycle.more_dropped);
    let error = cycle.error.as_deref().unwrap_or_default();
    let weights: Vec<_> = cycle
        .weights
        .iter()
        .take(16)
        .map(|(uid, weight)| format!("{uid}:{weight}"))
        .collect();
    PanelRow {
        cells: vec![
            cycle.number.to_string(),
            sanitize(&cycle.state),
            cycle.at_block.to_string(),
            cycle.scores.len().to_string(),
            cycle.weights.len().to_string(),
            dropped.to_string(),
            sanitize(error),
        ],
        mark,
        details: format!("weights {}  {}", weights.join(" "), sanitize(error)),
    }
}

fn batch_row(batch: &BatchRow, now: Timestamp) -> PanelRow {
    let grades: Vec<_> = batch
        .grades
        .iter()
        .map(|(grade, count)| format!("{count} {}", sanitize(grade)))
        .collect();
    let took = match (batch.began_at, batch.ended_at) {
        (Some(began), Some(ended)) => format!("took {}", span(ended.since(began))),
        (Some(_) | None, _) => String::new(),
    };
    PanelRow {
        cells: vec![
            short_id(&batch.batch),
            batch.block.to_string(),
            sanitize(&batch.state),
            age(batch.began_at, now),
            grades.join(", "),
        ],
        mark: match batch.state.as_str() {
            "open" => Mark::Busy,
            "void" => Mark::Bad,
            _ => Mark::Plain,
        },
        details: format!("{}  {took}", sanitize(&batch.batch)),
    }
}

fn model_row(model: &ModelRow) -> PanelRow {
    let mark = if model.live > 0 {
        Mark::Good
    } else if model.waiting > 0 {
        Mark::Bad
    } else {
        Mark::Plain
    };
    PanelRow {
        cells: vec![
            sanitize(&model.model),
            model.starting.to_string(),
            model.live.to_string(),
            model.draining.to_string(),
            model.waiting.to_string(),
            model.serving.to_string(),
            sanitize(&model.trouble),
        ],
        mark,
        details: sanitize(&model.trouble),
    }
}
