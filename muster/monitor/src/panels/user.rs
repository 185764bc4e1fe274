//! A user's panels.

use muster_protocol::Timestamp;

use super::panel::{Fact, Mark, Panel, PanelRow};
use crate::board::{UserJob, UserStatus};
use crate::text::{age, sanitize, short_id, short_key};

pub(super) fn headline(status: &UserStatus) -> Vec<Fact> {
    let open = status.jobs.iter().filter(|job| !job.ended).count();
    let mark = if open > 0 { Mark::Busy } else { Mark::Plain };
    vec![
        (short_key(&status.account), Mark::Plain),
        (sanitize(&status.facilitator), Mark::Plain),
        (format!("{open} open"), mark),
    ]
}

pub(super) fn panels(status: &UserStatus, now: Timestamp) -> Vec<Panel> {
    let offers = status.offers.iter().map(|offer| PanelRow {
        cells: vec![
            sanitize(&offer.class),
            offer.executors.to_string(),
            offer.free.to_string(),
            offer.waiting.to_string(),
            sanitize(&offer.wait),
        ],
        mark: if offer.free > 0 { Mark::Good } else { Mark::Busy },
        details: String::new(),
    });
    vec![
        Panel {
            title: "Jobs",
            head: &["job", "state", "age", "since", "image", "note"],
            rows: status.jobs.iter().map(|job| row(job, now)).collect(),
        },
        Panel {
            title: "Offers",
            head: &["class", "executors", "free", "waiting", "a new job"],
            rows: offers.collect(),
        },
    ]
}

fn row(job: &UserJob, now: Timestamp) -> PanelRow {
    let mark = match (job.ended, job.completed) {
        (false, _) => Mark::Busy,
        (true, true) => Mark::Past,
        (true, false) => Mark::Bad,
    };
    PanelRow {
        cells: vec![
            short_id(&job.id),
            sanitize(&job.state),
            age(job.created_at, now),
            age(job.changed_at, now),
            sanitize(&job.image),
            sanitize(&job.note),
        ],
        mark,
        details: format!("{}  {}", sanitize(&job.id), sanitize(&job.note)),
    }
}
