//! The newest batches of proofs.

use maud::html;
use muster_page_layout::text::{number, plain};
use muster_status_views::validator::BatchesStatus;

use super::{ValidatorVisit, validator_page};
use crate::CallAnswer;
use crate::frame::{Column, key, part, table, verdict, when, words};

/// `/grading`: the newest batches.
pub fn grading(visit: &ValidatorVisit<'_>, batches: &CallAnswer<BatchesStatus>) -> String {
    let show = |status: &BatchesStatus| {
        let rows: Vec<_> = status
            .batches
            .iter()
            .map(|batch| {
                let grades: Vec<_> = batch
                    .grades
                    .iter()
                    .map(|(grade, count)| format!("{count} {}", plain(grade)))
                    .collect();
                [
                    html! { a href=(format!("/v0/batches/{}", plain(&batch.batch))) { (key(&batch.batch)) } },
                    html! { (number(batch.block)) },
                    verdict(&batch.state, batch.state != "void"),
                    when(batch.began_at, visit.now),
                    words(&grades.join(", ")),
                ]
            })
            .collect();
        let columns = [
            Column::Text("Batch"),
            Column::Number("Block"),
            Column::Text("State"),
            Column::Text("Began"),
            Column::Text("Grades"),
        ];
        table("Grading batches", columns, &rows, "No batch has been drawn yet.")
    };
    let body = html! { h1 { "Grading" } (part(batches, show)) };
    validator_page("Grading", "/grading", visit, &body)
}
