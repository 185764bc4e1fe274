//! The queue and the newest jobs.

use std::time::Duration;

use maud::{Markup, html};
use muster_page_layout::text::{number, plain, span};
use muster_protocol::Timestamp;
use muster_status_views::validator::{JobStatusRow, QueueStatus, ValidatorStatus};

use super::{ValidatorVisit, validator_page};
use crate::CallAnswer;
use crate::frame::{Column, key, part, section, table, verdict, when, words};

/// `/jobs`: the queue and the newest jobs.
pub fn jobs(
    visit: &ValidatorVisit<'_>,
    queue: &CallAnswer<QueueStatus>,
    status: &CallAnswer<ValidatorStatus>,
) -> String {
    let body = html! {
        h1 { "Jobs" }
        (section("queue", "Queue", &part(queue, |queue| lines(queue, visit.now))))
        (section("newest", "Newest jobs", &part(status, |status| job_table(&status.jobs, visit.now))))
    };
    validator_page("Jobs", "/jobs", visit, &body)
}

fn lines(queue: &QueueStatus, now: Timestamp) -> Markup {
    let rows: Vec<_> = queue
        .lines
        .iter()
        .map(|line| {
            [
                html! { span.mono { (plain(&line.class)) } },
                html! { (number(line.waiting)) },
                html! { (line.at_work) " of " (line.executors) },
                html! { (line.miners) },
                line.mean_s
                    .map_or_else(|| html! { "—" }, |mean| words(&span(Duration::from_secs(mean)))),
                words(line.why.as_deref().unwrap_or("—")),
            ]
        })
        .collect();
    let columns = [
        Column::Text("Class"),
        Column::Number("Waiting"),
        Column::Number("At work"),
        Column::Number("Miners"),
        Column::Number("Mean time"),
        Column::Text("Why jobs wait"),
    ];
    let waiting: Vec<_> = queue
        .jobs
        .iter()
        .map(|job| {
            [
                key(&job.job),
                html! { span.mono { (plain(&job.class)) } },
                html! { (number(job.ahead)) },
                key(&job.account),
                when(job.since, now),
                when(job.deadline, now),
            ]
        })
        .collect();
    let waiting_columns = [
        Column::Text("Job"),
        Column::Text("Class"),
        Column::Number("Ahead"),
        Column::Wide("Account"),
        Column::Text("Since"),
        Column::Text("Until"),
    ];
    html! {
        (table("Lines of the queue", columns, &rows, "No class is offered or waited for."))
        (table("Waiting jobs", waiting_columns, &waiting, "No job waits."))
    }
}

fn job_table(jobs: &[JobStatusRow], now: Timestamp) -> Markup {
    let rows: Vec<_> = jobs
        .iter()
        .map(|job| {
            let last = job.attempts.last();
            let end = job.outcome.as_ref().map(|outcome| outcome.summary.as_str());
            [
                html! { a href=(format!("/jobs/{}", plain(&job.job))) { (key(&job.job)) } },
                html! { (job.status) },
                last.map_or_else(|| html! { "—" }, |attempt| html! {
                    a href=(format!("/miners/{}", plain(&attempt.miner))) { "uid " (attempt.uid) } " " (plain(&attempt.state))
                }),
                html! { (job.attempts.len()) },
                when(job.created_at, now),
                match (end, job.fault.as_deref()) {
                    (Some(end), Some(fault)) if fault != "nobody" => html! { (verdict(&format!("{fault}: "), false)) (words(end)) },
                    (Some(end), _) => words(end),
                    (None, _) => html! { "—" },
                },
            ]
        })
        .collect();
    let columns = [
        Column::Text("Job"),
        Column::Text("Status"),
        Column::Text("Miner"),
        Column::Number("Attempts"),
        Column::Text("Arrived"),
        Column::Text("End and fault"),
    ];
    table("Newest jobs", columns, &rows, "No job has come yet.")
}
