//! The scored cycles, and how the newest was scored.

use std::time::Duration;

use maud::{Markup, html};
use muster_page_layout::text::{number, plain, span};
use muster_status_views::validator::{CycleRow, SubnetStatus, ValidatorStatus};

use super::{ValidatorVisit, validator_page, weight};
use crate::CallAnswer;
use crate::frame::{Column, key, part, section, table, verdict, words};

/// `/weights`: the scored cycles, and how the newest was scored.
pub fn weights(
    visit: &ValidatorVisit<'_>,
    status: &CallAnswer<ValidatorStatus>,
    subnet: &CallAnswer<SubnetStatus>,
) -> String {
    let body = html! {
        h1 { "Weights" }
        (section("cycles", "Scored cycles", &part(status, |status| cycles(&status.cycles))))
        @if let Ok(status) = status {
            @if let Some(newest) = status.cycles.first() {
                (section("score", &format!("The score of cycle {}", newest.number), &score(newest, subnet)))
            }
        }
    };
    validator_page("Weights", "/weights", visit, &body)
}

fn cycles(cycles: &[CycleRow]) -> Markup {
    let rows: Vec<_> = cycles
        .iter()
        .map(|cycle| {
            let failed = cycle.error.is_some() || ["missed", "expired"].contains(&cycle.state.as_str());
            let dropped = u64::try_from(cycle.dropped.len())
                .unwrap_or(u64::MAX)
                .saturating_add(cycle.more_dropped);
            [
                html! { (number(cycle.number)) },
                html! { (number(cycle.first_block)) "–" (number(cycle.last_block)) },
                verdict(&cycle.state, !failed),
                html! { (cycle.weights.len()) },
                html! { (number(dropped)) },
                match &cycle.snapshot {
                    Some(digest) => {
                        html! { a href=(format!("/v0/scoring-snapshots/{}", plain(digest))) { (key(digest)) } }
                    }
                    None => html! { "—" },
                },
                words(cycle.error.as_deref().unwrap_or("—")),
            ]
        })
        .collect();
    let columns = [
        Column::Number("Cycle"),
        Column::Text("Blocks"),
        Column::Text("State"),
        Column::Number("Weights"),
        Column::Number("Dropped receipts"),
        Column::Wide("Snapshot"),
        Column::Text("Chain's error"),
    ];
    table("Scored cycles", columns, &rows, "No cycle is scored yet.")
}

fn score(cycle: &CycleRow, subnet: &CallAnswer<SubnetStatus>) -> Markup {
    let on_chain = |uid: u16| {
        let subnet = subnet.as_ref().ok()?;
        subnet
            .neurons
            .iter()
            .find(|neuron| neuron.uid == uid)?
            .chain_weight
    };
    let all: u64 = cycle
        .scores
        .iter()
        .map(|score| score.vested.unwrap_or(score.points))
        .sum();
    let rows: Vec<_> = cycle
        .scores
        .iter()
        .map(|score| {
            let paid = score.vested.unwrap_or(score.points);
            let decided = cycle
                .weights
                .iter()
                .find(|(uid, _)| *uid == score.uid)
                .map(|(_, weight)| *weight);
            let share = u128::from(paid)
                .saturating_mul(1_000)
                .checked_div(u128::from(all))
                .unwrap_or(0);
            [
                html! { (score.uid) },
                key(&score.miner),
                words(&span(Duration::from_micros(score.micros))),
                html! { (score.credit / 1_000) "." (format!("{:03}", score.credit % 1_000)) },
                html! { (number(score.points)) },
                html! { (number(paid)) },
                html! { (share / 10) "." (share % 10) " %" },
                weight(decided),
                weight(on_chain(score.uid)),
            ]
        })
        .collect();
    let columns = [
        Column::Number("uid"),
        Column::Text("Miner"),
        Column::Number("Paid work"),
        Column::Number("Proven executors"),
        Column::Number("Points"),
        Column::Number("Points paid now"),
        Column::Number("Share"),
        Column::Number("Weight"),
        Column::Number("On the chain"),
    ];
    let reasons = |what: &serde_json::Value| plain(&what.to_string());
    html! {
        (table("Scores", columns, &rows, "No miner has earned anything in this cycle."))
        p.help {
            "Points come from paid work and from proven executors; those of several cycles are paid together. "
            "A miner's weight is its share of the points that are paid now."
        }
        @if !cycle.zeros.is_empty() {
            details { summary { "Neurons without a weight: " (cycle.zeros.len()) }
                ul.plain { @for zero in cycle.zeros.iter().take(256) { li.mono { (reasons(zero)) } } } }
        }
        @if !cycle.dropped.is_empty() {
            details { summary { "Receipts that do not count: " (cycle.dropped.len()) }
                ul.plain { @for dropped in cycle.dropped.iter().take(256) { li.mono { (reasons(dropped)) } } } }
        }
    }
}
