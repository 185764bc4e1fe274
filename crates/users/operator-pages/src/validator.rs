//! The pages of a validator's operator, and the page of its subnet that everybody may read. Each page has a file.

mod audits;
mod grading;
mod jobs;
mod miner;
mod public;
mod route;
mod sessions;
mod subnet;
#[cfg(test)]
mod tests;
mod weights;

pub use audits::{audit, audits};
pub use grading::grading;
pub use jobs::jobs;
use maud::{Markup, html};
pub use miner::miner;
use muster_page_layout::text::number;
use muster_protocol::Timestamp;
pub use public::public;
pub use route::{RoutesStatus, route};
pub use sessions::sessions;
pub use subnet::subnet;
pub use weights::weights;

use crate::frame::{Entries, role_page};

const ENTRIES: Entries<6> = [
    ("/", "Subnet"),
    ("/jobs", "Jobs"),
    ("/grading", "Grading"),
    ("/weights", "Weights"),
    ("/sessions", "Sessions"),
    ("/audits", "Audits"),
];

/// The facts that each page has beside its own data.
#[derive(Clone, Copy, Debug)]
pub struct ValidatorVisit<'a> {
    /// The validator's hotkey.
    pub validator: &'a str,
    /// The time at which the page is made.
    pub now: Timestamp,
}

fn validator_page(title: &str, path: &str, visit: &ValidatorVisit<'_>, body: &Markup) -> String {
    role_page(title, visit.validator, path, ENTRIES, true, body)
}

/// A weight, or a dash.
fn weight(weight: Option<u16>) -> Markup {
    match weight {
        Some(weight) => html! { (number(u64::from(weight))) },
        None => html! { "—" },
    }
}
