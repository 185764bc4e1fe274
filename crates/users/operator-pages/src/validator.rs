//! The pages of a validator's operator, and the page of its subnet that everybody may read.

use std::time::Duration;

use maud::{Markup, html};
use muster_page_frame::text::{number, plain, span};
use muster_protocol::Timestamp;
use muster_protocol::wire::machines::MinerNotice;
use muster_status_views::validator::{
    BatchesStatus, CycleRow, GradesStatus, JobStatusRow, LinkStatus, MinersStatus, NeuronRow, QueueStatus,
    SessionsStatus, SubnetStatus, ValidatorStatus,
};

use crate::CallAnswer;
use crate::frame::{Column, Entries, figures, key, part, role_page, section, table, verdict, when, words};

const ENTRIES: Entries<5> = [
    ("/", "Subnet"),
    ("/jobs", "Jobs"),
    ("/grading", "Grading"),
    ("/weights", "Weights"),
    ("/sessions", "Sessions"),
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

/// `/`: the links, and every miner of the subnet.
pub fn subnet(
    visit: &ValidatorVisit<'_>,
    status: &CallAnswer<ValidatorStatus>,
    subnet: &CallAnswer<SubnetStatus>,
    miners: &CallAnswer<MinersStatus>,
) -> String {
    let body = html! {
        h1 { "Subnet" }
        (part(status, head))
        (section("miners", "Miners", &part(subnet, |subnet| {
            let empty = MinersStatus::default();
            neurons(subnet, miners.as_ref().unwrap_or(&empty))
        })))
        @if let Err(reason) = miners { p.problem { (plain(reason)) } }
    };
    validator_page("Subnet", "/", visit, &body)
}

fn head(status: &ValidatorStatus) -> Markup {
    let block = status.block.map_or_else(|| "none yet".to_owned(), number);
    let open = status.jobs.iter().filter(|job| job.outcome.is_none()).count();
    html! {
        (figures(&[
            ("Block", block, status.block.is_none()),
            ("Chain", link(&status.chain), status.chain.state != "connected"),
            ("Facilitator", link(&status.facilitator), status.facilitator.state != "connected"),
            ("Open jobs of the newest", open.to_string(), false),
            ("Updates not acknowledged", number(status.updates_waiting), status.updates_waiting > 100),
            ("Receipts gathered", number(status.gathered), false),
        ]))
    }
}

fn link(link: &LinkStatus) -> String {
    if link.reason.is_empty() {
        plain(&link.state)
    } else {
        format!("{}: {}", plain(&link.state), plain(&link.reason))
    }
}

fn neurons(subnet: &SubnetStatus, miners: &MinersStatus) -> Markup {
    let rows: Vec<_> = subnet
        .neurons
        .iter()
        .map(|neuron| {
            let known = miners
                .miners
                .iter()
                .find(|miner| miner.miner.to_string() == neuron.hotkey);
            [
                html! { (neuron.uid) },
                html! { a href=(format!("/miners/{}", plain(&neuron.hotkey))) { (key(&neuron.hotkey)) } },
                words(
                    neuron
                        .axon
                        .as_deref()
                        .unwrap_or(if neuron.permit { "validator" } else { "none" }),
                ),
                known.map_or_else(|| html! { "—" }, offers),
                known.map_or_else(|| html! { "—" }, proven),
                reliability(neuron),
                weight(neuron.weight),
                chain_weight(neuron),
            ]
        })
        .collect();
    let columns = [
        Column::Number("uid"),
        Column::Text("Hotkey"),
        Column::Wide("Address"),
        Column::Text("Offers"),
        Column::Text("Proven"),
        Column::Number("Reliability"),
        Column::Number("Weight"),
        Column::Number("On the chain"),
    ];
    table(
        "Miners of the subnet",
        columns,
        &rows,
        "The chain has not answered yet.",
    )
}

fn offers(miner: &MinerNotice) -> Markup {
    let offers: Vec<_> = miner
        .claims
        .offers
        .iter()
        .map(|offer| format!("{} × {}", offer.executors, offer.class))
        .collect();
    if offers.is_empty() {
        html! { "—" }
    } else {
        words(&offers.join(", "))
    }
}

fn proven(miner: &MinerNotice) -> Markup {
    if miner.proven.is_empty() {
        return html! { "—" };
    }
    html! {
        @for (place, class) in miner.proven.iter().enumerate() {
            @if place > 0 { ", " }
            (verdict(&format!("{} of {}", class.proven, class.challenged), class.proven >= class.challenged))
        }
    }
}

fn reliability(neuron: &NeuronRow) -> Markup {
    match neuron.reliability_permille {
        Some(share) => verdict(&format!("{}.{} %", share / 10, share % 10), share >= 900),
        None => html! { "—" },
    }
}

fn weight(weight: Option<u16>) -> Markup {
    match weight {
        Some(weight) => html! { (number(u64::from(weight))) },
        None => html! { "—" },
    }
}

/// The weight on the chain, marked where it differs from what was decided.
fn chain_weight(neuron: &NeuronRow) -> Markup {
    match neuron.chain_weight {
        Some(shown) => verdict(
            &number(u64::from(shown)),
            neuron.weight.is_none_or(|decided| decided == shown),
        ),
        None => html! { "—" },
    }
}

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
                html! { a href=(format!("/v0/jobs/{}/route", plain(&job.job))) { (key(&job.job)) } },
                html! { (job.status) },
                last.map_or_else(|| html! { "—" }, |attempt| html! {
                    a href=(format!("/miners/{}", plain(&attempt.miner))) { "uid " (attempt.uid) } " " (plain(&attempt.state))
                }),
                html! { (job.attempts.len()) },
                when(job.created_at, now),
                match (end, job.fault.as_deref()) {
                    (Some(end), Some(fault)) if fault != "nobody" => html! { (verdict(&format!("{fault}: "), false)) (plain(end)) },
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

/// `/sessions`: the gateway.
pub fn sessions(visit: &ValidatorVisit<'_>, sessions: &CallAnswer<SessionsStatus>) -> String {
    let show = |status: &SessionsStatus| {
        let models: Vec<_> = status
            .models
            .iter()
            .map(|model| {
                [
                    words(&model.model),
                    html! { (number(model.live)) },
                    html! { (number(model.starting)) },
                    html! { (number(model.waiting)) },
                    html! { (number(model.serving)) },
                    words(if model.trouble.is_empty() {
                        "—"
                    } else {
                        &model.trouble
                    }),
                ]
            })
            .collect();
        let columns = [
            Column::Text("Model"),
            Column::Number("Live"),
            Column::Number("Starting"),
            Column::Number("Waiting"),
            Column::Number("Served"),
            Column::Text("Last trouble"),
        ];
        let rows: Vec<_> = status
            .sessions
            .iter()
            .map(|session| {
                let end = session.fault.as_deref().or(session.closed_because.as_deref());
                [
                    key(&session.session),
                    words(&session.model),
                    html! { a href=(format!("/miners/{}", plain(&session.miner))) { (key(&session.miner)) } },
                    when(session.opened_at, visit.now),
                    when(session.closed_at, visit.now),
                    end.map_or_else(|| html! { "—" }, |end| verdict(end, session.fault.is_none())),
                ]
            })
            .collect();
        let session_columns = [
            Column::Text("Session"),
            Column::Text("Model"),
            Column::Text("Miner"),
            Column::Text("Opened"),
            Column::Text("Closed"),
            Column::Text("Why"),
        ];
        html! {
            (section("models", "Models", &table("Models", columns, &models, "The gateway serves no model.")))
            (section("newest", "Newest sessions", &table("Sessions", session_columns, &rows, "No session has been open yet.")))
        }
    };
    let body = html! { h1 { "Sessions" } (part(sessions, show)) };
    validator_page("Sessions", "/sessions", visit, &body)
}

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

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    const HOSTILE: &str = "<script>alert(1)</script>\u{1b}[31m\"'&";
    const MINER: &str = "5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy";

    fn read<T: DeserializeOwned>(text: &str) -> CallAnswer<T> {
        let escaped = serde_json::to_string(HOSTILE).unwrap();
        let text = text
            .replace("HOSTILE", escaped.trim_matches('"'))
            .replace("MINER", MINER);
        Ok(serde_json::from_str(&text).unwrap())
    }

    fn visit() -> ValidatorVisit<'static> {
        ValidatorVisit {
            validator: "5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty",
            now: Timestamp::from_secs(10_000),
        }
    }

    fn status() -> CallAnswer<ValidatorStatus> {
        read(
            r#"{"block":1234,"chain":{"state":"connected"},"facilitator":{"state":"lost","reason":"HOSTILE"},
            "jobs":[{"job":"HOSTILE","status":"failed","outcome":{"summary":"HOSTILE"},"fault":"miner",
            "attempts":[{"attempt":"a","miner":"HOSTILE","uid":7,"state":"HOSTILE"}]}],
            "cycles":[{"number":1200,"state":"set","error":"HOSTILE","weights":[[7,65535]],"snapshot":"HOSTILE",
            "scores":[{"uid":7,"miner":"MINER","points":9,"micros":90000000,"credit":2000}],
            "zeros":[["HOSTILE"]],"dropped":[["a","HOSTILE"]]}]}"#,
        )
    }

    fn subnet_status() -> CallAnswer<SubnetStatus> {
        read(
            r#"{"block":1234,"netuid":1,"neurons":[{"uid":7,"hotkey":"MINER","axon":"127.0.0.1:1","reliability_permille":950,
            "weight":65535,"chain_weight":100}]}"#,
        )
    }

    fn miners_status() -> CallAnswer<MinersStatus> {
        read(
            r#"{"miners":[{"miner":"MINER","proven":[{"class":"always_on.test","challenged":3,"proven":2,"block":9}],
            "claims":{"offers":[{"class":"always_on.test","executors":3}],"specs":[],
            "machines":[{"name":"HOSTILE","class":"always_on.test","at":"1970-01-01T02:46:30Z","cpu_permille":350,"memory_total":1,
            "memory_used":1,"disk_total":1,"disk_used":1,"gpus":0,"gpu_percent":0,"gpu_memory_total":0,"gpu_memory_used":0}]}}]}"#,
        )
    }

    /// Every page, filled with hostile texts.
    fn all() -> Vec<(&'static str, String)> {
        let (visit, status, miners) = (visit(), status(), miners_status());
        let queue = read(
            r#"{"lines":[{"class":"HOSTILE","waiting":2,"why":"HOSTILE"}],"jobs":[{"job":"HOSTILE","account":"HOSTILE","class":"x"}]}"#,
        );
        let batches = read(r#"{"batches":[{"batch":"HOSTILE","state":"HOSTILE","grades":{"HOSTILE":1}}]}"#);
        let sessions_status = read(
            r#"{"models":[{"model":"HOSTILE","trouble":"HOSTILE"}],"sessions":[{"session":"HOSTILE","miner":"HOSTILE","fault":"HOSTILE"}]}"#,
        );
        let grades = read(r#"{"grades":[{"class":"HOSTILE","said":"HOSTILE"}]}"#);
        vec![
            ("subnet", subnet(&visit, &status, &subnet_status(), &miners)),
            ("jobs", jobs(&visit, &queue, &status)),
            ("grading", grading(&visit, &batches)),
            ("weights", weights(&visit, &status, &subnet_status())),
            ("sessions", sessions(&visit, &sessions_status)),
            ("miner", miner(&visit, MINER, &miners, &grades)),
            ("public", public(&visit, &status, &queue, &miners)),
        ]
    }

    #[test]
    fn hostile_texts_are_text_on_every_page() {
        for (name, page) in all() {
            assert!(
                !page.contains("<script>alert") && !page.contains('\u{1b}'),
                "{name}"
            );
            assert!(page.contains("&lt;script"), "{name}");
            assert!(!page.contains("href=\"javascript"), "{name}");
        }
    }

    #[test]
    fn a_weight_that_the_chain_shows_otherwise_is_marked_and_the_score_is_explained() {
        let pages = all();
        let of = |name: &str| &pages.iter().find(|(of, _)| *of == name).unwrap().1;
        assert!(
            of("subnet").contains("<span class=\"bad\">100</span>"),
            "{}",
            of("subnet")
        );
        assert!(of("subnet").contains("95.0 %") && of("subnet").contains("2 of 3"));
        assert!(of("weights").contains("2.000") && of("weights").contains("100.0 %"));
        assert!(of("weights").contains("Receipts that do not count: 1"));
    }

    #[test]
    fn a_part_that_fails_leaves_the_others() {
        let page = subnet(
            &visit(),
            &status(),
            &Err("the chain is away".to_owned()),
            &miners_status(),
        );
        assert!(page.contains("the chain is away") && page.contains("1,234"));
    }
}
