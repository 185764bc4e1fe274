//! The addresses of the chain's EVM that hotkeys have associated with themselves.

use std::collections::BTreeMap;

use muster_identity::Keypair;
use muster_protocol::{BlockNumber, Netuid, Uid};
use subxt::dynamic::{self, Value};

use crate::answer_decoding::AnswerValue;
use crate::call_encoding;
use crate::chain_reader::ChainClient;
use crate::endpoint_pool::ChainHead;
use crate::error::ChainError;
use crate::scale_value::{bytes, items, number};

const DOING: &str = "read the EVM addresses of hotkeys";
const PALLET: &str = "SubtensorModule";
const ENTRY: &str = "AssociatedEvmAddress";

/// An EVM address that the holder of a uid has shown to be its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvmAssociation {
    /// The last 20 bytes of the hash of the key that signed.
    pub address: [u8; 20],
    /// The block in which the address's key signed for the hotkey. A uid that passed to another hotkey since may still
    /// show the association of the earlier one.
    pub block: BlockNumber,
}

impl ChainClient {
    /// Associates a hotkey with an EVM address. The address's key has signed, as a personal message (EIP-191), the
    /// hotkey and the Keccak-256 of `signed_at` as eight bytes, the lowest first.
    ///
    /// # Errors
    /// No endpoint answers, or a rejection: the hotkey is not registered, or another key made the signature.
    pub async fn associate_evm_key(
        &self,
        hotkey: &Keypair,
        netuid: Netuid,
        address: [u8; 20],
        signed_at: BlockNumber,
        signature: [u8; 65],
    ) -> Result<BlockNumber, ChainError> {
        let call = call_encoding::associate_evm_key(netuid, address, signed_at, signature);
        Ok(self.submit(hotkey, call).await?.block)
    }

    /// The EVM addresses of a subnet's neurons at the last finalised block, by uid. Neurons without one are absent.
    ///
    /// # Errors
    /// No endpoint answers, an answer is not understood, or the chain has no EVM.
    pub async fn evm_associations(
        &self,
        netuid: Netuid,
    ) -> Result<BTreeMap<Uid, EvmAssociation>, ChainError> {
        self.endpoint
            .ask(DOING, |head| self.evm_associations_at(head, netuid))
            .await
    }

    async fn evm_associations_at(
        &self,
        head: ChainHead,
        netuid: Netuid,
    ) -> Result<BTreeMap<Uid, EvmAssociation>, ChainError> {
        if !head.has_entry(PALLET, ENTRY) {
            return Err(not_understood(format!("this chain has no {PALLET}.{ENTRY}")));
        }
        let address = dynamic::storage::<Vec<Value>, AnswerValue>(PALLET, ENTRY);
        let prefix = vec![Value::u128(netuid.0.into())];
        let storage = head.at.storage();
        let mut entries = self
            .endpoint
            .read(&head, DOING, storage.iter(address, prefix))
            .await?;
        let mut found = BTreeMap::new();
        loop {
            let next = async { entries.next().await.transpose() };
            let Some(entry) = self.endpoint.read(&head, DOING, next).await? else {
                return Ok(found);
            };
            let key = entry.key().map_err(|error| not_understood(error.to_string()))?;
            let uid = key.part(1).map(|part| part.decode_as::<u16>());
            let uid = uid.and_then(Result::ok).flatten().map(Uid);
            let value = entry.value().decode();
            let AnswerValue(value) = value.map_err(|error| not_understood(error.to_string()))?;
            let (Some(uid), Some(association)) = (uid, read_association(&value)) else {
                return Err(not_understood(format!("{ENTRY} has another layout")));
            };
            found.insert(uid, association);
        }
    }
}

/// Reads the pair of address and block.
fn read_association(value: &Value) -> Option<EvmAssociation> {
    match items(value)? {
        [address, block] => Some(EvmAssociation {
            address: bytes(address)?.try_into().ok()?,
            block: BlockNumber(number(block)?),
        }),
        _ => None,
    }
}

fn not_understood(what: String) -> ChainError {
    ChainError::Answer { doing: DOING, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_association_is_read_through_its_wrapping() {
        let wrapped = Value::unnamed_composite([Value::from_bytes([7; 20])]);
        let pair = Value::unnamed_composite([wrapped, Value::u128(9)]);
        let expected = EvmAssociation {
            address: [7; 20],
            block: BlockNumber(9),
        };
        assert_eq!(read_association(&pair), Some(expected));
        let short = Value::unnamed_composite([Value::from_bytes([7; 19]), Value::u128(9)]);
        assert_eq!(read_association(&short), None);
        assert_eq!(read_association(&Value::u128(1)), None);
    }
}
