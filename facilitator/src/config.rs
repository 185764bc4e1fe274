//! The facilitator's configuration file.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_chain::Netuid;
use muster_http::addresses::AddressRules;
use muster_http::server::HttpSettings;
use muster_process::config::{ConfigFolder, Problem, RoleConfig};
use muster_protocol::{UserKey, ValidatorKey};
use serde::Deserialize;

use muster_facilitator_core::login_rules::host_of;
use muster_facilitator_core::login_tokens::CredentialLifetimes;
use muster_facilitator_core::signature::SignatureFreshness;

use muster_facilitator_store::{FacilitatorRetentionConfig, JobQuota, LiveConfig};

/// The largest allowed `live.log_kib`. A job's stored output is measured at each new piece, so it must be small.
const MAX_LOG_KIB: u64 = 64 * 1024;

/// The configuration of a facilitator. [`RoleConfig::COMMENTED_DEFAULT`] explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The folder from which relative paths count; empty for the folder of the configuration file.
    pub state_dir: PathBuf,
    /// The address to listen on; port 0 takes a free one.
    pub bind: SocketAddr,
    /// The file that the bound address is written to once requests are served.
    pub ready_file: Option<PathBuf>,
    /// The database: `sqlite:PATH` or `postgres://…`.
    pub store: String,
    /// The address at which users reach this facilitator, for links and signed URLs.
    pub public_url: Option<String>,
    /// Whether the stages of every job are collected; else only of those whose users send a trace context.
    pub trace_all: bool,
    /// Validators that are served also without a permit on the chain.
    pub validators: Vec<ValidatorKey>,
    /// The hotkeys that may log in; every hotkey if absent.
    pub users: Option<Vec<UserKey>>,
    /// The hotkeys that may create API keys for accounts without a hotkey, and read the whole audit log.
    pub administrators: Vec<UserKey>,
    /// The connections of users and validators.
    pub http: HttpSettings,
    /// The chain that validators' permits are read from.
    pub chain: PermitsConfig,
    /// The lifetimes of credentials and signatures.
    pub auth: AuthConfig,
    /// The file store.
    pub files: muster_file_store::Settings,
    /// The limits of accounts and addresses.
    pub limits: LimitsConfig,
    /// The bounds of running jobs' stored output.
    pub live: LiveConfig,
    /// The validators' gateways that answer OpenAI's calls.
    pub gateways: GatewaysConfig,
    /// The messages about jobs' ends.
    pub webhooks: WebhooksConfig,
    /// How long rows stay.
    pub retention: FacilitatorRetentionConfig,
}

/// The validators' gateways that answer OpenAI's calls.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaysConfig {
    /// The validators whose gateways are asked, the preferred ones first; all served validators if it is empty.
    pub validators: Vec<ValidatorKey>,
    /// Hosts, addresses, addresses with a port, and networks that gateways may have although they are not public.
    pub allow: Vec<String>,
    /// Seconds within which a gateway must begin a streamed answer, or give a proof.
    pub head_s: u64,
    /// Seconds within which it must begin any other answer, and for which it may send nothing in the middle of one.
    pub silence_s: u64,
}

/// The messages about jobs' ends, which go to URLs of users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebhooksConfig {
    /// Hosts, addresses, addresses with a port, and networks that messages may go to although they are not public.
    pub allow: Vec<String>,
}

/// The limits of accounts and addresses; 0 for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Requests a minute of one account.
    pub requests_per_minute: u32,
    /// Requests a minute of one address to the calls that need no credentials.
    pub strangers_per_minute: u32,
    /// Wrong credentials a minute of one address.
    pub failures_per_minute: u32,
    /// Open jobs of one account.
    pub open_jobs: u32,
    /// Jobs of one account a day, UTC.
    pub daily_jobs: u32,
    /// Tokens of one account a day, UTC, of all models together.
    pub daily_tokens: u64,
    /// Open event streams of one account.
    pub watchers: usize,
    /// Seconds after which a job ends that its validator has not answered.
    pub unanswered_s: u64,
}

/// The chain that validators' permits are read from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PermitsConfig {
    /// The endpoint. If it is empty, only the configured validators are served.
    pub url: String,
    /// The subnet's number on the chain.
    pub netuid: Netuid,
    /// Seconds between two readings of the metagraph.
    pub refresh_s: u64,
}

/// Logins, and the lifetimes of credentials and signatures in seconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthConfig {
    /// The lifetime of a nonce.
    pub nonce_lifetime_s: u64,
    /// The lifetime of a token.
    pub token_lifetime_s: u64,
    /// Whether a login must name this facilitator's host in what it signs.
    pub require_bound_login: bool,
    /// The lifetime of a browser's session.
    pub web_session_s: u64,
    /// The largest age of a request's signature.
    pub signature_max_age_s: u64,
    /// The largest lead of a signature's time over this machine's clock.
    pub signature_max_ahead_s: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::new(),
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 8090)),
            ready_file: None,
            store: "sqlite:facilitator.db".to_owned(),
            public_url: None,
            trace_all: true,
            validators: Vec::new(),
            users: None,
            administrators: Vec::new(),
            http: HttpSettings::default(),
            chain: PermitsConfig::default(),
            auth: AuthConfig::default(),
            files: muster_file_store::Settings::default(),
            limits: LimitsConfig::default(),
            live: LiveConfig::default(),
            gateways: GatewaysConfig::default(),
            webhooks: WebhooksConfig::default(),
            retention: FacilitatorRetentionConfig::default(),
        }
    }
}

impl Default for GatewaysConfig {
    fn default() -> Self {
        Self {
            validators: Vec::new(),
            allow: Vec::new(),
            head_s: 30,
            silence_s: 900,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            requests_per_minute: 6000,
            strangers_per_minute: 600,
            failures_per_minute: 60,
            open_jobs: 1000,
            daily_jobs: 0,
            daily_tokens: 0,
            watchers: 1000,
            unanswered_s: 3600,
        }
    }
}

impl LimitsConfig {
    pub(crate) fn quota(&self) -> JobQuota {
        JobQuota {
            open: self.open_jobs,
            daily: self.daily_jobs,
        }
    }
}

impl Default for PermitsConfig {
    fn default() -> Self {
        Self {
            url: String::new(),
            netuid: Netuid(1),
            refresh_s: 60,
        }
    }
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            nonce_lifetime_s: 300,
            token_lifetime_s: 3600,
            require_bound_login: false,
            web_session_s: 28_800,
            signature_max_age_s: 300,
            signature_max_ahead_s: 30,
        }
    }
}

impl AuthConfig {
    pub(crate) fn lifetimes(&self) -> CredentialLifetimes {
        CredentialLifetimes {
            nonce: Duration::from_secs(self.nonce_lifetime_s),
            token: Duration::from_secs(self.token_lifetime_s),
        }
    }

    pub(crate) fn freshness(&self) -> SignatureFreshness {
        SignatureFreshness {
            max_age: Duration::from_secs(self.signature_max_age_s),
            max_ahead: Duration::from_secs(self.signature_max_ahead_s),
        }
    }
}

impl RoleConfig for Config {
    const COMMENTED_DEFAULT: &'static str = include_str!("commented_default.toml");

    fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    fn place_paths(&mut self, folder: &mut ConfigFolder) {
        self.ready_file.iter_mut().for_each(|path| folder.place(path));
        folder.place_state_url("store", "sqlite", &mut self.store);
        folder.place_state_url("files.store", "file", &mut self.files.store);
    }

    fn validate(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (path, seconds) in [
            ("chain.refresh_s", self.chain.refresh_s),
            ("auth.nonce_lifetime_s", self.auth.nonce_lifetime_s),
            ("auth.token_lifetime_s", self.auth.token_lifetime_s),
            ("auth.web_session_s", self.auth.web_session_s),
            ("auth.signature_max_age_s", self.auth.signature_max_age_s),
            ("gateways.head_s", self.gateways.head_s),
            ("gateways.silence_s", self.gateways.silence_s),
        ] {
            if seconds == 0 {
                problems.push(Problem::at(path, "must be at least 1 second"));
            }
        }
        if self.live.log_kib > MAX_LOG_KIB {
            let most = format!("must be at most {MAX_LOG_KIB}");
            problems.push(Problem::at("live.log_kib", most));
        }
        let urls = [
            (
                "chain.url",
                Some(&self.chain.url).filter(|url| !url.is_empty()),
                ["ws://", "wss://"],
            ),
            ("public_url", self.public_url.as_ref(), ["http://", "https://"]),
        ];
        for (path, url, schemes) in urls {
            if url.is_some_and(|url| !schemes.iter().any(|scheme| url.starts_with(scheme))) {
                let [one, other] = schemes;
                problems.push(Problem::at(path, format!("must begin with {one} or {other}")));
            }
        }
        let is_interface = |url: &str| ["/api", "/api/v1", "/v1"].iter().any(|path| url.ends_with(path));
        if let Some(url) = &self.public_url
            && is_interface(url.trim_end_matches('/'))
        {
            let reason =
                "must be the address without /api/v1 or /v1, which links and signed URLs are put behind";
            problems.push(Problem::at("public_url", reason));
        }
        let has_host = self
            .public_url
            .as_deref()
            .is_some_and(|url| host_of(url).is_some());
        if self.auth.require_bound_login && !has_host {
            let reason = "needs public_url, whose host a bound login names";
            problems.push(Problem::at("auth.require_bound_login", reason));
        }
        problems.extend(self.http.problems("http"));
        problems.extend(self.files.problems("files"));
        for (path, allow) in [
            ("gateways.allow", &self.gateways.allow),
            ("webhooks.allow", &self.webhooks.allow),
        ] {
            if let Err(error) = AddressRules::parse(allow) {
                problems.push(Problem::at(path, error.to_string()));
            }
        }
        problems.extend(self.retention.problems());
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_process::config::{commented_default, parse};

    #[test]
    fn the_commented_defaults_are_the_defaults() {
        assert_eq!(commented_default::<Config>().unwrap(), Config::default());
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let text = r#"
store = "sqlite:x"
validators = ["nobody"]
[chain]
url = "http://127.0.0.1"
refresh_s = 0
[auth]
token_lifetime = 1
require_bound_login = true
[gateways]
allow = ["http://10.0.0.1"]
head_s = 0
[retention]
jobs = { days = 0, rows = 1, mib = 1 }
[retention.pace]
step_rows = 0
"#;
        let errors = parse::<Config>(text, "facilitator.toml").unwrap_err().to_string();
        for key in [
            "validators",
            "chain.url",
            "chain.refresh_s",
            "auth.token_lifetime",
            "auth.require_bound_login",
            "gateways.allow",
            "gateways.head_s",
            "retention.jobs.days",
            "retention.pace.step_rows",
        ] {
            assert!(errors.contains(key), "{key} in {errors}");
        }
    }

    #[test]
    fn a_public_url_of_an_interface_is_refused() {
        for (url, is_refused) in [
            ("https://facilitator.example.org", false),
            ("https://facilitator.example.org/muster/", false),
            ("https://facilitator.example.org/api/v1/", true),
            ("https://facilitator.example.org/v1", true),
            ("facilitator.example.org", true),
        ] {
            let read = parse::<Config>(&format!("public_url = {url:?}"), "facilitator.toml");
            let error = read.err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(error.contains("public_url"), is_refused, "{url}: {error}");
        }
    }
}
