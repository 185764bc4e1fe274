//! Receipts: statements about one attempt of a job that both its validator and its miner sign.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical;
use crate::class::ExecutorClass;
use crate::ids::AttemptId;
use crate::keys::{MinerKey, ValidatorKey};
use crate::signature::Signature;
use crate::time::Timestamp;

/// Thirty days, the longest validity of a receipt (compute-horde 0.0.27).
const MAX_TTL_SECS: u64 = 2_592_000;
/// One year in microseconds.
const MAX_TOOK_MICROS: u64 = 31_536_000_000_000;
/// Blocks that a finished receipt may name (compute-horde 0.0.27).
pub const MAX_BLOCK_NUMBERS: usize = 10_000;
const MAX_BLOCK_NUMBER: u64 = 1 << 32;
const MAX_SCORE_CHARS: usize = 256;

/// Seconds of receipts in one page: a miner serves them as files named `{unix seconds / 300}.jsonl`.
pub const PAGE_SECS: i64 = 300;

/// Seconds for which miners serve their receipts: two days, as long as ComputeHorde's miners.
pub const SERVED_SECS: i64 = 2 * 24 * 3600;

/// The time that every paid attempt may be paid, however short it was, in microseconds (`docs/adr/0063`).
pub const MINIMUM_CHARGE_US: u64 = 10_000_000;

/// How far a receipt's time may lie ahead of the reader's clock.
pub const MAX_AHEAD: Duration = Duration::from_secs(3600);

/// An attempt that keeps an executor at work, as its started or accepted receipt shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptAtWork {
    /// The attempt that the receipts are about.
    pub attempt: AttemptId,
    /// When the miner showed the receipts, by the reader's clock.
    pub shown_at: Timestamp,
    /// The time at which its receipts expire: the attempt has ended by then.
    pub until: Timestamp,
    /// Whether it runs a user's job; a validator's own lease for grading is paid nothing.
    pub is_organic: bool,
}

/// The number of the page that holds the receipts of this time.
pub fn page_of(time: Timestamp) -> i64 {
    time.secs().div_euclid(PAGE_SECS)
}

/// The number of a receipt page by its file name: digits and `.jsonl`, nothing else.
pub fn parse_page_name(name: &str) -> Option<i64> {
    let digits = name.strip_suffix(".jsonl")?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// A field of a receipt lies outside the limits that both implementations share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// The named field holds a time outside the years 2000 to 2099.
    #[error("{0} lies outside the years 2000 to 2099")]
    Year(&'static str),
    /// The receipt is valid for longer than thirty days; holds its ttl in seconds.
    #[error("ttl of {0} s is longer than thirty days")]
    Ttl(u64),
    /// The attempt took longer than a year; holds its duration in microseconds.
    #[error("time_took_us of {0} is longer than a year")]
    Took(u64),
    /// `score_str` is not a plain decimal number.
    #[error("score_str must be digits, optionally with a fraction, of at most 256 characters")]
    Score,
    /// A block number is larger than 2^32.
    #[error("block number {0} is larger than 2^32")]
    Block(u64),
    /// The receipt names too many blocks; holds their number.
    #[error("{0} block numbers, 10000 are allowed")]
    Blocks(usize),
}

/// The signed content of a receipt. The tag `receipt_type` stands among its fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ReceiptPayload {
    /// The validator reserves an executor.
    Started(StartedReceipt),
    /// The miner has accepted the attempt.
    Accepted(AcceptedReceipt),
    /// The attempt has ended; states its pay.
    Finished(FinishedReceipt),
}

impl<'de> Deserialize<'de> for ReceiptPayload {
    /// Written by hand because the tag stands in the middle of the object, and so that the error names the field at
    /// fault.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let value = Value::deserialize(deserializer)?;
        let kind = value
            .get("receipt_type")
            .and_then(Value::as_str)
            .and_then(ReceiptKind::from_wire);
        match kind {
            Some(ReceiptKind::Started) => serde_json::from_value(value).map(Self::Started),
            Some(ReceiptKind::Accepted) => serde_json::from_value(value).map(Self::Accepted),
            Some(ReceiptKind::Finished) => serde_json::from_value(value).map(Self::Finished),
            None => {
                return Err(D::Error::custom(
                    "receipt_type is not one of JobStartedReceipt, JobAcceptedReceipt, JobFinishedReceipt",
                ));
            }
        }
        .map_err(D::Error::custom)
    }
}

/// The kinds of receipt. An attempt has at most one of each, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReceiptKind {
    /// The validator's reservation of an executor.
    Started,
    /// The validator's confirmation of the miner's acceptance.
    Accepted,
    /// The end of the attempt and its pay.
    Finished,
}

impl ReceiptKind {
    /// All three kinds, in order.
    pub const ALL: [Self; 3] = [Self::Started, Self::Accepted, Self::Finished];

    /// The name on the wire, `receipt_type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "JobStartedReceipt",
            Self::Accepted => "JobAcceptedReceipt",
            Self::Finished => "JobFinishedReceipt",
        }
    }

    /// Reads the name on the wire; `None` if no kind has it.
    pub fn from_wire(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for ReceiptKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

crate::macros::constant_text!(
    /// The `receipt_type` of [`StartedReceipt`].
    StartedTag = "JobStartedReceipt"
);
crate::macros::constant_text!(
    /// The `receipt_type` of [`AcceptedReceipt`].
    AcceptedTag = "JobAcceptedReceipt"
);
crate::macros::constant_text!(
    /// The `receipt_type` of [`FinishedReceipt`].
    FinishedTag = "JobFinishedReceipt"
);

/// The reservation of an executor, sent with the offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedReceipt {
    /// The id of the attempt (the wire calls it a job).
    pub job_uuid: AttemptId,
    /// The miner that is offered the attempt.
    pub miner_hotkey: MinerKey,
    /// The validator that offers the attempt.
    pub validator_hotkey: ValidatorKey,
    /// The time of signing, by the validator's clock.
    pub timestamp: Timestamp,
    /// Always `JobStartedReceipt`.
    pub receipt_type: StartedTag,
    /// The class of the reserved executor.
    pub executor_class: ExecutorClass,
    /// Whether a user submitted the job, rather than a validator testing the miner.
    pub is_organic: bool,
    /// Seconds for which the reservation holds, at most thirty days.
    pub ttl: u64,
}

/// The confirmation that the miner's acceptance arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedReceipt {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The miner that runs the attempt.
    pub miner_hotkey: MinerKey,
    /// The validator that offers the attempt.
    pub validator_hotkey: ValidatorKey,
    /// The time of signing, by the validator's clock.
    pub timestamp: Timestamp,
    /// Always `JobAcceptedReceipt`.
    pub receipt_type: AcceptedTag,
    /// The time at which the acceptance arrived, by the validator's clock.
    pub time_accepted: Timestamp,
    /// Seconds for which the receipt holds, at most thirty days.
    pub ttl: u64,
}

/// The end of an attempt and its pay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedReceipt {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The miner that runs the attempt.
    pub miner_hotkey: MinerKey,
    /// The validator that offers the attempt.
    pub validator_hotkey: ValidatorKey,
    /// The time of signing, by the validator's clock.
    pub timestamp: Timestamp,
    /// Always `JobFinishedReceipt`.
    pub receipt_type: FinishedTag,
    /// The time at which the attempt began.
    pub time_started: Timestamp,
    /// The duration of the attempt, in microseconds, at most a year.
    pub time_took_us: u64,
    /// The pay in executor-seconds, as a decimal text with six places.
    pub score_str: String,
    /// The allowance blocks that pay for it.
    #[serde(default)]
    pub block_numbers: Vec<u64>,
}

impl FinishedReceipt {
    /// The pay in millionths of an executor-second, exactly; `None` if `score_str` is not such a number.
    ///
    /// Digits past the sixth are cut off: a receipt with more of them must not stop the scoring of the others.
    pub fn score_micros(&self) -> Option<u64> {
        let (whole, fraction) = self.score_str.split_once('.').unwrap_or((&self.score_str, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) {
            return None;
        }
        let padded = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
        let millionths = padded.fold(0_u64, |sum, digit| sum * 10 + u64::from(digit.wrapping_sub(b'0')));
        whole
            .parse::<u64>()
            .ok()?
            .checked_mul(1_000_000)?
            .checked_add(millionths)
    }

    /// The text of an amount of executor-seconds, given in millionths.
    pub fn score_text(micros: u64) -> String {
        format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}

impl ReceiptPayload {
    /// The id of the attempt.
    pub fn attempt(&self) -> AttemptId {
        match self {
            Self::Started(r) => r.job_uuid,
            Self::Accepted(r) => r.job_uuid,
            Self::Finished(r) => r.job_uuid,
        }
    }

    /// The miner that runs, or ran, the attempt.
    pub fn miner(&self) -> MinerKey {
        match self {
            Self::Started(r) => r.miner_hotkey,
            Self::Accepted(r) => r.miner_hotkey,
            Self::Finished(r) => r.miner_hotkey,
        }
    }

    /// The validator that offered the attempt.
    pub fn validator(&self) -> ValidatorKey {
        match self {
            Self::Started(r) => r.validator_hotkey,
            Self::Accepted(r) => r.validator_hotkey,
            Self::Finished(r) => r.validator_hotkey,
        }
    }

    /// The time of signing, by the validator's clock.
    pub fn timestamp(&self) -> Timestamp {
        match self {
            Self::Started(r) => r.timestamp,
            Self::Accepted(r) => r.timestamp,
            Self::Finished(r) => r.timestamp,
        }
    }

    /// The kind of the receipt.
    pub fn kind(&self) -> ReceiptKind {
        match self {
            Self::Started(_) => ReceiptKind::Started,
            Self::Accepted(_) => ReceiptKind::Accepted,
            Self::Finished(_) => ReceiptKind::Finished,
        }
    }

    /// The bytes that both parties sign: Python's `json.dumps(payload, sort_keys=True)`.
    pub fn signed_bytes(&self) -> Vec<u8> {
        canonical::sorted_spaced(&self.signed_object()).into_bytes()
    }

    /// The receipt's JSON. Unlike the way through serde, this one cannot fail.
    fn signed_object(&self) -> Value {
        match self {
            Self::Started(StartedReceipt {
                job_uuid,
                miner_hotkey,
                validator_hotkey,
                timestamp,
                receipt_type: StartedTag,
                executor_class,
                is_organic,
                ttl,
            }) => canonical::object([
                ("job_uuid", canonical::text(job_uuid)),
                ("miner_hotkey", canonical::text(miner_hotkey)),
                ("validator_hotkey", canonical::text(validator_hotkey)),
                ("timestamp", canonical::text(timestamp)),
                ("receipt_type", canonical::text(&ReceiptKind::Started)),
                ("executor_class", canonical::text(executor_class)),
                ("is_organic", (*is_organic).into()),
                ("ttl", (*ttl).into()),
            ]),
            Self::Accepted(AcceptedReceipt {
                job_uuid,
                miner_hotkey,
                validator_hotkey,
                timestamp,
                receipt_type: AcceptedTag,
                time_accepted,
                ttl,
            }) => canonical::object([
                ("job_uuid", canonical::text(job_uuid)),
                ("miner_hotkey", canonical::text(miner_hotkey)),
                ("validator_hotkey", canonical::text(validator_hotkey)),
                ("timestamp", canonical::text(timestamp)),
                ("receipt_type", canonical::text(&ReceiptKind::Accepted)),
                ("time_accepted", canonical::text(time_accepted)),
                ("ttl", (*ttl).into()),
            ]),
            Self::Finished(FinishedReceipt {
                job_uuid,
                miner_hotkey,
                validator_hotkey,
                timestamp,
                receipt_type: FinishedTag,
                time_started,
                time_took_us,
                score_str,
                block_numbers,
            }) => canonical::object([
                ("job_uuid", canonical::text(job_uuid)),
                ("miner_hotkey", canonical::text(miner_hotkey)),
                ("validator_hotkey", canonical::text(validator_hotkey)),
                ("timestamp", canonical::text(timestamp)),
                ("receipt_type", canonical::text(&ReceiptKind::Finished)),
                ("time_started", canonical::text(time_started)),
                ("time_took_us", (*time_took_us).into()),
                ("score_str", canonical::text(score_str)),
                ("block_numbers", block_numbers.clone().into()),
            ]),
        }
    }

    /// Checks the limits that compute-horde 0.0.27 enforces.
    pub fn check(&self) -> Result<(), ReceiptError> {
        let year = |name, time: Timestamp| {
            if (2000..2100).contains(&time.year()) {
                Ok(())
            } else {
                Err(ReceiptError::Year(name))
            }
        };
        let ttl = |secs| {
            if secs <= MAX_TTL_SECS {
                Ok(())
            } else {
                Err(ReceiptError::Ttl(secs))
            }
        };
        year("timestamp", self.timestamp())?;
        match self {
            Self::Started(r) => ttl(r.ttl),
            Self::Accepted(r) => year("time_accepted", r.time_accepted).and_then(|()| ttl(r.ttl)),
            Self::Finished(r) => {
                year("time_started", r.time_started)?;
                if r.time_took_us > MAX_TOOK_MICROS {
                    return Err(ReceiptError::Took(r.time_took_us));
                }
                if r.score_str.len() > MAX_SCORE_CHARS || r.score_micros().is_none() {
                    return Err(ReceiptError::Score);
                }
                if r.block_numbers.len() > MAX_BLOCK_NUMBERS {
                    return Err(ReceiptError::Blocks(r.block_numbers.len()));
                }
                match r.block_numbers.iter().find(|block| **block > MAX_BLOCK_NUMBER) {
                    Some(block) => Err(ReceiptError::Block(*block)),
                    None => Ok(()),
                }
            }
        }
    }
}

/// A receipt with both signatures, not yet checked. A miner's receipt page holds one per line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The statement that both parties sign.
    pub payload: ReceiptPayload,
    /// The validator's signature over [`ReceiptPayload::signed_bytes`].
    pub validator_signature: Signature,
    /// The miner's signature over the same bytes.
    pub miner_signature: Signature,
}

/// A payload with the validator's signature alone, as it is sent to the miner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedReceipt {
    /// The statement that both parties sign.
    pub payload: ReceiptPayload,
    /// The validator's signature over [`ReceiptPayload::signed_bytes`].
    pub validator_signature: Signature,
}

impl OfferedReceipt {
    /// Adds the miner's signature.
    pub fn with_countersignature(self, miner_signature: Signature) -> Receipt {
        Receipt {
            payload: self.payload,
            validator_signature: self.validator_signature,
            miner_signature,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::keys::Hotkey;

    #[test]
    fn signed_object_is_the_receipts_json() {
        let (job, key) = (
            "11111111-2222-4333-8444-555555555555",
            Hotkey::from_bytes([7; 32]),
        );
        let at = "2026-01-21T12:34:56.000001Z";
        let common = |kind: ReceiptKind| {
            json!({
                "job_uuid": job, "miner_hotkey": key, "validator_hotkey": key, "timestamp": at,
                "receipt_type": kind.as_str(), "executor_class": "always_on.test", "is_organic": true, "ttl": 7,
                "time_accepted": at, "time_started": at, "time_took_us": 8, "score_str": "0.000001",
                "block_numbers": [3, 4],
            })
        };
        for kind in ReceiptKind::ALL {
            let payload: ReceiptPayload = serde_json::from_value(common(kind)).unwrap();
            assert_eq!(payload.kind(), kind);
            assert_eq!(payload.signed_object(), serde_json::to_value(&payload).unwrap());
        }
    }

    #[test]
    fn only_page_names_are_pages() {
        assert_eq!(parse_page_name("5896666.jsonl"), Some(5_896_666));
        for bad in [
            "",
            ".jsonl",
            "-1.jsonl",
            "1.json",
            "../1.jsonl",
            "1.jsonl.gz",
            "99999999999999999999.jsonl",
        ] {
            assert_eq!(parse_page_name(bad), None, "{bad}");
        }
    }
}
