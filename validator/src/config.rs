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

/// How long a manifest is believed. It must expire: a miner that gets no jobs because of its manifest is not dialled,
/// so it could never correct the manifest.
const MANIFEST_AGE: Duration = Duration::from_secs(300);

/// The configuration of a validator. [`RoleConfig::COMMENTED_DEFAULT`] explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address of the status page; port 0 takes a free port.
    pub bind: SocketAddr,
    /// The file to which the bound address is written once the validator is up.
    pub ready_file: Option<PathBuf>,
    /// The database: `sqlite:PATH` or `postgres://…`.
    pub store: String,
    /// The wallet with the validator's hotkey.
    pub wallet: WalletPath,
    /// The chain and the subnet.
    pub chain: ChainConfig,
    /// The facilitator that sends jobs.
    pub facilitator: FacilitatorConfig,
    /// The users whose jobs are taken.
    pub users: UsersConfig,
    /// How miners are chosen.
    pub routing: RoutingConfig,
    /// The gathering of receipts of all validators.
    pub receipts: ReceiptsConfig,
    /// The value of work.
    pub scoring: ScoringConfig,
    /// The OpenAI-compatible gateway to streaming sessions.
    pub gateway: GatewaySettings,
    /// Batches of known-answer proofs.
    pub grading: GradingSettings,
    /// Time limits of jobs and connections.
    pub timing: TimingConfig,
}

/// The chain and the subnet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChainConfig {
    /// The preferred endpoint.
    pub url: String,
    /// More endpoints of the same chain, tried in this order when the one before fails.
    pub urls: Vec<String>,
    /// The id of the subnet.
    pub netuid: Netuid,
    /// Seconds after which the metagraph is read again before a job is routed.
    pub refresh_s: u64,
    /// Seconds that a job waits for a chain that has not answered since the start.
    pub wait_s: u64,
}

/// The connection to the facilitator.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FacilitatorConfig {
    /// The URL of the facilitator's websocket.
    pub url: String,
    /// Seconds between two heartbeats.
    pub heartbeat_s: u64,
    /// Seconds within which the facilitator must answer a greeting or a status update.
    pub answer_s: u64,
}

/// The users whose jobs are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UsersConfig {
    /// Whether every user's jobs are taken.
    pub allow_any: bool,
    /// The hotkeys of users whose jobs are taken. The validator's own jobs always are.
    pub allow: BTreeSet<UserKey>,
}

/// How miners are chosen.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoutingConfig {
    /// Miners that a job is offered to, one after the other, before its user sees a failure.
    pub max_attempts: u32,
    /// Recent incidents at which a miner gets no more jobs.
    pub max_incidents: u32,
    /// Seconds after which an incident is forgotten.
    pub incident_s: u64,
    /// Seconds over which routing evens out the number of jobs for each executor.
    pub fairness_s: u64,
    /// Seconds for which a miner that was busy is not asked for the same class again.
    pub full_s: u64,
    /// Seconds for which an image or input that a miner once had is assumed to be still there.
    pub warm_s: u64,
    /// Miners that get no jobs.
    pub blacklist: BTreeSet<MinerKey>,
}

/// The gathering of receipts of all validators.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReceiptsConfig {
    /// Whether miners' receipt pages are read; if not, only this validator's own receipts count.
    pub gather: bool,
    /// Seconds between two readings of the pages.
    pub interval_s: u64,
    /// The age in seconds up to which pages are read that were missed during a pause.
    pub catch_up_s: u64,
}

/// The value of work.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScoringConfig {
    /// The weight of the answers of sealed sessions, relative to the weights of the classes.
    pub streaming_weight: u32,
    /// The weight of each class's work, relative to the others. A class that is not named has weight 0.
    pub class_weights: BTreeMap<ExecutorClass, u32>,
    /// The percentage of each class's weight that goes to proven executors, if there are any. Paid work gets
    /// the rest.
    pub capacity_percent: u8,
}

/// Time limits of jobs and connections.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimingConfig {
    /// Seconds of leeway for the whole job.
    pub leeway_s: u64,
    /// Seconds to reach a miner for the first time, before another one is tried.
    pub dial_s: u64,
    /// Seconds for a miner to accept or decline.
    pub reservation_s: u64,
    /// Seconds for an executor to start, in addition to its class's spin-up time.
    pub startup_s: u64,
    /// Seconds for which the connection to a miner may stay lost before the attempt fails.
    pub reconnect_s: u64,
    /// Milliseconds that the end of a job waits for the miner's signature on the finished receipt.
    pub receipt_wait_ms: u64,
    /// Seconds for which the connection to a Muster miner is kept after its last job; 0 closes it at once.
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
    const COMMENTED_DEFAULT: &'static str = r#"# The validator: takes users' jobs, chooses a miner for each, scores the miners and sets weights.

# The address of the status page (/health, /v0/state). It has no password, so keep it on this machine. Port 0 takes a free port.
bind = "127.0.0.1:8091"

# A file that is written once the validator is up. It contains {"address":"127.0.0.1:8091"}.
# ready_file = "validator.ready"

# Jobs, receipts and scores: sqlite:PATH, or postgres://USER@HOST/DATABASE.
store = "sqlite:validator.db"

[wallet]
# The folder of all wallets, the wallet in it, and the wallet's hotkey, which must be registered in the subnet. The coldkey is never
# opened.
root = "~/.bittensor/wallets"
name = "default"
hotkey = "default"

[chain]
url = "ws://127.0.0.1:9944"
# More endpoints of the same chain, tried in this order when the one before fails or its blocks stand still. An endpoint of
# another chain is refused.
urls = []
netuid = 1
# Seconds after which the metagraph is read again before a job is routed. If that fails, the last good metagraph is used.
refresh_s = 6
# Seconds that a job waits for a chain that has not answered since the start, before its user is told that no miner is known.
wait_s = 60

[facilitator]
# The websocket of the facilitator whose users this validator serves.
url = "ws://127.0.0.1:8090/ws/v0/"
# Seconds between two heartbeats. A facilitator considers a validator gone after three minutes without one.
heartbeat_s = 60
# Seconds within which the facilitator must answer a greeting or a status update; after that the validator reconnects.
answer_s = 30

[users]
# The users whose jobs are taken: all of them, or those with these hotkeys. The validator's own jobs are always taken.
allow_any = false
allow = []

[routing]
# Miners that a job is offered to, one after the other, before its user sees a failure.
max_attempts = 3
# A miner with this many failed attempts within incident_s seconds gets no jobs.
max_incidents = 3
incident_s = 600
# Seconds over which routing evens out the number of jobs for each executor.
fairness_s = 3600
# Seconds for which a miner that was busy is not asked for the same class again.
full_s = 5
# Seconds for which an image or input that a miner once had is assumed to be still there.
warm_s = 86400
# Hotkeys of miners that get no jobs.
blacklist = []

[receipts]
# Whether the receipts of all validators are read from the miners' receipt pages. If not, only this validator's own receipts count.
gather = true
# Seconds between two readings of the pages, and the age in seconds up to which pages are read that were missed during a pause.
interval_s = 10
catch_up_s = 18000

[scoring]
# The weight of the answers that this validator's gateway was given, relative to the weights of the classes. A miner's share of it is its
# share of the rao that proven answers earned by their tokens. The time of a session is paid as work of its class, too.
streaming_weight = 1
# The percentage of each class's weight that goes to proven executors, if there are any; the rest goes to paid work.
capacity_percent = 20

[scoring.class_weights]
# The weight of each class's work, relative to the others. A class that is not named has weight 0.
"spin_up-4min.gpu-24gb" = 1
"always_on.gpu-24gb" = 1
"always_on.llm.a6000" = 1
"always_on.test" = 1
"always_on.cpu.8c.16gb" = 1

# The gateway: an OpenAI-compatible API in front of streaming sessions.
[gateway]
# The address that clients and facilitators connect to; without this key there is no gateway. On a public network, put TLS in front.
# bind = "127.0.0.1:8092"
# The URL that facilitators are told; by default http:// and the bound address.
# announce = "https://gateway.example.org"
# Hotkeys of facilitators whose clients are served.
facilitators = []
# For each model: sessions that are kept even without requests, sessions at most, and requests that one session serves at a time.
min_sessions = 0
max_sessions = 4
per_session = 8
# Requests that wait for one model at most, those of one client at most, and seconds that a request waits before
# its client is told to come back later.
queue = 1000
queue_of_one = 50
patience_s = 300
# Seconds: how long a session may be unused, how long it lives, how long before its end a replacement is started, how long before its end
# it gets no new requests, and how long its image and engine may take to start.
idle_s = 300
session_s = 3600
replace_s = 300
drain_s = 60
start_s = 240
# Seconds: how long an engine may send nothing, the time between two signs of life to a waiting client, and the time between two
# health checks of a session.
silence_s = 600
heartbeat_s = 10
health_s = 15
# Milliseconds by which an executor's clock may differ from this machine's. An executor whose clock differs more serves no requests.
skew_ms = 5000
# The largest request body in KiB, and requests of all clients at a time.
max_body_kib = 4096
requests = 4096
# The percentage of answers that are kept, with their request, for a later check.
sample_percent = 10
# The models that may be served, one entry each. The image is the digest of the image's configuration; prices are rao for a million tokens.
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

# Clients that connect directly: a name for each, and the SHA-256 digest of its key.
[gateway.keys]
# me = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

# Grading: batches of known-answer proofs, in which every executor of the miners that are drawn is challenged at the same instant.
[grading]
# Blocks between two batches, on average: a block's hash decides whether it begins one. With 0, only `muster grade run` begins a batch.
every_blocks = 360
# Seconds for executors to reach the barrier, in addition to the time that the slowest class in the batch may take to start.
gather_s = 120
# Executors of one miner and of all miners in a batch, at most. Executors that a miner announces beyond them are not proven, so they do
# not count.
of_one = 256
executors = 10240
# Milliseconds by which an executor's clock may differ from this machine's.
skew_ms = 5000
# Days for which the evidence of a batch is kept. A batch of 10,240 executors takes some gigabytes.
keep_days = 14
# A file with the thresholds of classes, measured by `muster grade self --write-floors FILE` on machines that are known to be of the class,
# or written by hand. A class that the file does not name has the built-in thresholds.
# floors = "/etc/muster/floors.json"

# The grader's image for each class; a class that is not named is not graded. The image is the digest of the image's configuration.
[grading.images]
# [grading.images."always_on.test"]
# image = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
# reference = "registry.example.org/grader:1"

[timing]
# Seconds of leeway for the whole job, in addition to the limits that its user set.
leeway_s = 5
# Seconds to reach a miner for the first time, before another one is tried.
dial_s = 6
# Seconds for a miner to accept or decline.
reservation_s = 7
# Seconds for an executor to start, in addition to the spin-up time of its class.
startup_s = 10
# Seconds for which the connection to a miner may stay lost before the attempt fails.
reconnect_s = 30
# Milliseconds that the end of a job waits for the miner's signature on the finished receipt.
receipt_wait_ms = 2000
# Seconds for which the connection to a Muster miner is kept after its last job; 0 closes it at once.
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
