//! The facilitator's configuration file.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use muster_chain::Netuid;
use muster_process::config::{Problem, RoleConfig};
use muster_protocol::{UserKey, ValidatorKey};
use serde::Deserialize;

use muster_facilitator_core::auth::CredentialLifetimes;
use muster_facilitator_core::signature::SignatureFreshness;

use crate::store::JobQuota;

/// Output of one job is measured each time some comes in, so it must not be endless.
const MAX_LOG_KIB: u64 = 64 * 1024;

/// The configuration of a facilitator. [`RoleConfig::COMMENTED_DEFAULT`] explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Where the bound address is written once requests are served.
    pub ready_file: Option<PathBuf>,
    /// `sqlite:PATH` or `postgres://…`.
    pub store: String,
    /// What users reach this facilitator by, for the links between pages.
    pub public_url: Option<String>,
    /// Validators that are served whatever the chain says.
    pub validators: Vec<ValidatorKey>,
    /// Who may log in; everyone if absent.
    pub users: Option<Vec<UserKey>>,
    /// Who may make API keys for people without a hotkey, and read the whole audit log.
    pub administrators: Vec<UserKey>,
    /// Where validators with a permit are read from.
    pub chain: ChainConfig,
    /// How long credentials hold.
    pub auth: AuthConfig,
    /// Files of users.
    pub files: muster_file_store::Settings,
    /// How much an account may ask.
    pub limits: LimitsConfig,
    /// How much of what running jobs say is kept.
    pub live: LiveConfig,
}

/// How much an account may ask; 0 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Requests a minute of one account.
    pub requests_per_minute: u32,
    /// Requests a minute of one address that nobody has logged in from yet.
    pub strangers_per_minute: u32,
    /// Jobs of one account that have not ended.
    pub open_jobs: u32,
    /// Jobs of one account a day, UTC.
    pub daily_jobs: u32,
    /// Tokens of one account a day, UTC, of all models together.
    pub daily_tokens: u64,
    /// Streams of events that one account has open.
    pub watchers: usize,
    /// Seconds after which a job ends that its validator has said nothing about.
    pub unanswered_s: u64,
}

/// How much of what running jobs say is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LiveConfig {
    /// KiB of output of one job.
    pub log_kib: u64,
    /// Pieces of output of one job.
    pub log_pieces: usize,
}

/// Where validators with a permit are read from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChainConfig {
    /// The endpoint; empty for none: only the configured validators are served then.
    pub url: String,
    /// The subnet.
    pub netuid: Netuid,
    /// Seconds between two readings of the metagraph.
    pub refresh_s: u64,
}

/// How long credentials hold, in seconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthConfig {
    /// Of a nonce.
    pub nonce_lifetime_s: u64,
    /// Of a token.
    pub token_lifetime_s: u64,
    /// How old the signature of a job may be.
    pub signature_max_age_s: u64,
    /// How far ahead of our clock it may lie.
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
            chain: ChainConfig::default(),
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

impl Default for ChainConfig {
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
    const COMMENTED_DEFAULT: &'static str = r#"# The facilitator: the users' door.

# Where to listen, for users and for validators. Port 0 takes a free one.
bind = "127.0.0.1:8090"

# A file that is written once requests are served: {"address":"127.0.0.1:8090"}.
# ready_file = "facilitator.ready"

# Accounts, jobs and their statuses: sqlite:PATH, or postgres://USER@HOST/DATABASE.
store = "sqlite:facilitator.db"

# What users reach this facilitator by; without it the links between pages of a list are relative.
# public_url = "https://facilitator.example.org"

# Hotkeys of validators that are served whatever the chain says.
validators = []

# Hotkeys that may log in. Without this key everyone may.
# users = ["5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"]

# Hotkeys that may make API keys for people without one, and read the whole audit log.
administrators = []

[chain]
# Validators with a permit are read from here, for example ws://127.0.0.1:9944. Empty: only those above are served.
url = ""
netuid = 1
# Seconds between two readings of the metagraph. If one fails, the last good one stands.
refresh_s = 60

[auth]
# Seconds for which a nonce and a token hold.
nonce_lifetime_s = 300
token_lifetime_s = 3600
# Seconds by which the time inside a job's signature may lie behind or ahead of this machine's clock.
signature_max_age_s = 300
signature_max_ahead_s = 30

# Files of users: inputs and outputs of jobs, reached by signed URLs below public_url.
[files]
# Where their bytes lie: file:FOLDER, or any S3-compatible bucket, s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME, with
# the credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Replicas of one facilitator must share it.
store = "file:facilitator-files"
# The largest file, and all files of one account together, in MiB.
max_file_mib = 2048
quota_mib = 20480
# Hours that a file is kept after its last upload, and that a signed URL holds.
keep_hours = 168
url_hours = 24
# Seconds between two collections of what is no longer needed.
sweep_s = 600

# How much may be asked; 0 is no limit. Each facilitator on a shared store counts requests for itself, jobs are counted together.
[limits]
# Requests a minute of one account, and of one address that nobody has logged in from.
requests_per_minute = 6000
strangers_per_minute = 600
# Jobs of one account that have not ended, and jobs a day (UTC).
open_jobs = 1000
daily_jobs = 0
# Tokens of one account a day (UTC) that models may take in and put out for it.
daily_tokens = 0
# Streams of events that one account may have open.
watchers = 1000
# Seconds after which a job ends that its validator has said nothing about.
unanswered_s = 3600

# What running jobs say is kept for watchers that come late: the newest, and for an hour after the end.
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
