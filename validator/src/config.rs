//! The validator's configuration file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use muster_chain::Netuid;
use muster_gateway::Settings as GatewaySettings;
use muster_grading_runner::Settings as GradingSettings;
use muster_identity::wallet::WalletPath;
use muster_process::config::{Problem, RoleConfig};
use muster_protocol::{ExecutorClass, Hotkey, MinerKey, UserKey};
use muster_routing::admission::Users;
use muster_routing::{Policy, Windows};
use serde::Deserialize;

/// How long a manifest is believed: a miner that is not asked because of it could never correct it.
const MANIFEST_AGE: Duration = Duration::from_secs(300);

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
    /// Receipts of all validators.
    pub receipts: ReceiptsConfig,
    /// What work is worth.
    pub scoring: ScoringConfig,
    /// The door to streaming sessions.
    pub gateway: GatewaySettings,
    /// Batches of known-answer proofs.
    pub grading: GradingSettings,
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
    /// Seconds over which miners are given the same number of jobs for each executor, as far as nothing speaks against it.
    pub fairness_s: u64,
    /// Seconds for which a miner that has nothing free is not asked for the same class again.
    pub full_s: u64,
    /// Seconds for which an image or input that a miner once had is taken to be there still.
    pub warm_s: u64,
    /// Miners that get nothing.
    pub blacklist: BTreeSet<MinerKey>,
}

/// Receipts of all validators.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReceiptsConfig {
    /// Whether miners' pages are read; without, only this validator's own receipts count.
    pub gather: bool,
    /// Seconds between two readings of the pages that grow.
    pub interval_s: u64,
    /// Seconds of pages that are read after a pause.
    pub catch_up_s: u64,
}

/// What work is worth.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScoringConfig {
    /// What all that proven answers of sealed sessions earn is worth beside the work of the classes.
    pub streaming_weight: u32,
    /// What all work of one class is worth beside that of the others.
    pub class_weights: BTreeMap<ExecutorClass, u32>,
    /// Of each class's weight, how many percent go to proven executors, where any are; the rest goes to paid work.
    pub capacity_percent: u8,
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
    /// Seconds for which the session with a miner is kept when no job needs it; 0 closes it at once.
    pub linger_s: u64,
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
            receipts: ReceiptsConfig::default(),
            scoring: ScoringConfig::default(),
            gateway: GatewaySettings::default(),
            grading: GradingSettings::default(),
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
            fairness_s: 3_600,
            full_s: 5,
            warm_s: 86_400,
            blacklist: BTreeSet::new(),
        }
    }
}

impl Default for ReceiptsConfig {
    fn default() -> Self {
        Self {
            gather: true,
            interval_s: 10,
            catch_up_s: 18_000,
        }
    }
}

impl Default for ScoringConfig {
    fn default() -> Self {
        let class_weights = ExecutorClass::ALL.into_iter().map(|class| (class, 1));
        Self {
            streaming_weight: 1,
            class_weights: class_weights.collect(),
            capacity_percent: 20,
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
            linger_s: 60,
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

impl RoutingConfig {
    pub(crate) fn policy(&self, me: Hotkey) -> Policy {
        Policy {
            me,
            max_incidents: self.max_incidents,
            blacklist: self.blacklist.clone(),
            prices: Policy::PRICES,
        }
    }

    pub(crate) fn windows(&self) -> Windows {
        Windows {
            record: Duration::from_secs(self.incident_s),
            given: Duration::from_secs(self.fairness_s),
            manifest: MANIFEST_AGE,
            full: Duration::from_secs(self.full_s),
            warm: Duration::from_secs(self.warm_s),
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
# Seconds over which miners are given the same number of jobs for each executor, as far as nothing speaks against it.
fairness_s = 3600
# Seconds for which a miner that has nothing free is not asked for the same class again.
full_s = 5
# Seconds for which an image or input that a miner once had is taken to be there still.
warm_s = 86400
# Hotkeys of miners that get nothing.
blacklist = []

[receipts]
# Whether the receipts of all validators are read from the miners' pages. Without, only this validator's own count.
gather = true
# Seconds between two readings of the pages that grow, and seconds of pages that are caught up on after a pause.
interval_s = 10
catch_up_s = 18000

[scoring]
# What all that this validator's gateway was answered is worth beside the work of a class. A miner's share of it is its share of the rao
# that proven answers earned by their tokens; sessions are paid for their time, too, in their class.
streaming_weight = 1
# Of each class's weight, how many percent go to proven executors, where any are; the rest goes to paid work.
capacity_percent = 20

[scoring.class_weights]
# What all work of one class is worth beside that of the others. A class that is not named is worth nothing.
"spin_up-4min.gpu-24gb" = 1
"always_on.gpu-24gb" = 1
"always_on.llm.a6000" = 1
"always_on.test" = 1
"always_on.cpu.8c.16gb" = 1

# The OpenAI-compatible door to streaming sessions.
[gateway]
# Where clients and facilitators connect; without this key there is no gateway. Behind the public network it wants TLS in front.
# bind = "127.0.0.1:8092"
# The URL that facilitators are told; without this key http:// and the bound address.
# announce = "https://gateway.example.org"
# Hotkeys of facilitators whose clients are served.
facilitators = []
# Sessions of each model that are kept even if nobody asks, sessions at most, and requests that one serves at a time.
min_sessions = 0
max_sessions = 4
per_session = 8
# Requests for one model that wait, those of one client, and seconds that each waits before it is told to come back.
queue = 1000
queue_of_one = 50
patience_s = 300
# Seconds: that a session may be unused, that it lives, before its end at which another takes its place, before its end from which it
# gets nothing new, and for its image and engine to come up.
idle_s = 300
session_s = 3600
replace_s = 300
drain_s = 60
start_s = 240
# Seconds that an engine may be silent, between two signs to a client that waits, and between two checks of a session's health.
silence_s = 600
heartbeat_s = 10
health_s = 15
# Milliseconds by which an executor's clock may differ from this machine's. One that differs more serves nobody.
skew_ms = 5000
# The largest request in KiB, and requests at a time of all clients.
max_body_kib = 4096
requests = 4096
# How many of a hundred answers are kept, with their request, for a later check.
sample_percent = 10
# What may serve: one entry a model. The image is the digest of its configuration; prices are rao for a million tokens.
services = []
# [[gateway.services]]
# model = "tiny"
# image = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
# reference = "registry.example.org/tiny:1"
# engine = "reference"
# scheme = "raw-http"
# health = "/health"
# listen = { socket = "http.sock" }
# class = "always_on.test"
# args = []
# input_price = 100000
# output_price = 400000

# Clients of this validator's own: a name for each, and SHA-256 of its key.
[gateway.keys]
# me = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

# Batches of known-answer proofs: every executor of the miners that are drawn is challenged at one instant.
[grading]
# Blocks between two batches on average; which block begins one follows from its hash. 0: only when `muster grade run` asks.
every_blocks = 360
# Seconds for executors to come to the barrier, beyond the time that the slowest class in the batch may take to appear.
gather_s = 120
# Executors of one miner, and of all, in a batch at most. What a miner announces beyond them is not proven, so it does not count.
of_one = 256
executors = 10240
# Milliseconds by which an executor's clock may differ from this machine's.
skew_ms = 5000
# Days for which the evidence of a batch is kept: a batch of 10,240 executors is some gigabytes.
keep_days = 14
# A file with floors of classes, measured by `muster grade self --write-floors FILE` on machines that are known to be of them, or stated by
# you. A class that it does not name has the floors that are stated without it.
# floors = "/etc/muster/floors.json"

# The grader's image for each class; a class that is not named is not graded. The image is the digest of its configuration.
[grading.images]
# [grading.images."always_on.test"]
# image = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
# reference = "registry.example.org/grader:1"

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
# Seconds for which the session with a Muster miner is kept when no job needs it; 0 closes it at once.
linger_s = 60
"#;

    fn validate(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (path, number) in [
            ("facilitator.heartbeat_s", self.facilitator.heartbeat_s),
            ("facilitator.answer_s", self.facilitator.answer_s),
            ("routing.max_attempts", u64::from(self.routing.max_attempts)),
            ("routing.max_incidents", u64::from(self.routing.max_incidents)),
            ("routing.fairness_s", self.routing.fairness_s),
            ("receipts.interval_s", self.receipts.interval_s),
            ("timing.dial_s", self.timing.dial_s),
            ("timing.reservation_s", self.timing.reservation_s),
            ("timing.reconnect_s", self.timing.reconnect_s),
        ] {
            if number == 0 {
                problems.push(Problem::at(path, "must be at least 1"));
            }
        }
        // Older receipts are refused, so older pages need not be read.
        if self.receipts.catch_up_s > 172_800 {
            problems.push(Problem::at(
                "receipts.catch_up_s",
                "must be at most two days (172800)",
            ));
        }
        let classes = self.scoring.class_weights.iter();
        let weights = classes.map(|(class, weight)| (format!("class_weights.{class}"), *weight));
        let streaming = ("streaming_weight".to_owned(), self.scoring.streaming_weight);
        for (key, weight) in weights.chain([streaming]) {
            if weight > muster_scoring::MAX_CLASS_WEIGHT {
                problems.push(Problem::at(format!("scoring.{key}"), "must be at most 1000000"));
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
        problems.extend(self.gateway.problems("gateway"));
        problems.extend(self.grading.problems("grading"));
        if self.scoring.capacity_percent > 100 {
            problems.push(Problem::at("scoring.capacity_percent", "must be at most 100"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use muster_process::config::{commented_default, parse};

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
