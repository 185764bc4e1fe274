//! Miners' collateral behind one trait, [`CollateralSource`]: what each miner has deposited, and how an operator takes
//! a part of it after a proven offence.
//!
//! Two sources exist. [`EvmCollateral`] reads ComputeHorde's contract over JSON-RPC and slashes by a transaction.
//! [`LedgerCollateral`] reads transfers to an account of the validator on the chain itself. Whether a deposit is enough
//! is decided in `muster-routing`, from a [`CollateralReading`]. A source that cannot be read is an error here, never
//! an empty reading.

mod account_share;
mod chain_link;
pub mod error;
mod evidence;
mod evm;
mod ledger;

use std::collections::BTreeMap;
use std::fmt;

use futures_util::future::BoxFuture;
use muster_chain::BlockNumber;
use muster_protocol::{Hotkey, MinerKey, Rao, Uid};
pub use muster_routing::{CollateralReading, Deposit};
use serde::{Deserialize, Serialize};

pub use chain_link::ChainLink;
pub use error::CollateralError;
pub use evidence::Evidence;
pub use evm::directory::{ChainDirectory, EvmDirectory};
pub use evm::key_file::EvmKey;
pub use evm::{EvmAddress, EvmCollateral, EvmSettings};
pub use ledger::{LedgerCollateral, LedgerSettings};

/// A registered miner, as far as a source needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinerAccount {
    /// The miner's number in the subnet.
    pub uid: Uid,
    /// The miner's hotkey.
    pub miner: MinerKey,
    /// The coldkey of the miner's owner.
    pub owner: Hotkey,
    /// The block in which the miner got its uid. An association of an earlier block belongs to another miner.
    pub registered: BlockNumber,
}

/// A part of a miner's deposit that its validator's operator wants to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlashOrder {
    /// The miner whose deposit is taken.
    pub miner: MinerKey,
    /// The amount, in rao.
    pub amount: Rao,
    /// The digests of the evidence file.
    pub evidence: Evidence,
    /// Where others find the evidence; empty if nowhere.
    pub url: String,
}

/// A slash that is ready to be carried out. Carrying it out twice takes the amount once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlashPlan {
    /// The account that is slashed, in the source's own text form.
    pub account: String,
    /// The deposit of the account before the slash, in rao.
    pub held: Rao,
    /// The effect, in one sentence for the operator.
    pub summary: String,
    /// The means to carry the slash out again after a crash: a signed transaction, or nothing.
    pub payload: String,
    /// The transaction's hash; empty before there is one.
    pub reference: String,
}

/// The end of a slash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum SlashEnd {
    /// The amount is taken.
    Done {
        /// The transaction's hash, or the block of the transfer.
        reference: String,
    },
    /// The slash did not happen, and its plan never will: a new plan may be made.
    Failed {
        /// The reason, for the operator.
        reason: String,
    },
}

/// Where miners' collateral is deposited.
pub trait CollateralSource: fmt::Debug + Send + Sync + 'static {
    /// The kind and place of the source, for people.
    fn describe(&self) -> String;

    /// Reads the deposit of each of these miners. An answer holds every one of them.
    ///
    /// An amount that several miners show as theirs is divided among them, so that one deposit does not stand for many.
    ///
    /// # Errors
    /// The source cannot be read as a whole; a part of a reading is none.
    fn read<'a>(
        &'a self,
        miners: &'a [MinerAccount],
    ) -> BoxFuture<'a, Result<BTreeMap<MinerKey, Deposit>, CollateralError>>;

    /// Prepares a slash, and changes nothing yet. `miners` are all miners of the subnet.
    ///
    /// # Errors
    /// The miner has deposited less than the amount, the operator's key is missing, or the source cannot be read.
    fn plan_slash<'a>(
        &'a self,
        order: &'a SlashOrder,
        miners: &'a [MinerAccount],
    ) -> BoxFuture<'a, Result<SlashPlan, CollateralError>>;

    /// Carries a plan out, and waits for its end. The caller has stored the plan before. Repeating the call after an
    /// error, or in another process, never takes the amount twice.
    ///
    /// # Errors
    /// The end is not known yet: repeat the call later with the same plan.
    fn carry_out<'a>(&'a self, plan: &'a SlashPlan) -> BoxFuture<'a, Result<SlashEnd, CollateralError>>;
}
