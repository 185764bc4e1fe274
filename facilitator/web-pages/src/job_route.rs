//! The route of a job on its page: the miners that were asked and why, how each attempt ended, and the miners that were
//! not asked. The validator reports it with the job's end; an older validator reports only a part.

use std::collections::BTreeMap;

use maud::{Markup, html};
use muster_protocol::job::Outcome;
use muster_protocol::rest::JobView;
use muster_protocol::wire::route::RouteStep;
use serde_json::Value;

use crate::checked_receipts::CheckedReceipt;
use crate::text::{plain, shorten};

/// The most entries of each list.
const MOST_LISTED: usize = 64;

/// An attempt at a job.
#[derive(Debug, PartialEq, Eq)]
struct ReportedAttempt {
    miner: String,
    end: String,
}

/// The section; nothing before the validator has reported anything.
pub(crate) fn section(view: &JobView, receipts: &[CheckedReceipt]) -> Markup {
    let told = reported_route(view);
    if !told.is_empty() {
        return steps(told);
    }
    let outcome = view.failure();
    let context = outcome.as_ref().and_then(context_of);
    let attempts = attempts(context, receipts);
    let passed = passed_over(context);
    if attempts.is_empty() && passed.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="route" {
            h2 #route { "Route" }
            @if !attempts.is_empty() {
                ol.plain {
                    @for attempt in &attempts {
                        li { "Asked " span.mono title=(plain(&attempt.miner)) { (plain(&shorten(&attempt.miner))) }
                            @if !attempt.end.is_empty() { ": " span.break { (plain(&attempt.end)) } }
                        }
                    }
                }
            }
            @for (reason, miners) in &passed {
                p.break { "Not asked: " (miners) @if *miners == 1 { " miner" } @else { " miners" } ", " (plain(reason)) }
            }
        }
    }
}

/// The decisions that the validator reported with the job's end.
fn reported_route(view: &JobView) -> &[RouteStep] {
    let last = view
        .status_history
        .last()
        .and_then(|entry| entry.metadata.as_ref());
    let extension = last.and_then(|metadata| metadata.muster.as_ref());
    extension.map(|found| found.route.as_slice()).unwrap_or_default()
}

fn steps(told: &[RouteStep]) -> Markup {
    html! {
        section aria-labelledby="route" {
            h2 #route { "Route" }
            ol.route { @for step in told { li { (step_part(step)) } } }
            p.help { "As the validator decided: it asks the miner with the fewest drawbacks." }
        }
    }
}

fn step_part(step: &RouteStep) -> Markup {
    let ended = step.ended.as_deref().unwrap_or("no end is told");
    html! {
        @match step.miner {
            Some(miner) => p.break { "Asked " span.mono title=(miner) { (shorten(&miner.to_string())) } ": " (plain(ended)) },
            None => p { "Nobody was asked." },
        }
        p.break.dim {
            @match (step.miner, step.candidates) {
                (Some(_), 0 | 1) => "It alone could be asked",
                (Some(_), candidates) => { "The best of " (candidates) " miners that could be asked" }
                (None, 0) => "No miner could be asked",
                (None, candidates) => { (candidates) " miners could have been asked" }
            }
            @if step.miner.is_some() && step.candidates > 1 {
                @if step.drawbacks.is_empty() { "; nothing spoke against it" }
                @else { "; against it: " (plain(&step.drawbacks.join(", "))) }
            }
            "."
        }
        @for excluded in &step.excluded {
            p.break.dim { "Not asked: " (miners(excluded.miners)) ", " (plain(&excluded.reason)) "." }
        }
    }
}

fn miners(count: u32) -> String {
    let word = if count == 1 { "miner" } else { "miners" };
    format!("{count} {word}")
}

fn context_of(outcome: &Outcome) -> Option<&Value> {
    match outcome {
        Outcome::Completed(_) => None,
        Outcome::Rejected(details) => details.context.as_ref(),
        Outcome::Failed(details) => details.context.as_ref(),
        Outcome::HordeFailed(details) => details.context.as_ref(),
    }
}

/// The attempts that the validator lists, or the one that the receipts are about.
fn attempts(context: Option<&Value>, receipts: &[CheckedReceipt]) -> Vec<ReportedAttempt> {
    let listed = context.and_then(|context| context.get("attempts")?.as_array());
    if let Some(listed) = listed {
        let text = |attempt: &Value, name: &str| {
            attempt
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let told = listed.iter().take(MOST_LISTED).map(|attempt| ReportedAttempt {
            miner: text(attempt, "miner"),
            end: text(attempt, "ended"),
        });
        return told.filter(|attempt| !attempt.miner.is_empty()).collect();
    }
    let signed = receipts.iter().find(|checked| checked.is_valid);
    let only = signed.map(|checked| ReportedAttempt {
        miner: checked.receipt.payload.miner().to_string(),
        end: String::new(),
    });
    only.into_iter().collect()
}

/// The reasons for which miners were not asked, each with their number.
fn passed_over(context: Option<&Value>) -> BTreeMap<String, usize> {
    let told = |context: &Value| Some(context.get("excluded")?.as_array()?.clone());
    let nested = |context: &Value| told(context.get("reported")?);
    let rows = context.and_then(|context| told(context).or_else(|| nested(context)));
    let mut reasons = BTreeMap::new();
    for row in rows.unwrap_or_default() {
        let Some(reason) = row.get("reason").and_then(Value::as_str) else {
            continue;
        };
        if reasons.len() < MOST_LISTED || reasons.contains_key(reason) {
            *reasons.entry(reason.to_owned()).or_default() += 1;
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn attempts_and_exclusions_are_read_from_what_the_validator_tells() {
        let context = json!({
            "attempts": [{"attempt": "a", "miner": "5D", "ended": "declined: busy"}, {"miner": 7}],
            "reported": {"excluded": [{"uid": 1, "reason": "no axon"}, {"uid": 2, "reason": "no axon"}, {"uid": 3}]},
        });
        let told = attempts(Some(&context), &[]);
        assert_eq!(
            told,
            [ReportedAttempt {
                miner: "5D".to_owned(),
                end: "declined: busy".to_owned()
            }]
        );
        assert_eq!(
            passed_over(Some(&context)),
            BTreeMap::from([("no axon".to_owned(), 2)])
        );
        let plain = json!({"excluded": [{"reason": "busy"}]});
        assert_eq!(passed_over(Some(&plain)).len(), 1);
        assert!(attempts(None, &[]).is_empty() && passed_over(Some(&json!(7))).is_empty());
    }

    #[test]
    fn each_decision_says_why_its_miner_was_asked_and_how_many_were_not() {
        let told: Vec<RouteStep> = serde_json::from_value(json!([
            {
                "miner": "5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy", "candidates": 3,
                "drawbacks": ["the image is not known to be there", "<b>"], "ended": "rejected: busy (<i>)",
                "excluded": [{"reason": "no axon on the chain", "miners": 2}],
            },
            {"miner": "5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy", "candidates": 1, "ended": "completed"},
            {"miner": "5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy", "candidates": 2, "ended": "completed"},
            {"candidates": 0, "excluded": [{"reason": "busy", "miners": 1}]},
        ]))
        .unwrap();
        let page = steps(&told).into_string();
        for words in [
            "rejected: busy (&lt;i&gt;)",
            "The best of 3 miners that could be asked; against it: the image is not known to be there, &lt;b&gt;.",
            "Not asked: 2 miners, no axon on the chain.",
            "It alone could be asked.",
            "nothing spoke against it.",
            "Nobody was asked.",
            "No miner could be asked.",
            "Not asked: 1 miner, busy.",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
    }
}
