//! The pages of a miner's operator.

use std::time::Duration;

use maud::{Markup, html};
use muster_page_layout::text::{bytes, number, plain, span};
use muster_protocol::Timestamp;
use muster_status_views::miner::{MachineStatus, MinerStatus, PublishedGrade};

use crate::CallAnswer;
use crate::charts::load_curve;
use crate::frame::{
    Column, Entries, bar, figures, key, part, role_page, section, table, verdict, when, words,
};

const ENTRIES: Entries<5> = [
    ("/", "Executors"),
    ("/leases", "Leases"),
    ("/declines", "Declines"),
    ("/earnings", "Earnings"),
    ("/grades", "Grades"),
];

/// The pages of a miner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinerPage {
    /// Executors and their machines.
    Executors,
    /// Open leases, and those that have ended.
    Leases,
    /// Declined offers with their reasons.
    Declines,
    /// Receipts by validator.
    Earnings,
    /// The grades that validators state.
    Grades,
}

impl MinerPage {
    /// All pages, in the order of the navigation.
    pub const ALL: [Self; 5] = [
        Self::Executors,
        Self::Leases,
        Self::Declines,
        Self::Earnings,
        Self::Grades,
    ];

    /// The page's path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Executors => "/",
            Self::Leases => "/leases",
            Self::Declines => "/declines",
            Self::Earnings => "/earnings",
            Self::Grades => "/grades",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Executors => "Executors",
            Self::Leases => "Leases",
            Self::Declines => "Declined offers",
            Self::Earnings => "Earnings",
            Self::Grades => "Grades",
        }
    }
}

/// A page of the miner `hotkey` at `now`.
pub fn render(page: MinerPage, hotkey: &str, now: Timestamp, status: &CallAnswer<MinerStatus>) -> String {
    let show = |status: &MinerStatus| match page {
        MinerPage::Executors => executors(status, now),
        MinerPage::Leases => leases(status, now),
        MinerPage::Declines => declines(status, now),
        MinerPage::Earnings => earnings(status, now),
        MinerPage::Grades => grades(status, now),
    };
    let body = html! { h1 { (page.title()) } (part(status, show)) };
    role_page(page.title(), hotkey, page.path(), ENTRIES, true, &body)
}

fn executors(status: &MinerStatus, now: Timestamp) -> Markup {
    let places = |places: muster_status_views::miner::Places| format!("{} of {}", places.busy, places.all);
    let connected = status
        .validators
        .iter()
        .filter(|validator| validator.sessions > 0)
        .count();
    html! {
        (figures(&[
            ("Started executors at work", places(status.started), false),
            ("Enrolled executors at work", places(status.persistent), false),
            ("Open leases", number(u64::try_from(status.leases.len()).unwrap_or(u64::MAX).saturating_add(status.more_leases)), false),
            ("Validators connected", connected.to_string(), connected == 0),
            ("Offers", if status.draining { "declined: draining" } else { "taken" }.to_owned(), status.draining),
        ]))
        (section("pools", "Pools of started executors", &pools(status)))
        (section("machines", "Machines of enrolled executors", &html! {
            @if status.machines.is_empty() { p.empty { "No enrolled executor is connected." } }
            @for machine in &status.machines { (machine_part(machine, now)) }
        }))
        (section("images", "Images that validators want kept", &images(status)))
        (section("validators", "Validators", &validators(status)))
    }
}

fn pools(status: &MinerStatus) -> Markup {
    let rows: Vec<_> = status
        .pools
        .iter()
        .map(|pool| {
            let waits: Vec<_> = pool
                .waiting
                .iter()
                .map(|(attempt, reason)| format!("{attempt}: {reason}"))
                .collect();
            let state = match &pool.fault {
                Some(fault) => verdict(fault, false),
                None => words(&waits.join("; ")),
            };
            [
                html! { (plain(&pool.name)) },
                html! { (plain(&pool.engine)) },
                html! { (plain(&pool.class)) },
                html! { (pool.places.busy) " of " (pool.places.all) },
                state,
            ]
        })
        .collect();
    let columns = [
        Column::Text("Pool"),
        Column::Text("Engine"),
        Column::Text("Class"),
        Column::Text("At work"),
        Column::Text("Waiting, or the engine's fault"),
    ];
    table("Pools", columns, &rows, "The miner tells of no pools.")
}

fn machine_part(machine: &MachineStatus, now: Timestamp) -> Markup {
    let load = &machine.load;
    let share = |used: u64, all: u64| {
        let share = u128::from(used)
            .saturating_mul(1_000)
            .checked_div(u128::from(all))
            .unwrap_or(0);
        u32::try_from(share).unwrap_or(1_000)
    };
    let of = |used: u64, all: u64| bar(share(used, all), &format!("{} of {}", bytes(used), bytes(all)));
    let cpu: Vec<_> = machine
        .history
        .iter()
        .map(|sample| sample.cpu_permille / 10)
        .collect();
    let gpu: Vec<_> = machine.history.iter().map(|sample| sample.gpu_percent).collect();
    let heat: Vec<_> = machine.history.iter().map(|sample| sample.gpu_celsius).collect();
    html! {
        h3 { (plain(&load.name)) " " span.dim { (load.class) ", measured " (when(Some(load.at), now)) } }
        dl.facts {
            div { dt { "Processor" } dd { (bar(load.cpu_permille, &format!("{} %", load.cpu_permille / 10))) } }
            div { dt { "Memory" } dd { (of(load.memory_used, load.memory_total)) } }
            div { dt { "Disk" } dd { (of(load.disk_used, load.disk_total)) } }
            @for gpu in &machine.gpus {
                div { dt { (plain(&gpu.name)) } dd {
                    (bar(gpu.percent.saturating_mul(10), &format!("{} %", gpu.percent)))
                    ", " (bytes(gpu.memory_used)) " of " (bytes(gpu.memory_total))
                    @if gpu.celsius > 0 { ", " (verdict(&format!("{} °C", gpu.celsius), gpu.celsius <= 88)) }
                    @if gpu.milliwatts > 0 { ", " (gpu.milliwatts / 1_000) " W" }
                } }
            }
        }
        @if machine.history.len() > 1 {
            (load_curve(&cpu, "Processor in percent, the last hour"))
            @if load.gpus > 0 {
                (load_curve(&gpu, "GPUs in percent, the last hour"))
                (load_curve(&heat, "Hottest GPU in °C, the last hour"))
            }
        }
    }
}

fn images(status: &MinerStatus) -> Markup {
    let rows: Vec<_> = status
        .images
        .iter()
        .map(|image| {
            [
                words(&image.model),
                html! { span.mono { (plain(&image.class)) } },
                key(&image.image),
                words(
                    image
                        .reference
                        .as_deref()
                        .unwrap_or("no reference: images.preload has to bring it"),
                ),
            ]
        })
        .collect();
    let columns = [
        Column::Text("Model"),
        Column::Text("Class"),
        Column::Text("Image"),
        Column::Text("Fetched as"),
    ];
    table(
        "Images that validators want kept",
        columns,
        &rows,
        "No connected validator lists an image for its sessions.",
    )
}

fn validators(status: &MinerStatus) -> Markup {
    let rows: Vec<_> = status
        .validators
        .iter()
        .map(|validator| {
            [
                key(&validator.validator),
                html! { (number(validator.sessions)) },
                verdict(
                    if validator.served { "served" } else { "not served" },
                    validator.served,
                ),
            ]
        })
        .collect();
    let columns = [
        Column::Text("Validator"),
        Column::Number("Connections"),
        Column::Text(""),
    ];
    table("Validators", columns, &rows, "No validator is known.")
}

fn leases(status: &MinerStatus, now: Timestamp) -> Markup {
    let open: Vec<_> = status
        .leases
        .iter()
        .map(|lease| {
            [
                key(&lease.attempt),
                words(&lease.state),
                html! { span.mono { (plain(&lease.class)) } },
                key(&lease.validator),
                when(Some(lease.deadline), now),
            ]
        })
        .collect();
    let ended: Vec<_> = status
        .ended
        .iter()
        .map(|ended| {
            [
                key(&ended.attempt),
                verdict(&ended.end, ended.end != "horde_failed"),
                when(Some(ended.at), now),
                words(&ended.message),
            ]
        })
        .collect();
    let columns = [
        Column::Text("Attempt"),
        Column::Text("State"),
        Column::Text("Class"),
        Column::Text("Validator"),
        Column::Text("Ends at the latest"),
    ];
    let ended_columns = [
        Column::Text("Attempt"),
        Column::Text("End"),
        Column::Text("When"),
        Column::Text("Reason"),
    ];
    html! {
        (section("open", "Open", &html! {
            (table("Open leases", columns, &open, "No lease is open."))
            @if status.more_leases > 0 { p.help { "and " (number(status.more_leases)) " more" } }
        }))
        (section("ended", "Ended since the start", &table("Ended leases", ended_columns, &ended, "No lease has ended since the miner started.")))
    }
}

fn declines(status: &MinerStatus, now: Timestamp) -> Markup {
    let rows: Vec<_> = status
        .declines
        .iter()
        .map(|decline| {
            [
                key(&decline.attempt),
                verdict(&decline.reason, decline.reason == "busy"),
                words(&decline.message),
                when(Some(decline.at), now),
            ]
        })
        .collect();
    let columns = [
        Column::Text("Attempt"),
        Column::Text("Reason"),
        Column::Text("In words"),
        Column::Text("When"),
    ];
    table(
        "Declined offers",
        columns,
        &rows,
        "No offer was declined since the miner started.",
    )
}

fn earnings(status: &MinerStatus, now: Timestamp) -> Markup {
    let all: u64 = status.earnings.iter().map(|earned| earned.micros).sum();
    let rows: Vec<_> = status
        .earnings
        .iter()
        .map(|earned| {
            [
                key(&earned.validator),
                html! { (number(earned.receipts)) },
                words(&span(Duration::from_micros(earned.micros))),
                when(Some(earned.newest), now),
            ]
        })
        .collect();
    let columns = [
        Column::Text("Validator"),
        Column::Number("Finished receipts"),
        Column::Number("Paid executor time"),
        Column::Text("Newest"),
    ];
    html! {
        (figures(&[("Paid executor time", span(Duration::from_micros(all)), false)]))
        (table("Earnings by validator", columns, &rows, "No finished receipt has come yet."))
        p.help { "By the receipts of the pages that are served now, and those since the miner started." }
        (section("receipts", "Newest finished receipts", &receipts(status, now)))
    }
}

fn receipts(status: &MinerStatus, now: Timestamp) -> Markup {
    let rows: Vec<_> = status
        .receipts
        .iter()
        .map(|receipt| {
            [
                key(&receipt.attempt),
                key(&receipt.validator),
                words(&span(Duration::from_micros(receipt.micros))),
                when(Some(receipt.at), now),
            ]
        })
        .collect();
    let columns = [
        Column::Text("Attempt"),
        Column::Text("Validator"),
        Column::Number("Paid executor time"),
        Column::Text("Time"),
    ];
    table(
        "Newest finished receipts",
        columns,
        &rows,
        "No finished receipt has come yet.",
    )
}

fn grades(status: &MinerStatus, now: Timestamp) -> Markup {
    html! {
        p.help { "As each validator has signed it in the newest statement that it serves. A validator that serves no pages states no grades." }
        @if status.grades.is_empty() { p.empty { "No validator with a permit is known yet." } }
        @for stated in &status.grades {
            section {
                h2.break { (key(&stated.validator)) " " span.dim {
                    @if let Some(cycle) = stated.cycle { "cycle " (number(cycle)) ", " }
                    "read " (when(Some(stated.read_at), now))
                } }
                @if !stated.reason.is_empty() { p.empty { (plain(&stated.reason)) "." } }
                @for grade in &stated.grades { (grade_part(grade, now)) }
            }
        }
    }
}

fn grade_part(grade: &PublishedGrade, now: Timestamp) -> Markup {
    let credit = |credit: u64| format!("{}.{:03}", credit / 1_000, credit % 1_000);
    let rows: Vec<_> = grade
        .probes
        .iter()
        .map(|probe| {
            [
                when(Some(probe.at), now),
                verdict(
                    &format!("{} of {}", probe.shown, probe.announced),
                    probe.shown.saturating_add(probe.excused) >= probe.announced,
                ),
                html! { (number(u64::from(probe.excused))) },
                html! { (credit(probe.credit)) },
            ]
        })
        .collect();
    let columns = [
        Column::Text("Probe"),
        Column::Text("Executors shown"),
        Column::Number("Excused by work"),
        Column::Number("Credit"),
    ];
    html! {
        h3 { span.mono { (plain(&grade.class)) } ", " (plain(&grade.kind)) " probes" }
        (figures(&[
            ("Proven executors", number(u64::from(grade.executors)), grade.executors == 0),
            ("Credit", credit(grade.credit), false),
            ("Offers in seven days", number(u64::from(grade.offers)), false),
            ("Refused of them", number(u64::from(grade.refused)), grade.refused > 0),
        ]))
        (table("Probes", columns, &rows, "The statement has no probe of this kind."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "<script>alert(1)</script>\u{1b}[31m\"'&";

    fn status() -> MinerStatus {
        let text = r#"{"miner":"5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy","time":"1970-01-01T02:46:40Z","version":"0.1.0",
            "draining":false,"validators":[{"validator":"HOSTILE","sessions":1,"served":true}],
            "started":{"all":2,"busy":1},"persistent":{"all":1,"busy":0},
            "pools":[{"name":"HOSTILE","class":"HOSTILE","engine":"HOSTILE","places":{"all":2,"busy":1},
            "waiting":[["HOSTILE","HOSTILE"]],"fault":null},{"name":"b","class":"c","engine":"slurm",
            "places":{"all":0,"busy":0},"waiting":[],"fault":"HOSTILE"}],
            "machines":[{"load":{"name":"HOSTILE","class":"always_on.test","at":"1970-01-01T02:46:30Z","cpu_permille":350,
            "memory_total":100,"memory_used":50,"disk_total":0,"disk_used":0,"gpus":1,"gpu_percent":80,"gpu_memory_total":10,"gpu_memory_used":5},
            "gpus":[{"name":"HOSTILE","percent":80,"celsius":91,"milliwatts":250000,"memory_total":10,"memory_used":5}],
            "history":[{"at":"1970-01-01T02:46:00Z","cpu_permille":100,"gpu_percent":10,"gpu_celsius":40},
            {"at":"1970-01-01T02:46:30Z","cpu_permille":200,"gpu_percent":20,"gpu_celsius":50}]}],
            "leases":[{"attempt":"HOSTILE","validator":"HOSTILE","class":"HOSTILE","state":"HOSTILE","deadline":"1970-01-01T02:50:00Z"}],
            "more_leases":3,"ended":[{"at":"1970-01-01T02:40:00Z","attempt":"a","end":"horde_failed","message":"HOSTILE"}],
            "declines":[{"at":"1970-01-01T02:40:00Z","attempt":"a","reason":"busy","message":"HOSTILE"}],
            "earnings":[{"validator":"HOSTILE","receipts":3,"micros":90000000,"newest":"1970-01-01T02:46:00Z"}],
            "receipts":[{"at":"1970-01-01T02:45:00Z","attempt":"HOSTILE","validator":"HOSTILE","micros":4500000}],
            "images":[{"image":"HOSTILE","reference":"HOSTILE","class":"HOSTILE","model":"HOSTILE"},
            {"image":"a","reference":null,"class":"b","model":"tiny"}],
            "grades":[{"validator":"HOSTILE","cycle":1200,"read_at":"1970-01-01T02:46:00Z","reason":"HOSTILE",
            "grades":[{"class":"HOSTILE","kind":"HOSTILE","executors":2,"credit":1750,"offers":9,"refused":1,
            "probes":[{"at":"1970-01-01T02:36:40Z","announced":3,"shown":2,"excused":0,"credit":1750}]}]}]}"#;
        let escaped = serde_json::to_string(HOSTILE).unwrap();
        serde_json::from_str(&text.replace("HOSTILE", escaped.trim_matches('"'))).unwrap()
    }

    #[test]
    fn hostile_names_are_text_on_every_page() {
        for page in MinerPage::ALL {
            let html = render(page, HOSTILE, Timestamp::from_secs(10_000), &Ok(status()));
            assert!(
                !html.contains("<script>alert") && !html.contains('\u{1b}'),
                "{page:?}"
            );
            assert!(html.contains("&lt;script"), "{page:?}");
            for token in html5gum::Tokenizer::new(&html).flatten() {
                if let html5gum::Token::StartTag(tag) = token {
                    let is_inline = |name: &[u8]| name.starts_with(b"on") || name == b"style";
                    assert!(!tag.attributes.keys().any(|name| is_inline(name)), "{page:?}");
                }
            }
        }
    }

    #[test]
    fn a_page_without_a_status_says_why() {
        let html = render(
            MinerPage::Leases,
            "5D",
            Timestamp::from_secs(1),
            &Err("the store is away".to_owned()),
        );
        assert!(html.contains("the store is away"));
    }

    #[test]
    fn heat_reasons_and_earnings_are_shown() {
        let now = Timestamp::from_secs(10_000);
        let page = |page| render(page, "5D", now, &Ok(status()));
        assert!(page(MinerPage::Executors).contains("91 °C"));
        assert!(page(MinerPage::Executors).contains("<polyline"));
        assert!(page(MinerPage::Leases).contains("and 3 more"));
        let earnings = page(MinerPage::Earnings);
        assert!(
            earnings.contains("1 min 30 s") && earnings.contains("4.50 s"),
            "{earnings}"
        );
        assert!(page(MinerPage::Executors).contains("images.preload has to bring it"));
        let grades = page(MinerPage::Grades);
        assert!(
            grades.contains("cycle 1,200") && grades.contains("1.750"),
            "{grades}"
        );
        assert!(grades.contains("<span class=\"bad\">2 of 3</span>"), "{grades}");
    }
}
