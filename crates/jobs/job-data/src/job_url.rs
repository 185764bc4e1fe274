//! Checks a URL of a job, as far as its text allows. Pure.

use std::fmt;
use std::net::IpAddr;

use muster_http::addresses::AddressRules;
use url::{Host, Url};

const MAX_URL: usize = 8_192;
/// Upper bound on the characters of a URL in an error.
const MAX_SHOWN: usize = 200;

/// A checked URL of an input or an output.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    url: Url,
    host: String,
    port: u16,
    address: Option<IpAddr>,
}

/// A refused URL and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{shown}: {reason}")]
pub struct TargetError {
    shown: String,
    reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("the text is not a URL")]
    NotAUrl,
    #[error("the URL is longer than {MAX_URL} bytes")]
    TooLong,
    #[error("only http and https are fetched")]
    Scheme,
    #[error("a URL must not hold a user name or a password; sign it instead")]
    UserInfo,
    #[error("the URL names no host")]
    NoHost,
    #[error("ports below 1024 belong to other services than http (80) and https (443)")]
    Port,
    #[error("the address is not on the public Internet, and jobs may reach no other")]
    NotPublic,
    #[error("a redirect from https to http is not followed")]
    Downgrade,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Target {
    /// Checks a URL of a job or a server.
    ///
    /// # Errors
    /// The text is not a URL, or jobs may not use it.
    pub fn parse(text: &str, rules: &AddressRules) -> Result<Self, TargetError> {
        let refused = |reason| TargetError {
            shown: shortened(text.split(['?', '#']).next().unwrap_or_default()),
            reason,
        };
        if text.len() > MAX_URL {
            return Err(refused(Reason::TooLong));
        }
        let url = Url::parse(text).map_err(|_| refused(Reason::NotAUrl))?;
        Self::check(url, rules)
    }

    /// The target of a redirect, checked like the first URL; never from https down to http.
    ///
    /// # Errors
    /// Same as for [`Target::parse`].
    pub fn redirected(&self, location: &str, rules: &AddressRules) -> Result<Self, TargetError> {
        let refused = |reason| TargetError {
            shown: format!("a redirect from {}", self.shown()),
            reason,
        };
        if location.len() > MAX_URL {
            return Err(refused(Reason::TooLong));
        }
        let url = self.url.join(location).map_err(|_| refused(Reason::NotAUrl))?;
        if self.url.scheme() == "https" && url.scheme() == "http" {
            return Err(refused(Reason::Downgrade));
        }
        Self::check(url, rules)
    }

    fn check(mut url: Url, rules: &AddressRules) -> Result<Self, TargetError> {
        let shown = shown(&url);
        let refused = |reason| TargetError {
            shown: shown.clone(),
            reason,
        };
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refused(Reason::Scheme));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused(Reason::UserInfo));
        }
        let (host, address) = match url.host() {
            Some(Host::Domain(name)) => (name.to_ascii_lowercase(), None),
            // The parser has turned all notations, such as `0x7f.1` or `2130706433`, into an address.
            Some(Host::Ipv4(address)) => (address.to_string(), Some(IpAddr::V4(address))),
            Some(Host::Ipv6(address)) => (address.to_string(), Some(IpAddr::V6(address))),
            None => return Err(refused(Reason::NoHost)),
        };
        let port = url
            .port_or_known_default()
            .ok_or_else(|| refused(Reason::NotAUrl))?;
        if address.is_some_and(|address| !rules.permit(&host, address, port)) {
            return Err(refused(Reason::NotPublic));
        }
        if !matches!(port, 80 | 443 | 1_024..) && !rules.names(&host) {
            return Err(refused(Reason::Port));
        }
        url.set_fragment(None);
        Ok(Self {
            url,
            host,
            port,
            address,
        })
    }

    /// The whole URL. It may hold a signature, so it must not be logged.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The host in lower case, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The explicit port, or the scheme's default.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address, if the URL has one instead of a name.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Whether both have the same scheme, host and port, so that credentials for one may be sent to the other.
    pub fn same_origin(&self, other: &Self) -> bool {
        self.url.scheme() == other.url.scheme() && self.host == other.host && self.port == other.port
    }

    /// The URL without its query, which may be a signature, and shortened: for messages and logs.
    pub fn shown(&self) -> String {
        shown(&self.url)
    }

    /// The URL without its signature: the name of the resource in the cache's index.
    pub(crate) fn resource(&self) -> String {
        let kept = self.url.query_pairs().filter(|(name, _)| {
            let signed = ["X-Amz-", "X-Goog-"].iter().any(|of| name.starts_with(of));
            !signed && !matches!(&**name, "AWSAccessKeyId" | "Signature" | "Expires")
        });
        let mut url = self.url.clone();
        url.query_pairs_mut().clear();
        let mut named = url.query_pairs_mut();
        named.extend_pairs(kept);
        drop(named);
        url.to_string()
    }
}

fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    shortened(&format!("{}://{host}{port}{}", url.scheme(), url.path()))
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= MAX_SHOWN {
        text.to_owned()
    } else {
        text.chars().take(MAX_SHOWN).chain(['…']).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutator;

    fn reason(url: &str) -> Option<Reason> {
        Target::parse(url, &AddressRules::default())
            .err()
            .map(|error| error.reason)
    }

    #[test]
    fn ordinary_urls_pass_and_say_what_they_are() {
        let target = Target::parse(
            "HTTPS://Example.COM:8443/a/b?sig=secret#x",
            &AddressRules::default(),
        )
        .unwrap();
        assert_eq!((target.host(), target.port()), ("example.com", 8_443));
        assert_eq!(target.shown(), "https://example.com:8443/a/b");
        assert_eq!(target.url().fragment(), None);
        assert_eq!(
            format!("{target:?}"),
            "https://example.com:8443/a/b",
            "no signature in a log"
        );
        assert_eq!(reason("http://1.1.1.1/"), None);
        assert_eq!(reason("https://[2606:4700::1111]/x"), None);
    }

    #[test]
    fn addresses_inside_a_network_are_refused_in_every_notation() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0177.0.0.1/",
            "http://0/",
            "http://0.0.0.0:8080/",
            "http://169.254.169.254/latest/meta-data/",
            "http://0xa9fea9fe/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://[fd00:ec2::254]/",
            "http://[::]/",
            "http://[fe80::1]/",
            "http://100.64.0.1/",
            "http://224.0.0.1/",
            "http://10.0.0.1./",
            "http://①⑥⑨.254.169.254/",
            "http://[64:ff9b::a9fe:a9fe]/",
        ] {
            assert_eq!(reason(url), Some(Reason::NotPublic), "{url}");
        }
    }

    #[test]
    fn other_schemes_ports_and_user_names_are_refused() {
        assert_eq!(reason("ftp://example.com/x"), Some(Reason::Scheme));
        assert_eq!(reason("file:///etc/passwd"), Some(Reason::Scheme));
        assert_eq!(reason("gopher://example.com:6379/_x"), Some(Reason::Scheme));
        assert_eq!(reason("http://user@example.com/"), Some(Reason::UserInfo));
        assert_eq!(reason("http://example.com:80@127.0.0.1/"), Some(Reason::UserInfo));
        assert_eq!(reason("http://example.com:25/"), Some(Reason::Port));
        assert_eq!(reason("https://example.com:22/"), Some(Reason::Port));
        assert_eq!(reason("not a url"), Some(Reason::NotAUrl));
        assert_eq!(reason("http://"), Some(Reason::NotAUrl));
        assert_eq!(
            reason(&format!("http://example.com/{}", "x".repeat(9_000))),
            Some(Reason::TooLong)
        );
    }

    #[test]
    fn a_redirect_is_checked_again_and_never_goes_down() {
        let rules = AddressRules::default();
        let from = Target::parse("https://example.com/a/b", &rules).unwrap();
        let to = |location: &str| from.redirected(location, &rules).map(|target| target.shown());
        assert_eq!(to("../c"), Ok("https://example.com/c".to_owned()));
        assert_eq!(to("//other.example/x"), Ok("https://other.example/x".to_owned()));
        let reason = |location: &str| from.redirected(location, &rules).unwrap_err().reason;
        assert_eq!(reason("http://example.com/a"), Reason::Downgrade);
        assert_eq!(reason("https://169.254.169.254/"), Reason::NotPublic);
        assert_eq!(reason("file:///etc/passwd"), Reason::Scheme);
        assert_eq!(reason("https://a:b@example.com/"), Reason::UserInfo);
    }

    #[test]
    fn a_resource_keeps_its_name_when_it_is_signed_anew() {
        let name = |url: &str| Target::parse(url, &AddressRules::default()).unwrap().resource();
        let first = name("https://s3.example/b/k?X-Amz-Date=1&versionId=7&X-Amz-Signature=a");
        assert_eq!(
            first,
            name("https://s3.example/b/k?versionId=7&X-Amz-Date=2&X-Amz-Signature=b")
        );
        assert_ne!(
            first,
            name("https://s3.example/b/k?versionId=8&X-Amz-Signature=a")
        );
    }

    #[test]
    fn damaged_urls_never_lead_inside() {
        let samples = [
            "http://example.com:8080/a?b=c#d",
            "https://[::ffff:127.0.0.1]:443/",
            "http://0x7f.1/",
            "http://a@b:1/",
            "http://169.254.169.254/",
            "https://[fe80::1%25eth0]/",
        ]
        .map(|text| text.as_bytes().to_vec());
        let mut mutator = Mutator::seeded(12);
        for _ in 0..20_000 {
            let text = String::from_utf8_lossy(&mutator.next_from(&samples)).into_owned();
            if let Ok(target) = Target::parse(&text, &AddressRules::default()) {
                assert!(
                    target.address().is_none_or(muster_http::addresses::is_public),
                    "{text}"
                );
                assert!(matches!(target.url().scheme(), "http" | "https"), "{text}");
            }
        }
    }
}
