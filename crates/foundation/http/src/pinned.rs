//! Resolves a name once, checks its addresses, and makes clients that connect only to those.
//!
//! A name that is resolved a second time may have another address, so a check that is not bound to the connection is
//! worth nothing. Such a client follows no redirect and uses no proxy of the environment.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_process::tls;
use reqwest::ClientBuilder;
use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use tokio::time::timeout;

use crate::addresses::AddressRules;

const RESOLVE_LIMIT: Duration = Duration::from_secs(10);
/// Upper bound on the number of addresses of a name that are tried.
const MAX_ADDRESSES: usize = 16;

/// Resolves host names.
pub trait NameLookup: Send + Sync {
    /// All addresses of `host`, each with `port`.
    fn lookup(&self, host: String, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;
}

/// The resolver of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemLookup;

impl NameLookup for SystemLookup {
    fn lookup(&self, host: String, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, port)).await?;
            Ok(found.take(MAX_ADDRESSES).collect())
        })
    }
}

/// The reason why a name has no address that may be connected to.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The name does not resolve, or not within 10 seconds.
    #[error("the name cannot be resolved")]
    Unresolved(#[source] io::Error),
    /// The name resolves only to addresses that the rules do not permit.
    #[error("the name has no address on the public Internet, and the operator has not permitted it")]
    NotPublic,
}

/// All addresses of a name; never empty.
///
/// # Errors
/// [`LookupError::Unresolved`] if the name has none, or does not resolve within 10 seconds.
pub async fn look_up(lookup: &dyn NameLookup, host: &str, port: u16) -> Result<Vec<SocketAddr>, LookupError> {
    let found = timeout(RESOLVE_LIMIT, lookup.lookup(host.to_owned(), port))
        .await
        .map_err(|_| LookupError::Unresolved(io::ErrorKind::TimedOut.into()))?
        .map_err(LookupError::Unresolved)?;
    if found.is_empty() {
        return Err(LookupError::Unresolved(io::ErrorKind::NotFound.into()));
    }
    Ok(found)
}

/// Those of a name's addresses that the rules permit for a connection that is made now; never empty. `is_own` returns
/// whether an address is this machine's.
///
/// # Errors
/// [`LookupError::NotPublic`] if none of them is permitted.
pub fn permitted_now(
    rules: &AddressRules,
    is_own: fn(IpAddr) -> bool,
    host: &str,
    found: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, LookupError> {
    let permitted: Vec<_> = found
        .into_iter()
        .filter(|address| rules.permit_now(host, *address, is_own))
        .collect();
    if permitted.is_empty() {
        return Err(LookupError::NotPublic);
    }
    Ok(permitted)
}

/// Resolves a name and returns those of its addresses that the rules permit; never empty. `is_own` returns whether an
/// address is this machine's.
///
/// # Errors
/// See [`LookupError`].
pub async fn permitted_addresses(
    rules: &AddressRules,
    lookup: &dyn NameLookup,
    is_own: fn(IpAddr) -> bool,
    host: &str,
    port: u16,
) -> Result<Vec<SocketAddr>, LookupError> {
    let found = look_up(lookup, host, port).await?;
    permitted_now(rules, is_own, host, found)
}

/// A resolver that always fails: names are resolved before a client is made.
struct FailingResolver;

impl Resolve for FailingResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let text = format!("{} was not resolved beforehand", name.as_str());
        Box::pin(async move { Err(io::Error::other(text).into()) })
    }
}

/// A builder of clients that reach `host` at these addresses only, and no other name at all. It follows no redirect.
pub fn client_builder(host: &str, addresses: &[SocketAddr]) -> ClientBuilder {
    tls::install_provider();
    ClientBuilder::new()
        .no_proxy()
        .redirect(Policy::none())
        .referer(false)
        .dns_resolver(Arc::new(FailingResolver))
        .resolve_to_addrs(host, addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Vec<SocketAddr>);

    impl NameLookup for Fixed {
        fn lookup(&self, _: String, _: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            let found = self.0.clone();
            Box::pin(async move { Ok(found) })
        }
    }

    async fn resolve(found: &[&str]) -> Result<Vec<SocketAddr>, LookupError> {
        let found = found.iter().map(|address| address.parse().unwrap()).collect();
        permitted_addresses(
            &AddressRules::default(),
            &Fixed(found),
            |_| false,
            "name.example",
            80,
        )
        .await
    }

    #[tokio::test]
    async fn names_that_lead_inside_are_refused() {
        for address in [
            "127.0.0.1:80",
            "169.254.169.254:80",
            "[::ffff:10.0.0.1]:80",
            "[fd00::1]:80",
            "0.0.0.0:80",
        ] {
            let error = resolve(&[address]).await.unwrap_err();
            assert!(matches!(error, LookupError::NotPublic), "{address}: {error}");
        }
    }

    #[tokio::test]
    async fn addresses_that_are_not_permitted_are_left_out() {
        let found = resolve(&["10.0.0.1:80", "1.1.1.1:80", "[::1]:80"]).await.unwrap();
        assert_eq!(found, ["1.1.1.1:80".parse().unwrap()]);
        assert!(matches!(resolve(&[]).await, Err(LookupError::Unresolved(_))));
    }

    #[tokio::test]
    async fn a_client_reaches_no_other_name() {
        let client = client_builder("name.example", &["127.0.0.1:9".parse().unwrap()])
            .build()
            .unwrap();
        let error = client.get("http://other.example/").send().await.unwrap_err();
        assert!(
            format!("{error:?}").contains("was not resolved beforehand"),
            "{error:?}"
        );
    }
}
