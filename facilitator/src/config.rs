//! The facilitator's configuration file.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use muster_chain::Netuid;
use muster_process::config::{Problem, RoleConfig};
use muster_protocol::{UserKey, ValidatorKey};
use serde::Deserialize;

use muster_facilitator_core::login_tokens::CredentialLifetimes;
use muster_facilitator_core::signature::SignatureFreshness;

use crate::store::JobQuota;

/// The largest allowed `live.log_kib`. A job's stored output is measured at each new piece, so it must be small.
const MAX_LOG_KIB: u64 = 64 * 1024;

/// The configuration of a facilitator. [`RoleConfig::COMMENTED_DEFAULT`] explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address to listen on; port 0 takes a free one.
    pub bind: SocketAddr,
    /// The file that the bound address is written to once requests are served.
    pub ready_file: Option<PathBuf>,
    /// The database: `sqlite:PATH` or `postgres://…`.
    pub store: String,
    /// The address at which users reach this facilitator, for links and signed URLs.
    pub public_url: Option<String>,
    /// Validators that are served also without a permit on the chain.
    pub validators: Vec<ValidatorKey>,
    /// The hotkeys that may log in; every hotkey if absent.
    pub users: Option<Vec<UserKey>>,
    /// The hotkeys that may create API keys for accounts without a hotkey, and read the whole audit log.
    pub administrators: Vec<UserKey>,
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
}

/// The limits of accounts and addresses; 0 for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Requests a minute of one account.
    pub requests_per_minute: u32,
    /// Requests a minute of one address to the calls that need no credentials.
    pub strangers_per_minute: u32,
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

/// The bounds of running jobs' stored output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LiveConfig {
    /// The most output of one job, in KiB.
    pub log_kib: u64,
    /// The most pieces of output of one job.
    pub log_pieces: usize,
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

/// The lifetimes of credentials and signatures, in seconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthConfig {
    /// The lifetime of a nonce.
    pub nonce_lifetime_s: u64,
    /// The lifetime of a token.
    pub token_lifetime_s: u64,
    /// The largest age of a request's signature.
    pub signature_max_age_s: u64,
    /// The largest lead of a signature's time over this machine's clock.
    pub signature_max_ahead_s: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 8090)),
            ready_file: None,
            store: "sqlite:facilitator.db".to_owned(),
            public_url: None,
            validators: Vec::new(),
            users: None,
            administrators: Vec::new(),
            chain: PermitsConfig::default(),
            auth: AuthConfig::default(),
            files: muster_file_store::Settings::default(),
            limits: LimitsConfig::default(),
            live: LiveConfig::default(),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            requests_per_minute: 6000,
            strangers_per_minute: 600,
            open_jobs: 1000,
            daily_jobs: 0,
            daily_tokens: 0,
            watchers: 1000,
            unanswered_s: 3600,
        }
    }
}

impl Default for LiveConfig {
    fn default() -> Self {
        Self {
            log_kib: 1024,
            log_pieces: 4096,
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
    const COMMENTED_DEFAULT: &'static str = r#"# The facilitator: the service that users submit jobs to.

# The address to listen on, for users and for validators. Port 0 takes a free one.
bind = "127.0.0.1:8090"

# A file that is written once requests are served: {"address":"127.0.0.1:8090"}.
# ready_file = "facilitator.ready"

# Accounts, jobs and their statuses: sqlite:PATH, or postgres://USER@HOST/DATABASE.
store = "sqlite:facilitator.db"

# The address at which users and executors reach this facilitator. Without it, links between pages of a list are
# relative, and signed URLs begin with the host of the request.
# public_url = "https://facilitator.example.org"

# Hotkeys of validators that are served also without a permit on the chain.
validators = []

# Hotkeys that may log in. Without this key every hotkey may.
# users = ["5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"]

# Hotkeys that may create API keys for accounts without a hotkey, and read the whole audit log.
administrators = []

[chain]
# The chain's endpoint, from which validators' permits are read, for example ws://127.0.0.1:9944. If it is empty, only
# the validators above are served.
url = ""
netuid = 1
# Seconds between two readings of the metagraph. If one fails, the last permits stay in force.
refresh_s = 60

[auth]
# Seconds until a nonce and a token expire.
nonce_lifetime_s = 300
token_lifetime_s = 3600
# Seconds by which the time inside a request's signature may lie behind or ahead of this machine's clock.
signature_max_age_s = 300
signature_max_ahead_s = 30

# Files of users: inputs and outputs of jobs, reached through signed URLs below public_url.
[files]
# The store of their bytes: file:FOLDER, or any S3-compatible bucket,
# s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME, with the credentials in AWS_ACCESS_KEY_ID and
# AWS_SECRET_ACCESS_KEY. Replicas of one facilitator must share it.
store = "file:facilitator-files"
# The largest size of one file, and of all files of one account together, in MiB.
max_file_mib = 2048
quota_mib = 20480
# Hours for which a file is kept after its last upload, and hours until a signed URL expires.
keep_hours = 168
url_hours = 24
# Seconds between two sweeps, which delete expired files and unused objects.
sweep_s = 600

# Limits; 0 for no limit. Facilitators on a shared store count requests separately, and jobs together.
[limits]
# Requests a minute of one account, and of one address to the calls that need no credentials.
requests_per_minute = 6000
strangers_per_minute = 600
# Open jobs of one account, and jobs that it may create a day (UTC).
open_jobs = 1000
daily_jobs = 0
# Tokens of one account a day (UTC), input and output of all models together.
daily_tokens = 0
# Open event streams of one account.
watchers = 1000
# Seconds after which a job ends that its validator has not answered.
unanswered_s = 3600

# The newest output of running jobs is stored for clients that connect late, until an hour after the job's end.
[live]
log_kib = 1024
log_pieces = 4096
"#;

    fn validate(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (path, seconds) in [
            ("chain.refresh_s", self.chain.refresh_s),
            ("auth.nonce_lifetime_s", self.auth.nonce_lifetime_s),
            ("auth.token_lifetime_s", self.auth.token_lifetime_s),
            ("auth.signature_max_age_s", self.auth.signature_max_age_s),
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
        problems.extend(self.files.problems("files"));
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
"#;
        let errors = parse::<Config>(text, "facilitator.toml").unwrap_err().to_string();
        for key in [
            "validators",
            "chain.url",
            "chain.refresh_s",
            "auth.token_lifetime",
        ] {
            assert!(errors.contains(key), "{key} in {errors}");
        }
    }
}
