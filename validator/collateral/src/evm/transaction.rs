//! A call of a contract as a signed transaction of the older kind (EIP-155), which every EVM takes. Pure.

use alloy_primitives::{Address, U256, keccak256};
use alloy_rlp::{Encodable, Header};
use muster_protocol::Rao;

use super::contract::rao_of_wei;
use super::key_file::EvmKey;

/// A call of a contract, before it is signed. It carries no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContractCall {
    /// The sender's transactions before this one.
    pub(crate) nonce: u64,
    /// Wei for each unit of gas.
    pub(crate) gas_price: u64,
    /// The most gas that the call may use.
    pub(crate) gas: u64,
    /// The address of the contract that is called.
    pub(crate) to: Address,
    /// The encoded call.
    pub(crate) data: Vec<u8>,
    /// The chain on which alone the transaction is valid.
    pub(crate) chain_id: u64,
}

/// A transaction that may be sent any number of times: its nonce lets it into one block only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignedCall {
    /// The bytes of the transaction.
    pub(crate) bytes: Vec<u8>,
    /// The hash by which nodes know it.
    pub(crate) hash: String,
}

impl ContractCall {
    /// The most that the transaction costs in fees, rounded up to a whole rao.
    pub(crate) fn max_fee(&self) -> Rao {
        let wei = U256::from(self.gas_price).saturating_mul(U256::from(self.gas));
        let Rao(whole) = rao_of_wei(wei.saturating_add(U256::from(999_999_999_u64)));
        Rao(whole)
    }

    /// Signs the call; `None` as for [`EvmKey::sign`].
    pub(crate) fn sign(&self, key: &EvmKey) -> Option<SignedCall> {
        let unsigned = self.encode(U256::from(self.chain_id), U256::ZERO, U256::ZERO);
        let (signature, parity) = key.sign(&keccak256(unsigned).0)?;
        let (r, s) = signature.split_bytes();
        let v = U256::from(self.chain_id)
            .saturating_mul(U256::from(2))
            .saturating_add(U256::from(35_u8.saturating_add(u8::from(parity.is_y_odd()))));
        let bytes = self.encode(v, U256::from_be_slice(&r), U256::from_be_slice(&s));
        Some(SignedCall {
            hash: keccak256(&bytes).to_string(),
            bytes,
        })
    }

    /// The fields as one list. The unsigned form has the chain's id and two zeroes in place of the signature.
    fn encode(&self, v: U256, r: U256, s: U256) -> Vec<u8> {
        let data = self.data.as_slice();
        let fields: [&dyn Encodable; 9] = [
            &self.nonce,
            &self.gas_price,
            &self.gas,
            &self.to,
            &0_u8,
            &data,
            &v,
            &r,
            &s,
        ];
        let payload_length = fields
            .iter()
            .map(|field| field.length())
            .fold(0, usize::saturating_add);
        let mut out = Vec::new();
        Header {
            list: true,
            payload_length,
        }
        .encode(&mut out);
        for field in fields {
            field.encode(&mut out);
        }
        out
    }
}

/// The nonce of a signed transaction; `None` for bytes that are none.
pub(crate) fn nonce_of(mut bytes: &[u8]) -> Option<u64> {
    let header = Header::decode(&mut bytes).ok()?;
    if !header.list {
        return None;
    }
    alloy_rlp::Decodable::decode(&mut bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evm::key_file::tests::example;

    /// The example of EIP-155, but for its value of one ether: our calls carry none. The bytes were made with
    /// eth-account 0.14.0 from the same fields.
    #[test]
    fn the_bytes_are_those_of_the_official_library() {
        let call = ContractCall {
            nonce: 9,
            gas_price: 20_000_000_000,
            gas: 21_000,
            to: Address::from([0x35; 20]),
            data: vec![0xab, 0xcd],
            chain_id: 964,
        };
        let signed = call.sign(&example()).unwrap();
        assert_eq!(hex::encode(&signed.bytes), BYTES);
        assert_eq!(signed.hash, HASH);
        assert_eq!(nonce_of(&signed.bytes), Some(9));
        assert_eq!(call.max_fee(), Rao(420_000));
    }

    const BYTES: &str = "f868098504a817c8008252089435353535353535353535353535353535353535358082abcd8207aca0052b6806\
        803f1a4921f0c96d34f5e3b53f630f21ad09bcf7ffe82d5ec99a0b0ea010b06985d7fdb2689472fe95e7ddf0f4\
        1684e15828e04f8892ecb9b0087f8b47";
    const HASH: &str = "0x09491768871ec66a48d9b7eb200b72641b3dda6fe819bafdeb6003a82bcac58d";

    #[test]
    fn damaged_bytes_have_no_nonce() {
        for bytes in [&[][..], &[0x80], &[0xc1], &[0xff; 40]] {
            assert_eq!(nonce_of(bytes), None);
        }
    }
}
