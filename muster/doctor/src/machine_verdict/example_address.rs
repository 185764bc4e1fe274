//! Whether an address is still the example of a page or of a commented configuration. Such an address is not dialled:
//! it belongs to nobody, or to somebody else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The names that are kept for documentation (RFC 2606): each name that ends with one of them is an example.
const EXAMPLE_NAMES: [&str; 5] = ["example", "invalid", "example.com", "example.org", "example.net"];
/// The words that stand for a host in commands.
const PLACEHOLDERS: [&str; 4] = ["HOST", "ADDRESS", "HOSTNAME", "IP"];

/// Whether the host of `address` (a URL, HOST:PORT or HOST) is an example or a placeholder.
pub fn is_example(address: &str) -> bool {
    let host = host_of(address);
    if let Ok(ip) = host.parse() {
        return is_documentation(ip);
    }
    let is_placeholder = host.starts_with('<') || host.starts_with('$') || PLACEHOLDERS.contains(&host);
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    let is_below = |of: &&str| {
        let rest = name.strip_suffix(*of);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    is_placeholder || EXAMPLE_NAMES.iter().any(is_below)
}

/// The host of an address, without its scheme, user, port and path.
fn host_of(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let rest = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    if let Some(bracketed) = rest.strip_prefix('[') {
        return bracketed.split(']').next().unwrap_or(bracketed);
    }
    match rest.rsplit_once(':') {
        // An IPv6 address without brackets has no port.
        Some((host, _)) if !host.contains(':') => host,
        Some(_) | None => rest,
    }
}

/// Whether an address lies in a network that is kept for documentation (RFC 5737, RFC 3849, RFC 9637).
fn is_documentation(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let networks = [
                Ipv4Addr::new(192, 0, 2, 0),
                Ipv4Addr::new(198, 51, 100, 0),
                Ipv4Addr::new(203, 0, 113, 0),
            ];
            let network = Ipv4Addr::from(u32::from(ip) & 0xffff_ff00);
            networks.contains(&network)
        }
        IpAddr::V6(ip) => is_documentation_v6(ip),
    }
}

fn is_documentation_v6(ip: Ipv6Addr) -> bool {
    let [first, second, ..] = ip.segments();
    (first == 0x2001 && second == 0x0db8) || (first == 0x3fff && second < 0x1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_documentation_and_placeholders_are_examples_and_others_are_not() {
        for example in [
            "wss://chain.example:443",
            "ws://miner.example:8092",
            "https://example.com/x",
            "user@gpu.example.org",
            "example.net.",
            "192.0.2.7:8092",
            "203.0.113.7",
            "ws://198.51.100.1:9944",
            "[2001:db8::7]:8092",
            "2001:db8::7",
            "https://HOST",
            "ws://HOST:PORT",
            "wss://<your-host>:443",
            "ws://$HOST:1",
        ] {
            assert!(is_example(example), "{example}");
        }
        for own in [
            "ws://127.0.0.1:9944",
            "wss://entrypoint-finney.opentensor.ai:443",
            "203.0.114.7:8092",
            "10.0.0.1",
            "[2001:db9::7]:8092",
            "https://host",
            "https://myexample.com",
            "counterexample",
            "",
        ] {
            assert!(!is_example(own), "{own}");
        }
    }
}
