//! Why collateral cannot be read or slashed, as an operator reads it.

use muster_chain::ChainError;
use muster_protocol::{MinerKey, Netuid, Rao};
use muster_store::StoreError;

/// A failure of a source of collateral.
#[derive(Debug, thiserror::Error)]
pub enum CollateralError {
    /// The HTTP client cannot be built.
    #[error("the client of EVM nodes cannot be built")]
    Client(#[source] reqwest::Error),
    /// No endpoint answers.
    #[error("cannot {doing}: no EVM node answers ({said}); check `collateral.rpc_urls`")]
    NodeAway {
        /// The operation that failed.
        doing: &'static str,
        /// Each endpoint's host with what happened there.
        said: String,
    },
    /// A node answered with an error.
    #[error("cannot {doing}: the EVM node {host} refused with code {code}: {message}")]
    NodeRefused {
        /// The operation that failed.
        doing: &'static str,
        /// The node's host.
        host: String,
        /// The JSON-RPC code.
        code: i64,
        /// The node's own text, without control characters.
        message: String,
    },
    /// A node's answer is not what the interface states.
    #[error("cannot {doing}: the answer of the EVM node {host} is not understood: {what}")]
    Answer {
        /// The operation that failed.
        doing: &'static str,
        /// The node's host.
        host: String,
        /// The fault of the answer.
        what: String,
    },
    /// A node serves another chain than the configuration names.
    #[error(
        "the EVM node {host} serves chain {found}, and `collateral.chain_id` is {expected}; remove the node from \
         `collateral.rpc_urls`, or correct the id"
    )]
    WrongChain {
        /// The node's host.
        host: String,
        /// The configured chain id.
        expected: u64,
        /// The node's chain id.
        found: u64,
    },
    /// There is no code at the contract's address.
    #[error("there is no contract at {address} on the chain of {host}; check `collateral.contract`")]
    NoContract {
        /// The contract's address.
        address: String,
        /// The node's host.
        host: String,
    },
    /// The contract is for another subnet.
    #[error(
        "the contract {address} holds the collateral of subnet {found}, and this validator serves {expected}"
    )]
    WrongSubnet {
        /// The contract's address.
        address: String,
        /// This validator's subnet.
        expected: Netuid,
        /// The contract's subnet.
        found: u16,
    },
    /// Neither the configuration nor the chain names a contract.
    #[error(
        "no collateral contract is known: set `collateral.contract`, or commit {{\"contract\":{{\"address\":\"0x…\"}}}} \
         with the validator's hotkey"
    )]
    NoContractKnown,
    /// The contract reverted a call.
    #[error("cannot {doing}: the contract reverted the call: {reason}")]
    Reverted {
        /// The operation that failed.
        doing: &'static str,
        /// The name of the contract's error.
        reason: String,
    },
    /// The chain cannot be read or written.
    #[error("the chain's part of the collateral cannot be used")]
    Chain(#[from] ChainError),
    /// The miner is not registered in the subnet.
    #[error("{0} is not registered in this validator's subnet")]
    UnknownMiner(MinerKey),
    /// The miner has no address that could hold a deposit.
    #[error("{0} has associated its hotkey with no EVM address, so it has no collateral")]
    NoAccount(MinerKey),
    /// The miner has deposited less than the operator wants to take.
    #[error("{miner} has deposited {held}, so {amount} cannot be taken")]
    TooLittle {
        /// The miner that the order names.
        miner: MinerKey,
        /// The whole deposit of its account, in rao.
        held: Rao,
        /// The amount of the order.
        amount: Rao,
    },
    /// The amount is zero.
    #[error("an amount of zero cannot be slashed")]
    ZeroAmount,
    /// The configuration names no key for slashing.
    #[error("slashing needs a key: set `{0}` in the validator's configuration")]
    NoKey(&'static str),
    /// The key file cannot be used.
    #[error("the key file {path} cannot be used: {reason}")]
    Key {
        /// The file's path.
        path: String,
        /// The fault of the file; never its content.
        reason: String,
    },
    /// The key is not the contract's trustee.
    #[error("the key belongs to {ours}, and the contract's trustee is {trustee}: only the trustee may slash")]
    NotTrustee {
        /// The key's address.
        ours: String,
        /// The contract's trustee.
        trustee: String,
    },
    /// The key's wallet does not belong to the collateral account.
    #[error(
        "the wallet `collateral.ledger.wallet` holds {found}, and `collateral.ledger.account` is {account}"
    )]
    WrongWallet {
        /// The configured account.
        account: String,
        /// The wallet's account.
        found: String,
    },
    /// The transaction would cost more than the operator allows.
    #[error("the transaction may cost {fee} in fees, and `collateral.max_fee_rao` allows {limit}")]
    TooDear {
        /// The most that the transaction may cost.
        fee: Rao,
        /// The operator's bound.
        limit: Rao,
    },
    /// The transaction was sent, and its end is not known.
    #[error(
        "the transaction {hash} was sent and is in no block yet; repeat the command later: it is never sent anew"
    )]
    Pending {
        /// The transaction's hash.
        hash: String,
    },
    /// A transfer of an earlier attempt may still come into a block.
    #[error("an earlier transfer may still come into a block; repeat the command after block {until}")]
    TransferMayCome {
        /// The last block that may hold it.
        until: u64,
    },
    /// A stored plan or balance cannot be read.
    #[error("the stored {0} of the collateral cannot be read; the store is damaged or of another version")]
    Stored(&'static str),
    /// The ledger's book cannot be read or written.
    #[error("the book of the collateral account cannot be used")]
    Book(#[from] StoreError),
}

impl CollateralError {
    /// Whether another endpoint may do better.
    pub(crate) fn is_of_one_node(&self) -> bool {
        match self {
            Self::NodeAway { .. }
            | Self::NodeRefused { .. }
            | Self::Answer { .. }
            | Self::WrongChain { .. }
            | Self::NoContract { .. } => true,
            Self::WrongSubnet { .. }
            | Self::NoContractKnown
            | Self::Reverted { .. }
            | Self::Client(_)
            | Self::Chain(_)
            | Self::UnknownMiner(_)
            | Self::NoAccount(_)
            | Self::TooLittle { .. }
            | Self::ZeroAmount
            | Self::NoKey(_)
            | Self::Key { .. }
            | Self::NotTrustee { .. }
            | Self::WrongWallet { .. }
            | Self::TooDear { .. }
            | Self::Pending { .. }
            | Self::TransferMayCome { .. }
            | Self::Stored(_)
            | Self::Book(_) => false,
        }
    }
}
