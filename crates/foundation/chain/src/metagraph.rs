//! A subnet at one block: its neurons with their keys, addresses, stakes and permits.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use muster_protocol::{BlockNumber, Digest, Hotkey, Netuid, Uid};
use subxt::dynamic::Value;

use crate::scale_value::{account, field, flag, items, number};

/// A subnet and its neurons, all read at one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metagraph {
    /// The block at which it was read.
    pub block: BlockNumber,
    /// The number of the subnet.
    pub netuid: Netuid,
    /// Blocks between two epochs, less one.
    pub tempo: u16,
    /// The block of the last epoch; 0 before the first.
    pub last_epoch: BlockNumber,
    /// The neurons in the order of their uids.
    pub neurons: Vec<Neuron>,
    /// The SHA-256 of the certificates that hotkeys announce for TLS at their axons.
    pub certificates: BTreeMap<Hotkey, Digest>,
}

/// One registered hotkey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neuron {
    /// The neuron's number in the subnet.
    pub uid: Uid,
    /// The key with which the neuron acts.
    pub hotkey: Hotkey,
    /// The key that owns the neuron.
    pub coldkey: Hotkey,
    /// The address that the neuron announces; `None` without one that can be dialled.
    pub axon: Option<SocketAddr>,
    /// The neuron's stake, in rao.
    pub stake: u64,
    /// Whether the neuron may set weights.
    pub permit: bool,
    /// Whether the neuron set weights recently enough.
    pub active: bool,
    /// The block in which the neuron got its uid; 0 where the chain does not state it.
    pub registered: BlockNumber,
    /// The block of the neuron's last weights, or of its registration.
    pub last_update: BlockNumber,
    /// The neuron's share of the miners' pay, in 65535ths.
    pub incentive: u16,
}

impl Metagraph {
    /// The neuron with this hotkey.
    pub fn find(&self, hotkey: &Hotkey) -> Option<&Neuron> {
        self.neurons.iter().find(|neuron| neuron.hotkey == *hotkey)
    }

    /// The certificate that a hotkey announces for TLS at its axon; `None` if it speaks none.
    pub fn certificate_of(&self, hotkey: &Hotkey) -> Option<Digest> {
        self.certificates.get(hotkey).copied()
    }

    /// The neuron with this uid.
    pub fn get(&self, uid: Uid) -> Option<&Neuron> {
        self.neurons.get(usize::from(uid.0))
    }

    /// Reads the structure that the runtime calls `Metagraph`, by field name.
    ///
    /// Hotkeys are required. Every other column may be missing or short; its values are then those of a chain without
    /// that notion: no address, no stake, no permit.
    pub(crate) fn from_value(netuid: Netuid, block: BlockNumber, value: &Value) -> Result<Self, String> {
        let column = |name: &str| field(value, name).and_then(items).unwrap_or_default();
        let hotkeys = field(value, "hotkeys")
            .and_then(items)
            .ok_or("it has no hotkeys")?;
        let coldkeys = column("coldkeys");
        let axons = column("axons");
        let stakes = column("total_stake");
        let permits = column("validator_permit");
        let actives = column("active");
        let updates = column("last_update");
        let incentives = column("incentives");
        let registered = column("block_at_registration");

        let neuron = |(at, key): (usize, &Value)| {
            let hotkey = account(key).ok_or_else(|| format!("hotkey {at} is no account"))?;
            Ok(Neuron {
                uid: Uid(u16::try_from(at).map_err(|_| "it has more than 65536 neurons")?),
                hotkey,
                coldkey: coldkeys.get(at).and_then(account).unwrap_or(hotkey),
                axon: axons.get(at).and_then(axon_address),
                stake: stakes.get(at).and_then(number).unwrap_or(0),
                permit: permits.get(at).and_then(flag).unwrap_or(false),
                active: actives.get(at).and_then(flag).unwrap_or(false),
                registered: BlockNumber(registered.get(at).and_then(number).unwrap_or(0)),
                last_update: BlockNumber(updates.get(at).and_then(number).unwrap_or(0)),
                incentive: incentives.get(at).and_then(number).unwrap_or(0),
            })
        };
        Ok(Self {
            block,
            netuid,
            tempo: field(value, "tempo").and_then(number).ok_or("it has no tempo")?,
            last_epoch: BlockNumber(field(value, "last_step").and_then(number).unwrap_or(0)),
            neurons: hotkeys
                .iter()
                .enumerate()
                .map(neuron)
                .collect::<Result<_, String>>()?,
            // They are stored apart from what the chain reports of the metagraph.
            certificates: BTreeMap::new(),
        })
    }
}

/// The address in an axon; `None` if the axon was never served or its address cannot be dialled.
pub(crate) fn axon_address(axon: &Value) -> Option<SocketAddr> {
    let number_of = |name| field(axon, name).and_then(number::<u128>);
    let ip = number_of("ip").filter(|ip| *ip != 0)?;
    let port = u16::try_from(number_of("port")?).ok().filter(|port| *port != 0)?;
    let ip = match number_of("ip_type")? {
        4 => IpAddr::V4(Ipv4Addr::from(u32::try_from(ip).ok()?)),
        6 => IpAddr::V6(Ipv6Addr::from(ip)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// An IP address as the chain stores it: its number and its kind.
pub(crate) fn encode_ip(ip: IpAddr) -> (u128, u8) {
    match ip {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 4),
        IpAddr::V6(v6) => (u128::from(v6), 6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axon(ip: u128, ip_type: u128, port: u128) -> Value {
        Value::named_composite([
            ("block", Value::u128(1)),
            ("ip", Value::u128(ip)),
            ("port", Value::u128(port)),
            ("ip_type", Value::u128(ip_type)),
        ])
    }

    #[test]
    fn an_address_survives_the_chain_in_both_families() {
        for text in ["127.0.0.1:8091", "255.1.2.3:1", "[2001:db8::1]:65535"] {
            let socket: SocketAddr = text.parse().unwrap();
            let (ip, ip_type) = encode_ip(socket.ip());
            assert_eq!(
                axon_address(&axon(ip, ip_type.into(), socket.port().into())),
                Some(socket)
            );
        }
        for (ip, ip_type, port) in [
            (0, 4, 80),
            (1, 4, 0),
            (1, 5, 80),
            (1 << 40, 4, 80),
            (1, 4, 70_000),
        ] {
            assert_eq!(
                axon_address(&axon(ip, ip_type, port)),
                None,
                "{ip} {ip_type} {port}"
            );
        }
    }

    #[test]
    fn columns_that_a_chain_does_not_have_are_empty() {
        let keys = Value::unnamed_composite([Value::from_bytes([1; 32]), Value::from_bytes([2; 32])]);
        let sparse = Value::named_composite([("hotkeys", keys), ("tempo", Value::u128(9))]);
        let graph = Metagraph::from_value(Netuid(1), BlockNumber(5), &sparse).unwrap();
        let second = graph.find(&Hotkey::from_bytes([2; 32])).unwrap();
        assert_eq!(
            (second.uid, second.axon, second.stake, second.permit),
            (Uid(1), None, 0, false)
        );
        assert_eq!(graph.get(Uid(1)), Some(second));
        assert_eq!(graph.get(Uid(2)), None);
    }

    #[test]
    fn ten_thousand_neurons_are_read_and_more_uids_than_there_are_is_an_error() {
        let keys = |count: u32| {
            let key = |n: u32| Value::from_bytes([n.to_le_bytes(); 8].concat());
            let keys = Value::unnamed_composite((0..count).map(key));
            let axons = Value::unnamed_composite((0..count).map(|_| axon(1, 4, 80)));
            Value::named_composite([("hotkeys", keys), ("axons", axons), ("tempo", Value::u128(9))])
        };
        let graph = Metagraph::from_value(Netuid(1), BlockNumber(5), &keys(10_000)).unwrap();
        assert_eq!(
            (graph.neurons.len(), graph.neurons[9_999].uid),
            (10_000, Uid(9_999))
        );
        let error = Metagraph::from_value(Netuid(1), BlockNumber(5), &keys(65_537)).unwrap_err();
        assert!(error.contains("65536"), "{error}");
    }

    #[test]
    fn an_answer_without_its_core_is_an_error() {
        let parse = |value: &Value| Metagraph::from_value(Netuid(1), BlockNumber(5), value);
        assert!(parse(&Value::u128(1)).is_err());
        let short = Value::unnamed_composite([Value::from_bytes([1; 3]), Value::u128(1)]);
        let broken = Value::named_composite([("hotkeys", short), ("tempo", Value::u128(9))]);
        assert_eq!(parse(&broken), Err("hotkey 0 is no account".to_owned()));
    }
}
