//! The scheme, host and port of a server that a peer names. Pure.

use std::fmt;
use std::net::IpAddr;

use url::{Host, Url};

use crate::addresses::AddressRules;

/// The longest text that is read, in bytes. A host has 253 at most.
const MAX_TEXT: usize = 300;

/// A server that a peer named: `scheme://host[:port]`, within the rules of addresses as far as the text allows. A host
/// that is a name is checked again when it is resolved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    scheme: &'static str,
    host: String,
    port: u16,
    address: Option<IpAddr>,
}

/// The reason why a text is not taken as an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// The text is longer than 300 bytes.
    #[error("the address is longer than {MAX_TEXT} bytes")]
    TooLong,
    /// The text is no URL with a host.
    #[error("the address is not a URL with a host")]
    NotAUrl,
    /// The scheme is neither http nor https.
    #[error("the address must begin with http:// or https://")]
    Scheme,
    /// There is a user, a path, a query or a fragment.
    #[error("the address must be http:// or https://, a host and a port, and nothing else")]
    NotBare,
    /// The port belongs to another service.
    #[error("ports below 1024 belong to other services than http (80) and https (443)")]
    Port,
    /// The address is not public, and the operator has not permitted it.
    #[error("the address is not on the public Internet, and the operator has not permitted it")]
    NotPublic,
}

impl Origin {
    /// Reads `scheme://host[:port]`; a slash at the end is taken too.
    ///
    /// # Errors
    /// The text is something else, or the rules do not permit the address.
    pub fn parse(text: &str, rules: &AddressRules) -> Result<Self, OriginError> {
        if text.len() > MAX_TEXT {
            return Err(OriginError::TooLong);
        }
        let url = Url::parse(text).map_err(|_| OriginError::NotAUrl)?;
        let scheme = match url.scheme() {
            "http" => "http",
            "https" => "https",
            _ => return Err(OriginError::Scheme),
        };
        let is_bare = url.username().is_empty()
            && url.password().is_none()
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none();
        if !is_bare {
            return Err(OriginError::NotBare);
        }
        let (host, address) = match url.host() {
            Some(Host::Domain(name)) => (name.to_ascii_lowercase(), None),
            // The parser has turned all notations, such as `0x7f.1` or `2130706433`, into an address.
            Some(Host::Ipv4(address)) => (address.to_string(), Some(IpAddr::V4(address))),
            Some(Host::Ipv6(address)) => (address.to_string(), Some(IpAddr::V6(address))),
            None => return Err(OriginError::NotAUrl),
        };
        let port = url.port_or_known_default().ok_or(OriginError::NotAUrl)?;
        if address.is_some_and(|address| !rules.permit(&host, address, port)) {
            return Err(OriginError::NotPublic);
        }
        if !matches!(port, 80 | 443 | 1_024..) && !rules.names(&host) {
            return Err(OriginError::Port);
        }
        Ok(Self {
            scheme,
            host,
            port,
            address,
        })
    }

    /// The host in lower case, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The explicit port, or the scheme's default.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address, if the URL has one instead of a name. It has been checked.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The URL of a path, which begins with a slash and may have a query.
    pub fn url_of(&self, path_and_query: &str) -> String {
        format!("{self}{path_and_query}")
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(IpAddr::V6(address)) => write!(f, "{}://[{address}]:{}", self.scheme, self.port),
            Some(IpAddr::V4(_)) | None => write!(f, "{}://{}:{}", self.scheme, self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<String, OriginError> {
        Origin::parse(text, &AddressRules::default()).map(|origin| origin.to_string())
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        for (text, read) in [
            ("https://gateway.example.org", "https://gateway.example.org:443"),
            (
                "http://Gateway.Example.org:8092/",
                "http://gateway.example.org:8092",
            ),
            ("http://1.1.1.1", "http://1.1.1.1:80"),
            ("https://[2606:4700::1111]:8443", "https://[2606:4700::1111]:8443"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(read), "{text}");
        }
        let origin = Origin::parse("https://gateway.example.org", &AddressRules::default()).unwrap();
        assert_eq!(
            origin.url_of("/v1/proofs/x?y"),
            "https://gateway.example.org:443/v1/proofs/x?y"
        );
    }

    #[test]
    fn origins_that_would_move_the_path_are_refused() {
        for text in [
            "http://gateway.example.org/latest/meta-data/#",
            "http://gateway.example.org#",
            "http://gateway.example.org?",
            "http://gateway.example.org/?x=",
            "http://gateway.example.org//",
            "http://gateway.example.org/v1",
            "http://gateway.example.org\\v1",
            "http://user@gateway.example.org",
            "http://user:word@gateway.example.org",
        ] {
            assert_eq!(parse(text), Err(OriginError::NotBare), "{text}");
        }
        for text in [
            "",
            "gateway.example.org",
            "http://",
            "http://a b/",
            "http://h:99999",
        ] {
            assert_eq!(parse(text), Err(OriginError::NotAUrl), "{text}");
        }
        assert_eq!(parse("file:///etc/passwd"), Err(OriginError::Scheme));
        assert_eq!(parse("ws://gateway.example.org"), Err(OriginError::Scheme));
        assert_eq!(parse("http://gateway.example.org:25"), Err(OriginError::Port));
        let long = format!("http://{}.example.org", "a".repeat(MAX_TEXT));
        assert_eq!(parse(&long), Err(OriginError::TooLong));
    }

    #[test]
    fn internal_addresses_are_refused_in_every_notation_unless_the_operator_permits_them() {
        for text in [
            "http://169.254.169.254",
            "http://169.254.169.254/",
            "http://127.0.0.1:8092",
            "http://2130706433:8092",
            "http://0x7f.1:8092",
            "http://[::1]:8092",
            "http://[::ffff:169.254.169.254]",
            "http://10.0.0.1",
        ] {
            assert_eq!(parse(text), Err(OriginError::NotPublic), "{text}");
        }
        let rules = AddressRules::parse(&["127.0.0.0/8".to_owned()]).unwrap();
        assert!(Origin::parse("http://127.0.0.1:8092", &rules).is_ok());
        assert!(Origin::parse("http://10.0.0.1:8092", &rules).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_reads_back_as_the_same_origin(text in "(https?://)?[ -~]{0,40}") {
            if let Ok(origin) = Origin::parse(&text, &AddressRules::default()) {
                let again = Origin::parse(&origin.to_string(), &AddressRules::default());
                prop_assert_eq!(again, Ok(origin));
            }
        }
    }
}
