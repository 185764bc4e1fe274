//! The chain's own facts about the EVM: the addresses of hotkeys, and the contract of a validator.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use alloy_primitives::Address;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_chain::{ChainError, EvmAssociation, Netuid, Uid};
use muster_protocol::Hotkey;
use serde::Deserialize;

use crate::MinerAccount;
use crate::chain_link::ChainLink;

/// Reads the chain's facts about the EVM. The trait exists for tests without a chain.
pub trait EvmDirectory: fmt::Debug + Send + Sync + 'static {
    /// The association of each uid that has one.
    fn associations(&self) -> BoxFuture<'_, Result<BTreeMap<Uid, EvmAssociation>, ChainError>>;

    /// The contract that the validator has committed; `None` without one.
    fn contract(&self) -> BoxFuture<'_, Result<Option<Address>, ChainError>>;
}

/// The directory of a real chain.
#[derive(Debug)]
pub struct ChainDirectory {
    /// The connection to the chain.
    pub link: Arc<ChainLink>,
    /// The subnet whose neurons are looked up.
    pub netuid: Netuid,
    /// The validator's own hotkey.
    pub validator: Hotkey,
}

impl EvmDirectory for ChainDirectory {
    fn associations(&self) -> BoxFuture<'_, Result<BTreeMap<Uid, EvmAssociation>, ChainError>> {
        async { self.link.client().await?.evm_associations(self.netuid).await }.boxed()
    }

    fn contract(&self) -> BoxFuture<'_, Result<Option<Address>, ChainError>> {
        async {
            let client = self.link.client().await?;
            let text = client.commitment_of(self.netuid, &self.validator).await?;
            Ok(text.as_deref().and_then(parse_commitment))
        }
        .boxed()
    }
}

/// The address of a miner; `None` without an association, or with one of an earlier holder of its uid.
pub(crate) fn address_of(miner: &MinerAccount, association: Option<&EvmAssociation>) -> Option<Address> {
    let association = association?;
    (association.block >= miner.registered).then(|| Address::from(association.address))
}

/// The contract's address in a commitment such as `{"contract":{"address":"0x…"}}`, as ComputeHorde's validators write
/// it; `None` for any other text.
pub(crate) fn parse_commitment(text: &str) -> Option<Address> {
    #[derive(Deserialize)]
    struct Commitment {
        contract: Contract,
    }
    #[derive(Deserialize)]
    struct Contract {
        address: String,
    }
    let Commitment { contract } = serde_json::from_str(text).ok()?;
    contract.address.parse().ok()
}

#[cfg(test)]
mod tests {
    use muster_chain::BlockNumber;
    use muster_protocol::MinerKey;

    use super::*;

    #[test]
    fn an_association_of_an_earlier_holder_of_the_uid_does_not_count() {
        let miner = |registered| MinerAccount {
            uid: Uid(1),
            miner: MinerKey(Hotkey::from_bytes([1; 32])),
            owner: Hotkey::from_bytes([2; 32]),
            registered: BlockNumber(registered),
        };
        let association = EvmAssociation {
            address: [7; 20],
            block: BlockNumber(100),
        };
        assert_eq!(
            address_of(&miner(100), Some(&association)),
            Some(Address::from([7; 20]))
        );
        assert_eq!(address_of(&miner(101), Some(&association)), None);
        assert_eq!(address_of(&miner(0), None), None);
    }

    #[test]
    fn a_contract_is_read_from_a_commitment_or_not_at_all() {
        let address = "0x345a2942292197B7D9EbC1438213Be3e0191091D";
        let text = format!(r#"{{"contract":{{"address":"{address}"}}}}"#);
        assert_eq!(parse_commitment(&text).unwrap().to_string(), address);
        for bad in [
            "",
            "<M:C2>",
            "{}",
            r#"{"contract":{"address":"0x12"}}"#,
            r#"{"contract":{"address":7}}"#,
        ] {
            assert_eq!(parse_commitment(bad), None, "{bad}");
        }
    }
}
