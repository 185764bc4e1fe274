//! The cost of a job on its page, with its reason.

use std::time::Duration;

use muster_protocol::ReceiptPayload;
use muster_protocol::receipt::MINIMUM_CHARGE_US;

use crate::checked_receipts::CheckedReceipt;
use crate::text::span;

/// The executors' time that finished receipts with both signatures charge, and the reason; `None` without one.
pub(crate) fn of_receipts(receipts: &[CheckedReceipt]) -> Option<String> {
    let charges: Vec<u64> = receipts
        .iter()
        .filter(|checked| checked.is_valid)
        .filter_map(|checked| match &checked.receipt.payload {
            ReceiptPayload::Finished(finished) => finished.score_micros(),
            ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) => None,
        })
        .collect();
    let whole = charges
        .iter()
        .fold(0_u64, |sum, micros| sum.saturating_add(*micros));
    let reason = match &charges[..] {
        [] => return None,
        [MINIMUM_CHARGE_US] => "the least that an attempt costs".to_owned(),
        [_] => "from the executor's start for the job to its last output".to_owned(),
        several => format!("{} attempts are paid", several.len()),
    };
    let time = span(Duration::from_micros(whole));
    Some(format!("{time} of executor time: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checked_receipts::fixtures::checked;

    #[test]
    fn only_receipts_with_both_signatures_are_a_cost_and_it_says_why() {
        assert_eq!(of_receipts(&[]), None);
        assert_eq!(of_receipts(&[checked("9.0", false)]), None);
        let least = of_receipts(&[checked("10.0", true)]).unwrap();
        assert!(
            least.ends_with("of executor time: the least that an attempt costs"),
            "{least}"
        );
        let longer = of_receipts(&[checked("31.5", true)]).unwrap();
        assert!(
            longer.starts_with("31.5 s of executor time: from the"),
            "{longer}"
        );
        let receipts = [
            checked("10.0", true),
            checked("12.25", true),
            checked("9.0", false),
        ];
        let twice = of_receipts(&receipts).unwrap();
        assert!(
            twice.starts_with("22.2 s") && twice.ends_with("2 attempts are paid"),
            "{twice}"
        );
    }
}
