//! The calls that we make, by name, with their arguments by name: what a chain puts in another order still fits. Pure.

use std::net::SocketAddr;

use muster_protocol::Hotkey;
use subxt::dynamic::Value;
use subxt::ext::scale_value::Composite;
use subxt::transactions::DynamicPayload;

use crate::metagraph::encode_ip;
use crate::types::{Netuid, Uid};

const SUBTENSOR: &str = "SubtensorModule";
/// The mechanism that every subnet has.
const MECHANISM: u128 = 0;
/// What the official clients state as the protocol of an axon.
const AXON_PROTOCOL: u128 = 4;
/// The version of the served software; nobody decides anything by it.
const AXON_VERSION: u128 = 1;

/// A call, not yet encoded.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) pallet: &'static str,
    pub(crate) name: &'static str,
    arguments: Vec<(&'static str, Value)>,
}

impl Call {
    /// In the form that is encoded by a chain's metadata.
    pub(crate) fn payload(self) -> DynamicPayload<Composite<()>> {
        subxt::dynamic::tx(self.pallet, self.name, Composite::named(self.arguments))
    }
}

pub(crate) fn serve_axon(netuid: Netuid, at: SocketAddr) -> Call {
    let (ip, ip_type) = encode_ip(at.ip());
    Call {
        pallet: SUBTENSOR,
        name: "serve_axon",
        arguments: vec![
            ("netuid", Value::u128(netuid.0.into())),
            ("version", Value::u128(AXON_VERSION)),
            ("ip", Value::u128(ip)),
            ("port", Value::u128(at.port().into())),
            ("ip_type", Value::u128(ip_type.into())),
            ("protocol", Value::u128(AXON_PROTOCOL)),
            ("placeholder1", Value::u128(0)),
            ("placeholder2", Value::u128(0)),
        ],
    }
}

pub(crate) fn set_weights(netuid: Netuid, weights: &[(Uid, u16)], version_key: u64) -> Call {
    let uids = weights.iter().map(|(uid, _)| Value::u128(uid.0.into()));
    let values = weights.iter().map(|(_, weight)| Value::u128((*weight).into()));
    Call {
        pallet: SUBTENSOR,
        name: "set_mechanism_weights",
        arguments: vec![
            ("netuid", Value::u128(netuid.0.into())),
            ("mecid", Value::u128(MECHANISM)),
            ("dests", Value::unnamed_composite(uids)),
            ("weights", Value::unnamed_composite(values)),
            ("version_key", Value::u128(version_key.into())),
        ],
    }
}

pub(crate) fn burned_register(netuid: Netuid, hotkey: &Hotkey) -> Call {
    Call {
        pallet: SUBTENSOR,
        name: "burned_register",
        arguments: vec![
            ("netuid", Value::u128(netuid.0.into())),
            ("hotkey", Value::from_bytes(hotkey.as_bytes())),
        ],
    }
}

pub(crate) fn set_commitment(netuid: Netuid, info: Value) -> Call {
    Call {
        pallet: "Commitments",
        name: "set_commitment",
        arguments: vec![("netuid", Value::u128(netuid.0.into())), ("info", info)],
    }
}

#[cfg(test)]
mod tests {
    use subxt::client::OfflineClient;
    use subxt::config::substrate::{SpecVersionForRange, SubstrateConfig};
    use subxt::ext::codec::Decode;
    use subxt::metadata::Metadata;

    use super::*;
    use crate::commitment;

    /// The metadata that the public network served on 27 December 2025.
    const PUBLIC: &[u8] = include_bytes!("../../../tests/vectors/finney-spec365.scale");
    const NETUID: Netuid = Netuid(0x0102);

    /// A call's bytes on the public network.
    fn bytes(call: Call) -> Vec<u8> {
        let metadata = Metadata::decode(&mut &*PUBLIC).unwrap();
        let version = SpecVersionForRange {
            block_range: 0..1,
            spec_version: 365,
            transaction_version: 1,
        };
        let config = SubstrateConfig::builder()
            .set_metadata_for_spec_versions([(365, metadata.into())])
            .set_spec_version_for_block_ranges([version])
            .build();
        let chain = OfflineClient::<SubstrateConfig>::new_with_config(config)
            .at_block(0_u64)
            .unwrap();
        chain.transactions().call_data(&call.payload()).unwrap()
    }

    #[test]
    fn weights_are_call_119() {
        let call = set_weights(NETUID, &[(Uid(3), 65535), (Uid(0x0405), 1)], 7);
        let expected = [
            &[7, 119, 0x02, 0x01, 0][..],
            &[8, 3, 0, 0x05, 0x04],
            &[8, 0xff, 0xff, 1, 0],
            &[7, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes(call), expected.concat());
        // A single weight is a sequence as well, and so is none.
        assert_eq!(
            bytes(set_weights(NETUID, &[(Uid(3), 9)], 0))[5..11],
            [4, 3, 0, 4, 9, 0]
        );
        assert_eq!(bytes(set_weights(NETUID, &[], 0))[5..7], [0, 0]);
    }

    #[test]
    fn an_axon_is_call_4() {
        let v4 = bytes(serve_axon(NETUID, "1.2.3.4:258".parse().unwrap()));
        let expected = [
            &[7, 4, 0x02, 0x01, 1, 0, 0, 0][..],
            &[4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0x02, 0x01, 4, 4, 0, 0],
        ];
        assert_eq!(v4, expected.concat());
        let v6 = bytes(serve_axon(NETUID, "[2001:db8::1]:258".parse().unwrap()));
        assert_eq!((v6[8], v6[23], v6[26]), (1, 0x20, 6));
    }

    #[test]
    fn a_registration_is_call_7_and_a_commitment_pallet_18() {
        let hotkey = Hotkey::from_bytes([9; 32]);
        assert_eq!(
            bytes(burned_register(NETUID, &hotkey)),
            [&[7, 7, 0x02, 0x01][..], &[9; 32]].concat()
        );
        let commitment = set_commitment(NETUID, commitment::encode("<M:T1>").unwrap());
        assert_eq!(
            bytes(commitment),
            [&[18, 0, 0x02, 0x01, 4, 7][..], b"<M:T1>"].concat()
        );
    }
}
