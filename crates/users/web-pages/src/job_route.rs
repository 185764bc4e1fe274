//! The route of a job on its page: the miners that were asked, how each attempt ended, and the miners that were not
//! asked. The validator tells it with the job's end.

use std::collections::BTreeMap;

use maud::{Markup, html};
use muster_protocol::job::Outcome;
use muster_protocol::rest::JobView;
use serde_json::Value;

use crate::job::CheckedReceipt;
use crate::status::failure_of;
use crate::text::{plain, shorten};

/// The most entries of each list.
const MOST_LISTED: usize = 64;

/// An attempt at a job.
#[derive(Debug, PartialEq, Eq)]
struct ToldAttempt {
    miner: String,
    end: String,
}

/// The section; nothing before the validator has told anything.
pub(crate) fn section(view: &JobView, receipts: &[CheckedReceipt]) -> Markup {
    let outcome = failure_of(view);
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

fn context_of(outcome: &Outcome) -> Option<&Value> {
    match outcome {
        Outcome::Completed(_) => None,
        Outcome::Rejected(details) => details.context.as_ref(),
        Outcome::Failed(details) => details.context.as_ref(),
        Outcome::HordeFailed(details) => details.context.as_ref(),
    }
}

/// The attempts that the validator lists, or the one that the receipts are about.
fn attempts(context: Option<&Value>, receipts: &[CheckedReceipt]) -> Vec<ToldAttempt> {
    let listed = context.and_then(|context| context.get("attempts")?.as_array());
    if let Some(listed) = listed {
        let text = |attempt: &Value, name: &str| {
            attempt
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let told = listed.iter().take(MOST_LISTED).map(|attempt| ToldAttempt {
            miner: text(attempt, "miner"),
            end: text(attempt, "ended"),
        });
        return told.filter(|attempt| !attempt.miner.is_empty()).collect();
    }
    let signed = receipts.iter().find(|checked| checked.is_valid);
    let only = signed.map(|checked| ToldAttempt {
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
            [ToldAttempt {
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
}
