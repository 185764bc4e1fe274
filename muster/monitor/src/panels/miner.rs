//! A miner's panels.

use std::time::Duration;

use muster_protocol::Timestamp;
use muster_status_views::miner::{
    DeclinedOffer, Earnings, EndedLease, LeaseView, MachineStatus, MinerStatus, Places, PublishedGrade,
    ServedValidator,
};

use super::panel::{Fact, Mark, Panel, PanelRow};
use crate::text::{age, bar, permille, sanitize, short_id, short_key, span, sparkline, until};

pub(super) fn headline(status: &MinerStatus) -> Vec<Fact> {
    let mut facts = vec![(short_key(&status.miner.to_string()), Mark::Plain)];
    facts.push(places("started", status.started));
    facts.push(places("enrolled", status.persistent));
    let connected = status
        .validators
        .iter()
        .filter(|validator| validator.sessions > 0)
        .count();
    let mark = if connected > 0 { Mark::Good } else { Mark::Bad };
    facts.push((format!("{connected} validators"), mark));
    if status.draining {
        facts.push(("draining".to_owned(), Mark::Bad));
    }
    facts
}

fn places(name: &str, places: Places) -> Fact {
    let mark = if places.busy > 0 { Mark::Busy } else { Mark::Plain };
    (format!("{name} {}/{}", places.busy, places.all), mark)
}

pub(super) fn panels(status: &MinerStatus, now: Timestamp) -> Vec<Panel> {
    vec![
        Panel {
            title: "Executors",
            head: &["name", "class", "cpu", "memory", "disk", "gpu", "temp", "history"],
            rows: status.machines.iter().map(machine_row).collect(),
        },
        Panel {
            title: "Leases",
            head: &["attempt", "state", "class", "validator", "ends in"],
            rows: status.leases.iter().map(|lease| lease_row(lease, now)).collect(),
        },
        Panel {
            title: "Ended",
            head: &["attempt", "end", "ago", "message"],
            rows: status.ended.iter().map(|ended| ended_row(ended, now)).collect(),
        },
        Panel {
            title: "Declined",
            head: &["attempt", "reason", "ago", "message"],
            rows: status
                .declines
                .iter()
                .map(|decline| decline_row(decline, now))
                .collect(),
        },
        Panel {
            title: "Earnings",
            head: &["validator", "receipts", "paid", "newest"],
            rows: status
                .earnings
                .iter()
                .map(|earned| earnings_row(earned, now))
                .collect(),
        },
        Panel {
            title: "Validators",
            head: &[
                "validator",
                "sessions",
                "served",
                "proven",
                "credit",
                "stated for",
            ],
            rows: status
                .validators
                .iter()
                .map(|validator| validator_row(validator, status))
                .collect(),
        },
    ]
}

fn machine_row(machine: &MachineStatus) -> PanelRow {
    let load = &machine.load;
    let disk = permille(load.disk_used, load.disk_total);
    let hottest = machine.gpus.iter().map(|gpu| gpu.celsius).max().unwrap_or(0);
    let history = machine.history.iter().map(|sample| {
        if load.gpus > 0 {
            sample.gpu_percent
        } else {
            sample.cpu_permille / 10
        }
    });
    let gpus: Vec<_> = machine
        .gpus
        .iter()
        .map(|gpu| {
            let watts = gpu.milliwatts / 1_000;
            format!(
                "{} {} % {}° {watts} W",
                sanitize(&gpu.name),
                gpu.percent,
                gpu.celsius
            )
        })
        .collect();
    PanelRow {
        cells: vec![
            sanitize(&load.name),
            load.class.to_string(),
            bar(load.cpu_permille),
            bar(permille(load.memory_used, load.memory_total)),
            bar(disk),
            if load.gpus > 0 {
                bar(load.gpu_percent.saturating_mul(10))
            } else {
                "-".to_owned()
            },
            if hottest > 0 {
                format!("{hottest}°")
            } else {
                "-".to_owned()
            },
            sparkline(history, 30),
        ],
        mark: if disk > 900 || hottest > 88 {
            Mark::Bad
        } else {
            Mark::Plain
        },
        details: gpus.join("  "),
    }
}

fn lease_row(lease: &LeaseView, now: Timestamp) -> PanelRow {
    PanelRow {
        cells: vec![
            short_id(&lease.attempt),
            sanitize(&lease.state),
            sanitize(&lease.class),
            short_key(&lease.validator),
            until(Some(lease.deadline), now),
        ],
        mark: Mark::Busy,
        details: sanitize(&format!("{}  {}", lease.attempt, lease.validator)),
    }
}

fn ended_row(ended: &EndedLease, now: Timestamp) -> PanelRow {
    PanelRow {
        cells: vec![
            short_id(&ended.attempt),
            sanitize(&ended.end),
            age(Some(ended.at), now),
            sanitize(&ended.message),
        ],
        mark: if ended.end == "horde_failed" {
            Mark::Bad
        } else {
            Mark::Past
        },
        details: sanitize(&format!("{}  {}", ended.attempt, ended.message)),
    }
}

fn decline_row(decline: &DeclinedOffer, now: Timestamp) -> PanelRow {
    PanelRow {
        cells: vec![
            short_id(&decline.attempt),
            sanitize(&decline.reason),
            age(Some(decline.at), now),
            sanitize(&decline.message),
        ],
        mark: if decline.reason == "busy" {
            Mark::Plain
        } else {
            Mark::Bad
        },
        details: sanitize(&format!("{}  {}", decline.attempt, decline.message)),
    }
}

fn earnings_row(earned: &Earnings, now: Timestamp) -> PanelRow {
    PanelRow {
        cells: vec![
            short_key(&earned.validator),
            earned.receipts.to_string(),
            format!("{} executor time", paid(earned.micros)),
            age(Some(earned.newest), now),
        ],
        mark: Mark::Plain,
        details: sanitize(&earned.validator),
    }
}

/// A paid time: in seconds up to two minutes.
fn paid(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    if seconds < 120 {
        format!("{seconds}s")
    } else {
        span(Duration::from_secs(seconds))
    }
}

/// A validator with the grades that it states about this miner.
fn validator_row(validator: &ServedValidator, status: &MinerStatus) -> PanelRow {
    let stated = status
        .grades
        .iter()
        .find(|stated| stated.validator == validator.validator);
    let grades = stated.map(|stated| stated.grades.as_slice()).unwrap_or_default();
    let proven: Vec<_> = grades.iter().map(|grade| grade.executors.to_string()).collect();
    let credit: Vec<_> = grades.iter().map(|grade| thousandths(grade.credit)).collect();
    let or_dash = |words: &[String]| match words.is_empty() {
        true => "-".to_owned(),
        false => words.join(", "),
    };
    let mut details = vec![validator.validator.clone()];
    details.extend(
        stated
            .map(|stated| stated.reason.clone())
            .filter(|reason| !reason.is_empty()),
    );
    details.extend(grades.iter().map(describe_grade));
    PanelRow {
        cells: vec![
            short_key(&validator.validator),
            validator.sessions.to_string(),
            if validator.served { "yes" } else { "no" }.to_owned(),
            or_dash(&proven),
            or_dash(&credit),
            stated
                .and_then(|stated| stated.cycle)
                .map_or_else(|| "-".to_owned(), |cycle| format!("cycle {cycle}")),
        ],
        mark: if validator.sessions > 0 {
            Mark::Good
        } else {
            Mark::Past
        },
        details: sanitize(&details.join("  ")),
    }
}

fn describe_grade(grade: &PublishedGrade) -> String {
    format!(
        "{} by {} probes: {} proven, credit {}, {} of {} offers refused",
        grade.class,
        grade.kind,
        grade.executors,
        thousandths(grade.credit),
        grade.refused,
        grade.offers
    )
}

fn thousandths(credit: u64) -> String {
    format!("{}.{:03}", credit / 1_000, credit % 1_000)
}
