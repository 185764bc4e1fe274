//! The adopted verdicts about streamed answers, and the evidence behind one.

use maud::{Markup, html};
use muster_page_layout::text::{number, plain};
use muster_status_views::audits::{AuditReportStatus, AuditRow, AuditsStatus, ReplayedAudit};

use super::{ValidatorVisit, validator_page};
use crate::CallAnswer;
use crate::charts::{describe_test, evidence_chart, percent, roc_chart};
use crate::frame::{Column, figures, key, part, section, table, verdict, when, words};

/// The most hotkeys that are shown of one verdict.
const MOST_MINERS: usize = 64;

/// `/audits`: the adopted verdicts, the newest first.
pub fn audits(visit: &ValidatorVisit<'_>, audits: &CallAnswer<AuditsStatus>) -> String {
    let show = |status: &AuditsStatus| {
        let rows: Vec<_> = status.audits.iter().map(|audit| row(visit, audit)).collect();
        let columns = [
            Column::Text("Evidence"),
            Column::Text("Verdict"),
            Column::Text("Model"),
            Column::Text("Coldkey"),
            Column::Text("Miners"),
            Column::Number("Quality"),
            Column::Text("Adopted"),
        ];
        table(
            "Adopted verdicts",
            columns,
            &rows,
            "No verdict about streamed answers is adopted.",
        )
    };
    let body = html! {
        h1 { "Audits" }
        (part(audits, show))
        p.help { "The newest verdict about a coldkey and a model counts in the scores. Its evidence can be checked by anybody: "
            code { "muster audit replay" } "." }
    };
    validator_page("Audits", "/audits", visit, &body)
}

fn row(visit: &ValidatorVisit<'_>, audit: &AuditRow) -> [Markup; 7] {
    [
        html! { a href=(format!("/audits/{}", plain(&audit.digest))) { (key(&audit.digest)) } },
        shown_verdict(&audit.verdict),
        words(&audit.model),
        key(&audit.coldkey),
        html! {
            @for (place, miner) in audit.miners.iter().take(MOST_MINERS).enumerate() {
                @if place > 0 { ", " }
                a href=(format!("/miners/{}", plain(miner))) { (key(miner)) }
            }
            @if audit.miners.len() > MOST_MINERS { " and " (audit.miners.len().saturating_sub(MOST_MINERS)) " more" }
        },
        html! { (percent(audit.quality_per_mille)) " %" },
        when(audit.adopted_at, visit.now),
    ]
}

fn shown_verdict(name: &str) -> Markup {
    verdict(name, !matches!(name, "convicted" | "suspect" | "weak"))
}

/// `/audits/DIGEST`: the evidence behind one verdict.
pub fn audit(visit: &ValidatorVisit<'_>, digest: &str, report: &CallAnswer<AuditReportStatus>) -> String {
    let body = html! {
        h1 { "Audit" }
        p.mono.break { (plain(digest)) }
        (part(report, evidence))
    };
    validator_page("Audit", "/audits", visit, &body)
}

fn evidence(report: &AuditReportStatus) -> Markup {
    let replayed = &report.replayed;
    let is_bad = matches!(replayed.verdict.as_str(), "convicted" | "suspect" | "weak");
    html! {
        (figures(&[
            ("Verdict", plain(&replayed.verdict), is_bad),
            ("Quality in scores", format!("{} %", percent(replayed.quality_per_mille)), replayed.quality_per_mille < 1_000),
            ("Answers audited", format!("{} of {}", number(replayed.counts.audited), number(replayed.counts.logged)), false),
            ("Scored", number(replayed.counts.scored), false),
            ("Calibration\u{2019}s level", plain(&replayed.level), replayed.level == "0"),
        ]))
        (subject(replayed))
        (section("evidence", "Evidence over the answers", &html! {
            @if report.evidence.is_empty() { p.empty { "No answer was tested." } }
            div.curves {
                @for evidence in &report.evidence { (evidence_chart(evidence, test_of(replayed, &evidence.test), report.alarm)) }
            }
            p.help { "An honest miner\u{2019}s evidence reaches the alarm after as many answers on average, at the earliest: "
                (number(report.alarm)) ". A conviction needs an alarm of a second reference too, and answers after both that reach "
                (number(report.confirmation)) "." }
        }))
        (section("tests", "Tests", &html! { (tests(replayed)) (missing_answers(replayed)) }))
        (section("power", "The power of the calibration", &html! {
            div.curves { @for curve in &report.roc { (roc_chart(curve)) } }
            (alarms(report))
            p.help { "Simulated with the answers of the calibration that did not make its tables. " code { "muster audit curve" } " simulates more of it." }
        }))
    }
}

fn test_of(replayed: &ReplayedAudit, test: &str) -> muster_status_views::audits::TestRow {
    match test {
        "public" => replayed.tests.public,
        "private" => replayed.tests.private,
        "unseeded" => replayed.tests.unseeded,
        "missing" => missing_test(replayed),
        _ => replayed.tests.all,
    }
}

/// The test of missing answers as one of the others, without a second reference.
fn missing_test(replayed: &ReplayedAudit) -> muster_status_views::audits::TestRow {
    let missing = replayed.missing.unwrap_or_default();
    muster_status_views::audits::TestRow {
        answers: missing.answers,
        alarm: missing.alarm,
        ..muster_status_views::audits::TestRow::default()
    }
}

fn missing_answers(replayed: &ReplayedAudit) -> Markup {
    let Some(missing) = replayed.missing else {
        return html! { p.help { "The bundle is of an earlier release, which did not test missing answers." } };
    };
    let causes = missing.missing;
    let rows = [
        ("Own prompts without ids of tokens", causes.no_token_ids),
        ("Broken off by the engine", causes.broken_off),
        ("Connection ended early", causes.cut),
        ("Without a valid proof", causes.unproven),
    ]
    .map(|(cause, count)| [html! { (cause) }, html! { (number(count)) }]);
    html! {
        p { "Missing answers: " (verdict(&describe_test(missing_test(replayed)), missing.alarm.is_none())) }
        (table("Missing answers", [Column::Text("Cause"), Column::Number("Answers")], &rows, "No answer is missing."))
        p.help { "An honest miner misses one answer of a hundred at most; the test looks for five. An alarm makes a suspect and never a convict." }
    }
}

fn subject(replayed: &ReplayedAudit) -> Markup {
    let tested = if replayed.alternatives.is_empty() {
        "nothing".to_owned()
    } else {
        replayed.alternatives.join(", ")
    };
    html! {
        dl.facts {
            div { dt { "Model" } dd { (plain(&replayed.model)) } }
            div.long { dt { "Coldkey" } dd.mono.break { (plain(&replayed.coldkey)) } }
            div.long { dt { "Tested against" } dd.break { (plain(&tested)) } }
            @for exceeded in &replayed.exceeded {
                div.long { dt { "Not tested against" } dd.break {
                    (plain(&exceeded.alternative)) ": honest answers of " (plain(&exceeded.machine)) " resemble it"
                } }
            }
        }
        @if replayed.discriminates { p.problem { "Users are served worse than the validator\u{2019}s own prompts." } }
    }
}

fn tests(replayed: &ReplayedAudit) -> Markup {
    let tests = &replayed.tests;
    let named = [
        ("All answers", tests.all),
        ("Answers that may be published", tests.public),
        ("Users\u{2019} answers", tests.private),
    ];
    let yes = |holds: bool, alarm: Option<u64>| match alarm {
        Some(_) => html! { (if holds { "yes" } else { "no" }) },
        None => html! { "—" },
    };
    let rows = named.map(|(name, test)| {
        [
            html! { (name) },
            verdict(&describe_test(test), test.alarm.is_none()),
            yes(test.rescored, test.alarm),
            yes(test.fresh, test.alarm),
        ]
    });
    let columns = [
        Column::Text("Answers"),
        Column::Text("Result"),
        Column::Text("Second reference agrees"),
        Column::Text("Later answers confirm"),
    ];
    table("Tests", columns, &rows, "No test was made.")
}

fn alarms(report: &AuditReportStatus) -> Markup {
    let count = |count: Option<u32>| match count {
        Some(count) => html! { (number(u64::from(count))) },
        None => html! { "—" },
    };
    let rows: Vec<_> = report
        .curve
        .iter()
        .map(|alarm| {
            [
                words(&alarm.alternative),
                html! { (percent(alarm.share)) " %" },
                html! { (alarm.accused) " of " (alarm.trials) },
                count(alarm.median),
                count(alarm.most),
            ]
        })
        .collect();
    let columns = [
        Column::Text("Cheat\u{2019}s engine"),
        Column::Number("Share of answers"),
        Column::Number("Accused"),
        Column::Number("Median of answers"),
        Column::Number("95 of 100 within"),
    ];
    table(
        "Audited answers to the alarm",
        columns,
        &rows,
        "The calibration has no other engine.",
    )
}
