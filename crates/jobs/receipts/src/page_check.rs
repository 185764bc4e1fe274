//! Checks the lines that a miner serves: valid receipts, and a reason for every rejected line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use muster_identity::{Party, Verified, VerifyError, verify_receipts};
use muster_protocol::receipt::{MAX_AHEAD, PAGE_SECS, SERVED_SECS};
use muster_protocol::{AttemptId, Digest, Hotkey, MinerKey, Receipt, ReceiptKind, Timestamp, ValidatorKey};
use serde::{Deserialize, Serialize};

/// The age from which a receipt is rejected: as long as miners serve theirs. This validator has forgotten older ones
/// and would count them again.
pub const MAX_AGE: Duration = Duration::from_secs(SERVED_SECS.unsigned_abs());

/// The most characters of a rejected line that are kept.
const MAX_EXAMPLE_CHARS: usize = 200;

/// The identity of a receipt. Each validator chooses its own attempt ids, so the validator's key is part of it.
pub type ReceiptKey = (ValidatorKey, AttemptId, ReceiptKind);

/// The key of a receipt.
pub fn key_of(receipt: &Receipt) -> ReceiptKey {
    let payload = &receipt.payload;
    (payload.validator(), payload.attempt(), payload.kind())
}

/// The reason why a line is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectionReason {
    /// The line, or the page, is longer than any honest one.
    TooLong,
    /// The line is not a receipt.
    NotAReceipt,
    /// The receipt is another miner's.
    OtherMiner,
    /// The receipt is another validator's.
    OtherValidator,
    /// A field lies outside the shared limits.
    OutsideLimits,
    /// The receipt lies more than an hour in the future.
    Future,
    /// The receipt is older than miners serve theirs.
    Stale,
    /// The receipt was signed long before or after the time of its page.
    FarFromPage,
    /// The receipt's validator held no permit in this epoch or the one before.
    NoPermit,
    /// The receipt's validator and miner have as many receipts in the cycle as their stake and executors allow.
    OverQuota,
    /// The validator did not sign the receipt.
    ForgedValidator,
    /// The miner did not sign the receipt.
    ForgedMiner,
    /// The receipt was read before.
    Repeated,
    /// Another receipt of that kind about that attempt was read before.
    Contradicts,
}

impl RejectionReason {
    /// All reasons that exist.
    pub const ALL: [Self; 14] = [
        Self::TooLong,
        Self::NotAReceipt,
        Self::OtherMiner,
        Self::OtherValidator,
        Self::OutsideLimits,
        Self::Future,
        Self::Stale,
        Self::FarFromPage,
        Self::NoPermit,
        Self::OverQuota,
        Self::ForgedValidator,
        Self::ForgedMiner,
        Self::Repeated,
        Self::Contradicts,
    ];

    /// The reason's text form in stores.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::NotAReceipt => "not_a_receipt",
            Self::OtherMiner => "other_miner",
            Self::OtherValidator => "other_validator",
            Self::OutsideLimits => "outside_limits",
            Self::Future => "future",
            Self::Stale => "stale",
            Self::FarFromPage => "far_from_page",
            Self::NoPermit => "no_permit",
            Self::OverQuota => "over_quota",
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
            Self::OtherValidator => "another validator's",
            Self::OutsideLimits => "a field lies outside its limits",
            Self::Future => "more than an hour in the future",
            Self::Stale => "older than two days",
            Self::FarFromPage => "signed long before or after the time of its page",
            Self::NoPermit => "of a validator without a permit in this epoch and the one before",
            Self::OverQuota => "beyond what its validator's stake and its miner's executors can be paid for",
            Self::ForgedValidator => "not signed by its validator",
            Self::ForgedMiner => "not signed by its miner",
            Self::Repeated => "read before",
            Self::Contradicts => "another content than was read before",
        })
    }
}

/// A rejected line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptRejection {
    /// The reason of the rejection.
    pub why: RejectionReason,
    /// The beginning of the line, for people.
    pub example: String,
}

/// The result of checking a batch.
#[derive(Clone, Debug, Default)]
pub struct CheckedBatch {
    /// New receipts whose two signatures are valid.
    pub good: Vec<Verified<Receipt>>,
    /// The rejected receipts, with their reasons.
    pub refused: Vec<ReceiptRejection>,
}

/// The word before a validator's hotkey in the text form of a [`PageSource`], as stores keep it.
const VALIDATOR: &str = "validator ";

/// The party that serves receipt pages. It serves its own receipts only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageSource {
    /// A miner, which serves the receipts that it signed.
    Miner(MinerKey),
    /// A validator, which serves the receipts that it issued, once their miners have signed them.
    Validator(ValidatorKey),
}

impl PageSource {
    /// The hotkey of the party.
    pub fn hotkey(&self) -> Hotkey {
        match self {
            Self::Miner(miner) => miner.0,
            Self::Validator(validator) => validator.0,
        }
    }

    /// Whether this party may serve the receipt.
    fn check_owner(&self, receipt: &Receipt) -> Result<(), RejectionReason> {
        match self {
            Self::Miner(miner) if receipt.payload.miner() != *miner => Err(RejectionReason::OtherMiner),
            Self::Validator(validator) if receipt.payload.validator() != *validator => {
                Err(RejectionReason::OtherValidator)
            }
            Self::Miner(_) | Self::Validator(_) => Ok(()),
        }
    }
}

impl fmt::Display for PageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Miner(miner) => miner.fmt(f),
            Self::Validator(validator) => write!(f, "{VALIDATOR}{validator}"),
        }
    }
}

impl FromStr for PageSource {
    type Err = <MinerKey as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix(VALIDATOR) {
            Some(key) => key.parse().map(Self::Validator),
            None => text.parse().map(Self::Miner),
        }
    }
}

impl Serialize for PageSource {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The rules by which the lines of one page are read.
#[derive(Clone, Copy, Debug)]
pub struct ReadingRules<'a> {
    /// The party that serves the page.
    pub source: PageSource,
    /// The number of the page.
    pub page: i64,
    /// The validators whose receipts may count: those with a permit in this epoch or the one before, and the reader.
    pub permitted: &'a BTreeSet<ValidatorKey>,
    /// How long before the begin of its page a receipt may have been signed. Behind the end of its page it may have
    /// been signed by [`MAX_AHEAD`], as clocks differ.
    pub before_page: Duration,
}

impl ReadingRules<'_> {
    /// Everything that can be said about a receipt before its signatures are checked, the cheapest first.
    fn check(&self, receipt: &Receipt, now: Timestamp) -> Result<(), RejectionReason> {
        self.source.check_owner(receipt)?;
        if !self.permitted.contains(&receipt.payload.validator()) {
            return Err(RejectionReason::NoPermit);
        }
        let signed = receipt.payload.timestamp();
        if signed > now.plus(MAX_AHEAD) {
            return Err(RejectionReason::Future);
        }
        if now.since(signed) > MAX_AGE {
            return Err(RejectionReason::Stale);
        }
        let begin = Timestamp::from_secs(self.page.saturating_mul(PAGE_SECS));
        let end = begin.plus(Duration::from_secs(PAGE_SECS.unsigned_abs()));
        if signed < begin.minus(self.before_page) || signed > end.plus(MAX_AHEAD) {
            return Err(RejectionReason::FarFromPage);
        }
        Ok(())
    }
}

/// Reads the lines of a page. Lines that are not a receipt, or that the rules refuse, are rejected here: no signature
/// of theirs is checked.
///
/// The receipts can be checked once it is known which of their [keys](key_of) were read before.
pub fn read_lines(
    lines: &[Vec<u8>],
    rules: &ReadingRules<'_>,
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
            Ok(receipt) => match rules.check(&receipt, now) {
                Err(why) => refused.push(refuse(why)),
                Ok(()) => receipts.push(receipt),
            },
        }
    }
    (receipts, refused)
}

/// Checks receipts. `known` holds the digests of the payloads that were stored before, by key. A receipt that is known
/// already is left out silently: its miner and its validator both serve it.
///
/// The signatures of the new ones are checked in one batch. A forged copy cannot keep the true receipt out, because
/// only checked receipts become known.
pub fn check_receipts(
    receipts: Vec<Receipt>,
    known: &BTreeMap<ReceiptKey, Digest>,
    now: Timestamp,
) -> CheckedBatch {
    let mut judged = CheckedBatch::default();
    let mut fresh = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        match known.get(&key_of(&receipt)) {
            Some(held) if *held == digest(&receipt) => {}
            Some(held) => judged.refused.push(reject_repeated(&receipt, *held)),
            None => fresh.push(receipt),
        }
    }
    let mut taken = BTreeMap::new();
    let examples: Vec<_> = fresh.iter().map(describe).collect();
    for (answer, example) in verify_receipts(fresh, now).into_iter().zip(examples) {
        match answer {
            Err(error) => judged.refused.push(ReceiptRejection {
                why: reason(&error),
                example,
            }),
            Ok(receipt) => match taken.entry(key_of(&receipt)) {
                std::collections::btree_map::Entry::Occupied(held) => {
                    judged.refused.push(reject_repeated(&receipt, *held.get()));
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

/// The digest that distinguishes two receipts of one key.
pub fn digest(receipt: &Receipt) -> Digest {
    Digest::of(&receipt.payload.signed_bytes())
}

fn reject_repeated(receipt: &Receipt, held: Digest) -> ReceiptRejection {
    let why = if digest(receipt) == held {
        RejectionReason::Repeated
    } else {
        RejectionReason::Contradicts
    };
    ReceiptRejection {
        why,
        example: describe(receipt),
    }
}

fn reason(error: &VerifyError) -> RejectionReason {
    match error {
        VerifyError::Signature {
            party: Party::Validator | Party::User,
            ..
        }
        | VerifyError::Terms { .. }
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

/// The beginning of a line. PostgreSQL stores no NUL, and a terminal obeys control characters.
fn example(line: &[u8]) -> String {
    let readable = |c: char| {
        if c.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    String::from_utf8_lossy(line)
        .chars()
        .take(MAX_EXAMPLE_CHARS)
        .map(readable)
        .collect()
}

/// The rejection of a receipt that is beyond the quota of its pair.
pub fn reject_over_quota(receipt: &Receipt) -> ReceiptRejection {
    ReceiptRejection {
        why: RejectionReason::OverQuota,
        example: describe(receipt),
    }
}

fn describe(receipt: &Receipt) -> String {
    let (validator, attempt, kind) = key_of(receipt);
    format!("{kind} of {attempt} by {validator}")
}
