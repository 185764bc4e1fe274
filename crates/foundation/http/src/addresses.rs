//! Decides which addresses a role may connect to when another party named the URL. Pure.
//!
//! A job names the URLs of its data, a user names a webhook, a validator names its gateway. The role that connects is
//! inside its operator's network: without these rules the other party could read the metadata service of a cloud or a
//! neighbour's database. Only addresses on the public Internet are permitted; an operator may permit others.
//!
//! Ranges: IANA's registries of special-purpose addresses (RFC 6890 and its successors).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// IPv4 networks that are not public: this network, private, shared (CGNAT), loopback, link-local with the metadata
/// services, protocol assignments, documentation, 6to4 relays, benchmarks, multicast, reserved with broadcast.
const NOT_PUBLIC_V4: [Ipv4Net; 15] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 0, 2, 0], 24),
    v4([192, 88, 99, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([198, 51, 100, 0], 24),
    v4([203, 0, 113, 0], 24),
    v4([224, 0, 0, 0], 4),
    v4([240, 0, 0, 0], 4),
];
/// The network of all assigned Internet addresses; loopback, link-local, unique local and multicast lie outside.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0], 3);
/// Networks inside it that are not public: protocol assignments with Teredo and ORCHID, documentation (two networks),
/// 6to4.
const NOT_PUBLIC_V6: [Ipv6Net; 4] = [
    v6([0x2001, 0, 0], 23),
    v6([0x2001, 0x0db8, 0], 32),
    v6([0x2002, 0, 0], 16),
    v6([0x3fff, 0, 0], 20),
];
/// The well-known prefix of NAT64: an IPv4 address in the last 32 bits.
const NAT64: Ipv6Net = v6([0x0064, 0xff9b, 0], 96);

const fn v4(octets: [u8; 4], prefix: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(head: [u16; 3], prefix: u8) -> Ipv6Net {
    let [a, b, c] = head;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), prefix)
}

/// The exceptions that an operator permits beyond the public Internet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRules {
    hosts: Vec<String>,
    nets: Vec<IpNet>,
    places: Vec<SocketAddr>,
}

/// An entry of the operator's list that is neither a host nor a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither a host name, an address, an address with a port, nor a network such as 10.1.0.0/16"
)]
pub struct RuleError(pub String);

impl AddressRules {
    /// Reads the operator's list: host names, addresses with or without a port, networks in CIDR form.
    ///
    /// # Errors
    /// The first entry that has none of these forms.
    pub fn parse(entries: &[String]) -> Result<Self, RuleError> {
        let mut rules = Self::default();
        for entry in entries {
            if let Ok(net) = entry.parse::<IpNet>() {
                rules.nets.push(net.trunc());
            } else if let Ok(address) = entry.parse::<IpAddr>() {
                rules.nets.push(IpNet::from(address.to_canonical()));
            } else if let Ok(place) = entry.parse::<SocketAddr>() {
                let address = place.ip().to_canonical();
                rules.places.push(SocketAddr::new(address, place.port()));
            } else if is_host(entry) {
                rules.hosts.push(entry.to_ascii_lowercase());
            } else {
                return Err(RuleError(entry.clone()));
            }
        }
        Ok(rules)
    }

    /// Whether the operator named this host, as a URL writes it (lower case).
    pub fn names(&self, host: &str) -> bool {
        self.hosts.iter().any(|named| named == host)
    }

    /// Whether a role may connect to `address` and `port` under the name `host`.
    pub fn permit(&self, host: &str, address: IpAddr, port: u16) -> bool {
        is_public(address.to_canonical()) || self.lists(host, address, port)
    }

    /// As [`Self::permit`], for a connection that is made now: an address of this machine must be listed, public or
    /// not. `is_own` returns whether an address is this machine's.
    pub fn permit_now(&self, host: &str, at: SocketAddr, is_own: impl FnOnce(IpAddr) -> bool) -> bool {
        let address = at.ip().to_canonical();
        self.lists(host, address, at.port()) || (is_public(address) && !is_own(address))
    }

    /// Whether the operator listed this host, address or place.
    fn lists(&self, host: &str, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        self.nets.iter().any(|net| net.contains(&address))
            || self.places.contains(&SocketAddr::new(address, port))
            || self.names(host)
    }
}

fn is_host(text: &str) -> bool {
    let letter = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    // `1.2.3` or `10.0.0.0/33` is a mistyped network, never a name.
    (1..=253).contains(&text.len())
        && text.bytes().all(letter)
        && text.bytes().any(|c| c.is_ascii_alphabetic())
}

/// Whether an address is on the public Internet. An IPv6 address that carries an IPv4 address counts as that address.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) if NAT64.contains(&address) => {
            let [.., a, b, c, d] = address.octets();
            is_public(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
        }
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address) && !NOT_PUBLIC_V6.iter().any(|net| net.contains(&address))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().unwrap())
    }

    #[test]
    fn addresses_that_everybody_reaches_are_public() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:1.1.1.1",
            "64:ff9b::8.8.8.8",
        ] {
            assert!(public(address), "{address}");
        }
    }

    #[test]
    fn addresses_inside_a_network_are_not_public() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "169.254.170.2",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.1",
            "::ffff:0:7f00:1",
            "64:ff9b::169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1.1.1.1",
            "100::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2001:10::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "3fff::1",
            "4000::1",
            "5f00::1",
        ] {
            assert!(!public(address), "{address}");
        }
    }

    #[test]
    fn an_operator_may_name_hosts_addresses_and_networks() {
        let list = ["store.internal", "10.1.0.0/16", "127.0.0.1", "fd00::/8"].map(str::to_owned);
        let rules = AddressRules::parse(&list).unwrap();
        let permit = |host: &str, address: &str| rules.permit(host, address.parse().unwrap(), 443);
        assert!(permit("x", "10.1.2.3") && permit("x", "::ffff:10.1.2.3") && permit("x", "fd12::1"));
        assert!(permit("store.internal", "192.168.0.1") && permit("x", "127.0.0.1"));
        assert!(!permit("x", "10.2.0.1") && !permit("x", "127.0.0.2") && !permit("other", "192.168.0.1"));
        let one = AddressRules::parse(&["127.0.0.1:8090".to_owned()]).unwrap();
        let local = "127.0.0.1".parse().unwrap();
        assert!(one.permit("x", local, 8090) && one.permit("x", "::ffff:127.0.0.1".parse().unwrap(), 8090));
        assert!(!one.permit("x", local, 8091) && !one.permit("x", "127.0.0.2".parse().unwrap(), 8090));
        for wrong in ["10.0.0.0/33", "http://x", "a b", "", "1.2.3", "x:80", "*"] {
            let error = AddressRules::parse(&[wrong.to_owned()]).unwrap_err();
            assert_eq!(error, RuleError(wrong.to_owned()));
        }
    }

    #[test]
    fn an_own_address_must_be_listed() {
        let own = |address: IpAddr| address == IpAddr::from([1, 1, 1, 1]);
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let none = AddressRules::default();
        assert!(
            none.permit("x", at("1.1.1.1:443").ip(), 443),
            "the text alone cannot tell"
        );
        assert!(!none.permit_now("x", at("1.1.1.1:443"), own));
        assert!(!none.permit_now("x", at("[::ffff:1.1.1.1]:443"), own));
        assert!(none.permit_now("x", at("8.8.8.8:443"), own));
        assert!(!none.permit_now("x", at("10.0.0.1:443"), own));
        for listed in ["1.1.1.1", "1.1.1.1:443", "1.0.0.0/8", "x"] {
            let rules = AddressRules::parse(&[listed.to_owned()]).unwrap();
            assert!(rules.permit_now("x", at("1.1.1.1:443"), own), "{listed}");
        }
    }

    proptest! {
        #[test]
        fn no_address_that_the_standard_library_calls_special_is_public(octets in any::<[u8; 4]>()) {
            let address = Ipv4Addr::from(octets);
            let special = address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_documentation()
                || address.is_unspecified();
            prop_assert!(!(special && is_public(address.into())), "{}", address);
            let mapped = IpAddr::V6(address.to_ipv6_mapped());
            prop_assert_eq!(is_public(address.into()), is_public(mapped), "{}", address);
        }
    }
}
