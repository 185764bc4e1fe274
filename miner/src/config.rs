//! A miner's configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use muster_http::addresses::AddressRules;
use muster_http::server::HttpSettings;
use muster_identity::wallet::WalletPath;
use muster_process::config::{ConfigFolder, Problem, RoleConfig};
use muster_protocol::{ExecutorClass, Hotkey, Netuid, ValidatorKey};
use muster_store::retention::{Keep, PaceSettings};
use serde::Deserialize;

use crate::executor_pools::{EngineKind, PoolConfig};
use crate::store::GREETED_DAYS;

/// The whole configuration of one miner.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The folder from which relative paths count; empty for the folder of the configuration file.
    pub state_dir: PathBuf,
    /// Where to listen. Port 0 takes a free one.
    pub bind: SocketAddr,
    /// The address that validators read on the chain; the bound address if it is missing.
    pub announce: Option<SocketAddr>,
    /// Gets the bound address once the miner is up.
    pub ready_file: Option<PathBuf>,
    /// Whether this miner is one of the subnet. The unregistered miner works for one validator, without a chain.
    pub registered: bool,
    /// The store: `sqlite:PATH` or `postgres://…`.
    pub store: String,
    /// The folder of receipt pages.
    pub receipts_dir: PathBuf,
    /// Validators served whatever the metagraph says.
    pub validators: Vec<ValidatorKey>,
    /// Validators never served, whatever else says so.
    pub blacklist: Vec<ValidatorKey>,
    /// Decline job requests without `validator_signature`.
    pub require_validator_signature: bool,
    /// The hotkey that is sent to validators as this miner's main one; its own if it is missing.
    pub main_hotkey: Option<Hotkey>,
    /// How long a stopping miner waits for its leases to end, in seconds.
    pub drain_s: u64,
    /// While this file is there, the miner accepts no more jobs.
    pub drain_file: PathBuf,
    /// The connections of validators, of executors and of readers of receipts.
    pub http: HttpSettings,
    /// The miner's key.
    pub wallet: WalletPath,
    /// The chain to follow.
    pub chain: ChainConfig,
    /// The executors that it starts itself.
    pub executor: ExecutorConfig,
    /// The fetches of images.
    pub fetch: FetchConfig,
    /// The shares of validators.
    pub shares: SharesConfig,
    /// The executors that stay connected.
    #[serde(rename = "standing", alias = "persistent")]
    pub persistent: PersistentConfig,
    /// The operator's pages.
    pub operator: OperatorConfig,
    /// TLS on the miner's port.
    pub tls: TlsConfig,
    /// How long rows stay.
    pub retention: MinerRetentionConfig,
}

/// TLS on the miner's port, with a certificate of the miner's own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// Whether the port speaks it, and the certificate is announced on the chain.
    pub enabled: bool,
    /// The PEM file of the certificate and its key; made at the first start.
    pub certificate: PathBuf,
    /// Whether validators, and executors of other machines, that come without it are refused.
    pub refuse_plain: bool,
}

impl TlsConfig {
    /// The folder of the certificate and of the one before it.
    pub fn folder(&self) -> PathBuf {
        self.certificate.parent().map(PathBuf::from).unwrap_or_default()
    }
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            certificate: PathBuf::from("miner/tls/port.pem"),
            refuse_plain: false,
        }
    }
}

/// The operator's pages.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OperatorConfig {
    /// The address to serve them at; absent, none are served.
    pub bind: Option<SocketAddr>,
    /// The file with the token that the pages ask for; the miner draws it.
    pub token: PathBuf,
    /// Validators' pages at these addresses are read for the grades although the addresses are not public.
    pub dial_allow: Vec<String>,
    /// How often they are looked for, in seconds.
    pub grades_s: u64,
}

impl Default for OperatorConfig {
    fn default() -> Self {
        Self {
            bind: None,
            token: PathBuf::from("miner/operator.token"),
            dial_allow: vec![],
            grades_s: 60,
        }
    }
}

impl OperatorConfig {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Err(error) = AddressRules::parse(&self.dial_allow) {
            problems.push(Problem::at("operator.dial_allow", error.to_string()));
        }
        if self.grades_s == 0 {
            problems.push(Problem::at("operator.grades_s", "must be at least 1"));
        }
        problems
    }
}

/// How long rows stay, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MinerRetentionConfig {
    /// Seconds for which results are kept for their validators, and attempts remembered; at least an hour.
    pub results_s: u64,
    /// Receipts; at least 3 days.
    pub receipts: Keep,
    /// The pace of the janitor.
    pub pace: PaceSettings,
}

/// The bounds on the images that executors of this miner fetch at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FetchConfig {
    /// The most seconds that an image may take, whatever its job allows.
    pub image_s: u64,
    /// Fetches at one time.
    pub slots: u32,
    /// Fetches of one account at one time.
    pub per_account: u32,
    /// Fetches from one registry at one time.
    pub per_registry: u32,
    /// Jobs that wait for a slot without keeping an executor.
    pub waiting: u32,
}

/// How many executors of a class one validator may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharesConfig {
    /// The least share of a validator, in executors of a class.
    pub floor: u32,
    /// The most seconds that a job may take which a validator gets beyond its share.
    pub beyond_s: u64,
    /// The days after its newest greeting for which a validator has a share beside the others.
    pub rivals_days: u64,
    /// The seconds of each executor's time that a validator may take beyond its share within a day without paying.
    pub unpaid_course_s: u64,
    /// The part of all executors' time that all validators together may take beyond their shares without paying, by
    /// their stakes, in per cent.
    pub unpaid_percent: u32,
}

/// Which chain, and which subnet on it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChainConfig {
    /// Its endpoint. Empty: no chain at all.
    pub url: String,
    /// More endpoints of the same chain, tried in this order when the first fails.
    pub urls: Vec<String>,
    /// The number of the subnet.
    pub netuid: Netuid,
    /// How often the metagraph is read again, in seconds.
    pub refresh_s: u64,
}

/// The executors that the miner brings up itself, and the way it starts one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutorConfig {
    /// The class of these executors.
    pub class: ExecutorClass,
    /// How many jobs run at once.
    pub count: u32,
    /// The program and its arguments; `MINER_ADDRESS` and `EXECUTOR_TOKEN` are in its environment.
    pub command: Vec<String>,
    /// Where executors dial, `ws://…`. Empty: the bound address.
    pub dial: String,
    /// Instead of `command`: brings an executor up somewhere else. Empty: `command` it is.
    pub provision: Vec<String>,
    /// Takes away what `provision` made.
    pub release: Vec<String>,
    /// How long one call of either may take, in seconds.
    pub provision_s: u64,
    /// The folder that remembers what is provisioned.
    pub provisioned: PathBuf,
    /// The seconds that all provisioned machines together may take in any 24 hours; 0 for no limit.
    pub daily_machine_s: u64,
    /// How long one may take to dial in, beyond its class's spin-up time, in seconds.
    pub startup_s: u64,
    /// How long one may take to get the image, in seconds.
    pub prepare_s: u64,
    /// How long a lease is kept for an executor whose connection is lost, in seconds. 0: it is lost with its
    /// connection.
    pub reattach_s: u64,
    /// The longest that one program keeps an executor, in seconds: a job with checkpoints is asked to save and leaves,
    /// another job that may take longer is declined. 0: as long as its job allows.
    pub lend_s: u64,
    /// How far the clock of one may be off before its streaming sessions are not attested, in milliseconds.
    pub max_skew_ms: u64,
    /// Further pools of executors, each with a class and an engine of its own.
    pub pools: Vec<PoolConfig>,
}

impl ExecutorConfig {
    /// The name of the pool that this section itself is.
    pub const OWN_POOL: &str = "own";

    /// The problems of this section. `takes_persistent` states whether persistent executors may connect.
    fn problems(&self, takes_persistent: bool) -> Vec<Problem> {
        let mut problems = Vec::new();
        problems.extend(PoolConfig::problems_of_all(&self.pools, "executor.pools"));
        if self
            .pools
            .iter()
            .any(|pool| pool.name == ExecutorConfig::OWN_POOL)
        {
            let text = "must not name a pool \"own\": that is the name of the pool that [executor] itself is";
            problems.push(Problem::at("executor.pools", text));
        }
        if self.count == 0 && self.pools.is_empty() && !takes_persistent {
            let text = "must be at least 1, or standing.bind must be set, or a pool";
            problems.push(Problem::at("executor.count", text));
        }
        if self.command.first().is_none_or(String::is_empty) {
            problems.push(Problem::at("executor.command", "must name a program"));
        }
        if self.provision.is_empty() != self.release.is_empty() {
            let text = "must be set together with executor.provision: a provisioned machine must be released";
            problems.push(Problem::at("executor.release", text));
        }
        if self.daily_machine_s > 0 && self.provision.is_empty() {
            let text = "has no effect without executor.provision: only provisioned machines are counted";
            problems.push(Problem::at("executor.daily_machine_s", text));
        }
        if self.provision_s == 0 {
            problems.push(Problem::at("executor.provision_s", "must be at least 1"));
        }
        let dial = &self.dial;
        if !dial.is_empty() && !dial.starts_with("ws://") && !dial.starts_with("wss://") {
            problems.push(Problem::at(
                "executor.dial",
                "must begin with ws:// or wss://, or be empty",
            ));
        }
        if self.prepare_s == 0 {
            problems.push(Problem::at("executor.prepare_s", "must be at least 1"));
        }
        problems
    }

    /// The pool that this section itself is, without its further pools.
    pub fn own_pool(&self) -> PoolConfig {
        PoolConfig {
            name: Self::OWN_POOL.to_owned(),
            class: self.class,
            count: self.count,
            engine: if self.provision.is_empty() {
                EngineKind::Local
            } else {
                EngineKind::Command
            },
            command: self.command.clone(),
            provision: self.provision.clone(),
            release: self.release.clone(),
            provision_s: self.provision_s,
            daily_machine_s: self.daily_machine_s,
            ..PoolConfig::default()
        }
    }
}

/// Executors that enrolled once and stay connected.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PersistentConfig {
    /// Where they connect, over TLS. Without it there are none.
    pub bind: Option<SocketAddr>,
    /// `host:port` where they find that port from outside; the bound address if it is empty.
    pub announce: String,
    /// The folder of the registry: the enrolled executors and the open tokens.
    pub roll: PathBuf,
}

impl Config {
    /// Whether the miner follows the chain and announces its address there.
    pub fn follows_chain(&self) -> bool {
        self.registered && !self.chain.url.is_empty()
    }

    /// The folder with a file for each host that gets no more jobs.
    pub fn drained_hosts(&self) -> PathBuf {
        self.drain_file.with_extension("hosts")
    }

    /// The settings that contradict a miner without registration.
    fn unregistered_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let [validator] = self.validators.as_slice() else {
            let text = "must name exactly one validator: an unregistered miner works for one";
            return vec![Problem::at("validators", text)];
        };
        if self.blacklist.contains(validator) {
            let text = "must not name the one validator that an unregistered miner works for";
            problems.push(Problem::at("blacklist", text));
        }
        // The default endpoint stands in every file that `--print-config` wrote.
        let named = ChainConfig::default().url != self.chain.url && !self.chain.url.is_empty();
        let without_effect = [
            ("chain.url", named),
            ("chain.urls", !self.chain.urls.is_empty()),
            ("announce", self.announce.is_some()),
            ("main_hotkey", self.main_hotkey.is_some()),
        ];
        for (key, _) in without_effect.into_iter().filter(|(_, is_set)| *is_set) {
            let text = "has no effect with registered = false, because no chain is used; remove one of them";
            problems.push(Problem::at(key, text));
        }
        problems
    }

    /// The settings that a miner of the subnet cannot do with.
    fn registered_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.chain.url.is_empty() && self.validators.is_empty() {
            let text = "without a chain no validator is served: name validators, or set chain.url";
            problems.push(Problem::at("validators", text));
        }
        if !self.chain.url.is_empty() {
            let bad = |url: &String| !url.starts_with("ws://") && !url.starts_with("wss://");
            if bad(&self.chain.url) {
                let text = "must begin with ws:// or wss://, or be empty";
                problems.push(Problem::at("chain.url", text));
            }
            if self.chain.urls.iter().any(bad) {
                problems.push(Problem::at("chain.urls", "must begin with ws:// or wss://"));
            }
            if self.announce.is_none() && self.bind.ip().is_unspecified() {
                let text =
                    "must be set when bind is for every address: validators need one that they can dial";
                problems.push(Problem::at("announce", text));
            }
        }
        problems
    }
}

impl ChainConfig {
    /// Every endpoint, the preferred one first.
    pub fn endpoints(&self) -> Vec<String> {
        std::iter::once(&self.url).chain(&self.urls).cloned().collect()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::new(),
            bind: SocketAddr::from(([127, 0, 0, 1], 8092)),
            announce: None,
            ready_file: None,
            registered: true,
            store: "sqlite:miner.db".to_owned(),
            receipts_dir: PathBuf::from("miner/receipts"),
            validators: vec![],
            blacklist: vec![],
            require_validator_signature: true,
            main_hotkey: None,
            drain_s: 0,
            drain_file: PathBuf::from("miner/drain"),
            http: HttpSettings::default(),
            wallet: WalletPath::default(),
            chain: ChainConfig::default(),
            executor: ExecutorConfig::default(),
            fetch: FetchConfig::default(),
            shares: SharesConfig::default(),
            persistent: PersistentConfig::default(),
            operator: OperatorConfig::default(),
            tls: TlsConfig::default(),
            retention: MinerRetentionConfig::default(),
        }
    }
}

impl Default for MinerRetentionConfig {
    fn default() -> Self {
        Self {
            results_s: 24 * 3600,
            receipts: Keep {
                days: 90,
                rows: 10_000_000,
                mib: 20_480,
            },
            pace: PaceSettings::default(),
        }
    }
}

impl MinerRetentionConfig {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.receipts.problems("retention.receipts", 3);
        if self.results_s < 3600 {
            problems.push(Problem::at(
                "retention.results_s",
                "must be at least an hour (3600)",
            ));
        }
        problems.extend(self.pace.problems("retention.pace"));
        problems
    }
}

impl PersistentConfig {
    /// `host:port` where executors dial; `None` if there are none.
    pub fn address(&self) -> Option<String> {
        let bind = self.bind?;
        Some(if self.announce.is_empty() {
            bind.to_string()
        } else {
            self.announce.clone()
        })
    }
}

impl Default for PersistentConfig {
    fn default() -> Self {
        Self {
            bind: None,
            announce: String::new(),
            roll: PathBuf::from("miner/standing"),
        }
    }
}

impl Default for ChainConfig {
    fn default() -> Self {
        Self {
            url: "ws://127.0.0.1:9944".to_owned(),
            urls: Vec::new(),
            netuid: Netuid(1),
            refresh_s: 12,
        }
    }
}

impl Default for SharesConfig {
    fn default() -> Self {
        Self {
            floor: 1,
            beyond_s: 3600,
            rivals_days: 7,
            unpaid_course_s: 600,
            unpaid_percent: 5,
        }
    }
}

impl Default for FetchConfig {
    fn default() -> Self {
        Self {
            image_s: 3600,
            slots: 4,
            per_account: 2,
            per_registry: 3,
            waiting: 12,
        }
    }
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        Self {
            class: ExecutorClass::AlwaysOnTest,
            count: 1,
            command: vec!["muster".to_owned(), "executor".to_owned()],
            dial: String::new(),
            provision: vec![],
            release: vec![],
            provision_s: 600,
            provisioned: PathBuf::from("miner/provisioned"),
            daily_machine_s: 0,
            startup_s: 30,
            prepare_s: 1200,
            reattach_s: 150,
            lend_s: 0,
            max_skew_ms: 2000,
            pools: vec![],
        }
    }
}

impl RoleConfig for Config {
    const COMMENTED_DEFAULT: &'static str = include_str!("config/commented_default.toml");

    fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    fn place_paths(&mut self, folder: &mut ConfigFolder) {
        self.ready_file.iter_mut().for_each(|path| folder.place(path));
        folder.place_state_url("store", "sqlite", &mut self.store);
        folder.place(&mut self.receipts_dir);
        folder.place(&mut self.drain_file);
        folder.place(&mut self.wallet.root);
        folder.place_state("executor.provisioned", &mut self.executor.provisioned);
        folder.place_state("standing.roll", &mut self.persistent.roll);
        folder.place_state("operator.token", &mut self.operator.token);
        folder.place_state("tls.certificate", &mut self.tls.certificate);
        for pool in &mut self.executor.pools {
            folder.place(&mut pool.slurm.bin);
            folder.place(&mut pool.slurm.conf);
            folder.place(&mut pool.kubernetes.kubeconfig);
            folder.place(&mut pool.kubernetes.template);
        }
    }

    fn validate(&self) -> Vec<Problem> {
        let mut problems = self.http.problems("http");
        problems.extend(if self.registered {
            self.registered_problems()
        } else {
            self.unregistered_problems()
        });
        if self
            .announce
            .is_some_and(|address| address.port() == 0 || address.ip().is_unspecified())
        {
            problems.push(Problem::at(
                "announce",
                "must be an address and port that validators can dial",
            ));
        }
        if self.chain.refresh_s == 0 {
            problems.push(Problem::at("chain.refresh_s", "must be at least 1"));
        }
        problems.extend(self.executor.problems(self.persistent.bind.is_some()));
        if let Some(bind) = self.persistent.bind
            && self.persistent.announce.is_empty()
            && (bind.ip().is_unspecified() || bind.port() == 0)
        {
            let text = "must be set where standing.bind is for every address or any port";
            problems.push(Problem::at("standing.announce", text));
        }
        let fetch = [
            ("fetch.image_s", self.fetch.image_s),
            ("fetch.slots", self.fetch.slots.into()),
            ("fetch.per_account", self.fetch.per_account.into()),
            ("fetch.per_registry", self.fetch.per_registry.into()),
        ];
        for (key, _) in fetch.iter().filter(|(_, value)| *value == 0) {
            problems.push(Problem::at(*key, "must be at least 1"));
        }
        if !(1..=GREETED_DAYS).contains(&self.shares.rivals_days) {
            let text = format!("must be between 1 and {GREETED_DAYS}");
            problems.push(Problem::at("shares.rivals_days", text));
        }
        if self.tls.refuse_plain && !self.tls.enabled {
            let text = "has no effect without tls.enabled";
            problems.push(Problem::at("tls.refuse_plain", text));
        }
        if self.http.tls.is_on() {
            let text = "has no effect at a miner: its port has a certificate of its own, see [tls]";
            problems.push(Problem::at("http.tls", text));
        }
        problems.extend(self.operator.problems());
        problems.extend(self.retention.problems());
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
    fn an_unregistered_miner_works_for_one_validator_and_names_no_chain() {
        let keys = |text: &str| -> Vec<String> {
            match parse::<Config>(text, "miner.toml") {
                Ok(_) => Vec::new(),
                Err(errors) => errors
                    .problems()
                    .iter()
                    .map(|problem| problem.path.clone())
                    .collect(),
            }
        };
        let one = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
        let two = "5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty";
        let alone = format!("registered = false\nvalidators = [\"{one}\"]\n");
        assert_eq!(keys(&alone), Vec::<String>::new());
        let parsed = parse::<Config>(&alone, "miner.toml").unwrap();
        assert!(!parsed.follows_chain() && Config::default().follows_chain());
        // It need not be found by strangers.
        assert_eq!(
            keys(&format!("{alone}bind = \"0.0.0.0:1\"")),
            Vec::<String>::new()
        );
        assert_eq!(keys("registered = false"), ["validators"]);
        let of_two = format!("registered = false\nvalidators = [\"{one}\", \"{two}\"]");
        assert_eq!(keys(&of_two), ["validators"]);
        let contradictory = format!(
            "{alone}blacklist = [\"{one}\"]\nannounce = \"203.0.113.7:1\"\nmain_hotkey = \"{two}\"\n[chain]\nurl = \
             \"wss://chain.example\"\nurls = [\"wss://b.example\"]"
        );
        assert_eq!(
            keys(&contradictory),
            ["blacklist", "chain.url", "chain.urls", "announce", "main_hotkey"]
        );
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let text = "bind = \"0.0.0.0:1\"\n[executor]\ncount = 0\ncommand = []\n[chain]\nurl = \"http://x\"";
        let errors = parse::<Config>(text, "miner.toml").unwrap_err();
        let keys: Vec<_> = errors
            .problems()
            .iter()
            .map(|problem| problem.path.as_str())
            .collect();
        assert_eq!(
            keys,
            ["chain.url", "announce", "executor.count", "executor.command"]
        );
        let retention = "[retention]\nresults_s = 1\nreceipts = { days = 2, rows = 0, mib = 1 }";
        let errors = parse::<Config>(retention, "miner.toml").unwrap_err();
        let keys: Vec<_> = errors
            .problems()
            .iter()
            .map(|problem| problem.path.as_str())
            .collect();
        assert_eq!(
            keys,
            [
                "retention.receipts.days",
                "retention.receipts.rows",
                "retention.results_s"
            ]
        );
        let alone = parse::<Config>("[chain]\nurl = \"\"", "miner.toml").unwrap_err();
        assert_eq!(alone.problems()[0].path, "validators");
    }
}
