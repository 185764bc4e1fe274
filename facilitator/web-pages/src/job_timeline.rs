//! The way of a job on its page: the stage of each role with its time, and the miners that were asked.

use maud::{Markup, html};
use muster_protocol::{
    AttemptId, MinerKey, ParticipantType, ReceiptPayload, StageTime, Timestamp, TraceStage,
};

use crate::checked_receipts::CheckedReceipt;
use crate::text::{shorten, span};

/// The width of the drawing of a stage, in its own units.
const WIDTH: f64 = 1_000.0;
/// The width of a stage that took no time.
const LEAST_BAR: f64 = 8.0;

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
    html! {
        section aria-labelledby="way" {
            h2 #way { "Way" }
            table.steps {
                thead.unseen { tr { th scope="col" { "Stage" } th scope="col" { "Lasted" } th scope="col" { "Share" } } }
                tbody { @for (depth, time) in way { (row(*depth, time, first, last, receipts)) } }
            }
            p.help { "As each role tells its own times: facilitator, validator, miner, executor. "
                code { "muster job show --trace" } " prints them." }
        }
    }
}

fn row(
    depth: usize,
    time: &StageTime,
    first: Timestamp,
    last: Timestamp,
    receipts: &[CheckedReceipt],
) -> Markup {
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

/// The executors' time that finished receipts with both signatures pay, in microseconds; `None` without one.
pub(crate) fn paid_micros(receipts: &[CheckedReceipt]) -> Option<u64> {
    let paid = receipts
        .iter()
        .filter(|checked| checked.is_valid)
        .filter_map(|checked| match &checked.receipt.payload {
            ReceiptPayload::Finished(finished) => finished.score_micros(),
            ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) => None,
        });
    paid.fold(None, |sum, micros| {
        Some(sum.unwrap_or(0_u64).saturating_add(micros))
    })
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Receipt, Signature};

    use super::*;

    fn checked(score: &str, is_valid: bool) -> CheckedReceipt {
        let receipt = serde_json::json!({
            "payload": {
                "job_uuid": ATTEMPT, "miner_hotkey": MINER, "validator_hotkey": MINER, "timestamp": "2026-01-21T12:34:56Z",
                "receipt_type": "JobFinishedReceipt", "time_started": "2026-01-21T12:34:50Z", "time_took_us": 5_000_000,
                "score_str": score, "block_numbers": [],
            },
            "validator_signature": Signature::from_bytes([0; 64]), "miner_signature": Signature::from_bytes([0; 64]),
        });
        CheckedReceipt {
            receipt: serde_json::from_value::<Receipt>(receipt).unwrap(),
            is_valid,
        }
    }

    const ATTEMPT: &str = "11111111-2222-4333-8444-555555555555";
    const MINER: &str = "5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy";

    #[test]
    fn only_receipts_with_both_signatures_are_a_cost() {
        assert_eq!(paid_micros(&[]), None);
        assert_eq!(paid_micros(&[checked("9.0", false)]), None);
        let receipts = [checked("1.5", true), checked("2.25", true), checked("9.0", false)];
        assert_eq!(paid_micros(&receipts), Some(3_750_000));
    }

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
}
