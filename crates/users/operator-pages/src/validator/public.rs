//! The subnet in numbers, for everybody.

use maud::html;
use muster_page_layout::text::{number, plain};
use muster_status_views::validator::{MinersStatus, QueueStatus, ValidatorStatus};

use super::ValidatorVisit;
use crate::CallAnswer;
use crate::frame::{Column, figures, part, role_page, table};

/// `/subnet`: the subnet in numbers, for everybody.
pub fn public(
    visit: &ValidatorVisit<'_>,
    status: &CallAnswer<ValidatorStatus>,
    queue: &CallAnswer<QueueStatus>,
    miners: &CallAnswer<MinersStatus>,
) -> String {
    let block = status.as_ref().ok().and_then(|status| status.block);
    let proven = |miners: &MinersStatus| {
        miners
            .miners
            .iter()
            .filter(|miner| miner.proven.iter().any(|class| class.proven > 0))
            .count()
    };
    let offering = |miners: &MinersStatus| {
        miners
            .miners
            .iter()
            .filter(|miner| !miner.claims.offers.is_empty())
            .count()
    };
    let rows = |queue: &QueueStatus| {
        let rows: Vec<_> = queue
            .lines
            .iter()
            .map(|line| {
                [
                    html! { span.mono { (plain(&line.class)) } },
                    html! { (line.miners) },
                    html! { (line.executors) },
                    html! { (line.at_work) },
                    html! { (number(line.waiting)) },
                ]
            })
            .collect();
        let columns = [
            Column::Text("Class"),
            Column::Number("Miners"),
            Column::Number("Executors"),
            Column::Number("At work here"),
            Column::Number("Jobs waiting"),
        ];
        table("Classes", columns, &rows, "No class is offered.")
    };
    let body = html! {
        h1 { "The subnet now" }
        (part(miners, |miners| figures(&[
            ("Block", block.map_or_else(|| "none yet".to_owned(), number), false),
            ("Miners with executors", offering(miners).to_string(), false),
            ("Miners with proven executors", proven(miners).to_string(), false),
        ])))
        (part(queue, rows))
        p.help { "As this validator sees it." }
    };
    role_page(
        "Subnet",
        visit.validator,
        "/subnet",
        [("/subnet", "Subnet")],
        false,
        &body,
    )
}
