//! Which of the lines that a miner serves are receipts that count, and why the others are not.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use muster_identity::{Party, Verified, VerifyError, verify_receipts};
use muster_protocol::{AttemptId, Digest, MinerKey, Receipt, ReceiptKind, Timestamp, ValidatorKey};
use serde::{Deserialize, Serialize};

/// How old a receipt may be. Miners serve theirs for two days; older ones were forgotten here, and would count again.
pub const MAX_AGE: Duration = Duration::from_secs(2 * 24 * 3600);

/// What a refused line is remembered by.
const MAX_EXAMPLE_CHARS: usize = 200;

/// What tells receipts apart: an attempt's id is its validator's to give, so two validators' are two.
pub type ReceiptKey = (ValidatorKey, AttemptId, ReceiptKind);

/// The key of a receipt.
pub fn key_of(receipt: &Receipt) -> ReceiptKey {
    let payload = &receipt.payload;
    (payload.validator(), payload.attempt(), payload.kind())
}

/// Why a line is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectionReason {
    /// The line, or the page, is longer than any honest one.
    TooLong,
    /// It is no receipt.
    NotAReceipt,
    /// It is another miner's.
    OtherMiner,
    /// A field lies outside the limits that everyone shares.
    OutsideLimits,
    /// It lies more than an hour in the future.
    Future,
    /// It is older than miners serve theirs.
    Stale,
    /// Its validator did not sign it.
    ForgedValidator,
    /// Its miner did not sign it.
    ForgedMiner,
    /// It was read before.
    Repeated,
    /// Another receipt of that kind about that attempt was read before.
    Contradicts,
}

impl RejectionReason {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::TooLong,
        Self::NotAReceipt,
        Self::OtherMiner,
        Self::OutsideLimits,
        Self::Future,
        Self::Stale,
        Self::ForgedValidator,
        Self::ForgedMiner,
        Self::Repeated,
        Self::Contradicts,
    ];

    /// The word that stores keep.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::NotAReceipt => "not_a_receipt",
            Self::OtherMiner => "other_miner",
            Self::OutsideLimits => "outside_limits",
            Self::Future => "future",
            Self::Stale => "stale",
            Self::ForgedValidator => "forged_validator",
            Self::ForgedMiner => "forged_miner",
            Self::Repeated => "repeated",
            Self::Contradicts => "contradicts",
        }
    }
}

impl fmt::Display for RejectionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "longer than any receipt",
            Self::NotAReceipt => "not a receipt",
            Self::OtherMiner => "another miner's",
            Self::OutsideLimits => "a field lies outside its limits",
            Self::Future => "more than an hour in the future",
            Self::Stale => "older than two days",
            Self::ForgedValidator => "not signed by its validator",
            Self::ForgedMiner => "not signed by its miner",
            Self::Repeated => "read before",
            Self::Contradicts => "another content than was read before",
        })
    }
}

/// A line that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptRejection {
    /// Why.
    pub why: RejectionReason,
    /// The beginning of it, for people.
    pub example: String,
}

/// What is to be made of a batch.
#[derive(Clone, Debug, Default)]
pub struct CheckedBatch {
    /// New receipts with both signatures good.
    pub good: Vec<Verified<Receipt>>,
    /// The others.
    pub refused: Vec<ReceiptRejection>,
}

/// Reads lines that `from` served. What is no receipt, another's, or out of its time is refused here.
///
/// The receipts may be judged once it is known which of their [keys](key_of) were read before.
pub fn read_lines(
    lines: &[Vec<u8>],
    from: MinerKey,
    now: Timestamp,
) -> (Vec<Receipt>, Vec<ReceiptRejection>) {
    let (mut receipts, mut refused) = (Vec::with_capacity(lines.len()), Vec::new());
    for line in lines {
        let refuse = |why| ReceiptRejection {
            why,
            example: example(line),
        };
        match serde_json::from_slice::<Receipt>(line) {
            Err(_) => refused.push(refuse(RejectionReason::NotAReceipt)),
            Ok(receipt) if receipt.payload.miner() != from => {
                refused.push(refuse(RejectionReason::OtherMiner))
            }
            Ok(receipt) if now.since(receipt.payload.timestamp()) > MAX_AGE => {
                refused.push(refuse(RejectionReason::Stale));
            }
            Ok(receipt) => receipts.push(receipt),
        }
    }
    (receipts, refused)
}

/// Judges receipts. `known` holds the digests of the payloads that were kept before, by key.
///
/// The signatures of those that are new are checked in one batch. A forged copy cannot keep the true one out: only what
/// has been checked is known.
pub fn check_receipts(
    receipts: Vec<Receipt>,
    known: &BTreeMap<ReceiptKey, Digest>,
    now: Timestamp,
) -> CheckedBatch {
    let mut judged = CheckedBatch::default();
    let mut fresh = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        match known.get(&key_of(&receipt)) {
            Some(held) => judged.refused.push(again(&receipt, *held)),
            None => fresh.push(receipt),
        }
    }
    let mut taken = BTreeMap::new();
    let examples: Vec<_> = fresh.iter().map(in_short).collect();
    for (answer, example) in verify_receipts(fresh, now).into_iter().zip(examples) {
        match answer {
            Err(error) => judged.refused.push(ReceiptRejection {
                why: reason(&error),
                example,
            }),
            Ok(receipt) => match taken.entry(key_of(&receipt)) {
                std::collections::btree_map::Entry::Occupied(held) => {
                    judged.refused.push(again(&receipt, *held.get()));
                }
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(digest(&receipt));
                    judged.good.push(receipt);
                }
            },
        }
    }
    judged
}

/// What tells two receipts of one key apart.
pub fn digest(receipt: &Receipt) -> Digest {
    Digest::of(&receipt.payload.signed_bytes())
}

fn again(receipt: &Receipt, held: Digest) -> ReceiptRejection {
    let why = if digest(receipt) == held {
        RejectionReason::Repeated
    } else {
        RejectionReason::Contradicts
    };
    ReceiptRejection {
        why,
        example: in_short(receipt),
    }
}

fn reason(error: &VerifyError) -> RejectionReason {
    match error {
        VerifyError::Signature {
            party: Party::Validator | Party::User,
            ..
        }
        | VerifyError::Scope
        | VerifyError::Missing
        | VerifyError::PublicKey => RejectionReason::ForgedValidator,
        VerifyError::Signature {
            party: Party::Miner, ..
        } => RejectionReason::ForgedMiner,
        VerifyError::Future { .. } => RejectionReason::Future,
        VerifyError::Limits(_) => RejectionReason::OutsideLimits,
    }
}

fn example(line: &[u8]) -> String {
    String::from_utf8_lossy(line)
        .chars()
        .take(MAX_EXAMPLE_CHARS)
        .collect()
}

fn in_short(receipt: &Receipt) -> String {
    let (validator, attempt, kind) = key_of(receipt);
    format!("{kind} of {attempt} by {validator}")
}
