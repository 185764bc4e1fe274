//! The reasons why neurons get no weight.

use std::collections::BTreeMap;
use std::fmt;

use muster_protocol::{MinerKey, Uid};
use serde::{Deserialize, Serialize};

use crate::fold::{receipt_amount, session_rao};
use crate::{DropReason, Neuron, Scores, ScoringSnapshot};

/// A neuron without a weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZeroWeight {
    /// The neuron's number in the subnet.
    pub uid: Uid,
    /// The neuron's hotkey.
    pub miner: MinerKey,
    /// The reason why the neuron gets no weight.
    pub why: ZeroReason,
}

/// The reason why a neuron gets no weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroReason {
    /// The neuron is the scoring validator.
    Myself,
    /// No validator wrote the neuron a finished receipt in this cycle.
    NoReceipts,
    /// None of the neuron's receipts and sessions counts; holds the number for each reason.
    NothingCounts(BTreeMap<DropReason, u64>),
    /// The classes of the neuron's work have weight 0 in this subnet.
    WorthlessClass,
    /// The neuron's share is less than a 131070th of the best one's, which the chain's weights cannot express.
    TooSmall,
}

impl fmt::Display for ZeroReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Myself => f.write_str("it is this validator"),
            Self::NoReceipts => f.write_str("no validator paid it for a job in this cycle"),
            Self::NothingCounts(reasons) => {
                f.write_str("none of its work counts: ")?;
                for (at, (reason, count)) in reasons.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{count} because {reason}")?;
                }
                Ok(())
            }
            Self::WorthlessClass => {
                f.write_str("the classes that it worked in have no weight in this subnet")
            }
            Self::TooSmall => f.write_str("its share is too small for the chain's weights"),
        }
    }
}

/// Every neuron whose entry in `weighted` (uid, weight) is missing or zero, with the reason.
pub fn explain_zeros(
    snapshot: &ScoringSnapshot,
    scores: &Scores,
    weighted: &[(Uid, u16)],
) -> Vec<ZeroWeight> {
    let weights: BTreeMap<Uid, u16> = weighted.iter().copied().collect();
    let places: BTreeMap<MinerKey, &Neuron> = snapshot
        .neurons
        .iter()
        .map(|neuron| (MinerKey(neuron.hotkey), neuron))
        .collect();
    let mut dropped = BTreeMap::<MinerKey, BTreeMap<DropReason, u64>>::new();
    for paid in &snapshot.receipts {
        // A repeated receipt accompanies one that counts, so it is never the only reason.
        if let Err(reason) = receipt_amount(snapshot, &places, paid, || true) {
            let count = dropped
                .entry(paid.receipt.miner_hotkey)
                .or_default()
                .entry(reason)
                .or_default();
            *count = count.saturating_add(1);
        }
    }
    for session in &snapshot.streamed {
        if let Err(reason) = session_rao(&places, session, || true) {
            let count = dropped
                .entry(session.miner)
                .or_default()
                .entry(reason)
                .or_default();
            *count = count.saturating_add(1);
        }
    }
    let mut zeros: Vec<_> = snapshot
        .neurons
        .iter()
        .filter(|neuron| weights.get(&neuron.uid).copied().unwrap_or(0) == 0)
        .map(|neuron| {
            let miner = MinerKey(neuron.hotkey);
            let scored = scores.scores.iter().find(|score| score.miner == miner);
            let why = match (scored, dropped.remove(&miner)) {
                _ if neuron.hotkey == snapshot.me.0 => ZeroReason::Myself,
                (Some(score), _) if score.points == 0 => ZeroReason::WorthlessClass,
                (Some(_), _) => ZeroReason::TooSmall,
                (None, Some(reasons)) => ZeroReason::NothingCounts(reasons),
                (None, None) => ZeroReason::NoReceipts,
            };
            ZeroWeight {
                uid: neuron.uid,
                miner,
                why,
            }
        })
        .collect();
    zeros.sort_by_key(|zero| zero.uid);
    zeros
}
