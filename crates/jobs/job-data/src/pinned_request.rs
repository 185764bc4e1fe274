//! Makes one request to one host: resolves the name once, checks its addresses, and connects only to those.
//!
//! Does not follow redirects, decode bodies, or use a proxy of the environment. To follow a redirect, the caller makes
//! a new request with the new target, which is checked again.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use muster_http::addresses::AddressRules;
use muster_http::pinned::{
    LookupError, NameLookup, SystemLookup, client_builder, look_up, permitted_addresses, permitted_now,
};
use muster_process::own_address::is_own_address;
use parking_lot::Mutex;
use reqwest::{Client, Response};

use crate::error::HttpError;
use crate::job_url::{Target, TargetError};
use crate::retry::Pace;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Upper bound on the number of hosts of one job that are remembered.
const MAX_HOSTS: usize = 256;

/// Makes the requests of one job. Each name is resolved once in the life of this value.
pub struct PinnedClient {
    rules: Arc<AddressRules>,
    lookup: Arc<dyn NameLookup>,
    /// Whether an address is this machine's.
    is_own: fn(IpAddr) -> bool,
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
            is_own: is_own_address,
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
            // The address was checked when the URL was parsed, as far as its text shows.
            Some(address) => self.permitted(target, vec![SocketAddr::new(address, target.port())])?,
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

    /// Checks that every address of the target is permitted, for a client that resolves the name by itself.
    pub(crate) async fn check_all(&self, target: &Target) -> Result<(), HttpError> {
        let (host, port) = (target.host(), target.port());
        let found = match target.address() {
            Some(address) => vec![SocketAddr::new(address, port)],
            None => look_up(&*self.lookup, host, port)
                .await
                .map_err(|error| lookup_failed(target, error))?,
        };
        let may = |address: &SocketAddr| self.rules.permit_now(host, *address, self.is_own);
        if found.iter().all(may) {
            return Ok(());
        }
        Err(lookup_failed(target, LookupError::NotPublic))
    }

    async fn resolve(&self, target: &Target) -> Result<Vec<SocketAddr>, HttpError> {
        let (host, port) = (target.host(), target.port());
        let resolved = permitted_addresses(&self.rules, &*self.lookup, self.is_own, host, port).await;
        resolved.map_err(|error| lookup_failed(target, error))
    }

    /// Those of a target's addresses that may be connected to now.
    fn permitted(&self, target: &Target, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, HttpError> {
        let permitted = permitted_now(&self.rules, self.is_own, target.host(), found);
        permitted.map_err(|error| lookup_failed(target, error))
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

    /// The checked target of a place that a server names, relative to `from` or whole; never from https down to http.
    pub(crate) fn follow(&self, from: &Target, location: &str) -> Result<Target, TargetError> {
        from.redirected(location, &self.rules)
    }

    fn clients(&self) -> parking_lot::MutexGuard<'_, HashMap<(String, u16), Client>> {
        self.places.lock()
    }
}

fn lookup_failed(target: &Target, error: LookupError) -> HttpError {
    let host = target.host().to_owned();
    match error {
        LookupError::Unresolved(source) => HttpError::Unresolved { host, source },
        LookupError::NotPublic => HttpError::NotPublic { host },
    }
}

fn build_client(host: &str, addresses: &[SocketAddr]) -> reqwest::Result<Client> {
    client_builder(host, addresses)
        .http1_only()
        .connect_timeout(CONNECT_LIMIT)
        .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
        .build()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::BoxFuture;

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
    async fn a_name_that_leads_inside_is_refused() {
        let inside = Arc::new(Fixed(vec!["169.254.169.254:80".parse().unwrap()]));
        let http = PinnedClient::with_lookup(Arc::default(), inside);
        let target = http.target("http://inside.example/").unwrap();
        let error = http.client(&target).await.unwrap_err();
        assert!(matches!(error, HttpError::NotPublic { .. }), "{error}");
    }

    #[tokio::test]
    async fn public_addresses_of_this_machine_are_refused_at_each_look_up() {
        let own: SocketAddr = "1.1.1.1:80".parse().unwrap();
        let lookup = Arc::new(Fixed(vec![own]));
        let mut http = PinnedClient::with_lookup(Arc::default(), lookup);
        for url in [
            "http://own.example/",
            "http://1.1.1.1/",
            "http://[::ffff:1.1.1.1]/",
        ] {
            let target = http.target(url).unwrap();
            http.is_own = |_| false;
            http.client(&target).await.unwrap();
            http.clients().clear();
            http.is_own = |address| address == IpAddr::from([1, 1, 1, 1]);
            let error = http.client(&target).await.unwrap_err();
            assert!(matches!(error, HttpError::NotPublic { .. }), "{url}: {error}");
        }
        http.rules = Arc::new(AddressRules::parse(&["1.1.1.1:80".to_owned()]).unwrap());
        let target = http.target("http://own.example/").unwrap();
        http.client(&target).await.unwrap();
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
