//! The earnings of a miner as its receipts show them: sums by validator, and the newest receipts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use muster_protocol::{Receipt, ReceiptPayload, Timestamp, ValidatorKey};

use crate::miner::{Earnings, MAX_LISTED, PaidReceipt};

/// The finished receipts of a miner, added up.
#[derive(Clone, Debug, Default)]
pub struct EarningsTally {
    by_validator: BTreeMap<ValidatorKey, Earned>,
    /// The newest first; at most [`MAX_LISTED`].
    newest: VecDeque<PaidReceipt>,
}

#[derive(Clone, Copy, Debug)]
struct Earned {
    receipts: u64,
    micros: u64,
    newest: Timestamp,
}

impl EarningsTally {
    /// Adds a receipt, if it is a finished one. Receipts come the oldest first.
    pub fn add(&mut self, receipt: &Receipt) {
        let ReceiptPayload::Finished(finished) = &receipt.payload else {
            return;
        };
        let start = Earned {
            receipts: 0,
            micros: 0,
            newest: finished.timestamp,
        };
        let earned = self
            .by_validator
            .entry(finished.validator_hotkey)
            .or_insert(start);
        earned.receipts = earned.receipts.saturating_add(1);
        earned.micros = earned.micros.saturating_add(finished.score_micros().unwrap_or(0));
        earned.newest = earned.newest.max(finished.timestamp);
        if let Some(paid) = PaidReceipt::of(receipt) {
            self.newest.push_front(paid);
            self.newest.truncate(MAX_LISTED);
        }
    }

    /// The sums by validator, the largest first.
    pub fn list(&self) -> Vec<Earnings> {
        let sums = self.by_validator.iter().map(|(validator, earned)| Earnings {
            validator: validator.to_string(),
            receipts: earned.receipts,
            micros: earned.micros,
            newest: earned.newest,
        });
        let mut sums: Vec<_> = sums.collect();
        sums.sort_by_key(|earned| Reverse(earned.micros));
        sums
    }

    /// The newest receipts, the newest first.
    pub fn newest(&self) -> Vec<PaidReceipt> {
        self.newest.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MINER: &str = "5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy";
    const OTHER: &str = "5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty";

    fn receipt(validator: &str, second: u32, score: &str) -> Receipt {
        let text = json!({
            "payload": {
                "job_uuid": "11111111-2222-4333-8444-555555555555", "miner_hotkey": MINER, "validator_hotkey": validator,
                "timestamp": format!("2026-01-21T12:{:02}:{:02}Z", second / 60, second % 60),
                "receipt_type": "JobFinishedReceipt", "time_started": "2026-01-21T12:00:00Z", "time_took_us": 5_000_000,
                "score_str": score, "block_numbers": [],
            },
            "validator_signature": muster_protocol::Signature::from_bytes([0; 64]),
            "miner_signature": muster_protocol::Signature::from_bytes([0; 64]),
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn receipts_add_up_by_validator_and_the_newest_are_listed() {
        let mut tally = EarningsTally::default();
        for second in 0..300 {
            tally.add(&receipt(MINER, second, "1.5"));
        }
        tally.add(&receipt(OTHER, 301, "900.25"));
        let sums: Vec<_> = tally
            .list()
            .into_iter()
            .map(|earned| (earned.validator, earned.receipts, earned.micros))
            .collect();
        assert_eq!(
            sums,
            [
                (OTHER.to_owned(), 1, 900_250_000),
                (MINER.to_owned(), 300, 450_000_000)
            ]
        );
        let newest = tally.newest();
        assert_eq!(newest.len(), MAX_LISTED);
        assert_eq!(
            (newest[0].validator.as_str(), newest[0].micros),
            (OTHER, 900_250_000)
        );
        assert!(newest.windows(2).all(|pair| pair[0].at >= pair[1].at));
    }
}
