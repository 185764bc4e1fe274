//! Whether an address is one of this machine's own.
//!
//! A machine's public address leads to services that listen for its neighbours only, or for itself. The question is
//! asked anew at each use, because addresses come and go.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// A port for a connection over which nothing is sent (RFC 863, discard).
const PORT: u16 = 9;

/// Whether a socket of this machine has this address, or would be reached by it.
///
/// The kernel is asked by which address it would reach the other one; its answer for an own address is that address.
/// Nothing is sent. An address to which there is no way is not this machine's.
#[must_use]
pub fn is_own_address(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if address.is_loopback() || address.is_unspecified() {
        return true;
    }
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let reached_by = || {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        socket.connect(SocketAddr::new(address, PORT)).ok()?;
        Some(socket.local_addr().ok()?.ip().to_canonical())
    };
    reached_by() == Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_own_and_a_stranger_is_not() {
        for own in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "::",
        ] {
            assert!(is_own_address(own.parse().unwrap()), "{own}");
        }
        for other in ["192.0.2.1", "1.1.1.1", "2001:db8::1", "169.254.169.254"] {
            assert!(!is_own_address(other.parse().unwrap()), "{other}");
        }
    }

    /// The addresses of this machine as the kernel lists them. A link-local one is an address only together with its
    /// interface, and is never public.
    fn listed_addresses() -> Vec<IpAddr> {
        let mut own = Vec::new();
        let mut last: Option<IpAddr> = None;
        for line in std::fs::read_to_string("/proc/net/fib_trie").unwrap().lines() {
            if let Some(address) = line.trim().strip_prefix("|-- ") {
                last = address.parse().ok();
            } else if line.trim() == "/32 host LOCAL" {
                own.extend(last);
            }
        }
        // The file is missing where the kernel has no IPv6.
        for line in std::fs::read_to_string("/proc/net/if_inet6")
            .unwrap_or_default()
            .lines()
        {
            let digits = line.split_whitespace().next().unwrap();
            let address = Ipv6Addr::from(u128::from_str_radix(digits, 16).unwrap());
            own.extend((!address.is_unicast_link_local()).then_some(IpAddr::V6(address)));
        }
        own
    }

    #[test]
    fn every_address_of_an_interface_is_own() {
        let own = listed_addresses();
        assert!(own.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "{own:?}");
        for address in own {
            assert!(is_own_address(address), "{address}");
        }
    }
}
