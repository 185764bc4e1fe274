//! Finds the address of a request's client. Pure.
//!
//! Only a trusted proxy is believed, and only in the one header that the operator has configured for it: a proxy passes
//! on other headers as the client wrote them. The header lists the hops, the nearest last, so it is read from its end,
//! as far as the hops are trusted proxies.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use muster_process::connections::TrustedProxies;
use serde::Deserialize;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The header in which the trusted proxies write their clients' addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ProxyHeader {
    /// A list of addresses.
    #[default]
    #[serde(rename = "x-forwarded-for")]
    XForwardedFor,
    /// A list of `for=ADDRESS` (RFC 7239).
    #[serde(rename = "forwarded")]
    Forwarded,
}

/// The address of the client of a request that came from `peer`.
///
/// Behind trusted proxies it is the last address in the header that is not one of theirs. An entry that is no address
/// ends the search: the proxy that wrote it is the client then.
#[must_use]
pub fn client_address(
    peer: IpAddr,
    headers: &HeaderMap,
    proxies: &TrustedProxies,
    header: ProxyHeader,
) -> IpAddr {
    let mut client = peer.to_canonical();
    if !proxies.contains(client) {
        return client;
    }
    let name = match header {
        ProxyHeader::XForwardedFor => X_FORWARDED_FOR,
        ProxyHeader::Forwarded => FORWARDED,
    };
    let lines = headers.get_all(name);
    for entry in lines
        .iter()
        .rev()
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','))
    {
        let address = std::str::from_utf8(entry)
            .ok()
            .and_then(|entry| read_hop(entry, header));
        let Some(address) = address else { break };
        client = address.to_canonical();
        if !proxies.contains(client) {
            break;
        }
    }
    client
}

fn read_hop(entry: &str, header: ProxyHeader) -> Option<IpAddr> {
    match header {
        ProxyHeader::XForwardedFor => read_address(entry.trim()),
        ProxyHeader::Forwarded => entry.split(';').find_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            let is_for = name.trim().eq_ignore_ascii_case("for");
            is_for
                .then(|| read_address(value.trim().trim_matches('"')))
                .flatten()
        }),
    }
}

/// Reads an address with or without a port; an IPv6 address with a port stands in brackets.
fn read_address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse::<IpAddr>().ok();
    address.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn proxies() -> TrustedProxies {
        TrustedProxies::parse(&["10.0.0.0/8".to_owned(), "::1".to_owned()]).unwrap()
    }

    fn find(peer: &str, header: ProxyHeader, lines: &[(&'static str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, line) in lines {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_str(line).unwrap(),
            );
        }
        client_address(peer.parse().unwrap(), &headers, &proxies(), header).to_string()
    }

    #[test]
    fn a_stranger_cannot_name_its_address() {
        let x = ProxyHeader::XForwardedFor;
        assert_eq!(
            find("192.0.2.1", x, &[("x-forwarded-for", "1.2.3.4")]),
            "192.0.2.1"
        );
        assert_eq!(find("::ffff:192.0.2.1", x, &[]), "192.0.2.1");
        // The client wrote the first two; the proxy added the last.
        let written = "1.2.3.4, 10.0.0.9, 192.0.2.1";
        assert_eq!(find("10.0.0.1", x, &[("x-forwarded-for", written)]), "192.0.2.1");
        // The proxy writes another header than the client.
        let lines = [("forwarded", "for=1.2.3.4"), ("x-forwarded-for", "192.0.2.1")];
        assert_eq!(find("10.0.0.1", x, &lines), "192.0.2.1");
        assert_eq!(find("10.0.0.1", ProxyHeader::Forwarded, &lines), "1.2.3.4");
    }

    #[test]
    fn hops_of_trusted_proxies_are_passed_over() {
        let x = ProxyHeader::XForwardedFor;
        let lines = [
            ("x-forwarded-for", "192.0.2.1, 10.0.0.2"),
            ("x-forwarded-for", "10.0.0.3"),
        ];
        assert_eq!(find("10.0.0.1", x, &lines), "192.0.2.1");
        assert_eq!(
            find("::1", x, &[("x-forwarded-for", "2001:db8::7")]),
            "2001:db8::7"
        );
        assert_eq!(
            find("::1", x, &[("x-forwarded-for", "[2001:db8::7]:80,10.0.0.2:443")]),
            "2001:db8::7"
        );
        assert_eq!(find("10.0.0.1", x, &[("x-forwarded-for", "unknown")]), "10.0.0.1");
        assert_eq!(
            find("10.0.0.1", x, &[("x-forwarded-for", "1.2.3.4, nobody, 10.0.0.2")]),
            "10.0.0.2"
        );
        assert_eq!(find("10.0.0.1", x, &[]), "10.0.0.1");
        let forwarded = r#"for="[2001:db8::7]:4711";proto=http;by=10.0.0.9, FOR=10.0.0.2"#;
        assert_eq!(
            find("10.0.0.1", ProxyHeader::Forwarded, &[("forwarded", forwarded)]),
            "2001:db8::7"
        );
    }

    proptest! {
        /// The last hop that a trusted proxy saw decides, whatever stands before it.
        #[test]
        fn no_header_of_the_client_counts(claimed in "[ -~]{0,40}") {
            let line = format!("{claimed}, 192.0.2.1");
            let found = find("10.0.0.1", ProxyHeader::XForwardedFor, &[("x-forwarded-for", &line)]);
            prop_assert_eq!(found, "192.0.2.1");
        }
    }
}
