//! One miner: the machines that it claims, and the grades that it got.

use maud::{Markup, html};
use muster_page_layout::text::{number, plain};
use muster_protocol::Timestamp;
use muster_protocol::wire::machines::MinerNotice;
use muster_status_views::validator::{GradesStatus, MinersStatus};

use super::{ValidatorVisit, validator_page};
use crate::CallAnswer;
use crate::frame::{Column, figures, part, section, table, when, words};

/// `/miners/KEY`: one miner.
pub fn miner(
    visit: &ValidatorVisit<'_>,
    hotkey: &str,
    miners: &CallAnswer<MinersStatus>,
    grades: &CallAnswer<GradesStatus>,
) -> String {
    let known = miners.as_ref().ok().and_then(|miners| {
        miners
            .miners
            .iter()
            .find(|miner| miner.miner.to_string() == hotkey)
    });
    let show = |status: &GradesStatus| {
        let rows: Vec<_> = status
            .grades
            .iter()
            .map(|grade| {
                [
                    html! { (number(grade.block)) },
                    words(grade.class.as_deref().unwrap_or("—")),
                    html! { (grade.index) },
                    words(&grade.said),
                ]
            })
            .collect();
        let columns = [
            Column::Number("Block"),
            Column::Text("Class"),
            Column::Number("Executor"),
            Column::Text("Grade and reasons"),
        ];
        table("Grades", columns, &rows, "It was never graded here.")
    };
    let body = html! {
        h1 { "Miner" }
        p.mono.break { (plain(hotkey)) }
        @match known {
            Some(known) => { (claims(known, visit.now)) }
            None => { p.empty { "Nothing is known of it: it has offered nothing and was never graded." } }
        }
        (section("grades", "Grades", &part(grades, show)))
    };
    validator_page("Miner", "", visit, &body)
}

fn claims(miner: &MinerNotice, now: Timestamp) -> Markup {
    let rows: Vec<_> = miner
        .claims
        .machines
        .iter()
        .map(|load| {
            [
                words(&load.name),
                html! { span.mono { (load.class) } },
                html! { (load.cpu_permille / 10) " %" },
                html! { (load.gpu_percent) " % of " (load.gpus) },
                when(Some(load.at), now),
            ]
        })
        .collect();
    let columns = [
        Column::Text("Executor"),
        Column::Text("Class"),
        Column::Number("Processor"),
        Column::Number("GPUs"),
        Column::Text("Measured"),
    ];
    html! {
        (figures(&[
            ("Offers", miner.claims.offers.iter().map(|offer| format!("{} × {}", offer.executors, offer.class)).collect::<Vec<_>>().join(", "), false),
            ("Proven", miner.proven.iter().map(|class| format!("{} of {} {}", class.proven, class.challenged, class.class)).collect::<Vec<_>>().join(", "), false),
        ]))
        (section("machines", "Machines, as the miner claims them", &table("Machines", columns, &rows, "It tells nothing of its machines.")))
    }
}
