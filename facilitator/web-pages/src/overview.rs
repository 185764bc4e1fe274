//! The overview: the newest jobs, what the subnet offers now, and what the account holds.

use std::time::Duration;

use maud::{Markup, html};
use muster_protocol::account_api::AccountView;
use muster_protocol::rest::{ClassOffer, JobPage, SubnetCapacity, WATCHED_DISK_NOTE};

use crate::PagePart;
use crate::frame::{Section, Visitor, page, part, scroll};
use crate::jobs;
use crate::text::{number, span};

/// The parts of the overview.
#[derive(Debug)]
pub struct Overview {
    /// The numbers of the account's jobs, files and keys.
    pub account: PagePart<AccountView>,
    /// The newest jobs.
    pub jobs: PagePart<JobPage>,
    /// The offers of the subnet's miners, by validator and class.
    pub subnet: PagePart<SubnetCapacity>,
    /// The tokens of today, all models together.
    pub tokens_today: PagePart<u64>,
}

/// The overview as HTML.
pub fn render(visitor: &Visitor<'_>, overview: &Overview) -> String {
    let body = html! {
        div.title { h1 { "Overview" } a.button.main href="/jobs/new" { "New job" } }
        (part(&overview.account, |account| figures(account, &overview.tokens_today)))
        section aria-labelledby="newest" {
            div.title { h2 #newest { "Newest jobs" } a href="/jobs" { "All jobs" } }
            (part(&overview.jobs, |found| jobs::table(&found.results, visitor.now)))
        }
        section aria-labelledby="subnet" {
            h2 #subnet { "The subnet now" }
            (part(&overview.subnet, offers))
        }
    };
    page("Overview", Section::Overview, visitor, &body)
}

fn figures(account: &AccountView, tokens: &PagePart<u64>) -> Markup {
    let entry = |name: &str, value: String, path: &str| {
        html! { div { dt { (name) } dd { a href=(path) { (value) } } } }
    };
    html! {
        dl.figures {
            (entry("Open jobs", number(account.open_jobs), "/jobs?status=open"))
            (entry("Jobs", number(account.jobs), "/jobs"))
            (entry("Files", number(account.files), "/files"))
            (entry("API keys", number(account.keys), "/keys"))
            @if let Ok(tokens) = tokens { (entry("Tokens today", number(*tokens), "/usage")) }
        }
    }
}

fn offers(subnet: &SubnetCapacity) -> Markup {
    if subnet.results.is_empty() {
        return html! { p.empty { "No validator that takes jobs has told what its miners offer." } };
    }
    let table = html! {
        table {
            thead { tr {
                th scope="col" { "Class" }
                th.n scope="col" { "Free" }
                th.n.wide scope="col" { "Miners" }
                th.n scope="col" { "Waiting" }
                th scope="col" { "Your next job" }
                th.wide scope="col" { "Hardware" }
            } }
            tbody {
                @for validator in &subnet.results {
                    @for offer in &validator.classes {
                        tr {
                            th.mono scope="row" { (offer.class) }
                            td.n { (offer.free) " of " (offer.executors) }
                            td.n.wide { (offer.miners) }
                            td.n { (number(offer.waiting)) }
                            td {
                                @if offer.free > 0 && offer.ahead == 0 { "at once" }
                                @else if let Some(seconds) = offer.estimate_s {
                                    "after about " (span(Duration::from_secs(seconds)))
                                }
                                @else { "unknown" }
                            }
                            td.wide { (offer.hardware.as_deref().unwrap_or("—")) }
                        }
                    }
                }
            }
        }
    };
    let watched = subnet
        .results
        .iter()
        .flat_map(|validator| &validator.classes)
        .any(ClassOffer::has_watched_disks);
    html! {
        (scroll("Offers of the subnet", &table))
        @if watched { p.help { "Watched disk: " (WATCHED_DISK_NOTE) "." } }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_with_watched_disks_is_named_and_explained() {
        let shown = |hardware: &str| {
            let subnet = json!({"results": [{
                "validator": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY", "told_at": "2026-01-21T12:34:56Z",
                "limits": {"job_s": 1, "image_s": 2, "image_default_s": 3, "queue_s": 4, "queue_default_s": 5},
                "classes": [{"class": "always_on.test", "hardware": hardware, "miners": 1, "executors": 1, "free": 1,
                    "running": 0, "private_images": 0, "waiting": 0, "ahead": 0, "estimate_s": null, "why": ""}],
            }]});
            offers(&serde_json::from_value(subnet).unwrap()).into_string()
        };
        let noted = shown("8 cores, some with a watched disk");
        assert!(
            noted.contains("8 cores, some with a watched disk</td>"),
            "{noted}"
        );
        assert!(noted.contains(WATCHED_DISK_NOTE), "{noted}");
        assert!(!shown("8 cores").contains("atched disk"));
    }
}
