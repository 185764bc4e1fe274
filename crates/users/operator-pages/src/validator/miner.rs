//! One miner: the machines that it claims, and the grades that it got.

use maud::{Markup, html};
use muster_page_layout::text::{bytes, number, plain};
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
        (section("hardware", "Hardware, as the miner claims it", &hardware(miner, now)))
        (section("machines", "Load of persistent executors, as the miner claims it", &table("Machines", columns, &rows, "It tells nothing of such executors.")))
    }
}

/// The machine that served last as an executor of each class.
fn hardware(miner: &MinerNotice, now: Timestamp) -> Markup {
    let stated = |amount: u64, text: String| if amount == 0 { "—".to_owned() } else { text };
    let rows: Vec<_> = miner
        .claims
        .specs
        .iter()
        .map(|specs| {
            let processors = format!("{} × {}", specs.cores, specs.cpu);
            [
                html! { span.mono { (specs.class) } },
                words(&stated(specs.cores, processors)),
                html! { (stated(specs.memory, bytes(specs.memory))) },
                html! { (stated(specs.disk, bytes(specs.disk))) },
                words(&specs.gpus.join(", ")),
                words(&specs.os),
                when(Some(specs.told_at), now),
            ]
        })
        .collect();
    let columns = [
        Column::Text("Class"),
        Column::Text("Processors"),
        Column::Number("Memory"),
        Column::Number("Disk"),
        Column::Text("GPUs"),
        Column::Text("System"),
        Column::Text("Told"),
    ];
    table(
        "Hardware",
        columns,
        &rows,
        "None of its executors has run anything for this validator yet.",
    )
}
