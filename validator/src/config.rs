//! The validator's configuration file.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use muster_chain::Netuid;
use muster_identity::wallet::WalletPath;
use muster_kit::config::{Problem, RoleConfig};
use muster_protocol::UserKey;
use serde::Deserialize;

use crate::admission::Users;

/// The configuration of a validator. [`RoleConfig::COMMENTED_DEFAULT`] explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the read-only state is served; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Where the bound address is written once the validator is up.
    pub ready_file: Option<PathBuf>,
    /// `sqlite:PATH` or `postgres://…`.
    pub store: String,
    /// The hotkey it acts with.
    pub wallet: WalletPath,
    /// The chain and the subnet.
    pub chain: ChainConfig,
    /// Where jobs come from.
    pub facilitator: FacilitatorConfig,
    /// Whose jobs are taken.
    pub users: UsersConfig,
    /// How miners are chosen.
    pub routing: RoutingConfig,
    /// How long each party may take.
    pub timing: TimingConfig,
}

/// The chain and the subnet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChainConfig {
    /// The endpoint.
    pub url: String,
    /// More endpoints of the same chain, tried in this order when the first fails.
    pub urls: Vec<String>,
    /// The subnet.
    pub netuid: Netuid,
    /// Seconds for which a reading of the metagraph is good enough to route by.
    pub refresh_s: u64,
    /// Seconds that a job waits for a chain that has not answered since the start.
    pub wait_s: u64,
}

/// Where jobs come from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FacilitatorConfig {
    /// Its websocket.
    pub url: String,
    /// Seconds between two heartbeats.
    pub heartbeat_s: u64,
    /// Seconds within which it must answer a greeting or a status update.
    pub answer_s: u64,
}

/// Whose jobs are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UsersConfig {
    /// Everyone's.
    pub allow_any: bool,
    /// These hotkeys', and always the validator's own.
    pub allow: BTreeSet<UserKey>,
}

/// How miners are chosen.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoutingConfig {
    /// Miners that a job is offered to before its user sees a failure.
    pub max_attempts: u32,
    /// Incidents from which a miner is left out.
    pub max_incidents: u32,
    /// Seconds after which an incident is forgotten.
    pub incident_s: u64,
}

/// How long each party may take.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimingConfig {
    /// Seconds of slack for the whole job.
    pub leeway_s: u64,
    /// Seconds to dial a miner for the first time, before the next one is tried.
    pub dial_s: u64,
    /// Seconds for a miner to accept or decline.
    pub reservation_s: u64,
    /// Seconds for an executor to start, beyond its class's spin-up time.
    pub startup_s: u64,
    /// Seconds for which the connection to a miner may stay lost.
    pub reconnect_s: u64,
    /// Milliseconds to wait for the miner's signature on a finished receipt before the user is told.
    pub receipt_wait_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 8091)),
            ready_file: None,
            store: "sqlite:validator.db".to_owned(),
            wallet: WalletPath::default(),
            chain: ChainConfig::default(),
            facilitator: FacilitatorConfig::default(),
            users: UsersConfig::default(),
            routing: RoutingConfig::default(),
            timing: TimingConfig::default(),
        }
    }
}

impl Default for ChainConfig {
    fn default() -> Self {
        Self {
            url: "ws://127.0.0.1:9944".to_owned(),
            urls: Vec::new(),
            netuid: Netuid(1),
            refresh_s: 6,
            wait_s: 60,
        }
    }
}

impl Default for FacilitatorConfig {
    fn default() -> Self {
        Self {
            url: "ws://127.0.0.1:8090/ws/v0/".to_owned(),
            heartbeat_s: 60,
            answer_s: 30,
        }
    }
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            max_incidents: 3,
            incident_s: 600,
        }
    }
}

impl Default for TimingConfig {
    fn default() -> Self {
        Self {
            leeway_s: 5,
            dial_s: 6,
            reservation_s: 7,
            startup_s: 10,
            reconnect_s: 30,
            receipt_wait_ms: 2000,
        }
    }
}

impl ChainConfig {
    /// Every endpoint, the preferred one first.
    pub fn endpoints(&self) -> Vec<String> {
        std::iter::once(&self.url).chain(&self.urls).cloned().collect()
    }
}

impl UsersConfig {
    pub(crate) fn rule(&self) -> Users {
        if self.allow_any {
            Users::Any
        } else {
            Users::Listed(self.allow.clone())
        }
    }
}

impl TimingConfig {
    pub(crate) fn receipt_wait(&self) -> Duration {
        Duration::from_millis(self.receipt_wait_ms)
    }

    pub(crate) fn reconnect(&self) -> Duration {
        Duration::from_secs(self.reconnect_s)
    }
}

impl RoleConfig for Config {
    const COMMENTED_DEFAULT: &'static str = r#"# The validator: takes users' jobs, chooses miners, scores them, sets weights.

# Where its state can be read (/health, /v0/state). It has no password: keep it on this machine. Port 0 takes a free one.
bind = "127.0.0.1:8091"

# A file that is written once the validator is up: {"address":"127.0.0.1:8091"}.
# ready_file = "validator.ready"

# Jobs, receipts and scores: sqlite:PATH, or postgres://USER@HOST/DATABASE.
store = "sqlite:validator.db"

[wallet]
# The folder of all wallets, then the wallet, and the hotkey in it that is registered in the subnet. The coldkey is never opened.
root = "~/.bittensor/wallets"
name = "default"
hotkey = "default"

[chain]
url = "ws://127.0.0.1:9944"
# More endpoints of the same chain, tried in this order when the one before fails or its blocks stand still. An endpoint of
# another chain is refused.
urls = []
netuid = 1
# Seconds for which a reading of the metagraph is good enough to route by. If a new one fails, the last good one stands.
refresh_s = 6
# Seconds that a job waits for a chain that has not answered since the start, before its user is told that no miner is known.
wait_s = 60

[facilitator]
# The users' door that this validator serves.
url = "ws://127.0.0.1:8090/ws/v0/"
# Seconds between two heartbeats. A facilitator takes a validator for gone after three minutes.
heartbeat_s = 60
# Seconds within which it must answer a greeting or a status update; after that the connection is made anew.
answer_s = 30

[users]
# Whose jobs are taken: everyone's, or those of these hotkeys and of the validator itself.
allow_any = false
allow = []

[routing]
# Miners that a job is offered to, one after the other, before its user sees a failure.
max_attempts = 3
# A miner with this many failed attempts is left out until they are older than incident_s seconds.
max_incidents = 3
incident_s = 600

[timing]
# Seconds of slack for the whole job, on top of the limits that its user set.
leeway_s = 5
# Seconds to dial a miner for the first time, before the next one is tried.
dial_s = 6
# Seconds for a miner to accept or decline.
reservation_s = 7
# Seconds for an executor to start, on top of the spin-up time of its class.
startup_s = 10
# Seconds for which the connection to a miner may stay lost before the job is given up.
reconnect_s = 30
# Milliseconds to wait for the miner's signature on the finished receipt before the user is told of the end.
receipt_wait_ms = 2000
"#;

    fn validate(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (path, number) in [
            ("facilitator.heartbeat_s", self.facilitator.heartbeat_s),
            ("facilitator.answer_s", self.facilitator.answer_s),
            ("routing.max_attempts", u64::from(self.routing.max_attempts)),
            ("routing.max_incidents", u64::from(self.routing.max_incidents)),
            ("timing.dial_s", self.timing.dial_s),
            ("timing.reservation_s", self.timing.reservation_s),
            ("timing.reconnect_s", self.timing.reconnect_s),
        ] {
            if number == 0 {
                problems.push(Problem::at(path, "must be at least 1"));
            }
        }
        // Python miners refuse a started receipt that holds for longer than thirty days.
        if self.timing.reservation_s > 2_592_000 {
            problems.push(Problem::at(
                "timing.reservation_s",
                "must be at most thirty days (2592000)",
            ));
        }
        let chains = self.chain.urls.iter().map(|url| ("chain.urls", url));
        for (path, url) in chains.chain([
            ("chain.url", &self.chain.url),
            ("facilitator.url", &self.facilitator.url),
        ]) {
            if !url.starts_with("ws://") && !url.starts_with("wss://") {
                problems.push(Problem::at(path, "must begin with ws:// or wss://"));
            }
        }
        if self.users.allow_any && !self.users.allow.is_empty() {
            problems.push(Problem::at(
                "users.allow",
                "has no effect while users.allow_any is true; remove one of them",
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use muster_kit::config::{commented_default, parse};

    use super::*;

    #[test]
    fn the_commented_defaults_are_the_defaults() {
        assert_eq!(commented_default::<Config>().unwrap(), Config::default());
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let text = r#"
[chain]
url = "http://127.0.0.1"
urls = ["wss://a.example", "b.example"]
[facilitator]
heartbeat_s = 0
[users]
allow_any = true
allow = ["5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"]
[timing]
leeway = 1
reservation_s = 9999999
"#;
        let errors = parse::<Config>(text, "validator.toml").unwrap_err().to_string();
        for key in [
            "chain.url",
            "chain.urls",
            "facilitator.heartbeat_s",
            "users.allow",
            "timing.leeway",
            "timing.reservation_s",
        ] {
            assert!(errors.contains(key), "{key} in {errors}");
        }
    }
}
