//! The table `[http]` of a role's configuration.

use std::ops::RangeInclusive;
use std::time::Duration;

use muster_process::config::Problem;
use muster_process::connections::TrustedProxies;
use serde::Deserialize;

use super::forwarded::ProxyHeader;
use super::limits::ServerLimits;
use super::transport::TlsFiles;

/// Seconds that a client may be given. A day is longer than any request needs, and no timer overflows.
const TIMES: RangeInclusive<u64> = 1..=86_400;

/// The connections of a role's HTTP listeners, and the times that a client may take.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// Open connections of one listener.
    pub connections: usize,
    /// Those of them that come from one address, or from one IPv6 network of 64 bits.
    pub connections_per_address: usize,
    /// Seconds until the head of a request must be complete; an idle connection is closed after them.
    pub head_s: u64,
    /// Seconds in which a request's body must bring another KiB, or end.
    pub body_s: u64,
    /// Seconds in which a client must take something of a response that waits for it.
    pub stall_s: u64,
    /// Seconds for which requests may go on after the role was asked to stop.
    pub drain_s: u64,
    /// Addresses and networks of the proxies in front of the role.
    pub trusted_proxies: Vec<String>,
    /// The header in which they write their clients' addresses.
    pub proxy_header: ProxyHeader,
    /// The certificate of the role's listeners.
    pub tls: TlsFiles,
}

impl Default for HttpSettings {
    fn default() -> Self {
        let limits = ServerLimits::default();
        Self {
            connections: limits.connections,
            connections_per_address: limits.per_address,
            head_s: limits.head.as_secs(),
            body_s: limits.body.as_secs(),
            stall_s: limits.stall.as_secs(),
            drain_s: limits.drain.as_secs(),
            trusted_proxies: Vec::new(),
            proxy_header: ProxyHeader::default(),
            tls: TlsFiles::default(),
        }
    }
}

impl HttpSettings {
    /// The server's bounds.
    #[must_use]
    pub fn limits(&self) -> ServerLimits {
        ServerLimits {
            connections: self.connections,
            per_address: self.connections_per_address,
            head: Duration::from_secs(self.head_s),
            body: Duration::from_secs(self.body_s),
            stall: Duration::from_secs(self.stall_s),
            drain: Duration::from_secs(self.drain_s),
        }
    }

    /// The proxies that are believed. An entry that [`Self::problems`] names counts as none.
    #[must_use]
    pub fn proxies(&self) -> TrustedProxies {
        TrustedProxies::parse(&self.trusted_proxies).unwrap_or_default()
    }

    /// All problems of these settings. `table` is the name of the table.
    #[must_use]
    pub fn problems(&self, table: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (key, number) in [
            ("connections", self.connections),
            ("connections_per_address", self.connections_per_address),
        ] {
            if number == 0 {
                problems.push(Problem::at(format!("{table}.{key}"), "must be at least 1"));
            }
        }
        for (key, seconds) in [
            ("head_s", self.head_s),
            ("body_s", self.body_s),
            ("stall_s", self.stall_s),
        ] {
            if !TIMES.contains(&seconds) {
                let rule = format!("must be from {} to {} seconds", TIMES.start(), TIMES.end());
                problems.push(Problem::at(format!("{table}.{key}"), rule));
            }
        }
        if self.drain_s > *TIMES.end() {
            let rule = format!("must be at most {} seconds", TIMES.end());
            problems.push(Problem::at(format!("{table}.drain_s"), rule));
        }
        if let Err(error) = TrustedProxies::parse(&self.trusted_proxies) {
            problems.push(Problem::at(format!("{table}.trusted_proxies"), error.to_string()));
        }
        problems.extend(self.tls.problems(&format!("{table}.tls")));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_named() {
        assert!(HttpSettings::default().problems("http").is_empty());
        let wrong = HttpSettings {
            connections: 0,
            connections_per_address: 0,
            head_s: 0,
            body_s: u64::MAX,
            stall_s: 0,
            drain_s: u64::MAX,
            trusted_proxies: vec!["localhost".to_owned()],
            proxy_header: ProxyHeader::Forwarded,
            tls: TlsFiles {
                certificate: "certificate.pem".into(),
                ..TlsFiles::default()
            },
        };
        assert_eq!(wrong.problems("http").len(), 8);
    }
}
