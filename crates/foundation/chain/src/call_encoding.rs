//! The calls that we make. Calls and arguments go by name, so a chain may order its arguments differently. Pure.

use std::net::SocketAddr;

use muster_protocol::{BlockNumber, Hotkey, Netuid, Rao, Uid};
use subxt::dynamic::Value;
use subxt::ext::scale_value::Composite;
use subxt::transactions::DynamicPayload;

use crate::metagraph::encode_ip;
use crate::weights_commit::{Salt, TIMELOCKED_VERSION};

const SUBTENSOR: &str = "SubtensorModule";
/// The mechanism that every subnet has.
const MECHANISM: u128 = 0;
/// The protocol number of an axon in the official clients.
const AXON_PROTOCOL: u128 = 4;
/// The version of the served software; no party evaluates it.
const AXON_VERSION: u128 = 1;

/// A call, not yet encoded.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) pallet: &'static str,
    pub(crate) name: &'static str,
    arguments: Vec<(&'static str, Value)>,
}

impl Call {
    /// The form that subxt encodes by a chain's metadata.
    pub(crate) fn payload(self) -> DynamicPayload<Composite<()>> {
        subxt::dynamic::tx(self.pallet, self.name, Composite::named(self.arguments))
    }
}

fn subtensor(name: &'static str, netuid: Netuid, more: Vec<(&'static str, Value)>) -> Call {
    let mut arguments = vec![("netuid", Value::u128(netuid.0.into()))];
    arguments.extend(more);
    Call {
        pallet: SUBTENSOR,
        name,
        arguments,
    }
}

fn numbers<N: Into<u128>>(numbers: impl IntoIterator<Item = N>) -> Value {
    Value::unnamed_composite(numbers.into_iter().map(|number| Value::u128(number.into())))
}

fn uids(weights: &[(Uid, u16)]) -> Value {
    numbers(weights.iter().map(|(uid, _)| uid.0))
}

fn values(weights: &[(Uid, u16)]) -> Value {
    numbers(weights.iter().map(|(_, weight)| *weight))
}

fn axon(at: SocketAddr) -> Vec<(&'static str, Value)> {
    let (ip, ip_type) = encode_ip(at.ip());
    vec![
        ("version", Value::u128(AXON_VERSION)),
        ("ip", Value::u128(ip)),
        ("port", Value::u128(at.port().into())),
        ("ip_type", Value::u128(ip_type.into())),
        ("protocol", Value::u128(AXON_PROTOCOL)),
        ("placeholder1", Value::u128(0)),
        ("placeholder2", Value::u128(0)),
    ]
}

pub(crate) fn serve_axon(netuid: Netuid, at: SocketAddr) -> Call {
    subtensor("serve_axon", netuid, axon(at))
}

pub(crate) fn serve_axon_tls(netuid: Netuid, at: SocketAddr, certificate: &[u8]) -> Call {
    let mut arguments = axon(at);
    arguments.push(("certificate", Value::from_bytes(certificate)));
    subtensor("serve_axon_tls", netuid, arguments)
}

pub(crate) fn set_weights(netuid: Netuid, weights: &[(Uid, u16)], version_key: u64) -> Call {
    let arguments = vec![
        ("mecid", Value::u128(MECHANISM)),
        ("dests", uids(weights)),
        ("weights", values(weights)),
        ("version_key", Value::u128(version_key.into())),
    ];
    subtensor("set_mechanism_weights", netuid, arguments)
}

pub(crate) fn commit_weights(netuid: Netuid, hash: [u8; 32]) -> Call {
    subtensor(
        "commit_weights",
        netuid,
        vec![("commit_hash", Value::from_bytes(hash))],
    )
}

pub(crate) fn reveal_weights(netuid: Netuid, weights: &[(Uid, u16)], salt: &Salt, version_key: u64) -> Call {
    let arguments = vec![
        ("uids", uids(weights)),
        ("values", values(weights)),
        ("salt", numbers(salt.iter().copied())),
        ("version_key", Value::u128(version_key.into())),
    ];
    subtensor("reveal_weights", netuid, arguments)
}

pub(crate) fn commit_timelocked(netuid: Netuid, ciphertext: &[u8], round: u64) -> Call {
    let arguments = vec![
        ("mecid", Value::u128(MECHANISM)),
        ("commit", Value::from_bytes(ciphertext)),
        ("reveal_round", Value::u128(round.into())),
        ("commit_reveal_version", Value::u128(TIMELOCKED_VERSION.into())),
    ];
    subtensor("commit_timelocked_mechanism_weights", netuid, arguments)
}

pub(crate) fn burned_register(netuid: Netuid, hotkey: &Hotkey) -> Call {
    subtensor(
        "burned_register",
        netuid,
        vec![("hotkey", Value::from_bytes(hotkey.as_bytes()))],
    )
}

pub(crate) fn associate_evm_key(
    netuid: Netuid,
    address: [u8; 20],
    block_number: BlockNumber,
    signature: [u8; 65],
) -> Call {
    let arguments = vec![
        ("evm_key", Value::from_bytes(address)),
        ("block_number", Value::u128(block_number.0.into())),
        ("signature", Value::from_bytes(signature)),
    ];
    subtensor("associate_evm_key", netuid, arguments)
}

pub(crate) fn transfer_keep_alive(to: &Hotkey, amount: Rao) -> Call {
    let dest = Value::unnamed_variant("Id", [Value::from_bytes(to.as_bytes())]);
    Call {
        pallet: "Balances",
        name: "transfer_keep_alive",
        arguments: vec![("dest", dest), ("value", Value::u128(amount.0.into()))],
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
    use crate::commitment_text;

    /// The metadata that the public network served on 27 December 2025.
    const PUBLIC: &[u8] = include_bytes!("../../../../tests/vectors/finney-spec365.scale");
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

    /// The same calls in SCALE that was written out by hand: `tests/python/make_chain_vectors.py`.
    const GOLDEN: &str = include_str!("../../../../tests/vectors/chain.json");

    /// The bytes of this call.
    fn by_hand(name: &str) -> Vec<u8> {
        let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        hex::decode(
            golden["calls"][name]
                .as_str()
                .unwrap_or_else(|| panic!("a vector for {name}")),
        )
        .unwrap()
    }

    const WEIGHTS: [(Uid, u16); 2] = [(Uid(3), 65535), (Uid(0x0405), 1)];
    const SALT: Salt = [1, 2, 3, 4, 5, 6, 7, 0xffff];

    #[test]
    fn every_call_is_what_scale_by_hand_makes_of_it() {
        let hotkey = Hotkey::from_bytes([9; 32]);
        let v4 = "1.2.3.4:258".parse().unwrap();
        let v6 = "[2001:db8::1]:258".parse().unwrap();
        let calls = [
            ("set_mechanism_weights", set_weights(NETUID, &WEIGHTS, 7)),
            ("set_no_weights", set_weights(NETUID, &[], 0)),
            ("commit_weights", commit_weights(NETUID, [0xab; 32])),
            ("reveal_weights", reveal_weights(NETUID, &WEIGHTS, &SALT, 7)),
            (
                "commit_timelocked_mechanism_weights",
                commit_timelocked(NETUID, &[5; 300], 0x0102_0304_0506),
            ),
            ("serve_axon", serve_axon(NETUID, v4)),
            ("serve_axon_v6", serve_axon(NETUID, v6)),
            ("serve_axon_tls", serve_axon_tls(NETUID, v4, &[8; 65])),
            ("burned_register", burned_register(NETUID, &hotkey)),
            (
                "transfer_keep_alive",
                transfer_keep_alive(&hotkey, Rao(1_500_000_000)),
            ),
            (
                "set_commitment",
                set_commitment(NETUID, commitment_text::encode("<M:T1>").unwrap()),
            ),
        ];
        for (name, call) in calls {
            assert_eq!(hex::encode(bytes(call)), hex::encode(by_hand(name)), "{name}");
        }
    }

    /// Calls 0 and 113 address a subnet's first mechanism without naming it. The client sends 119 and 118; the vectors
    /// show that the other two would be encoded alike.
    #[test]
    fn the_older_calls_differ_in_nothing_but_the_mechanism() {
        for (new, old, index) in [
            ("set_mechanism_weights", "set_weights", 0),
            (
                "commit_timelocked_mechanism_weights",
                "commit_timelocked_weights",
                113,
            ),
        ] {
            let mut expected = by_hand(new);
            expected[1] = index;
            assert_eq!(expected.remove(4), 0);
            assert_eq!(by_hand(old), expected, "{old}");
        }
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
    fn an_evm_key_is_associated_by_call_93() {
        let call = associate_evm_key(NETUID, [7; 20], BlockNumber(0x0102), [9; 65]);
        let expected = [
            &[7, 93, 0x02, 0x01][..],
            &[7; 20],
            &[2, 1, 0, 0, 0, 0, 0, 0],
            &[9; 65],
        ];
        assert_eq!(bytes(call), expected.concat());
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
        let commitment = set_commitment(NETUID, commitment_text::encode("<M:T1>").unwrap());
        assert_eq!(
            bytes(commitment),
            [&[18, 0, 0x02, 0x01, 4, 7][..], b"<M:T1>"].concat()
        );
    }
}
