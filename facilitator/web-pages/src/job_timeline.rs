//! The way of a job on its page: the stage of each role with its time, and the miners that were asked.

use maud::{Markup, html};
use muster_protocol::{AttemptId, MinerKey, ParticipantType, StageTime, Timestamp, TraceStage};

use crate::checked_receipts::CheckedReceipt;
use crate::text::{shorten, span};

/// The width of the drawing of a stage, in its own units.
const WIDTH: f64 = 1_000.0;
/// The width of a stage that took no time.
const LEAST_BAR: f64 = 8.0;

/// Stages of this depth and deeper are folded.
const FOLDED: usize = 2;

/// The part of the way that a drawing covers, and the receipts that name miners.
#[derive(Clone, Copy)]
struct Drawing<'a> {
    first: Timestamp,
    last: Timestamp,
    receipts: &'a [CheckedReceipt],
}

/// The section. It is empty until the job's end has brought the stages of other roles.
pub(crate) fn section(way: &[(usize, StageTime)], receipts: &[CheckedReceipt]) -> Markup {
    let is_told = way
        .iter()
        .any(|(_, time)| time.role != ParticipantType::Facilitator);
    let first = way.iter().map(|(_, time)| time.began()).min();
    let last = way.iter().map(|(_, time)| time.ended()).max();
    let (Some(first), Some(last), true) = (first, last, is_told) else {
        return html! {};
    };
    let drawing = Drawing {
        first,
        last,
        receipts,
    };
    html! {
        section aria-labelledby="way" {
            h2 #way { "Way" }
            table.steps {
                thead.unseen { tr { th scope="col" { "Stage" } th scope="col" { "Lasted" } th scope="col" { "Share" } } }
                tbody {
                    @for run in way.chunk_by(|(depth, _), (next, _)| (*depth < FOLDED) == (*next < FOLDED)) {
                        (rows(run, drawing))
                    }
                }
            }
            p.help { "As each role tells its own times: facilitator, validator, miner, executor. "
                code { "muster job show --trace" } " prints them." }
        }
    }
}

/// Neighbouring stages, all of them folded or none.
fn rows(run: &[(usize, StageTime)], drawing: Drawing<'_>) -> Markup {
    let folded = run.first().is_some_and(|(depth, _)| *depth >= FOLDED);
    html! {
        @if folded {
            tr { td.folded colspan="3" {
                details {
                    summary { (run.len()) @if run.len() == 1 { " stage" } @else { " stages" } " within" }
                    table.steps { tbody { @for (depth, time) in run { (row(*depth, time, drawing)) } } }
                }
            } }
        } @else {
            @for (depth, time) in run { (row(*depth, time, drawing)) }
        }
    }
}

fn row(depth: usize, time: &StageTime, drawing: Drawing<'_>) -> Markup {
    let Drawing {
        first,
        last,
        receipts,
    } = drawing;
    let whole = last.since(first).as_secs_f64().max(0.001);
    let place = |at: Timestamp| (at.since(first).as_secs_f64() / whole * WIDTH).min(WIDTH);
    let (begin, end) = (place(time.began()), place(time.ended()));
    let took = span(time.ended().since(time.began()));
    let indent = "\u{2003}".repeat(depth.min(6));
    html! {
        tr {
            th scope="row" {
                (indent) (time.role.as_str()) " " (time.stage.to_string())
                @if let Some(miner) = asked_miner(time, receipts) { " " span.mono.dim title=(miner) { (shorten(&miner.to_string())) } }
            }
            td.n title=(format!("begins after {}", span(time.began().since(first)))) { (took) }
            td.bar {
                svg viewBox="0 0 1000 8" preserveAspectRatio="none" height="8" width="100%" role="img"
                    aria-label=(format!("lasted {took}")) {
                    rect.track x="0" y="3" width="1000" height="2" {}
                    rect.fill x=(format!("{:.0}", begin.min(WIDTH - LEAST_BAR))) y="0" height="8"
                        width=(format!("{:.0}", (end - begin).max(LEAST_BAR))) {}
                }
            }
        }
    }
}

/// The miner of a lease, by a receipt that both have signed.
fn asked_miner(time: &StageTime, receipts: &[CheckedReceipt]) -> Option<MinerKey> {
    let attempt: AttemptId = time.attempt.filter(|_| time.stage == TraceStage::Lease)?;
    let of_attempt =
        |checked: &&CheckedReceipt| checked.is_valid && checked.receipt.payload.attempt() == attempt;
    receipts
        .iter()
        .find(of_attempt)
        .map(|checked| checked.receipt.payload.miner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checked_receipts::fixtures::{ATTEMPT, MINER, checked};

    #[test]
    fn a_lease_names_the_miner_that_has_signed_and_the_facilitators_stages_alone_are_no_way() {
        let at = |seconds: i64| Timestamp::from_secs(1_769_000_000 + seconds);
        let own = StageTime::new(ParticipantType::Facilitator, TraceStage::Request, at(0), at(9));
        let lease = StageTime {
            attempt: ATTEMPT.parse().ok(),
            ..StageTime::new(ParticipantType::Miner, TraceStage::Lease, at(1), at(8))
        };
        let receipts = [checked("1.0", true)];
        assert_eq!(section(&[(0, own)], &receipts).into_string(), "");
        let shown = section(&[(0, own), (3, lease)], &receipts).into_string();
        assert!(shown.contains("miner lease") && shown.contains(MINER), "{shown}");
        assert!(shown.contains("lasted 7.00 s"), "{shown}");
        let unsigned = section(&[(0, own), (3, lease)], &[checked("1.0", false)]).into_string();
        assert!(!unsigned.contains(MINER), "{unsigned}");
    }

    #[test]
    fn stages_beyond_two_levels_are_folded_where_they_stand() {
        let at = |seconds: i64| Timestamp::from_secs(1_769_000_000 + seconds);
        let stage = |depth, role, begin, end| {
            (
                depth,
                StageTime::new(role, TraceStage::Request, at(begin), at(end)),
            )
        };
        let way = [
            stage(0, ParticipantType::Facilitator, 0, 9),
            stage(1, ParticipantType::Validator, 1, 8),
            stage(2, ParticipantType::Miner, 2, 4),
            stage(3, ParticipantType::Executor, 2, 3),
            stage(1, ParticipantType::Validator, 8, 9),
        ];
        let shown = section(&way, &[]).into_string();
        let folded = shown
            .split("<details>")
            .nth(1)
            .and_then(|rest| rest.split("</details>").next())
            .unwrap();
        assert!(folded.contains("2 stages within"), "{folded}");
        assert!(
            folded.contains("miner ") && folded.contains("executor "),
            "{folded}"
        );
        assert!(!folded.contains("validator "), "{folded}");
        assert!(
            shown.ends_with("</section>") && shown.matches("validator ").count() == 2,
            "{shown}"
        );
    }
}
