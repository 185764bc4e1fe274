//! Counts the open connections of a listener, in all and by the address of their clients.
//!
//! One party has a whole IPv6 network at least, so an IPv6 address counts as its network of 64 bits. A connection of a
//! proxy that the operator trusts stands for many parties, so it counts for no address.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use parking_lot::Mutex;

/// The prefix of the IPv6 network that counts as one address, in bits.
const V6_PREFIX: u32 = 64;

/// The addresses that count as one party's: one IPv4 address, or an IPv6 network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressGroup(IpAddr);

/// The most connections that may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionBounds {
    /// Of all addresses together.
    pub total: usize,
    /// Of one address, or of one IPv6 network of 64 bits.
    pub per_address: usize,
}

/// The bound that one more connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionRefusal {
    /// Too many connections of all addresses are open.
    Total,
    /// Too many connections of the client's address are open.
    Address,
}

/// The networks of proxies whose word about their clients' addresses is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// An entry of `trusted_proxies` that is neither an address nor a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an address nor a network such as 10.1.0.0/16")]
pub struct ProxyError(pub String);

/// The open connections of one listener. Clones count together.
#[derive(Clone, Debug)]
pub struct ConnectionCounts {
    bounds: ConnectionBounds,
    open: Arc<Mutex<OpenConnections>>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    total: usize,
    /// An address without connections has no entry.
    by_address: HashMap<AddressGroup, usize>,
}

/// One open connection, which counts until this is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    counts: ConnectionCounts,
    /// `None` for a connection that counts for no address.
    group: Mutex<Option<AddressGroup>>,
}

// === impl AddressGroup ===

impl AddressGroup {
    /// The group of an address. An IPv4 address that is written as an IPv6 one counts as itself.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                let network = u128::from(address) >> V6_PREFIX << V6_PREFIX;
                IpAddr::V6(Ipv6Addr::from(network))
            }
        })
    }
}

impl fmt::Display for AddressGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(network) => write!(f, "{network}/{V6_PREFIX}"),
        }
    }
}

// === impl TrustedProxies ===

impl TrustedProxies {
    /// Reads addresses and networks in CIDR form.
    ///
    /// # Errors
    /// The first entry that is neither.
    pub fn parse(entries: &[String]) -> Result<Self, ProxyError> {
        let read = |entry: &String| {
            let address = entry
                .parse::<IpAddr>()
                .map(|address| IpNet::from(address.to_canonical()));
            address
                .or_else(|_| entry.parse::<IpNet>().map(|net| net.trunc()))
                .map_err(|_| ProxyError(entry.clone()))
        };
        entries.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Whether an address is one of these proxies'.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|net| net.contains(&address))
    }
}

// === impl ConnectionCounts, OpenConnections ===

impl ConnectionCounts {
    /// No open connections, and these bounds.
    #[must_use]
    pub fn new(bounds: ConnectionBounds) -> Self {
        Self {
            bounds,
            open: Arc::default(),
        }
    }

    /// Counts one more connection from an address; `None` is a connection that counts for no address.
    ///
    /// # Errors
    /// The bound that it would exceed. It is not counted then.
    pub fn admit(&self, address: Option<IpAddr>) -> Result<ConnectionPermit, ConnectionRefusal> {
        let group = address.map(AddressGroup::of);
        self.open.lock().add(group, self.bounds)?;
        Ok(ConnectionPermit {
            counts: self.clone(),
            group: Mutex::new(group),
        })
    }
}

impl OpenConnections {
    fn add(
        &mut self,
        group: Option<AddressGroup>,
        bounds: ConnectionBounds,
    ) -> Result<(), ConnectionRefusal> {
        if self.total >= bounds.total {
            return Err(ConnectionRefusal::Total);
        }
        if let Some(group) = group {
            let own = self.by_address.get(&group).copied().unwrap_or_default();
            if own >= bounds.per_address {
                return Err(ConnectionRefusal::Address);
            }
            self.by_address.insert(group, own + 1);
        }
        self.total += 1;
        Ok(())
    }

    fn release_address(&mut self, group: AddressGroup) {
        if let Some(own) = self.by_address.get_mut(&group) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                self.by_address.remove(&group);
            }
        }
    }
}

// === impl ConnectionPermit ===

impl ConnectionPermit {
    /// The client has shown that it is a peer with a bound of its own, so the connection counts for its address no
    /// longer. It counts for the total until it ends.
    pub fn release_address(&self) {
        if let Some(group) = self.group.lock().take() {
            self.counts.open.lock().release_address(group);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.release_address();
        let mut open = self.counts.open.lock();
        open.total = open.total.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: ConnectionBounds = ConnectionBounds {
        total: 5,
        per_address: 2,
    };

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_whole_ipv6_network_counts_as_one_address() {
        let counts = ConnectionCounts::new(BOUNDS);
        let held = [
            counts.admit(ip("2001:db8::1")).unwrap(),
            counts.admit(ip("2001:db8::ffff:1")).unwrap(),
        ];
        let refused = counts.admit(ip("2001:db8:0:0:abcd::7")).unwrap_err();
        assert_eq!(refused, ConnectionRefusal::Address);
        let other = counts.admit(ip("2001:db8:0:1::1")).unwrap();
        drop(held);
        assert!(counts.admit(ip("2001:db8::2")).is_ok());
        drop(other);
        assert_eq!(
            AddressGroup::of(ip("2001:db8::9").unwrap()).to_string(),
            "2001:db8::/64"
        );
    }

    #[test]
    fn an_ipv4_address_is_the_same_in_either_notation() {
        let counts = ConnectionCounts::new(BOUNDS);
        let _held = [
            counts.admit(ip("192.0.2.1")).unwrap(),
            counts.admit(ip("::ffff:192.0.2.1")).unwrap(),
        ];
        assert_eq!(
            counts.admit(ip("192.0.2.1")).unwrap_err(),
            ConnectionRefusal::Address
        );
        assert!(counts.admit(ip("192.0.2.2")).is_ok());
    }

    #[test]
    fn a_known_peer_counts_in_the_total_only() {
        let counts = ConnectionCounts::new(BOUNDS);
        let mut held = Vec::new();
        for _ in 0..BOUNDS.total {
            let permit = counts.admit(ip("192.0.2.1")).unwrap();
            permit.release_address();
            permit.release_address();
            held.push(permit);
        }
        assert_eq!(
            counts.admit(ip("192.0.2.1")).unwrap_err(),
            ConnectionRefusal::Total
        );
        assert_eq!(counts.admit(None).unwrap_err(), ConnectionRefusal::Total);
        held.clear();
        assert!(counts.open.lock().by_address.is_empty());
        assert_eq!(counts.open.lock().total, 0);
    }

    #[test]
    fn proxies_are_addresses_and_networks() {
        let list = ["10.1.0.0/16", "127.0.0.1", "2001:db8::/32"].map(str::to_owned);
        let proxies = TrustedProxies::parse(&list).unwrap();
        for inside in ["10.1.2.3", "::ffff:10.1.2.3", "127.0.0.1", "2001:db8::7"] {
            assert!(proxies.contains(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["10.2.0.1", "127.0.0.2", "::1"] {
            assert!(!proxies.contains(outside.parse().unwrap()), "{outside}");
        }
        assert!(!TrustedProxies::default().contains(ip("127.0.0.1").unwrap()));
        for wrong in ["localhost", "10.0.0.0/33", ""] {
            let error = TrustedProxies::parse(&[wrong.to_owned()]).unwrap_err();
            assert_eq!(error, ProxyError(wrong.to_owned()));
        }
    }

    proptest! {
        /// No bound is exceeded, the counts are those of the open connections, and a connection within both bounds is
        /// admitted.
        #[test]
        fn the_counts_are_those_of_the_open_connections(steps in proptest::collection::vec((0_u8..4, 0_u8..3), 0..200)) {
            let counts = ConnectionCounts::new(BOUNDS);
            let mut open: Vec<(Option<u8>, ConnectionPermit)> = Vec::new();
            for (client, action) in steps {
                match action {
                    0 => {
                        let address = IpAddr::from([192, 0, 2, client]);
                        let own = open.iter().filter(|(owner, _)| *owner == Some(client)).count();
                        let admitted = counts.admit(Some(address));
                        let fits = open.len() < BOUNDS.total && own < BOUNDS.per_address;
                        prop_assert_eq!(admitted.is_ok(), fits);
                        open.extend(admitted.ok().map(|permit| (Some(client), permit)));
                    }
                    1 if !open.is_empty() => drop(open.remove(usize::from(client) % open.len())),
                    _ => if let Some((owner, permit)) = open.last_mut() {
                        permit.release_address();
                        *owner = None;
                    },
                }
                prop_assert_eq!(counts.open.lock().total, open.len());
                let with_address = open.iter().filter(|(owner, _)| owner.is_some()).count();
                prop_assert_eq!(counts.open.lock().by_address.values().sum::<usize>(), with_address);
            }
        }
    }
}
