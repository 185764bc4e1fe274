//! The tokens that the account has used, by day and model.

use maud::{Markup, html};
use muster_protocol::Timestamp;
use serde::Deserialize;

use crate::PagePart;
use crate::frame::{Section, Visitor, page, part, scroll};
use crate::text::{number, plain, shorten, utc};

/// The use of one model on one day.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ModelDay {
    /// Days since 1970-01-01, UTC.
    pub day: i64,
    /// The model's id.
    pub model: String,
    /// The number of answered requests.
    pub requests: u64,
    /// The tokens of the requests together.
    pub input_tokens: u64,
    /// The tokens of the answers together.
    pub output_tokens: u64,
}

/// Answers of one model that are refunded, of one day.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RefundedDay {
    /// The day, the model, and the numbers of answers and tokens.
    #[serde(flatten)]
    pub answers: ModelDay,
    /// The digest of the bundle of evidence that convicts their miner.
    pub bundle: String,
}

/// The use of models, and what of it is refunded: the answer of `GET /api/v1/usage/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ModelUse {
    /// The use by day and model, the newest days first.
    #[serde(rename = "results")]
    pub days: Vec<ModelDay>,
    /// The refunded part of it, the newest days first.
    #[serde(default)]
    pub refunded: Vec<RefundedDay>,
}

/// The days in the chart.
const DAYS: i64 = 30;
const DAY_S: i64 = 86_400;
/// The height of the chart, in its own units.
const HEIGHT: u64 = 100;

/// The page of the usage as HTML.
pub fn render(visitor: &Visitor<'_>, usage: &PagePart<ModelUse>) -> String {
    let body = html! {
        h1 { "Usage" }
        (part(usage, |ModelUse { days, refunded }| html! {
            @if !refunded.is_empty() { (refunds(refunded)) }
            @if days.is_empty() {
                p.empty { "No model has answered this account yet. " a href="/chat" { "Ask one" } "." }
            } @else {
                (chart(days, visitor.now.secs().div_euclid(DAY_S)))
                (table(days))
            }
        }))
    };
    page("Usage", Section::Usage, visitor, &body)
}

/// The refunded answers: what they cost is not owed.
fn refunds(refunded: &[RefundedDay]) -> Markup {
    html! {
        section aria-labelledby="refunds" {
            h2 #refunds { "Refunded" }
            p { "The miners of these answers were convicted of serving another model. The tables below still count them." }
            (scroll("Refunded answers", &html! {
                table {
                    thead { tr {
                        th scope="col" { "Day" } th scope="col" { "Model" } th.n scope="col" { "Answers" }
                        th.n scope="col" { "Tokens" } th scope="col" { "Evidence" }
                    } }
                    tbody {
                        @for RefundedDay { answers, bundle } in refunded {
                            tr {
                                td.day { (date(answers.day)) } td.mono { (plain(&answers.model)) }
                                td.n { (number(answers.requests)) }
                                td.n { (number(answers.input_tokens.saturating_add(answers.output_tokens))) }
                                td.mono title=(bundle) { (shorten(bundle)) }
                            }
                        }
                    }
                }
            }))
        }
    }
}

fn date(day: i64) -> String {
    utc(Timestamp::from_secs(day.saturating_mul(DAY_S)))
        .chars()
        .take(10)
        .collect()
}

/// The tokens of each of the last days as bars; the table below shows the same in numbers.
fn chart(days: &[ModelDay], today: i64) -> Markup {
    let first = today.saturating_sub(DAYS - 1);
    let total = |day: i64| -> u64 {
        let of_day = days.iter().filter(|entry| entry.day == day);
        of_day
            .map(|entry| entry.input_tokens.saturating_add(entry.output_tokens))
            .sum()
    };
    let totals: Vec<(i64, u64)> = (first..=today).map(|day| (day, total(day))).collect();
    let most = totals
        .iter()
        .map(|(_, tokens)| *tokens)
        .max()
        .unwrap_or_default()
        .max(1);
    let label = format!(
        "Tokens a day from {} to {}, at most {}",
        date(first),
        date(today),
        number(most)
    );
    html! {
        figure.chart {
            svg viewBox="0 0 600 100" preserveAspectRatio="none" height="100" width="100%" role="img" aria-label=(label) {
                @for (at, (day, tokens)) in totals.iter().enumerate() {
                    @let height = tokens.saturating_mul(HEIGHT).div_ceil(most);
                    rect x=(at.saturating_mul(20).saturating_add(2)) width="16" y=(HEIGHT.saturating_sub(height))
                        height=(height) { title { (date(*day)) ": " (number(*tokens)) } }
                }
            }
            figcaption { span { (date(first)) } span { "tokens a day, at most " (number(most)) } span { (date(today)) } }
        }
    }
}

fn table(days: &[ModelDay]) -> Markup {
    let table = html! {
        table {
            thead { tr {
                th scope="col" { "Day (UTC)" }
                th scope="col" { "Model" }
                th.n scope="col" { "Requests" }
                th.n scope="col" { "Input tokens" }
                th.n scope="col" { "Output tokens" }
            } }
            tbody {
                @for entry in days {
                    tr {
                        td.day { (date(entry.day)) }
                        td.mono { (entry.model) }
                        td.n { (number(entry.requests)) }
                        td.n { (number(entry.input_tokens)) }
                        td.n { (number(entry.output_tokens)) }
                    }
                }
            }
        }
    };
    scroll("Usage by day and model", &table)
}
