//! The route of one job: the miner of each attempt, the candidates with their costs, and the miners that were not
//! asked.

use maud::{Markup, html};
use muster_page_layout::text::{number, plain};
use muster_protocol::Timestamp;
use muster_routing::{Candidate, RouteDecision};
use serde::Deserialize;

use super::{ValidatorVisit, validator_page};
use crate::CallAnswer;
use crate::frame::{Column, key, part, section, table, when, words};

/// `GET /v0/jobs/{job}/route`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct RoutesStatus {
    /// One entry an attempt, the oldest first.
    routes: Vec<StoredRoute>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct StoredRoute {
    ordinal: u32,
    decided_at: Timestamp,
    #[serde(flatten)]
    decision: RouteDecision,
}

/// `/jobs/JOB`: why each attempt of a job went to its miner.
pub fn route(visit: &ValidatorVisit<'_>, job: &str, routes: &CallAnswer<RoutesStatus>) -> String {
    let body = html! {
        h1 { "Route of a job" }
        p.mono.break { (plain(job)) }
        (part(routes, |status| html! { @for route in &status.routes { (attempt(visit, route)) } }))
    };
    validator_page("Route", "/jobs", visit, &body)
}

fn attempt(visit: &ValidatorVisit<'_>, route: &StoredRoute) -> Markup {
    let decision = &route.decision;
    let rows: Vec<_> = decision
        .candidates
        .iter()
        .map(|candidate| row(decision, candidate))
        .collect();
    let columns = [
        Column::Number("uid"),
        Column::Text("Miner"),
        Column::Text(""),
        Column::Number("Cost"),
        Column::Number("Record"),
        Column::Number("Load"),
        Column::Number("Image"),
        Column::Number("Inputs"),
        Column::Number("Fairness"),
        Column::Number("Newcomer"),
    ];
    section(
        &format!("attempt-{}", route.ordinal),
        &format!("Attempt {}", route.ordinal),
        &html! {
            p { "Decided " (when(Some(route.decided_at), visit.now)) " at block " (number(decision.block))
                " for class " span.mono { (decision.class) } ": the cheapest candidate was asked." }
            (table("Candidates", columns, &rows, "Nobody could be asked."))
            @if decision.more > 0 { p.help { "and " (number(u64::from(decision.more))) " more, dearer ones" } }
            @for group in &decision.excluded {
                p { "Not asked: uid " @for (place, uid) in group.uids.iter().enumerate() { @if place > 0 { ", " } (uid) } ": "
                    (words(&group.reason.to_string())) }
            }
        },
    )
}

fn row(decision: &RouteDecision, candidate: &Candidate) -> [Markup; 10] {
    let miner = candidate.miner.to_string();
    let cost = &candidate.cost;
    [
        html! { (candidate.uid) },
        html! { a href=(format!("/miners/{miner}")) { (key(&miner)) } },
        html! { @if decision.chosen == Some(candidate.miner) { strong { "asked" } } },
        html! { (cost.total()) },
        html! { (cost.record) },
        html! { (cost.load) },
        html! { (cost.image) },
        html! { (cost.inputs) },
        html! { (cost.fairness) },
        html! { (cost.newcomer) },
    ]
}
