//! The address of a facilitator, as people write it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// The paths of a facilitator's interfaces, which people paste with its address.
const INTERFACES: [&str; 3] = ["/api/v1", "/api", "/v1"];

/// The URL of a facilitator: `http` or `https`, without a slash at the end.
///
/// Reading takes the address as people write it: with the path of an interface (`/api/v1/`, `/v1`) or a slash at its
/// end, and without a scheme where only one can be meant: `http` on this machine, and `https` elsewhere if no port is
/// named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FacilitatorUrl(String);

/// The reason for which a text is no address of a facilitator, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FacilitatorUrlError {
    /// There is no text.
    #[error("the address of the facilitator is empty; it is a URL as https://facilitator.example.org")]
    Empty,
    /// Either scheme can be meant.
    #[error("the address {0} has no scheme; write https://{0}, or http://{0} for a facilitator without TLS")]
    NoScheme(String),
    /// A scheme of another kind of address.
    #[error("the address of a facilitator begins with http:// or https://, not with {0}://")]
    Scheme(String),
    /// A name and a password, a query or a fragment.
    #[error("the address of a facilitator has no {0}; it is a URL as https://facilitator.example.org")]
    Surplus(&'static str),
    /// A text that the parser of URLs refuses.
    #[error(
        "{text:?} is no address of a facilitator ({reason}); it is a URL as https://facilitator.example.org"
    )]
    NoUrl {
        /// The beginning of the text.
        text: String,
        /// The parser's reason.
        reason: url::ParseError,
    },
}

// === impl FacilitatorUrl ===

impl FacilitatorUrl {
    /// The URL as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FacilitatorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for FacilitatorUrl {
    type Err = FacilitatorUrlError;

    fn from_str(text: &str) -> Result<Self, FacilitatorUrlError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(FacilitatorUrlError::Empty);
        }
        let url = match text.contains("://") {
            true => parse(text)?,
            false => add_scheme(text)?,
        };
        if !matches!(url.scheme(), "http" | "https") {
            return Err(FacilitatorUrlError::Scheme(url.scheme().to_owned()));
        }
        let surplus = [
            (
                "name and password",
                !url.username().is_empty() || url.password().is_some(),
            ),
            ("query", url.query().is_some()),
            ("fragment", url.fragment().is_some()),
        ];
        if let Some((name, _)) = surplus.into_iter().find(|(_, is_there)| *is_there) {
            return Err(FacilitatorUrlError::Surplus(name));
        }
        let base = url.as_str().trim_end_matches('/');
        let base = INTERFACES
            .iter()
            .find_map(|path| base.strip_suffix(path))
            .unwrap_or(base);
        Ok(Self(base.trim_end_matches('/').to_owned()))
    }
}

fn parse(text: &str) -> Result<Url, FacilitatorUrlError> {
    Url::parse(text).map_err(|reason| FacilitatorUrlError::NoUrl {
        text: text.chars().take(200).collect(),
        reason,
    })
}

/// The URL of an address without a scheme. A key is never sent in the clear because a scheme was forgotten, but to this
/// machine itself.
fn add_scheme(text: &str) -> Result<Url, FacilitatorUrlError> {
    let plain = parse(&format!("http://{text}"))?;
    let is_local = match plain.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    if is_local {
        return Ok(plain);
    }
    let sealed = parse(&format!("https://{text}"))?;
    let is_named = matches!(plain.host(), Some(Host::Domain(name)) if name.contains('.'));
    // The text of a URL leaves out the port of its scheme.
    match is_named && sealed.port().is_none() && plain.port() != Some(80) {
        true => Ok(sealed),
        false => Err(FacilitatorUrlError::NoScheme(text.chars().take(200).collect())),
    }
}

impl TryFrom<String> for FacilitatorUrl {
    type Error = FacilitatorUrlError;

    fn try_from(text: String) -> Result<Self, FacilitatorUrlError> {
        text.parse()
    }
}

impl From<FacilitatorUrl> for String {
    fn from(url: FacilitatorUrl) -> Self {
        url.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, FacilitatorUrlError> {
        text.parse::<FacilitatorUrl>().map(String::from)
    }

    #[test]
    fn addresses_that_people_write_are_read() {
        for (text, url) in [
            (
                "https://facilitator.example.org",
                "https://facilitator.example.org",
            ),
            (
                " https://facilitator.example.org/ \n",
                "https://facilitator.example.org",
            ),
            (
                "HTTPS://Facilitator.example.org:443/",
                "https://facilitator.example.org",
            ),
            ("http://host:9000/api/v1/", "http://host:9000"),
            ("http://host:9000/api/v1", "http://host:9000"),
            ("http://host:9000/v1", "http://host:9000"),
            ("http://host:9000//v1//", "http://host:9000"),
            ("http://host:9000/api/", "http://host:9000"),
            (
                "https://host.example/muster/api/v1/",
                "https://host.example/muster",
            ),
            ("https://host.example/v1/files", "https://host.example/v1/files"),
            ("127.0.0.1:9000", "http://127.0.0.1:9000"),
            ("localhost:9000/api/v1/", "http://localhost:9000"),
            ("[::1]:9000/", "http://[::1]:9000"),
            ("facilitator.example.org", "https://facilitator.example.org"),
            (
                "facilitator.example.org:443/api/v1/",
                "https://facilitator.example.org",
            ),
        ] {
            assert_eq!(read(text).as_deref(), Ok(url), "{text}");
            assert_eq!(read(url).as_deref(), Ok(url), "{url} reads as itself");
        }
    }

    #[test]
    fn addresses_of_another_kind_are_refused_with_the_remedy() {
        for (text, words) in [
            ("", "is empty"),
            ("  ", "is empty"),
            (
                "facilitator.example.org:9000",
                "http://facilitator.example.org:9000",
            ),
            ("10.0.0.5:9000/api/v1/", "http://10.0.0.5:9000/api/v1/"),
            ("facilitator.example.org:80", "https://facilitator.example.org:80"),
            ("facilitator:9000", "http://facilitator:9000"),
            ("facilitator", "http://facilitator"),
            ("ws://host:9000/ws/v0/", "not with ws://"),
            ("htp://host", "not with htp://"),
            ("https://", "no address"),
            ("https://a b", "no address"),
            ("https://user:secret@host.example", "no name and password"),
            ("https://host.example/?a=b", "no query"),
            ("https://host.example/#jobs", "no fragment"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
