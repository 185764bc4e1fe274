//! Makes one request to one host: resolves the name once, checks its addresses, and connects only to those.
//!
//! Does not follow redirects, decode bodies, or use a proxy of the environment. To follow a redirect, the caller makes
//! a new request with the new target, which is checked again.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_process::tls;
use parking_lot::Mutex;
use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use tokio::time::timeout;

use crate::addresses::AddressRules;
use crate::error::HttpError;
use crate::job_url::{Target, TargetError};
use crate::retry::Pace;

const RESOLVE_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Upper bound on the number of addresses of a name that are tried.
const MAX_ADDRESSES: usize = 16;
/// Upper bound on the number of hosts of one job that are remembered.
const MAX_HOSTS: usize = 256;

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

/// Makes the requests of one job. Each name is resolved once in the life of this value.
pub struct PinnedClient {
    rules: Arc<AddressRules>,
    lookup: Arc<dyn NameLookup>,
    pace: Pace,
    places: Mutex<HashMap<(String, u16), Client>>,
}

impl fmt::Debug for PinnedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedClient")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

/// A resolver that always fails: names are resolved before a client is made.
struct FailingResolver;

impl Resolve for FailingResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let text = format!("{} was not resolved beforehand", name.as_str());
        Box::pin(async move { Err(io::Error::other(text).into()) })
    }
}

impl PinnedClient {
    /// Makes requests under an operator's rules.
    pub fn new(rules: Arc<AddressRules>) -> Self {
        Self::with_lookup(rules, Arc::new(SystemLookup))
    }

    /// Replaces the default timeouts and pauses.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    /// Uses another resolver than the system's.
    pub fn with_lookup(rules: Arc<AddressRules>, lookup: Arc<dyn NameLookup>) -> Self {
        Self {
            rules,
            lookup,
            pace: Pace::default(),
            places: Mutex::default(),
        }
    }

    pub(crate) fn target(&self, url: &str) -> Result<Target, TargetError> {
        Target::parse(url, &self.rules)
    }

    /// A client whose connections can only reach the permitted addresses of this target.
    pub(crate) async fn client(&self, target: &Target) -> Result<Client, HttpError> {
        let place = (target.host().to_owned(), target.port());
        if let Some(client) = self.clients().get(&place) {
            return Ok(client.clone());
        }
        let addresses = match target.address() {
            // The address was checked when the URL was parsed.
            Some(address) => vec![SocketAddr::new(address, target.port())],
            None => self.resolve(target).await?,
        };
        let client = build_client(target.host(), &addresses).map_err(HttpError::Client)?;
        let mut places = self.clients();
        if places.len() >= MAX_HOSTS {
            places.clear();
        }
        // If two requests resolved the name at once, the first result is used.
        Ok(places.entry(place).or_insert(client).clone())
    }

    async fn resolve(&self, target: &Target) -> Result<Vec<SocketAddr>, HttpError> {
        let host = target.host().to_owned();
        let unresolved = |source| HttpError::Unresolved {
            host: target.host().to_owned(),
            source,
        };
        let found = timeout(RESOLVE_LIMIT, self.lookup.lookup(host.clone(), target.port()))
            .await
            .map_err(|_| unresolved(io::ErrorKind::TimedOut.into()))?
            .map_err(unresolved)?;
        if found.is_empty() {
            return Err(unresolved(io::ErrorKind::NotFound.into()));
        }
        let permitted: Vec<_> = found
            .into_iter()
            .filter(|address| self.rules.permit(&host, address.ip(), address.port()))
            .collect();
        if permitted.is_empty() {
            return Err(HttpError::NotPublic { host });
        }
        Ok(permitted)
    }

    /// The checked target of a redirect; `None` if the answer is not a redirect.
    pub(crate) fn redirect(&self, from: &Target, answer: &Response) -> Result<Option<Target>, HttpError> {
        if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let location = answer.headers().get(reqwest::header::LOCATION);
        let Some(location) = location.and_then(|value| value.to_str().ok()) else {
            return Err(HttpError::Status {
                shown: from.shown(),
                status: answer.status(),
                detail: " without a valid location".to_owned(),
            });
        };
        Ok(Some(from.redirected(location, &self.rules)?))
    }

    fn clients(&self) -> parking_lot::MutexGuard<'_, HashMap<(String, u16), Client>> {
        self.places.lock()
    }
}

fn build_client(host: &str, addresses: &[SocketAddr]) -> reqwest::Result<Client> {
    tls::install_provider();
    Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .referer(false)
        .http1_only()
        .connect_timeout(CONNECT_LIMIT)
        .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
        .dns_resolver(Arc::new(FailingResolver))
        .resolve_to_addrs(host, addresses)
        .build()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A resolver that returns another address for each query.
    #[derive(Default)]
    struct Rebinding(AtomicUsize);

    impl NameLookup for Rebinding {
        fn lookup(&self, _: String, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            let asked = self.0.fetch_add(1, Ordering::SeqCst);
            let address = if asked == 0 { [1, 1, 1, 1] } else { [127, 0, 0, 1] };
            Box::pin(async move { Ok(vec![SocketAddr::from((address, port))]) })
        }
    }

    struct Fixed(Vec<SocketAddr>);

    impl NameLookup for Fixed {
        fn lookup(&self, _: String, _: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            let found = self.0.clone();
            Box::pin(async move { Ok(found) })
        }
    }

    #[tokio::test]
    async fn a_name_is_asked_for_once() {
        let lookup = Arc::new(Rebinding::default());
        let http = PinnedClient::with_lookup(Arc::default(), Arc::<Rebinding>::clone(&lookup));
        let target = http.target("http://rebinding.example/").unwrap();
        for _ in 0..3 {
            http.client(&target).await.unwrap();
        }
        assert_eq!(lookup.0.load(Ordering::SeqCst), 1);
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
            let lookup = Arc::new(Fixed(vec![address.parse().unwrap()]));
            let http = PinnedClient::with_lookup(Arc::default(), lookup);
            let target = http.target("http://inside.example/").unwrap();
            let error = http.client(&target).await.unwrap_err();
            assert!(matches!(error, HttpError::NotPublic { .. }), "{address}: {error}");
        }
    }

    #[tokio::test]
    async fn of_several_addresses_only_permitted_ones_are_used() {
        let found = ["10.0.0.1:80", "1.1.1.1:80", "[::1]:80"].map(|address| address.parse().unwrap());
        let http = PinnedClient::with_lookup(Arc::default(), Arc::new(Fixed(found.to_vec())));
        let target = http.target("http://both.example/").unwrap();
        assert_eq!(http.resolve(&target).await.unwrap(), [found[1]]);
    }

    #[tokio::test]
    async fn a_name_nobody_knows_is_said() {
        let http = PinnedClient::with_lookup(Arc::default(), Arc::new(Fixed(vec![])));
        let target = http.target("http://nobody.example/").unwrap();
        let error = http.client(&target).await.unwrap_err();
        assert!(
            error.to_string().contains("nobody.example cannot be resolved"),
            "{error}"
        );
    }
}
