//! The reasons of a job's route, as a validator's operator reads them.

use std::fmt::Write as _;

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use muster_protocol::{JobId, MinerKey, Timestamp};
use muster_routing::{Candidate, RouteDecision};
use serde::Deserialize;
use serde_json::Value;

/// The validator's answer.
#[derive(Debug, Deserialize)]
struct RouteExplanation {
    job: JobId,
    routes: Vec<StoredRoute>,
}

#[derive(Debug, Deserialize)]
struct StoredRoute {
    ordinal: u32,
    decided_at: Timestamp,
    #[serde(flatten)]
    decision: RouteDecision,
}

/// The text of a validator's answer about a job's routes.
///
/// # Errors
/// The answer has another shape.
pub fn describe_routes(body: Value) -> Result<String, serde_json::Error> {
    Ok(text(&serde_json::from_value(body)?))
}

fn text(explained: &RouteExplanation) -> String {
    let mut text = String::new();
    for kept in &explained.routes {
        let decision = &kept.decision;
        let went = match decision.chosen {
            Some(miner) => format!("asked {miner}"),
            None => "nobody could be asked".to_owned(),
        };
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{} attempt {} at {}, block {}, class {}: {went}",
            explained.job, kept.ordinal, kept.decided_at, decision.block, decision.class
        );
        if !decision.candidates.is_empty() {
            let _ = writeln!(text, "{}", candidates(&decision.candidates));
        }
        if decision.more > 0 {
            let _ = writeln!(text, "and {} more, dearer ones", decision.more);
        }
        for passed in &decision.excluded {
            let _ = writeln!(text, "not asked: uid {}: {}", uids(&passed.uids), passed.reason);
        }
        text.push('\n');
    }
    text
}

/// The candidates with their costs; the cheapest was asked.
fn candidates(candidates: &[Candidate]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "uid", "miner", "cost", "record", "load", "image", "inputs", "fairness", "newcomer", "doubt",
    ]);
    for candidate in candidates {
        let cost = &candidate.cost;
        table.add_row([
            candidate.uid.to_string(),
            short(candidate.miner),
            cost.total().to_string(),
            cost.record.to_string(),
            cost.load.to_string(),
            cost.image.to_string(),
            cost.inputs.to_string(),
            cost.fairness.to_string(),
            cost.newcomer.to_string(),
            cost.doubt.to_string(),
        ]);
    }
    for column in 2..10 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

fn short(miner: MinerKey) -> String {
    let text = miner.to_string();
    text.chars().take(12).collect::<String>() + "…"
}

fn uids(uids: &[u16]) -> String {
    let all: Vec<_> = uids.iter().map(u16::to_string).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use muster_protocol::{ExecutorClass, Hotkey};
    use muster_routing::route::ExclusionGroup;
    use muster_routing::{Exclusion, RouteCost};

    use super::*;

    #[test]
    fn an_explanation_names_who_was_asked_what_each_cost_and_why_others_were_not() {
        let miner = MinerKey(Hotkey::from_bytes([7; 32]));
        let decision = RouteDecision {
            block: 12,
            class: ExecutorClass::AlwaysOnTest,
            chosen: Some(miner),
            candidates: vec![Candidate {
                uid: 3,
                miner,
                address: SocketAddr::from(([127, 0, 0, 1], 5)),
                cost: RouteCost {
                    record: 5,
                    load: 100,
                    image: 300,
                    inputs: 0,
                    fairness: 20,
                    newcomer: 0,
                    doubt: 0,
                },
            }],
            more: 2,
            excluded: vec![ExclusionGroup {
                reason: Exclusion::Busy { open: 2, capacity: 2 },
                uids: vec![4, 9],
            }],
        };
        let kept = serde_json::json!({
            "job": "11111111-2222-4333-8444-555555555555",
            "routes": [{
                "ordinal": 1, "decided_at": "2026-01-21T12:34:56Z", "block": decision.block, "class": decision.class,
                "chosen": decision.chosen, "candidates": decision.candidates, "more": decision.more,
                "excluded": decision.excluded,
            }],
        });
        let told = describe_routes(kept).unwrap();
        for words in [
            "attempt 1 at 2026-01-21T12:34:56Z, block 12",
            &format!("asked {miner}"),
            "425",
            "and 2 more",
            "not asked: uid 4, 9: 2 of its 2 executors are at work for us",
        ] {
            assert!(told.contains(words), "{words} in\n{told}");
        }
    }
}
